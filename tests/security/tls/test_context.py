# SPDX-License-Identifier: Apache-2.0
"""From options to a working handshake: every kind of store, what is wrong with it in words, and files that change."""

from __future__ import annotations

import base64
import builtins
import logging
import os
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import replace as replaced
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import NoEncryption, pkcs12
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from security.tls.certificates import (
    DAY,
    NOW,
    Made,
    broker,
    client,
    client_context,
    make,
    other_ca,
    revocation_list,
    server_context,
    the_ca,
)
from security.tls.stores import KEY_PASSWORD, STORE_PASSWORD, TRUST_PASSWORD, Stores
from security.tls.wires import TlsPeer, Wire, shake

from penstock.config.files import UnreadableError
from penstock.config.kinds import Password
from penstock.errors import ConfigError
from penstock.security.tls import der, material
from penstock.security.tls._transport_cy import TlsTransport
from penstock.security.tls.context import TlsContext
from penstock.security.tls.errors import TlsRefusedError
from penstock.security.tls.material import StoreError
from penstock.security.tls.pkcs12 import read_identity
from penstock.security.tls.settings import TlsSettings

SECRETS = (STORE_PASSWORD, KEY_PASSWORD, TRUST_PASSWORD)


def options(**given: Any) -> TlsSettings:
    """Settings in which text stands for a password where one is wanted, and a path for its name."""
    for name, value in given.items():
        if isinstance(value, Path):
            given[name] = str(value)
        elif isinstance(value, str) and name.endswith(("_pem", "_password")):
            given[name] = Password(value)
    return TlsSettings(**given)


def connect(
    context: TlsContext | TlsSettings, server: ssl.SSLContext | None = None, host: str = "localhost"
) -> TlsPeer:
    """A handshake, and a message each way, so that both sides have accepted each other."""
    if isinstance(context, TlsSettings):
        context = TlsContext(context)
    wire = Wire()
    transport = TlsTransport(wire, context.current(), host)
    peer = TlsPeer(wire, server or server_context())
    shake(transport, peer, 50)
    transport.send_some([b"question"])
    peer.turn()
    if peer.refused is None:
        peer.say(b"answer")
    assert transport.recv_some(100) == b"answer"
    assert peer.received == b"question"
    return peer


def wrong(given: TlsSettings, option: str, *words: str) -> str:
    with pytest.raises(ConfigError) as caught:
        TlsContext(given)
    text = str(caught.value)
    assert caught.value.option == option
    assert text.startswith(f"{option}: ")
    for word in words:
        assert word in text
    for secret in SECRETS:
        assert secret not in text
    assert caught.value.__cause__ is None or isinstance(caught.value.__cause__, OSError | ValueError)
    return text


def common_name(peer: TlsPeer) -> str:
    shown = peer.tls.getpeercert()
    assert shown
    return dict(part[0] for part in shown["subject"])["commonName"]


MUTUAL = {"wants_client_of": the_ca()}


def one_line(text: str) -> str:
    return text.strip().replace("\n", " ")


# ---- trust


@pytest.mark.parametrize(
    "text",
    [
        the_ca().pem,
        one_line(the_ca().pem),
        the_ca().pem.replace("\n", "\\n"),
        the_ca().pem.replace("\n", "\r\n"),
        the_ca().pem.replace("\n", ""),
        the_ca().pem.rstrip(),
        "   " + the_ca().pem.replace("\n", "\n    "),
        "subject=CN = Test CA\n\n" + the_ca().pem + "the end",
        other_ca().pem + the_ca().pem,
        one_line(other_ca().pem) + " " + one_line(the_ca().pem),
        one_line(other_ca().pem) + one_line(the_ca().pem),
        the_ca().pem.replace("-----\n", "-----\nName: value\n", 1),
    ],
)
def test_trusted_certificates_as_text(text: str, tmp_path: Path):
    connect(options(trust_pem=text))
    (tmp_path / "ca").write_text(text)
    connect(options(trust_location=tmp_path / "ca"))


def test_the_systems_roots_are_the_default_and_no_test_is_among_them():
    with pytest.raises(TlsRefusedError, match="not signed by a CA that is trusted"):
        connect(TlsSettings())


def test_given_certificates_are_trusted_in_place_of_the_systems():
    with pytest.raises(TlsRefusedError):
        connect(options(trust_pem=other_ca().pem))
    assert len(TlsContext(options(trust_pem=other_ca().pem)).current().get_ca_certs()) == 1


def test_the_brokers_own_certificate_can_be_trusted_without_its_ca():
    connect(options(trust_pem=broker().pem))


