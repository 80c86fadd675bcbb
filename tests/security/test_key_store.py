# SPDX-License-Identifier: Apache-2.0
"""Secrets in a key store that keytool has written."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
from security.tls.stores import STORE_PASSWORD, keytool, p12

from penstock import Producer
from penstock.config.references import look_up
from penstock.errors import ConfigError
from penstock.security.key_store import read_secret
from penstock.security.tls.material import StoreError
from penstock.testing import FakeKafka

SECRETS = {"kafka": "alice-secret", "Another": "x;y=z ~!"}


def import_password(place: Path, alias: str, secret: str, *more: str) -> None:
    arguments = ("-importpass", "-alias", alias, "-keystore", str(place), "-storetype", "PKCS12")
    keytool(*arguments, "-storepass", STORE_PASSWORD, *more, stdin=f"{secret}\n{secret}\n")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("secrets") / "secrets.p12"
    place.write_bytes(p12(STORE_PASSWORD))  # a private key and certificates are in it, too
    for alias, secret in SECRETS.items():
        import_password(place, alias, secret)
    return place


@pytest.fixture(scope="module")
def data(store: Path) -> bytes:
    return store.read_bytes()


def test_secrets_are_found_by_their_alias(data: bytes) -> None:
    for alias, secret in SECRETS.items():
        assert read_secret(data, alias, STORE_PASSWORD) == secret
        assert read_secret(data, alias.upper(), STORE_PASSWORD) == secret


def test_an_alias_that_is_not_there_is_told_with_those_that_are(data: bytes) -> None:
    with pytest.raises(StoreError, match="no secret of the alias 'client'; there are: kafka, another"):
        read_secret(data, "client", STORE_PASSWORD)
    with pytest.raises(StoreError, match="there are: none"):
        read_secret(p12(STORE_PASSWORD), "client", STORE_PASSWORD)


def test_a_wrong_password(data: bytes) -> None:
    with pytest.raises(StoreError, match="the password of the store is wrong") as caught:
        read_secret(data, "kafka", "wrong-S3cret")
    assert caught.value.blame == "password"


@pytest.mark.parametrize(
    "content",
    [b"", b"text", b"\xfe\xed\xfe\xed\0\0\0\2", b"\xce\xce\xce\xce\0\0\0\2", b"\x30\x03\x02\x01\x05"],
)
def test_what_is_no_such_store(content: bytes) -> None:
    with pytest.raises(StoreError, match="it is no PKCS#12 store; make it with keytool"):
        read_secret(content, "kafka", STORE_PASSWORD)


def test_an_old_way_to_encrypt_is_told(tmp_path: Path) -> None:
    place = tmp_path / "old.p12"
    import_password(place, "kafka", "alice-secret", "-J-Dkeystore.pkcs12.legacy")
    with pytest.raises(StoreError, match="an old way that is not supported; make it with keytool of Java 17"):
        read_secret(place.read_bytes(), "kafka", STORE_PASSWORD)


def test_a_damaged_store_is_an_error_or_the_secret(data: bytes) -> None:
    rng = random.Random(7)
    for _ in range(400):
        damaged = bytearray(data)
        for _ in range(rng.choice((1, 1, 3))):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        try:
            found = read_secret(bytes(damaged), "kafka", STORE_PASSWORD)
        except StoreError:
            continue
        assert found == SECRETS["kafka"]


def test_a_store_that_is_cut(data: bytes) -> None:
    for size in range(0, len(data), 7):
        with pytest.raises(StoreError):
            read_secret(data[:size], "kafka", STORE_PASSWORD)


def test_the_reference(store: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = f"${{keystore:{store}:kafka}}"
    with pytest.raises(ConfigError, match="PENSTOCK_KEYSTORE_PASSWORD, or in a file that PENSTOCK_KEYSTORE_"):
        look_up(text, "sasl.password")
    (tmp_path / "word").write_text(f"{STORE_PASSWORD}\n")
    monkeypatch.setenv("PENSTOCK_KEYSTORE_PASSWORD_FILE", str(tmp_path / "word"))
    assert look_up(text, "sasl.password") == "alice-secret"
    monkeypatch.setenv("PENSTOCK_KEYSTORE_PASSWORD", "wrong-S3cret")
    with pytest.raises(ConfigError) as caught:
        look_up(text, "sasl.password")
    assert str(caught.value).startswith(f"sasl.password: the key store '{store}': the password of the store")
    assert "S3cret" not in str(caught.value)
    monkeypatch.setenv("PENSTOCK_KEYSTORE_PASSWORD", STORE_PASSWORD)
    assert look_up(text, "sasl.password") == "alice-secret"
    with pytest.raises(ConfigError, match="needs the alias of an entry"):
        look_up(f"${{keystore:{store}}}", "sasl.password")
    with pytest.raises(ConfigError, match=r"the file '/no/such\.p12' cannot be read"):
        look_up("${keystore:/no/such.p12:kafka}", "sasl.password")


def test_a_producer_logs_in_with_it(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_KEYSTORE_PASSWORD", STORE_PASSWORD)
    with FakeKafka(topics={"t": 1}, security="SASL_PLAINTEXT") as kafka:
        options = kafka.client_options("SCRAM-SHA-512") | {"sasl.password": f"${{keystore:{store}:kafka}}"}
        with Producer(options) as producer:
            assert producer.send("t", b"x").result(60).offset == 0


def test_the_package_that_is_missing_is_named(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "cryptography"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(StoreError, match=r"'\.\[pkcs12\]"):
        read_secret(data, "kafka", STORE_PASSWORD)


def test_other_references_load_none_of_it() -> None:
    program = (
        "import os, sys; os.environ['A'] = 'b'; from penstock.config.references import look_up; "
        "look_up('${env:A}', 'x'); print(*sys.modules)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300
    )
    assert "penstock.security" not in shown.stdout
