# SPDX-License-Identifier: Apache-2.0
"""PKCS#12, the key store of Java since version 9 and of OpenSSL. Needs the package `cryptography`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock._extras import how_to_install
from penstock.security.tls import der
from penstock.security.tls.material import MOST_CERTIFICATES, Certificate, Identity, StoreError
from penstock.security.tls.safes import NotOpenedError, check_safes

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12KeyAndCertificates

_CONVERT = (
    f"PKCS#12 needs the package cryptography: {how_to_install('pkcs12', 'cryptography')}. Or convert the file to PEM: "
    "openssl pkcs12 -in store.p12 -out store.pem -nodes (and -legacy for old files under OpenSSL 3)"
)
# OpenSSL follows as many when it checks one.
_MOST_CHAIN = 100


def looks_like_pkcs12(data: bytes) -> bool:
    """Whether it begins as such a store does: a sequence that begins with the version 3. A certificate does not."""
    try:
        outer = der.element_at(data, 0, len(data))
    except StoreError:
        # A length that is not there: a store that was cut, or whatever else.
        outer = der.Element(data[0], 4, len(data)) if data[:1] == b"\x30" else der.Element(0, 0, 0)
    return outer.tag == der.SEQUENCE and data[outer.start : outer.start + 3] == b"\x02\x01\x03"


def check(data: bytes, password: str) -> None:
    """Make sure that a store is whole, and that the password is its own.

    Raises:
        StoreError: it is damaged, or the password is wrong, or the package is not there.
    """
    _load(data, password)


def read_trusted(data: bytes, password: str | None) -> list[Certificate]:
    """All certificates of a store.

    Raises:
        StoreError: it is damaged, or the password is wrong, or the package is not there.
    """
    store = _load(data, password)
    found = [] if store.cert is None else [store.cert]
    return [
        Certificate(f"certificate {at}", _der(each.certificate))
        for at, each in enumerate((*found, *store.additional_certs), 1)
    ]


def read_identity(data: bytes, password: str | None) -> Identity:
    """The private key of a store and its chain.

    Raises:
        StoreError: as above, or there is no key, or no certificate for it.
    """
    store = _load(data, password)
    from cryptography.hazmat.primitives import serialization

    if store.key is None:
        raise StoreError("there is no private key in it; is it a trust store?")
    if store.cert is None:
        raise StoreError("there is no certificate for the private key in it")
    key = store.key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    chain = _in_order(store.cert.certificate, [each.certificate for each in store.additional_certs])
    return Identity(
        key.decode(), None, [Certificate(f"certificate {at}", _der(each)) for at, each in enumerate(chain, 1)]
    )


def _load(data: bytes, password: str | None) -> PKCS12KeyAndCertificates:
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.serialization import pkcs12
    except ImportError:
        raise StoreError(_CONVERT) from None
    tried: tuple[Any, ...] = (None, b"") if password is None else (password.encode(errors="surrogatepass"),)
    for secret in tried:
        try:
            check_safes(data, secret or b"")
            store = pkcs12.load_pkcs12(data, secret)
        except UnsupportedAlgorithm as error:
            raise StoreError(f"it is encrypted in a way that is not supported: {error}") from None
        except StoreError:
            raise
        except (NotOpenedError, ValueError, TypeError):
            continue  # told below; the text may be about the password
        if len(store.additional_certs) > MOST_CERTIFICATES:
            raise StoreError(f"there are more than {MOST_CERTIFICATES} certificates in it")
        return store
    if password is None:
        raise StoreError("its password is needed, or it is damaged", "password")
    raise StoreError("the password of the store is wrong, or the file is damaged", "password")


def _in_order(own: x509.Certificate, others: list[x509.Certificate]) -> list[x509.Certificate]:
    """The chain from the own certificate upwards; a store has it in any order."""
    by_subject: dict[x509.Name, list[x509.Certificate]] = {}
    for each in others:
        by_subject.setdefault(each.subject, []).append(each)
    chain = [own]
    while len(chain) <= _MOST_CHAIN:
        above = next((each for each in by_subject.get(chain[-1].issuer, ()) if each not in chain), None)
        if above is None:
            return chain
        chain.append(above)
    raise StoreError(f"the chain of its certificate has more than {_MOST_CHAIN} certificates")


def _der(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.DER)