def test_a_certificate_as_bytes(tmp_path: Path):
    (tmp_path / "ca.cer").write_bytes(the_ca().der)
    connect(options(trust_location=tmp_path / "ca.cer"))


@pytest.mark.parametrize("password", [TRUST_PASSWORD, None])
def test_a_trust_store_of_java(stores: Stores, password: str | None):
    connect(options(trust_location=stores.jks_trust, trust_password=password))


@pytest.mark.parametrize("kind", ["JKS", "PKCS12", None])
def test_a_trust_store_in_pkcs12_whatever_it_is_called(stores: Stores, kind: str | None):
    connect(options(trust_location=stores.p12_trust, trust_password=TRUST_PASSWORD, trust_type=kind))


def test_the_certificate_of_a_key_in_a_trust_store_is_trusted(stores: Stores):
    server = server_context(client())
    for place in (stores.jks_key, stores.p12_key):
        connect(options(trust_location=place, trust_password=STORE_PASSWORD, check_hostname=False), server)


def test_a_directory_of_certificates(tmp_path: Path):
    text = wrong(options(trust_location=tmp_path), "ssl.truststore.location", "openssl rehash")
    assert str(tmp_path) in text
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=the_ca().pem)
    # The name that OpenSSL looks for is a hash of the subject; `openssl rehash` knows it.
    (tmp_path / "ca.pem").write_text(the_ca().pem)
    if os.system(f"openssl rehash {tmp_path} > /dev/null 2>&1"):
        pytest.skip("openssl is not there")
    connect(options(trust_location=tmp_path))


# ---- identity


@pytest.mark.parametrize("form", ["PKCS8", "traditional"])
@pytest.mark.parametrize("password", [KEY_PASSWORD, None])
@pytest.mark.parametrize("layout", [str, one_line])
def test_a_key_as_text(form: str, password: str | None, layout: Any, tmp_path: Path):
    key, chain = layout(client().key_pem(password, form)), layout(client().pem)
    trust = {"trust_pem": the_ca().pem, "key_password": password}
    given = options(key_pem=key, certificate_pem=chain, **trust)
    assert common_name(connect(given, server_context(**MUTUAL))) == "client"
    (tmp_path / "key").write_text(key)
    (tmp_path / "chain").write_text(chain)
    (tmp_path / "both").write_text(f"{chain}\n{key}")
    for places in (
        {"key_location": tmp_path / "key", "certificate_location": tmp_path / "chain"},
        {"certificate_location": tmp_path / "both"},
        {"store_location": tmp_path / "both"},
    ):
        assert common_name(connect(options(**places, **trust), server_context(**MUTUAL))) == "client"


def test_a_password_for_a_key_that_has_none_is_refused(tmp_path: Path):
    text = {"key_pem": client().key_pem(), "certificate_pem": client().pem, "key_password": "x"}
    wrong(options(**text), "ssl.key.password", "is not encrypted", "leave it out")
    both = file_with(tmp_path, client().pem + client().key_pem())
    for way in ("store_location", "certificate_location"):
        wrong(options(**{way: both}, key_password="x"), "ssl.key.password", "is not encrypted", str(both))


def test_types_and_passwords_must_fit_what_the_file_holds(stores: Stores, tmp_path: Path):
    trust, key = tmp_path / "ca", tmp_path / "client"
    trust.write_text(the_ca().pem)
    key.write_text(client().pem + client().key_pem())
    for kind in ("JKS", "PKCS12"):
        wrong(options(trust_location=trust, trust_type=kind), "ssl.truststore.type", "it is PEM", kind)
        given = options(store_location=key, store_type=kind, store_password="x")
        wrong(given, "ssl.keystore.type", "it is PEM", kind, "set it to PEM")
        wrong(options(trust_location=tmp_path, trust_type=kind), "ssl.truststore.type", "a directory of PEM")
    for store in (stores.jks_key, stores.p12_key):
        wrong(options(store_location=store, store_type="PEM"), "ssl.keystore.type", "set it to JKS or PKCS12")
        for kind in ("JKS", "PKCS12"):
            TlsContext(options(store_location=store, store_type=kind, store_password=STORE_PASSWORD))
    wrong(options(trust_location=trust, trust_password="x"), "ssl.truststore.password", "it is PEM")
    wrong(options(trust_location=tmp_path, trust_password="x"), "ssl.truststore.password", "a directory")
    wrong(options(store_location=key, store_password="x"), "ssl.keystore.password", "it is PEM")
    der = file_with(tmp_path, the_ca().der)
    wrong(options(trust_location=der, trust_password="x"), "ssl.truststore.password", "in DER")
    wrong(options(store_location=der), "ssl.keystore.location", "it is a certificate")
    TlsContext(options(trust_location=trust, trust_type="PEM"))
    other = options(store_location=stores.p12_key, store_password=STORE_PASSWORD, key_password=KEY_PASSWORD)
    wrong(other, "ssl.key.password", "has the password of the store")


