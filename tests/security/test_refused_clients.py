# SPDX-License-Identifier: Apache-2.0
"""What is refused when a client is made, before anybody is asked: files, missing packages, credentials that cannot be.

Options that contradict each other are in tests/config; here are those that only the parts themselves can judge.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from security.tls.certificates import client, make, other_ca, the_ca
from security.tls.stores import STORE_PASSWORD, p12

from penstock import Producer
from penstock.control import ControlClient
from penstock.errors import ConfigError

SECRET = "S3cret-of-the-test"
Options = dict[str, Any]

TLS: Options = {"security.protocol": "SSL"}
SASL: Options = {"security.protocol": "SASL_SSL"}
JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required"
BEARER = SASL | {"sasl.mechanism": "OAUTHBEARER"}
KEY_FILE = "sasl.oauthbearer.assertion.private.key.file"
ENDPOINT = "sasl.oauthbearer.token.endpoint.url"


def file(option: str, content: str | bytes, **more: str) -> Callable[[Path], Options]:
    """An option that names a file with that content."""

    def make_options(folder: Path) -> Options:
        place = folder / "given"
        place.write_bytes(content.encode() if isinstance(content, str) else content)
        return TLS | {option: str(place)} | {name.replace("_", "."): value for name, value in more.items()}

    return make_options


def just(options: Options) -> Callable[[Path], Options]:
    return lambda folder: options


def token_file(folder: Path) -> Options:
    (folder / "token").write_text(f"two words {SECRET}")
    return BEARER | {ENDPOINT: f"file://{folder}/token"}


KEY = client().key_pem() + client().pem
LOCKED = client().key_pem(SECRET) + client().pem
TRUST, STORE = "ssl.truststore.location", "ssl.keystore.location"

TABLE: dict[str, tuple[Callable[[Path], Options], tuple[str, ...]]] = {
    "a trust store that is not there": (just(TLS | {TRUST: "/nowhere/ca.pem"}), (TRUST, "/nowhere/ca.pem")),
    "a trust store that is a folder": (lambda folder: TLS | {TRUST: str(folder)}, (TRUST,)),
    "a trust store that is empty": (file(TRUST, ""), (TRUST, "given")),
    "a trust store with no certificate": (file(TRUST, client().key_pem()), (TRUST, "CERTIFICATE")),
    "a trust store that is rubbish": (file(TRUST, b"\x00\x01rubbish"), (TRUST, "given")),
    "a trust store that is cut off": (file(TRUST, the_ca().pem[:200]), (TRUST, "given")),
    "a key store without a key": (file(STORE, client().pem), (STORE, "key")),
    "a key store without a certificate": (file(STORE, client().key_pem()), (STORE, "CERTIFICATE")),
    "a key store with two keys": (file(STORE, client().key_pem() + KEY), (STORE, "key")),
    "a key of another certificate": (file(STORE, make("x").key_pem() + client().pem), (STORE,)),
    "a locked key without a password": (file(STORE, LOCKED), ("ssl.key.password",)),
    "a locked key with a wrong one": (file(STORE, LOCKED, ssl_key_password="other"), ("ssl.key.password",)),
    "a PKCS#12 store with a wrong password": (
        file(STORE, p12(STORE_PASSWORD), ssl_keystore_password=SECRET),
        ("ssl.keystore.password", "given"),
    ),
    "a JKS store that lies about its length": (
        file(STORE, bytes.fromhex("feedfeed000000027fffffff"), ssl_keystore_password=SECRET),
        (STORE,),
    ),
    "a suite that is not known": (just(TLS | {"ssl.cipher.suites": "TLS_NO_SUCH"}), ("TLS_NO_SUCH",)),
    "a revocation list that is none": (file("ssl.crl.location", other_ca().pem), ("ssl.crl.location",)),
    "SASL without a mechanism": (just(SASL), ("sasl.mechanism",)),
    "a mechanism that is not known": (
        just(SASL | {"sasl.mechanism": "SCRAM-SHA-1", "sasl.username": "me", "sasl.password": SECRET}),
        ("SCRAM-SHA-1", "SCRAM-SHA-512"),
    ),
    "no user": (just(SASL | {"sasl.mechanism": "PLAIN", "sasl.password": SECRET}), ("sasl.username",)),
    "no password": (just(SASL | {"sasl.mechanism": "PLAIN", "sasl.username": "me"}), ("sasl.password",)),
    "a user that SCRAM cannot name": (
        just(SASL | {"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "ülrike", "sasl.password": SECRET}),
        ("ülrike", "ASCII"),
    ),
    "a password that PLAIN cannot send": (
        just(SASL | {"sasl.mechanism": "PLAIN", "sasl.username": "me", "sasl.password": f"{SECRET}\0"}),
        ("NUL",),
    ),
    "a module of another mechanism": (
        just(
            SASL
            | {"sasl.mechanism": "SCRAM-SHA-256"}
            | {"sasl.jaas.config": f'{JAAS} username="me" password="{SECRET}";'}
        ),
        ("PlainLoginModule", "SCRAM-SHA-256"),
    ),
    "a JAAS text without its end": (
        just(
            SASL
            | {"sasl.mechanism": "PLAIN", "sasl.jaas.config": f'{JAAS} username="me" password="{SECRET}"'}
        ),
        ("sasl.jaas.config", "semicolon"),
    ),
    "the same in two ways": (
        just(
            SASL
            | {"sasl.mechanism": "PLAIN", "sasl.username": "you", "sasl.password": SECRET}
            | {"sasl.jaas.config": f'{JAAS} username="me" password="{SECRET}";'}
        ),
        ("sasl.username", "sasl.jaas.config"),
    ),
    "tokens from nowhere": (just(BEARER), ("token",)),
    "a provider that is none": (
        just(BEARER | {"sasl.oauth.token.provider": 7}),
        ("sasl.oauth.token.provider",),
    ),
    "a provider of too many arguments": (
        just(BEARER | {"sasl.oauth.token.provider": lambda one, two: one + two}),
        ("more than one argument",),
    ),
    "a token file that is not there": (
        just(BEARER | {ENDPOINT: "file:///nowhere/token"}),
        (ENDPOINT, "/nowhere/token"),
    ),
    "a token file without a token": (token_file, ("token",)),
    "an endpoint that is no address": (
        just(
            BEARER
            | {ENDPOINT: "ftp://idp/token", "sasl.oauthbearer.client.id": "me"}
            | {"sasl.oauthbearer.client.secret": SECRET}
        ),
        (ENDPOINT,),
    ),
    "a proxy whose name is not known": (
        just({"proxy.url": "http://no-such-proxy.invalid:3128"}),
        ("the HTTP proxy no-such-proxy.invalid:3128",),
    ),
    "a proxy of another kind": (just({"proxy.url": f"ftp://me:{SECRET}@proxy"}), ("proxy.url", "socks5")),
}


@pytest.mark.parametrize("make_client", [Producer, ControlClient], ids=["producer", "control"])
@pytest.mark.parametrize(("options", "words"), TABLE.values(), ids=TABLE.keys())
def test_refused(
    make_client: Any, options: Callable[[Path], Options], words: tuple[str, ...], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as refused:
        make_client({"bootstrap.servers": "localhost:9092"} | options(tmp_path))
    text = str(refused.value)
    assert [each for each in words if each not in text] == [], text
    assert SECRET not in text
    assert STORE_PASSWORD not in text


EXTRAS: dict[str, tuple[str, Options, tuple[str, ...]]] = {
    "PKCS#12": (
        "cryptography",
        TLS | {"ssl.keystore.password": SECRET},
        ("'.[pkcs12]'", "openssl"),
    ),
    "the jwt-bearer grant": (
        "cryptography",
        BEARER
        | {ENDPOINT: "https://idp/token", KEY_FILE: "/k.pem"}
        | {"sasl.oauthbearer.grant.type": "urn:ietf:params:oauth:grant-type:jwt-bearer"},
        ("'.[oauth]'",),
    ),
    "Kerberos": ("gssapi", SASL | {"sasl.mechanism": "GSSAPI"}, ("'.[gssapi]'",)),
}


@pytest.mark.parametrize(("package", "options", "words"), EXTRAS.values(), ids=EXTRAS.keys())
def test_a_package_that_is_missing(
    package: str, options: Options, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "ssl.keystore.password" in options:
        (tmp_path / "store.p12").write_bytes(p12(STORE_PASSWORD))
        options = options | {STORE: str(tmp_path / "store.p12")}
    if KEY_FILE in options:
        (tmp_path / "key.pem").write_text(client().key_pem())
        options = options | {KEY_FILE: str(tmp_path / "key.pem")}
    for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, name)
    # It holds what it has imported before.
    monkeypatch.delitem(sys.modules, "penstock.security.oauth.signing", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError) as refused:
        Producer({"bootstrap.servers": "localhost:9092"} | options)
    assert [each for each in words if each not in str(refused.value)] == [], refused.value
