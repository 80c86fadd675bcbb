# SPDX-License-Identifier: Apache-2.0
"""Every way to connect to a real Kafka, and the ways in which it refuses. One broker has all listeners."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from penstock import Producer
from penstock.control import ControlClient
from penstock.devbroker import DevCluster
from penstock.devbroker.security import CHOICES, USERS, accesses
from penstock.errors import AuthenticationError, KafkaError

pytestmark = pytest.mark.broker
confluent = pytest.importorskip("confluent_kafka")

WAYS = [way.name for way in accesses(CHOICES["all"])]
WITH_PASSWORD = [name for name in WAYS if "plain-" in name or "-plain" in name or "scram" in name]
TIMEOUT = 30.0
SOON = 5.0  # a refusal takes no longer


@pytest.fixture(scope="module")
def secured() -> Iterator[DevCluster]:
    with DevCluster(security="all") as cluster:
        yield cluster


@pytest.fixture
def topic(secured: DevCluster) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    secured.create_topic(name, 2)
    return name


def producer_for(cluster: DevCluster, way: str, **options: Any) -> Producer:
    return Producer(cluster.client_options(way) | {"linger.ms": "0"} | options)


def confluent_options(cluster: DevCluster, way: str) -> dict[str, Any]:
    """The same way, as librdkafka writes it."""
    ours = cluster.client_options(way)
    theirs: dict[str, Any] = {name: ours[name] for name in ("bootstrap.servers", "security.protocol")}
    if "ssl.truststore.location" in ours:
        theirs["ssl.ca.location"] = ours["ssl.truststore.location"]
    if "ssl.keystore.location" in ours:
        files = dict.fromkeys(("ssl.certificate.location", "ssl.key.location"), ours["ssl.keystore.location"])
        theirs |= files
    mechanism = ours.get("sasl.mechanism")
    if mechanism == "OAUTHBEARER":
        unsecured = {
            "enable.sasl.oauthbearer.unsecure.jwt": True,
            "sasl.oauthbearer.config": "principal=alice",
        }
        theirs |= {"sasl.mechanism": mechanism, **unsecured}
    elif mechanism is not None:
        theirs |= {"sasl.mechanism": mechanism, "sasl.username": "alice", "sasl.password": USERS["alice"]}
    return theirs


def read_back(cluster: DevCluster, way: str, topic: str, count: int) -> list[bytes]:
    """What a consumer that is not ours gets over the same listener."""
    group = {
        "group.id": uuid.uuid4().hex,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
    }
    consumer = confluent.Consumer(confluent_options(cluster, way) | group)
    consumer.assign([confluent.TopicPartition(topic, number, 0) for number in range(2)])
    values: list[bytes] = []
    deadline = time.monotonic() + TIMEOUT
    while len(values) < count and time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            values.append(message.value())
    consumer.close()
    return sorted(values)


@pytest.mark.parametrize("way", WAYS)
def test_records_arrive(secured: DevCluster, topic: str, way: str) -> None:
    with producer_for(secured, way) as producer:
        for number in range(50):
            producer.send(topic, b"%02d" % number)
    assert read_back(secured, way, topic, 50) == [b"%02d" % number for number in range(50)]


@pytest.mark.parametrize(
    "way", ["mtls", "sasl_ssl-scram-sha-512", "sasl_plaintext-plain", "sasl_ssl-oauthbearer"]
)
def test_transactions_are_whole(secured: DevCluster, topic: str, way: str) -> None:
    with producer_for(secured, way, **{"transactional.id": f"x-{topic}"}) as producer:
        producer.init_transactions()
        for commit in (True, False, True):
            producer.begin_transaction()
            producer.send(topic, b"kept" if commit else b"dropped")
            (producer.commit_transaction if commit else producer.abort_transaction)()
    assert read_back(secured, way, topic, 2) == [b"kept", b"kept"]


@pytest.mark.parametrize("way", ["ssl", "sasl_ssl-scram-sha-256"])
@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_both_versions_of_tls_serve(secured: DevCluster, topic: str, way: str, version: str) -> None:
    with producer_for(
        secured, way, **{"ssl.protocol": version, "ssl.enabled.protocols": version}
    ) as producer:
        assert producer.send(topic, b"x").result(TIMEOUT).offset == 0


@pytest.mark.parametrize("way", ["ssl", "sasl_ssl-plain", "sasl_plaintext-scram-sha-256"])
def test_the_control_client_connects_the_same_way(secured: DevCluster, way: str) -> None:
    with ControlClient(secured.client_options(way)) as client:
        assert [node.id for node in client.brokers(TIMEOUT)] == [1]


def refusal(cluster: DevCluster, way: str, **options: Any) -> KafkaError:
    """What the first call that waits is told, which must not take long."""
    began = time.monotonic()
    with producer_for(cluster, way, **{"max.block.ms": "20000"} | options) as producer:
        with pytest.raises(KafkaError) as refused:
            producer.partitions_for("any")
        producer.close(0)
    assert time.monotonic() - began < SOON
    return refused.value


@pytest.mark.parametrize("way", WITH_PASSWORD)
def test_a_wrong_password_is_told_at_once(secured: DevCluster, way: str) -> None:
    jaas = secured.client_options(way)["sasl.jaas.config"].replace(USERS["alice"], "not-it-at-all")
    told = refusal(secured, way, **{"sasl.jaas.config": jaas})
    assert isinstance(told, AuthenticationError)
    assert "alice" in str(told)
    assert "password" in str(told)
    assert "not-it-at-all" not in str(told)


def test_an_unknown_authority_is_told_at_once(secured: DevCluster) -> None:
    told = refusal(secured, "ssl", **{"ssl.truststore.location": None, "ssl.truststore.type": None})
    assert isinstance(told, AuthenticationError)
    assert "ssl.truststore.location" in str(told)


def test_a_client_without_a_certificate_is_told_so(secured: DevCluster) -> None:
    for version in ("TLSv1.2", "TLSv1.3"):
        options = {"ssl.keystore.location": None, "ssl.keystore.type": None, "ssl.enabled.protocols": version}
        told = refusal(secured, "mtls", **options)
        assert isinstance(told, AuthenticationError)
        assert "certificate" in str(told)


def test_tls_at_a_plain_port_is_advised(secured: DevCluster) -> None:
    told = refusal(secured, "ssl", **{"bootstrap.servers": secured.bootstrap_servers, "max.block.ms": "2000"})
    assert "security.protocol" in str(told)


def test_plain_at_a_tls_port_is_advised(secured: DevCluster) -> None:
    servers = secured.client_options("ssl")["bootstrap.servers"]
    began = time.monotonic()
    with Producer(bootstrap_servers=servers, max_block_ms=2000) as producer:
        with pytest.raises(KafkaError, match=r"security\.protocol"):
            producer.partitions_for("any")
        producer.close(0)
    assert time.monotonic() - began < SOON


def test_sasl_at_a_listener_without_it_is_advised(secured: DevCluster) -> None:
    told = refusal(secured, "sasl_plaintext-plain", **{"bootstrap.servers": secured.bootstrap_servers})
    assert isinstance(told, AuthenticationError)
    assert "security.protocol" in str(told)
