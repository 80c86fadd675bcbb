# SPDX-License-Identifier: Apache-2.0
"""Makes certificates for tests: a CA, what it signs, and contexts of servers and clients. In milliseconds."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
import tempfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

NOW = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
DAY = datetime.timedelta(days=1)


class Made(NamedTuple):
    """A certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.DER)

    @property
    def pem(self) -> str:
        return self.certificate.public_bytes(serialization.Encoding.PEM).decode()

    def key_pem(self, password: str | None = None, form: str = "PKCS8") -> str:
        encryption = (
            serialization.NoEncryption()
            if password is None
            else serialization.BestAvailableEncryption(password.encode())
        )
        formats = {
            "PKCS8": serialization.PrivateFormat.PKCS8,
            "traditional": serialization.PrivateFormat.TraditionalOpenSSL,
        }
        return self.key.private_bytes(serialization.Encoding.PEM, formats[form], encryption).decode()


def subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def make(
    name: str,
    signer: Made | None = None,
    names: tuple[str, ...] = (),
    start: datetime.datetime = NOW - DAY,
    end: datetime.datetime = NOW + 30 * DAY,
    is_ca: bool = False,
) -> Made:
    """A certificate; signed by itself where nobody else does it."""
    key = ec.generate_private_key(ec.SECP256R1())
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject(name))
        .issuer_name(signer.certificate.subject if signer else subject(name))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
    )
    if names:
        builder = builder.add_extension(
            x509.SubjectAlternativeName([alternative(each) for each in names]), critical=False
        )
    return Made(builder.sign(signer.key if signer else key, hashes.SHA256()), key)


def revocation_list(ca: Made, revoked: tuple[Made, ...] = ()) -> str:
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(ca.certificate.subject)
        .last_update(NOW - DAY)
        .next_update(NOW + DAY)
    )
    for each in revoked:
        builder = builder.add_revoked_certificate(
            x509.RevokedCertificateBuilder()
            .serial_number(each.certificate.serial_number)
            .revocation_date(NOW - DAY)
            .build()
        )
    return builder.sign(ca.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


@cache
def the_ca() -> Made:
    return make("Test CA", is_ca=True)


@cache
def other_ca() -> Made:
    return make("Other CA", is_ca=True)


@cache
def broker() -> Made:
    return make("broker", the_ca(), ("localhost", "broker.example", "127.0.0.1", "::1"))


@cache
def client() -> Made:
    return make("client", the_ca())


def server_context(
    made: Made | None = None,
    wants_client_of: Made | None = None,
    version: ssl.TLSVersion | None = None,
    chain: tuple[Made, ...] = (),
    ciphers: str | None = None,
) -> ssl.SSLContext:
    """What a broker would have."""
    made = made or broker()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "server.pem")
        place.write_text(made.key_pem() + made.pem + "".join(each.pem for each in chain))
        context.load_cert_chain(place)
    if wants_client_of is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=wants_client_of.pem)
    if version is not None:
        context.minimum_version = context.maximum_version = version
    if ciphers is not None:
        context.set_ciphers(ciphers)
    return context


def client_context(*trusted: Made, identity: Made | None = None) -> ssl.SSLContext:
    """What a client would have, made without the code under test."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for each in trusted or (the_ca(),):
        context.load_verify_locations(cadata=each.pem)
    if identity is not None:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder, "client.pem")
            place.write_text(identity.key_pem() + identity.pem)
            context.load_cert_chain(place)
    return context