@pytest.mark.parametrize(
    ("store", "key_password"),
    [("jks_key", None), ("jks_key", STORE_PASSWORD), ("jks_other_password", KEY_PASSWORD), ("p12_key", None)],
)
def test_key_stores_of_java(stores: Stores, store: str, key_password: str | None):
    given = options(
        trust_pem=the_ca().pem,
        store_location=getattr(stores, store),
        store_password=STORE_PASSWORD,
        key_password=key_password,
    )
    assert common_name(connect(given, server_context(**MUTUAL))) == "client"


def test_the_whole_chain_is_sent(tmp_path: Path):
    between = make("Between", the_ca(), is_ca=True)
    leaf = make("leaf", between)
    given = options(
        trust_pem=the_ca().pem,
        key_pem=leaf.key_pem(),
        certificate_pem=one_line(leaf.pem) + one_line(between.pem),
    )
    assert common_name(connect(given, server_context(**MUTUAL))) == "leaf"


def test_without_memory_files_a_temporary_file_serves_and_is_gone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.setattr(material.tempfile, "tempdir", str(tmp_path))
    modes = []
    server = server_context(**MUTUAL)
    load = ssl.SSLContext.load_cert_chain

    def looking(self: ssl.SSLContext, name: str, **rest: Any) -> None:
        modes.append(os.stat(name).st_mode & 0o777)
        load(self, name, **rest)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", looking)
    given = options(trust_pem=the_ca().pem, key_pem=client().key_pem(), certificate_pem=client().pem)
    assert common_name(connect(given, server)) == "client"
    assert modes == [0o600]
    assert list(tmp_path.iterdir()) == []


def test_no_file_stays_open():
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    given = options(trust_pem=the_ca().pem, key_pem=client().key_pem(), certificate_pem=client().pem)
    TlsContext(given)
    before = count()
    for _ in range(5):
        TlsContext(given)
    assert count() == before


# ---- what is wrong, in words


def file_with(tmp_path: Path, content: bytes | str) -> Path:
    place = tmp_path / "the file"
    place.write_bytes(content if isinstance(content, bytes) else content.encode())
    return place


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b" \n ", "is empty"),
        (b"\x00\x01\x02\x03rest", "begins with the bytes 00 01 02 03"),
        (client().key_pem(), "no CERTIFICATE in it, only PRIVATE KEY"),
        (
            the_ca().pem[:-30],
            "block 1 (line 1), a CERTIFICATE, has no '-----END CERTIFICATE-----'; is it cut?",
        ),
        ("x\n" + the_ca().pem + the_ca().pem[:200], "block 2 (line"),
        (the_ca().pem.replace("MII", "M!I", 1), "is not base64"),
        ("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n", "is not whole"),
        ("-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n", "block 1 (line 1) is damaged"),
        ("-----BEGIN " + "X" * 1000, "no '-----' behind its BEGIN"),
        (the_ca().der[:-1], "the certificate is damaged"),
        (b"\xfe\xed\xfe\xed", "a JKS store has more than 4 bytes"),
        (b"\xce\xce\xce\xce" + bytes(100), "keytool -importkeystore"),
        (b"\xfe\xed\xfe\xed\0\0\0\x07" + bytes(100), "JKS version 7 is not known"),
    ],
)
def test_files_that_are_no_trust_store(tmp_path: Path, content: bytes | str, words: str):
    place = file_with(tmp_path, content)
    wrong(options(trust_location=place), "ssl.truststore.location", repr(str(place)), words)


def test_files_that_cannot_be_read(tmp_path: Path):
    wrong(options(trust_location=tmp_path / "none"), "ssl.truststore.location", "No such file")
    os.mkfifo(tmp_path / "pipe")
    wrong(options(trust_location=tmp_path / "pipe"), "ssl.truststore.location", "is not a file")
    wrong(options(store_location=tmp_path), "ssl.keystore.location", "is not a file")
    wrong(options(trust_location="a\0b"), "ssl.truststore.location", "cannot be read")
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(1 << 40)
    wrong(options(store_location=large), "ssl.keystore.location", "more than")


