# SPDX-License-Identifier: Apache-2.0
"""Passwords, tokens and certificates that are replaced under a running producer, on a real Kafka; and short sessions.

With PENSTOCK_SECURITY=all everything is tried, and the waits are as long as they are in practice: an outage of 30
seconds, sessions of two seconds for ten minutes.
"""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fix_security import values_in_order
from security.numbered import Numbered, wait_until
from security.rotation import KINDS, REFUSED, Provider, check_renewals, lines, replace
from security.tls.certificates import Made, make, other_ca, the_ca

from penstock.devbroker import DevCluster

pytestmark = [pytest.mark.broker, pytest.mark.slow]
confluent_admin = pytest.importorskip("confluent_kafka.admin")

IN_FULL = os.environ.get("PENSTOCK_SECURITY") == "all"
DOWN_SECONDS = 30.0 if IN_FULL else 3.0
LONG_SECONDS = 600.0 if IN_FULL else 6.0
SHORT_SECONDS = 60.0
SESSION_MS = 2000
every_kind = pytest.mark.parametrize("kind", KINDS if IN_FULL else ["idempotent"])
of_interest = pytest.mark.parametrize(
    ("way", "kind", "seconds"),
    [
        ("sasl_ssl-scram-sha-256", "idempotent", LONG_SECONDS),
        ("sasl_ssl-plain", "transactional", SHORT_SECONDS),
        ("sasl_plaintext-scram-sha-512", "transactional", SHORT_SECONDS),
    ][: None if IN_FULL else 1],
)
NAMES = ("localhost", "127.0.0.1")


@dataclass(frozen=True)
class Secured:
    """A broker whose sessions are short, and whose certificates can be replaced.

    Attributes:
        cluster: the broker.
        own: its key and chain.
        trusted: the authority of all certificates, now.
    """

    cluster: DevCluster
    own: Path
    trusted: Path

    def sign_all(self, authority: Made) -> None:
        """Replace the broker's files. It reads them when it is started."""
        made = make("localhost", authority, NAMES)
        replace(self.own, made.key_pem() + made.pem)
        replace(self.trusted, authority.pem)

    def options(self, way: str) -> dict[str, Any]:
        options: dict[str, Any] = self.cluster.client_options(way)
        if "ssl.truststore.location" in options:
            options["ssl.truststore.location"] = str(self.trusted)
        return options

    def make_topic(self) -> str:
        name = f"t-{uuid.uuid4().hex[:8]}"
        self.cluster.create_topic(name)
        return name


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("broker")
    own, trusted = folder / "own.pem", folder / "ca.pem"
    properties = {
        "ssl.keystore.location": own,
        "ssl.truststore.location": trusted,
        "connections.max.reauth.ms": SESSION_MS,
    }
    cluster = DevCluster(security="all", properties=properties)
    made = Secured(cluster, own, trusted)
    made.sign_all(the_ca())
    with cluster:
        yield made


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.INFO, "penstock"):
        yield caplog


def set_password(cluster: DevCluster, password: str) -> None:
    """Of alice, for SCRAM-SHA-256."""
    admin = confluent_admin.AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    info = confluent_admin.ScramCredentialInfo(confluent_admin.ScramMechanism.SCRAM_SHA_256, 4096)
    change = confluent_admin.UserScramCredentialUpsertion("alice", info, password.encode())
    for done in admin.alter_user_scram_credentials([change]).values():
        done.result(60)


@every_kind
def test_a_password_that_is_replaced_on_both_sides(secured: Secured, kind: str, tmp_path: Path, told):
    topic = secured.make_topic()
    secret = tmp_path / "password"
    secret.write_text("alice-secret")
    options = secured.options("sasl_ssl-scram-sha-256")
    del options["sasl.jaas.config"]
    options |= {"sasl.username": "alice", "sasl.password": f"${{file:{secret}}}"}
    try:
        with Numbered(topic, **options, **KINDS[kind]) as stream:
            stream.wait_for_more()
            set_password(secured.cluster, "new-alice-secret")
            wait_until(lambda: lines(told, logging.ERROR, REFUSED), "the refusal")
            secret.write_text("new-alice-secret")
            stream.wait_for_more(50)
            expected = stream.finish()
    finally:
        set_password(secured.cluster, "alice-secret")
    assert values_in_order(secured.cluster, topic) == expected
    assert "alice" in lines(told, logging.ERROR, REFUSED)[0]
    assert "alice-secret" not in told.text


@every_kind
def test_a_token_that_expires_while_the_provider_is_down(secured: Secured, kind: str, told):
    topic = secured.make_topic()
    provider = Provider(2.5)
    options = secured.options("sasl_ssl-oauthbearer")
    del options["sasl.jaas.config"]
    with Numbered(topic, **options, **{"sasl.oauth.token.provider": provider}, **KINDS[kind]) as stream:
        stream.wait_for_more()
        provider.is_down = True
        wait_until(lambda: lines(told, logging.ERROR, REFUSED), "the refusal")
        time.sleep(DOWN_SECONDS)
        provider.is_down = False
        stream.wait_for_more(50)
        expected = stream.finish()
    assert values_in_order(secured.cluster, topic) == expected
    assert "there is no token: the token provider failed" in lines(told, logging.ERROR, REFUSED)[0]


def test_certificates_that_are_replaced_on_both_sides(secured: Secured, tmp_path: Path, told):
    topic = secured.make_topic()
    old, new = (
        (the_ca(), other_ca()) if secured.trusted.read_text() == the_ca().pem else (other_ca(), the_ca())
    )
    own, trusted = tmp_path / "own.pem", tmp_path / "ca.pem"
    mine = make("alice", old)
    own.write_text(mine.key_pem() + mine.pem)
    trusted.write_text(old.pem)
    options = secured.options("mtls")
    options |= {"ssl.keystore.location": str(own), "ssl.truststore.location": str(trusted)}
    with Numbered(topic, **options) as stream:
        stream.wait_for_more()
        replace(trusted, "-----BEGIN CERTIFICATE-----\n")
        if IN_FULL:
            secured.cluster.restart(1)
            stream.wait_for_more()
        secured.sign_all(new)
        secured.cluster.restart(1)
        wait_until(lambda: lines(told, logging.ERROR, REFUSED), "the unknown authority")
        mine = make("alice", new)
        replace(own, mine.key_pem() + mine.pem)
        replace(trusted, new.pem)
        stream.wait_for_more(50)
        expected = stream.finish()
    assert values_in_order(secured.cluster, topic) == expected
    assert lines(told, logging.WARNING, "A changed file cannot be used, what was read before stays in use")


@of_interest
@pytest.mark.timeout(LONG_SECONDS + 600)
def test_sessions_that_end_every_two_seconds(secured: Secured, way: str, kind: str, seconds: float, told):
    topic = secured.make_topic()
    with Numbered(topic, eager=True, **secured.options(way), **KINDS[kind]) as stream:
        stream.wait_for_more()
        in_flight = stream.watch(seconds)
        expected = stream.finish()
        check_renewals(stream, told, at_least=seconds / 2 - 2)
    assert values_in_order(secured.cluster, topic) == expected
    assert in_flight >= (5 if kind == "idempotent" else 2)
