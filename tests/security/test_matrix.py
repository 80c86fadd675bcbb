# SPDX-License-Identifier: Apache-2.0
"""Every way to connect to a real Kafka, and the ways in which it refuses. One broker has all listeners.

This is the core: `matrix.py` has every combination with versions of TLS, kinds of stores and transactions.
"""

from __future__ import annotations

from typing import Any

import pytest
from fix_patience import within
from fix_security import PLAINTEXT, WAYS, SecuredKafka

from penstock import Producer
from penstock.control import ControlClient
from penstock.errors import AuthenticationError, KafkaError

pytestmark = [pytest.mark.broker, pytest.mark.slow]

TIMEOUT = 60.0
PROMISED = 5.0  # seconds that a refusal may take


def producer_for(secured: SecuredKafka, way: str, **options: Any) -> Producer:
    return Producer(secured.options(way) | {"linger.ms": "0"} | options)


@pytest.mark.parametrize("way", WAYS)
def test_records_arrive(secured: SecuredKafka, way: str) -> None:
    topic = secured.topic()
    with producer_for(secured, way) as producer:
        for number in range(50):
            producer.send(topic, b"%02d" % number)
    assert secured.read(topic, 50, way) == [b"%02d" % number for number in range(50)]


@pytest.mark.parametrize("way", ["mtls", "sasl_ssl-scram-sha-512", "sasl_ssl-oauthbearer"])
def test_transactions_are_whole(secured: SecuredKafka, way: str) -> None:
    topic = secured.topic()
    with producer_for(secured, way, **{"transactional.id": f"x-{topic}"}) as producer:
        producer.init_transactions()
        for commit in (True, False, True):
            producer.begin_transaction()
            producer.send(topic, b"kept" if commit else b"dropped")
            (producer.commit_transaction if commit else producer.abort_transaction)()
    assert secured.read(topic, 2, way) == [b"kept", b"kept"]


@pytest.mark.parametrize("way", ["ssl", "sasl_ssl-scram-sha-256"])
@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_both_versions_of_tls_serve(secured: SecuredKafka, way: str, version: str) -> None:
    topic = secured.topic()
    versions = {"ssl.protocol": version, "ssl.enabled.protocols": version}
    with producer_for(secured, way, **versions) as producer:
        assert producer.send(topic, b"x").result(TIMEOUT).offset == 0


@pytest.mark.parametrize("way", ["ssl", "sasl_ssl-plain", "sasl_plaintext-scram-sha-256"])
def test_the_control_client_connects_the_same_way(secured: SecuredKafka, way: str) -> None:
    with ControlClient(secured.options(way)) as client:
        assert [node.id for node in client.brokers(TIMEOUT)] == [1]


def refusal(options: dict[str, str], **more: Any) -> KafkaError:
    """What the first call that waits is told, which must not take long."""

    def told() -> KafkaError:
        with Producer(options | {"max.block.ms": "20000"} | more) as producer:
            with pytest.raises(KafkaError) as refused:
                producer.partitions_for("any")
            producer.close(0)
        return refused.value

    return within(PROMISED, told)


@pytest.mark.parametrize("way", ["sasl_ssl-plain", "sasl_plaintext-scram-sha-256", "sasl_ssl-scram-sha-512"])
def test_a_wrong_password_is_told_at_once(secured: SecuredKafka, way: str) -> None:
    told = refusal(secured.options(way, password="not-it-at-all"))
    assert isinstance(told, AuthenticationError)
    assert "alice" in str(told)
    assert "password" in str(told)
    assert "not-it-at-all" not in str(told)


def test_an_unknown_authority_is_told_at_once(secured: SecuredKafka) -> None:
    told = refusal(secured.options("ssl"), **{"ssl.truststore.location": None, "ssl.truststore.type": None})
    assert isinstance(told, AuthenticationError)
    assert "ssl.truststore.location" in str(told)


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_a_client_without_a_certificate_is_told_so(secured: SecuredKafka, version: str) -> None:
    options = {"ssl.keystore.location": None, "ssl.keystore.type": None, "ssl.enabled.protocols": version}
    told = refusal(secured.options("mtls"), **options)
    assert isinstance(told, AuthenticationError)
    assert "wants a client certificate" in str(told)


@pytest.mark.parametrize(
    ("believed", "real"),
    [
        ("ssl", PLAINTEXT),
        ("ssl", "sasl_plaintext-plain"),
        ("ssl", "sasl_ssl-plain"),
        (PLAINTEXT, "ssl"),
        (PLAINTEXT, "sasl_plaintext-plain"),
        (PLAINTEXT, "sasl_ssl-plain"),
        ("sasl_plaintext-plain", PLAINTEXT),
        ("sasl_plaintext-plain", "sasl_ssl-plain"),
        ("sasl_ssl-plain", "ssl"),
        ("sasl_ssl-plain", "sasl_plaintext-plain"),
    ],
)
def test_another_listener_than_configured_is_advised(secured: SecuredKafka, believed: str, real: str) -> None:
    servers = secured.options(real)["bootstrap.servers"]
    told = refusal(secured.options(believed), **{"bootstrap.servers": servers, "max.block.ms": "2000"})
    assert "security.protocol" in str(told)