def test_texts_name_their_options():
    wrong(
        options(trust_pem="nothing"),
        "ssl.truststore.certificates",
        "no CERTIFICATE in it, and no other block",
    )
    chain = client().pem
    wrong(
        options(key_pem=chain, certificate_pem=chain),
        "ssl.keystore.key",
        "no PRIVATE KEY in it, only CERTIFICATE",
    )
    key = client().key_pem()
    wrong(options(key_pem=key, certificate_pem=key), "ssl.keystore.certificate.chain", "no CERTIFICATE")
    wrong(options(key_pem=key + key, certificate_pem=chain), "ssl.keystore.key", "2 private keys")
    wrong(
        options(key_pem=key, certificate_pem=the_ca().pem), "ssl.keystore.key", "does not belong to the first"
    )


def test_passwords_of_keys():
    key, chain = client().key_pem(KEY_PASSWORD), client().pem
    wrong(options(key_pem=key, certificate_pem=chain), "ssl.key.password", "is encrypted")
    for password in ("wrong", "", "\ud800", "x" * 1023):
        wrong(
            options(key_pem=key, certificate_pem=chain, key_password=password), "ssl.key.password", "is wrong"
        )
    wrong(
        options(key_pem=key, certificate_pem=chain, key_password="x" * 1025),
        "ssl.key.password",
        "longer than 1024",
    )


def test_passwords_of_stores(stores: Stores):
    for store in (stores.jks_key, stores.p12_key):
        wrong(options(store_location=store, store_password="wrong"), "ssl.keystore.password", "is wrong")
        wrong(options(store_location=store), "ssl.keystore.password", "password is needed")
    for store in (stores.jks_trust, stores.p12_trust):
        wrong(options(trust_location=store, trust_password="wrong"), "ssl.truststore.password", "is wrong")
    wrong(options(trust_location=stores.p12_trust), "ssl.truststore.password", "password is needed")
    other = stores.jks_other_password
    wrong(
        options(store_location=other, store_password=STORE_PASSWORD), "ssl.key.password", "'client' is wrong"
    )


def test_stores_without_the_one_key(stores: Stores):
    trust = {"store_password": TRUST_PASSWORD}
    for store in (stores.jks_trust, stores.p12_trust):
        wrong(options(store_location=store, **trust), "ssl.keystore.location", "no private key in it")
    two = options(store_location=stores.jks_two_keys, store_password=STORE_PASSWORD)
    wrong(two, "ssl.keystore.location", "2 private keys in it ('client', 'second')")
    wrong(options(store_location=stores.jceks), "ssl.keystore.location", "JCEKS")


