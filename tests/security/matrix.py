# SPDX-License-Identifier: Apache-2.0
"""Every combination on a real Kafka: `make test-security`. What is missing for it is a failure.

{PLAINTEXT, SSL, mTLS, SASL_PLAINTEXT, SASL_SSL} x {PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER} x {TLS 1.2, 1.3} x
{PEM, JKS, PKCS#12} x {idempotent, transactional}, where they meet; and delegation tokens. Stores are made by keytool,
tokens by Kafka's own tool. What was written is read back by confluent-kafka over the same listener.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    load_pem_private_key,
    pkcs12,
)
from cryptography.x509 import load_pem_x509_certificates
from fix_security import BOB, WAYS, SecuredKafka
from security.numbered import wait_until
from security.tls.stores import keytool

from penstock import Producer
from penstock.devbroker.settings import QUICK_JVM, properties_text
from penstock.errors import AuthenticationError, TopicAuthorizationError

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(600)]

PASSWORD = "store-S3cret"
VERSIONS = ("TLSv1.2", "TLSv1.3")
KINDS = ("PEM", "JKS", "PKCS12")


class Combination(NamedTuple):
    """One of them; version and kind are empty without TLS."""

    way: str
    version: str
    kind: str
    transactional: bool

    def __str__(self) -> str:
        words = (self.way, self.version, self.kind, "transactional" if self.transactional else "idempotent")
        return "-".join(word for word in words if word)


def combinations() -> Iterator[Combination]:
    for way in WAYS:
        has_tls = way.startswith(("ssl", "mtls", "sasl_ssl"))
        for version in VERSIONS if has_tls else ("",):
            for kind in KINDS if has_tls else ("",):
                for transactional in (False, True):
                    yield Combination(way, version, kind, transactional)


@pytest.fixture(scope="module")
def stores(secured: SecuredKafka, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """Options of each kind of store, with the broker's authority and the client's key in it."""
    folder = tmp_path_factory.mktemp("stores")
    options = secured.options("mtls")
    source = folder / "source.p12"
    _write_source(Path(options["ssl.keystore.location"]), source)
    found = {"PEM": {name: value for name, value in options.items() if "store" in name}}
    for kind in KINDS[1:]:
        trust, key = folder / f"trust.{kind}", folder / f"key.{kind}"
        keytool(
            *("-importcert", "-noprompt", "-alias", "ca", "-file", options["ssl.truststore.location"]),
            *("-storetype", kind, "-storepass", PASSWORD, "-keystore", str(trust)),
        )
        keytool(
            *("-importkeystore", "-noprompt", "-srcstoretype", "PKCS12", "-srckeystore", str(source)),
            *("-srcstorepass", PASSWORD, "-deststorepass", PASSWORD),
            *("-deststoretype", kind, "-destkeystore", str(key)),
        )
        found[kind] = {
            "ssl.truststore.type": kind,
            "ssl.truststore.location": str(trust),
            "ssl.truststore.password": PASSWORD,
            "ssl.keystore.type": kind,
            "ssl.keystore.location": str(key),
            "ssl.keystore.password": PASSWORD,
        }
    return found


def _write_source(pem: Path, place: Path) -> None:
    """The client's key and chain for keytool, which reads no PEM keys."""
    own, *chain = load_pem_x509_certificates(pem.read_bytes())
    key = load_pem_private_key(pem.read_bytes(), None)
    lock = BestAvailableEncryption(PASSWORD.encode())
    place.write_bytes(pkcs12.serialize_key_and_certificates(b"client", key, own, chain, lock))  # type: ignore[arg-type]


@pytest.mark.parametrize("combination", list(combinations()), ids=str)
def test_records_arrive(
    secured: SecuredKafka, stores: dict[str, dict[str, str]], combination: Combination
) -> None:
    way, version, kind, transactional = combination
    options = {name: value for name, value in secured.options(way).items() if "store" not in name}
    wanted = ("ssl.truststore",) if way != "mtls" else ("ssl.truststore", "ssl.keystore")
    if kind:
        options |= {name: value for name, value in stores[kind].items() if name.startswith(wanted)}
        options |= {"ssl.protocol": version, "ssl.enabled.protocols": version}
    topic = secured.topic()
    if transactional:
        with Producer(options, transactional_id=f"x-{topic}") as producer:
            producer.init_transactions()
            for commit in (True, False, True):
                producer.begin_transaction()
                producer.send(topic, b"kept" if commit else b"dropped")
                (producer.commit_transaction if commit else producer.abort_transaction)()
        expected = [b"kept"] * 2
    else:
        with Producer(options, enable_idempotence=True) as producer:
            for number in range(50):
                producer.send(topic, b"%02d" % number)
        expected = [b"%02d" % number for number in range(50)]
    assert secured.read(topic, len(expected), way) == expected


TOKENS = "org.apache.kafka.tools.DelegationTokenCommand"
PATIENCE = 30.0


@pytest.fixture
def token_tool(secured: SecuredKafka, tmp_path: Path) -> Callable[..., str]:
    """Gives a function that runs Kafka's own tool for delegation tokens, as bob, and returns what it says."""
    file = tmp_path / "bob.properties"
    file.write_text(properties_text(secured.options("sasl_ssl-scram-sha-512", BOB)))
    servers = secured.options("sasl_ssl-scram-sha-512")["bootstrap.servers"]

    def run(*arguments: str) -> str:
        whom = ("--bootstrap-server", servers, "--command-config", str(file))
        done = secured.cluster.run_tool(TOKENS, *whom, *arguments, jvm=QUICK_JVM)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_delegation_token(
    secured: SecuredKafka, token_tool: Callable[..., str], mechanism: str, tmp_path: Path
) -> None:
    mine, other = secured.topic(), secured.topic()
    secured.grant("TOPIC", mine, "WRITE")
    found = re.search(
        r"^(\S+)\s+(\S+)\s+User:bob\s", token_tool("--create", "--max-life-time-period", "-1"), re.MULTILINE
    )
    assert found is not None
    token_id, code = found.groups()
    options = secured.options(f"sasl_ssl-{mechanism.lower()}", token_id, code)
    options["sasl.jaas.config"] = options["sasl.jaas.config"].replace(";", " tokenauth=true;")
    # The broker learns of it a moment later.
    wait_until(lambda: write(options, mine) is None, "the token")
    with pytest.raises(TopicAuthorizationError):  # it has its owner's rights
        write(options, other)
    token_tool("--expire", "--expiry-time-period", "-1", "--hmac", code)
    wait_until(lambda: write(options, mine) is not None, "its end")
    refused = write(options, mine)
    assert refused is not None
    assert "that it has not expired" in str(refused)
    assert (refused.mechanism, refused.user) == (mechanism, token_id)


def write(options: dict[str, str], topic: str) -> AuthenticationError | None:
    """Write a record; why the broker did not let the client in."""
    with Producer(options) as producer:
        try:
            producer.send(topic, b"x").result(PATIENCE)
        except AuthenticationError as error:
            return error
    return None