def test_pkcs12_without_its_package(stores: Stores, monkeypatch: pytest.MonkeyPatch):
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("cryptography"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    given = options(trust_location=stores.p12_trust, trust_password=TRUST_PASSWORD)
    wrong(given, "ssl.truststore.location", "'.[pkcs12]'", "openssl pkcs12 -in")
    given = options(store_location=stores.p12_key, store_password=STORE_PASSWORD)
    wrong(given, "ssl.keystore.location", "'.[pkcs12]'")


def test_a_context_of_the_users():
    mine = client_context()
    context = TlsContext(TlsSettings(ready_context=mine))
    assert context.current() is mine
    connect(context)


def test_no_secret_is_shown(stores: Stores):
    given = options(
        trust_pem=the_ca().pem,
        key_pem=client().key_pem(KEY_PASSWORD),
        certificate_pem=client().pem,
        key_password=KEY_PASSWORD,
    )
    shown = repr(given) + repr(TlsContext(given))
    assert KEY_PASSWORD not in shown
    assert "PRIVATE KEY" not in shown


# ---- versions and suites


@pytest.mark.parametrize(
    ("protocol", "enabled", "low", "high"),
    [
        ("TLSv1.3", ("TLSv1.2", "TLSv1.3"), "TLSv1_2", "TLSv1_3"),
        ("TLSv1.2", ("TLSv1.2", "TLSv1.3"), "TLSv1_2", "TLSv1_2"),
        ("TLSv1.3", ("TLSv1.3",), "TLSv1_3", "TLSv1_3"),
        ("TLSv1.3", ("TLSv1.2",), "TLSv1_2", "TLSv1_2"),
        ("TLSv1.3", ("TLSv1.3", "TLSv1.2"), "TLSv1_2", "TLSv1_3"),
    ],
)
def test_versions(protocol: str, enabled: tuple[str, ...], low: str, high: str):
    context = TlsContext(TlsSettings(protocol=protocol, enabled_protocols=enabled)).current()
    assert (context.minimum_version.name, context.maximum_version.name) == (low, high)


# ---- the server's certificate


def refused(given: TlsSettings, server: ssl.SSLContext, host: str = "localhost") -> TlsRefusedError:
    with pytest.raises(TlsRefusedError) as caught:
        connect(given, server, host)
    return caught.value


TRUST = options(trust_pem=the_ca().pem)


@pytest.mark.parametrize("of_the_chain", [False, True])
def test_certificates_outside_of_their_time(of_the_chain: bool):
    for start, end, words in (
        (NOW - 3 * DAY, NOW - 2 * DAY, "has expired"),
        (NOW + 2 * DAY, NOW + 3 * DAY, "is not valid yet"),
    ):
        times = {"start": start, "end": end}
        between = make("Between", the_ca(), is_ca=True, **(times if of_the_chain else {}))
        leaf = make("leaf", between, ("localhost",), **({} if of_the_chain else times))
        error = refused(TRUST, server_context(leaf, chain=(between,)))
        whose = "CN=Between" if of_the_chain else "CN=leaf"
        assert (
            f"({whose}) {words}: it is valid from {start:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC"
            in str(error)
        )
        assert "the clock of this machine says" in str(error)
        assert "clock" in error.advice


def test_a_certificate_of_others_is_shown_with_its_names_in_bounds():
    names = tuple(f"host{at}.example" for at in range(30))
    error = refused(TRUST, server_context(make("x", the_ca(), names)))
    assert "host9.example and 20 more" in str(error)
    error = refused(TRUST, server_context(make("only a common name", the_ca())))
    assert "no subject alternative names, only CN=only a common name" in str(error)
    nasty = make("\x1b[2J\nname", the_ca(), ("other.example",))
    error = refused(options(trust_pem=other_ca().pem), server_context(nasty))
    assert "\x1b" not in str(error)
    assert "\n" not in str(error)


def test_the_check_of_names_can_be_turned_off_alone():
    server = server_context(make("x", the_ca(), ("other.example",)))
    refused(TRUST, server)
    connect(options(trust_pem=the_ca().pem, check_hostname=False), server)
    refused(options(trust_pem=other_ca().pem, check_hostname=False), server)


def test_revoked_certificates(tmp_path: Path):
    place = tmp_path / "crl.pem"

    def given() -> TlsSettings:
        return options(trust_pem=the_ca().pem, crl_location=place)

    place.write_text(revocation_list(the_ca(), (client(),)))
    connect(given())
    place.write_text(revocation_list(the_ca(), (broker(),)))
    error = refused(given(), server_context())
    assert "revoked" in str(error)
    assert "ssl.crl.location" in error.advice
    place.write_text(revocation_list(other_ca()))
    assert "ssl.crl.location" in refused(given(), server_context()).advice
    place.write_text(the_ca().pem)
    wrong(given(), "ssl.crl.location", "no X509 CRL in it, only CERTIFICATE")
    place.write_text("-----BEGIN X509 CRL-----\nMAA=\n-----END X509 CRL-----\n")
    wrong(given(), "ssl.crl.location", "damaged")


# ---- files that change


def replace(place: Path, text: str) -> None:
    new = place.with_suffix(".new")
    new.write_text(text)
    new.replace(place)


def test_a_replaced_certificate_is_used_by_the_next_connection(tmp_path: Path):
    place = tmp_path / "client.pem"
    place.write_text(client().key_pem() + client().pem)
    context = TlsContext(options(trust_pem=the_ca().pem, store_location=place))
    first = context.current()
    assert context.current() is first
    assert common_name(connect(context, server_context(**MUTUAL))) == "client"
    second = make("second", the_ca())
    replace(place, second.key_pem() + second.pem)
    assert common_name(connect(context, server_context(**MUTUAL))) == "second"
    assert context.current() is not first


def test_a_file_that_cannot_be_read_any_more_keeps_the_old(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    place = tmp_path / "ca.pem"
    place.write_text(the_ca().pem)
    context = TlsContext(options(trust_location=place))
    with caplog.at_level(logging.INFO, "penstock.security"):
        for bad in (the_ca().pem[:100], None):
            caplog.clear()
            place.unlink() if bad is None else replace(place, bad)
            connect(context)
            connect(context)
            (warning,) = caplog.records
            assert warning.levelno == logging.WARNING
            assert "ssl.truststore.location" in warning.getMessage()
        replace(place, other_ca().pem)
        with pytest.raises(TlsRefusedError):
            connect(context)


def test_key_and_certificate_may_be_replaced_one_after_the_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    key, chain = tmp_path / "key.pem", tmp_path / "chain.pem"
    key.write_text(client().key_pem())
    chain.write_text(client().pem)
    context = TlsContext(options(trust_pem=the_ca().pem, key_location=key, certificate_location=chain))
    second = make("second", the_ca())
    replace(key, second.key_pem())
    assert common_name(connect(context, server_context(**MUTUAL))) == "client"
    replace(chain, second.pem)
    assert common_name(connect(context, server_context(**MUTUAL))) == "second"
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_new_key_whose_password_comes_later_is_used_then(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    place, password = tmp_path / "client.pem", tmp_path / "password"
    second = make("second", the_ca())
    place.write_text(client().key_pem("old-S3cret") + client().pem)
    password.write_text("old-S3cret")
    given = options(trust_pem=the_ca().pem, store_location=place)
    given = replaced(given, key_password=Password("old-S3cret", password.read_text))
    context = TlsContext(given)
    with caplog.at_level(logging.INFO, "penstock.security"):
        replace(place, second.key_pem("new-S3cret") + second.pem)
        for _ in range(3):
            assert common_name(connect(context, server_context(**MUTUAL))) == "client"
        replace(password, "new-S3cret")
        assert common_name(connect(context, server_context(**MUTUAL))) == "second"
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    used = context.current()
    assert context.current() is used, "what is in use is not read again"


def test_a_password_that_comes_before_its_key_is_no_trouble(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    place, password = tmp_path / "client.pem", tmp_path / "password"
    second = make("second", the_ca())
    place.write_text(client().key_pem("old-S3cret") + client().pem)
    password.write_text("old-S3cret")
    given = options(trust_pem=the_ca().pem, store_location=place)
    given = replaced(given, key_password=Password("old-S3cret", password.read_text))
    context = TlsContext(given)
    replace(password, "new-S3cret")
    assert common_name(connect(context, server_context(**MUTUAL))) == "client"
    replace(place, second.key_pem("new-S3cret") + second.pem)
    assert common_name(connect(context, server_context(**MUTUAL))) == "second"
    assert not caplog.records


def test_a_file_that_cannot_be_read_once_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    place = tmp_path / "ca.pem"
    place.write_text(the_ca().pem)
    context = TlsContext(options(trust_location=place))
    first = context.current()

    def no_more_files(path: str, most: int) -> bytes:
        raise UnreadableError("cannot be read: Too many open files")

    replace(place, other_ca().pem)
    with monkeypatch.context() as patch:
        patch.setattr("penstock.security.tls.context.read_file", no_more_files)
        assert context.current() is first
    assert context.current() is not first


def test_a_change_of_who_may_read_a_file_is_seen(tmp_path: Path):
    place = tmp_path / "ca.pem"
    place.write_text(the_ca().pem)
    context = TlsContext(options(trust_location=place))
    first = context.current()
    time.sleep(0.02)  # the clock of a file system is coarse
    place.chmod(0o640)
    assert context.current() is not first


def test_texts_in_files_are_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    key, chain = tmp_path / "key.pem", tmp_path / "chain.pem"
    key.write_text(client().key_pem())
    chain.write_text(client().pem)
    given = replaced(
        options(trust_pem=the_ca().pem),
        key_pem=Password(key.read_text(), key.read_text),
        certificate_pem=Password(chain.read_text(), chain.read_text),
    )
    context = TlsContext(given)
    first = context.current()
    assert context.current() is first
    second = make("second", the_ca())
    replace(key, second.key_pem())
    assert common_name(connect(context, server_context(**MUTUAL))) == "client"
    replace(chain, second.pem)
    assert common_name(connect(context, server_context(**MUTUAL))) == "second"
    assert [record.levelname for record in caplog.records] == ["WARNING"]


class Slow:
    """Runs work aside when the test says so."""

    def __init__(self) -> None:
        self.given: list[Callable[[], None]] = []

    def __call__(self, work: Callable[[], None]) -> None:
        self.given.append(work)

    def finish(self) -> None:
        work = self.given.pop(0)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()


def test_files_are_looked_at_aside_and_what_takes_long_serves_the_next_connection(tmp_path: Path):
    place = tmp_path / "ca.pem"
    place.write_text(the_ca().pem)
    slow = Slow()
    context = TlsContext(options(trust_location=place), slow, patience=0.01)
    first = context.current()
    slow.finish()
    replace(place, other_ca().pem)
    began = time.monotonic()
    for _ in range(3):
        assert context.current() is first, "the old one meanwhile"
    assert time.monotonic() - began < 30
    assert len(slow.given) == 1, "one look at a time"
    slow.finish()
    second = context.current()
    assert second is not first
    slow.finish()
    assert context.current() is second
    slow.finish()


def test_a_look_that_is_quick_serves_this_connection(tmp_path: Path):
    place = tmp_path / "ca.pem"
    place.write_text(the_ca().pem)

    def soon(work: Callable[[], None]) -> None:
        threading.Timer(0.01, work).start()

    context = TlsContext(options(trust_location=place), soon, patience=60.0)
    first = context.current()
    replace(place, other_ca().pem)
    assert context.current() is not first


def test_a_look_that_hangs_is_given_up_and_its_late_result_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    place = tmp_path / "ca.pem"
    place.write_text(the_ca().pem)
    slow = Slow()
    context = TlsContext(options(trust_location=place), slow, patience=0.0)
    context.current()
    replace(place, other_ca().pem)
    now = time.monotonic()
    monkeypatch.setattr("penstock.security.tls.context.time.monotonic", lambda: now + 61)
    old = context.current()
    stuck, new = slow.given
    slow.given = [new]
    slow.finish()
    third = context.current()
    assert third is not old
    replace(place, the_ca().pem)
    stuck()
    assert context.current() is third
    monkeypatch.undo()


def test_without_files_nothing_is_looked_at():
    slow = Slow()
    context = TlsContext(options(trust_pem=the_ca().pem), slow)
    assert context.current() is context.current()
    assert not slow.given


# ---- rubbish


SAMPLES: dict[str, bytes] = {}


def sample(stores: Stores, name: str) -> bytes:
    if name not in SAMPLES:
        text = client().key_pem(KEY_PASSWORD) + client().pem
        SAMPLES[name] = text.encode() if name == "pem" else getattr(stores, name).read_bytes()
    return SAMPLES[name]


def anything_but_a_crash(place: Path, content: bytes) -> None:
    place.write_bytes(content)
    identity = {"store_password": STORE_PASSWORD, "key_password": KEY_PASSWORD, "trust_pem": the_ca().pem}
    for tried in (
        options(trust_location=place, trust_password=STORE_PASSWORD),
        options(trust_location=place),
        options(store_location=place, **identity),
    ):
        told = _told(tried)
        assert told is None or str(place) in told
        assert len(told or "") < 1000
        assert not any(secret in (told or "") for secret in SECRETS)


def _told(tried: TlsSettings) -> str | None:
    try:
        TlsContext(tried)
    except ConfigError as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", ["pem", "jks_key", "p12_key", "jks_trust", "p12_trust"])
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_stores_that_are_damaged(stores: Stores, tmp_path: Path, name: str, data: st.DataObject):
    content = bytearray(sample(stores, name))
    for _ in range(data.draw(st.integers(1, 4), label="how many")):
        at = data.draw(st.integers(0, len(content) - 1), label="where")
        what = data.draw(st.sampled_from(["byte", "length", "cut", "double"]), label="what")
        if what == "byte":
            content[at] = data.draw(st.integers(0, 255))
        elif what == "length":
            content[at : at + 4] = b"\x7f\xff\xff\xff"
        elif what == "cut":
            del content[at + 1 :]
        else:
            content[at:at] = content[:1000]
    anything_but_a_crash(tmp_path / "store", bytes(content))


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    st.binary(max_size=300),
    st.sampled_from([b"", b"\xfe\xed\xfe\xed\0\0\0\x02\0\0\0\x01", b"\x30\x82", b"-----BEGIN "]),
)
@example(b"\0\0\0\x01\xff\xff", b"\xfe\xed\xfe\xed\0\0\0\x02\xff\xff\xff\xff")
@example(b"\x02\x01\x03" + b"\x30\x80" * 150, b"\x30\x80")
def test_rubbish(tmp_path: Path, content: bytes, start: bytes):
    anything_but_a_crash(tmp_path / "store", start + content)


def test_structures_that_ask_for_endless_work():
    salted = b"\x04\x08saltsalt\x02\x04\x7f\xff\xff\xff"
    bad = b"\x30" + bytes([len(salted)]) + salted
    with pytest.raises(StoreError, match="hashed 2147483647 times"):
        der.check_rounds(bad)
    open_end = b"\x30\x80" + bad + b"\0\0"
    with pytest.raises(StoreError, match="hashed"):
        der.check_rounds(open_end)
    scrypt = b"\x04\x08saltsalt\x02\x03\x01\x00\x00\x02\x01\x08\x02\x02\x10\x00"
    with pytest.raises(StoreError, match="scrypt"):
        der.check_rounds(b"\x30" + bytes([len(scrypt)]) + scrypt)
    fine = b"\x04\x08saltsalt\x02\x03\x00\x40\x00\x02\x01\x08\x02\x01\x01"
    der.check_rounds(b"\x30" + bytes([len(fine)]) + fine)


def test_structures_that_ask_for_a_little_work_many_times():
    salted = b"\x04\x08saltsalt\x02\x03\x0f\x00\x00"  # 983,040 rounds
    one = b"\x30" + bytes([len(salted)]) + salted
    der.check_rounds(one)
    with pytest.raises(StoreError, match="hashed"):
        der.check_rounds(b"\x30\x81" + bytes([len(one) * 6]) + one * 6)
    scrypt = b"\x04\x08saltsalt\x02\x03\x0f\x00\x00\x02\x01\x08\x02\x01\x01"
    one = b"\x30" + bytes([len(scrypt)]) + scrypt
    der.check_rounds(one)
    with pytest.raises(StoreError, match="scrypt"):
        der.check_rounds(b"\x30\x81" + bytes([len(one) * 3]) + one * 3)


def jks_of(entries: int, chain: int, certificate: bytes = b"\0\0\0\0") -> bytes:
    """A store of version 1, in which each entry is a key of no bytes with so many certificates."""
    entry = b"\0\0\0\x01\0\x01a" + bytes(8) + bytes(4) + chain.to_bytes(4, "big") + certificate * chain
    return b"\xfe\xed\xfe\xed\0\0\0\x01" + entries.to_bytes(4, "big") + entry * entries + bytes(20)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (jks_of(1, 400_000), "certificate 1 of alias 'a' is empty"),
        (jks_of(1, 300_000, b"\0\0\0\x01x"), "more than 5000 certificates"),
        (jks_of(5_001, 0), "5001 entries, more than 5000"),
        (jks_of(1_000, 6, b"\0\0\0\x01x"), "more than 5000 certificates"),
    ],
    ids=["empty certificates", "a long chain", "many entries", "many chains"],
)
def test_a_store_of_java_without_end(tmp_path: Path, content: bytes, words: str):
    assert len(content) < material.MOST_BYTES
    began = time.thread_time()
    wrong(options(trust_location=file_with(tmp_path, content)), "ssl.truststore.location", words)
    assert time.thread_time() - began < 1


def test_a_store_of_sixteen_megabytes_is_none(tmp_path: Path):
    place = file_with(tmp_path, jks_of(1, 4_190_000))
    wrong(options(trust_location=place), "ssl.truststore.location", "more than 2097152 bytes")


@pytest.mark.parametrize("between", [" ", "\n"], ids=["in one line", "in lines"])
def test_a_key_with_headers_without_end(between: str):
    headers = "".join(f"{between}a: b" for _ in range(300_000))
    text = f"-----BEGIN RSA PRIVATE KEY-----{headers}{between}-----END RSA PRIVATE KEY-----"
    began = time.thread_time()
    wrong(options(key_pem=text), "ssl.keystore.key", "block 1 (line 1), a RSA PRIVATE KEY, has more than 10")
    assert time.thread_time() - began < 2


def test_a_chain_without_end_in_pkcs12():
    links = [make("link 0", signer=the_ca())]
    for number in range(1, 110):
        links.append(make(f"link {number}", signer=links[-1]))
    own = links[-1]
    store = pkcs12.serialize_key_and_certificates(
        b"x", own.key, own.certificate, [link.certificate for link in links[:-1]], NoEncryption()
    )
    with pytest.raises(StoreError, match="more than 100 certificates"):
        read_identity(store, None)


def test_a_key_that_asks_for_endless_work():
    key = client().key_pem(KEY_PASSWORD)
    raw = base64.b64decode("".join(key.splitlines()[1:-1]))
    at = raw.index(b"\x04\x10") + 2 + 16  # behind the salt, which may hold any byte
    assert raw[at : at + 2] == b"\x02\x02"
    many = raw[:at] + b"\x02\x04\x7f\xff\xff\xff" + raw[at + 4 :]
    text = "-----BEGIN ENCRYPTED PRIVATE KEY-----\n"
    text += base64.b64encode(_longer(many, at, 2)).decode() + "\n-----END ENCRYPTED PRIVATE KEY-----\n"
    given = options(key_pem=text, certificate_pem=client().pem, key_password=KEY_PASSWORD)
    wrong(given, "ssl.keystore.key", "hashed 2147483647 times")


def _longer(data: bytes, before: int, by: int) -> bytes:
    """The same with every sequence around a place longer by so many bytes."""
    result = bytearray(data)
    at = 0
    while at < before:
        tag, size = result[at], result[at + 1]
        head = 2 + (size & 0x7F if size > 0x80 else 0)
        length = size if size < 0x80 else int.from_bytes(result[at + 2 : at + head], "big")
        if tag == der.SEQUENCE and at + head + length >= before:
            if size < 0x80:
                result[at + 1] += by
            else:
                result[at + 2 : at + head] = (length + by).to_bytes(head - 2, "big")
            at += head
        else:
            at += head + length
    return bytes(result)


def test_identities_do_not_show_their_key():
    shown = repr(material.Identity("KEY", "SECRET", ()))
    assert "KEY" not in shown
    assert "SECRET" not in shown
    assert isinstance(client(), Made)
