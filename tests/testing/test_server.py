# SPDX-License-Identifier: Apache-2.0
"""The fake cluster on TCP: our own producer, and whatever other client is installed."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from penstock import Producer
from penstock.protocol.messages import METADATA, PRODUCE
from penstock.testing import Code, FakeKafka, Fault
from penstock.testing.releases import RELEASES

TIMEOUT = 60.0
API_VERSIONS_V0 = b"\0\0\0\x0a\0\x12\0\0\0\0\0\1\xff\xff"  # size, key, version, correlation id, no client id


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    with FakeKafka(brokers=3, topics={"t": 3}) as running:
        yield running


def producer_for(kafka: FakeKafka, **options: Any) -> Producer:
    fast = {"linger_ms": 0, "retry_backoff_ms": 5, "reconnect_backoff_ms": 5, "reconnect_backoff_max_ms": 20}
    return Producer(bootstrap_servers=kafka.bootstrap_servers, **(fast | options))


def all_values(kafka: FakeKafka, partitions: int = 3) -> list[bytes | None]:
    return sorted(record.value or b"" for part in range(partitions) for record in kafka.records("t", part))


def test_records_are_those_of_one_partition_or_of_all(kafka: FakeKafka) -> None:
    with producer_for(kafka) as producer:
        for partition in (2, 0, 1):
            for number in range(2):
                producer.send("t", b"%d-%d" % (partition, number), partition=partition)
    assert [record.value for record in kafka.records("t", 1)] == [b"1-0", b"1-1"]
    assert [record.value for record in kafka.records("t")] == [b"0-0", b"0-1", b"1-0", b"1-1", b"2-0", b"2-1"]


@pytest.mark.parametrize(
    ("missing", "text"),
    [
        (("t", 3), "no partition t-3: the topic has 3, from 0 to 2"),
        (("other",), "no topic other; the cluster has s, t"),
        (("other", 0), "no topic other; the cluster has s, t"),
    ],
)
def test_records_that_cannot_be_there(kafka: FakeKafka, missing: tuple[Any, ...], text: str) -> None:
    kafka.create_topic("s")
    with pytest.raises(KeyError) as caught:
        kafka.records(*missing)
    assert caught.value.args == (text,)


def test_a_cluster_lives_on_while_an_answer_is_held_back_for_very_long() -> None:
    with FakeKafka(topics={"t": 1}) as kafka:
        kafka.add_fault(Fault(api="Produce", delay=1e12))
        with producer_for(kafka, request_timeout_ms=100, linger_ms=0) as producer:
            producer.send("t", b"v").result(TIMEOUT)


def test_a_cluster_without_topics_has_no_records() -> None:
    kafka = FakeKafka()
    with pytest.raises(KeyError, match="no topic t; the cluster has none"):
        kafka.records("t")
    kafka.close()


@pytest.mark.parametrize("isolation", ["foo", "READ_COMMITTED", None, 1])
def test_an_isolation_level_that_does_not_exist(kafka: FakeKafka, isolation: Any) -> None:
    with pytest.raises(ValueError, match="isolation must be 'read_committed' or 'read_uncommitted', not "):
        kafka.records("t", isolation=isolation)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"topic": {"t": 1}}, "no argument 'topic'; did you mean 'topics'?"),
        ({"nonsense": 1}, "no argument 'nonsense'. There are brokers, topics, release, "),
        ({"brokers": "3"}, "brokers is a number, not '3'"),
        ({"topics": {"t": "1"}}, "topics are names with numbers of partitions"),
        ({"settings": {"default_partitions": 2}}, "settings are a penstock.testing.ClusterSettings"),
    ],
)
def test_a_wrong_argument_is_explained(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(TypeError) as caught:
        FakeKafka(**arguments)
    assert problem in str(caught.value)


# ------------------------------------------------------------------------------------------------ our producer


@pytest.mark.parametrize("acks", ["all", "1"])
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_our_producer_produces(kafka: FakeKafka, acks: str, compression: str) -> None:
    with producer_for(kafka, acks=acks, compression_type=compression) as producer:
        sent = [producer.send("t", b"%04d" % index, key=b"%d" % index) for index in range(200)]
        places = {(each.result(TIMEOUT).partition, each.result(TIMEOUT).offset) for each in sent}
    assert len(places) == 200
    assert all_values(kafka) == [b"%04d" % index for index in range(200)]


@pytest.mark.parametrize("release", RELEASES)
def test_our_producer_speaks_the_highest_version_of_the_release(release: str) -> None:
    with FakeKafka(topics={"t": 1}, release=release) as kafka:
        with producer_for(kafka) as producer:
            assert producer.send("t", b"v").result(TIMEOUT).offset == 0
        with kafka.locked() as cluster:
            versions = {request.version for request in cluster.received if request.api is PRODUCE}
            assert versions == {cluster.release.ranges[PRODUCE.key][1]}


def test_our_producer_makes_topics_on_demand(kafka: FakeKafka) -> None:
    with producer_for(kafka) as producer:
        assert producer.send("new", b"v").result(TIMEOUT).offset == 0
    assert len(kafka.records("new")) == 1


@pytest.mark.parametrize(
    "fault",
    [
        Fault(api=PRODUCE, error=Code.NOT_LEADER_OR_FOLLOWER, times=2),
        Fault(api=PRODUCE, error=Code.NOT_ENOUGH_REPLICAS),
        Fault(api=PRODUCE, cut="before"),
        Fault(api=PRODUCE, truncate=7),
        Fault(api=PRODUCE, throttle_ms=30),
        Fault(api=METADATA, cut="after"),
        Fault(delay=0.02, times=3),
    ],
    ids=["not-leader", "not-enough", "cut", "half", "throttle", "metadata", "slow"],
)
def test_our_producer_survives_faults(kafka: FakeKafka, fault: Fault) -> None:
    kafka.add_fault(fault)
    with producer_for(kafka) as producer:
        producer.send("t", b"v", partition=0).result(TIMEOUT)
    assert b"v" in all_values(kafka)
    assert fault not in kafka.cluster.faults.waiting


def test_our_producer_follows_a_moved_leader(kafka: FakeKafka) -> None:
    with producer_for(kafka) as producer:
        producer.send("t", b"before", partition=0).result(TIMEOUT)
        with kafka.locked() as cluster:
            partition = cluster.partition("t", 0)
            cluster.move_leader("t", 0, partition.isr[-1])
        assert producer.send("t", b"after", partition=0).result(TIMEOUT).offset == 1


def test_our_producer_survives_a_stopped_broker(kafka: FakeKafka) -> None:
    with producer_for(kafka) as producer:
        producer.send("t", b"before", partition=0).result(TIMEOUT)
        with kafka.locked() as cluster:
            leader = cluster.partition("t", 0).leader
        kafka.stop_broker(leader)
        assert producer.send("t", b"between", partition=0).result(TIMEOUT).offset == 1
        kafka.start_broker(leader)
        with kafka.locked() as cluster:
            cluster.move_leader("t", 0, leader)
        assert producer.send("t", b"after", partition=0).result(TIMEOUT).offset == 2


def test_all_acks_wait_for_replication(kafka: FakeKafka) -> None:
    with kafka.locked() as cluster:
        cluster.hold_replication("t", 0)
    arrived = threading.Event()
    kafka.add_fault(Fault(api=PRODUCE, match=lambda _: arrived.set() or True))
    with producer_for(kafka) as producer:
        delivery = producer.send("t", b"v", partition=0)
        assert arrived.wait(TIMEOUT)
        assert not delivery.done()
        with kafka.locked() as cluster:
            cluster.resume_replication("t", 0)
        assert delivery.result(TIMEOUT).offset == 0


# ------------------------------------------------------------------------------------------------ the server


def test_a_stopped_broker_refuses_connections_and_comes_back(kafka: FakeKafka) -> None:
    node = kafka.cluster.nodes[1]
    kafka.stop_broker(1)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((node.host, node.port), TIMEOUT)
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind((node.host, node.port))  # the port is kept for it
    kafka.start_broker(1)
    socket.create_connection((node.host, node.port), TIMEOUT).close()


def test_a_broker_stopped_through_the_cluster_is_gone_too(kafka: FakeKafka) -> None:
    node = kafka.cluster.nodes[1]
    with socket.create_connection((node.host, node.port), TIMEOUT) as sock:
        sock.settimeout(TIMEOUT)
        sock.sendall(API_VERSIONS_V0)
        assert len(sock.recv(1000)) > 100
        with kafka.locked() as cluster:
            cluster.stop_broker(1)
        assert sock.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((node.host, node.port), TIMEOUT)


def test_rubbish_ends_the_connection_alone(kafka: FakeKafka) -> None:
    node = kafka.cluster.nodes[0]
    with socket.create_connection((node.host, node.port), TIMEOUT) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
        sock.settimeout(TIMEOUT)
        assert sock.recv(100) == b""
    with producer_for(kafka) as producer:
        producer.send("t", b"v").result(TIMEOUT)


def test_a_mistake_of_the_test_is_raised_when_the_server_closes() -> None:
    def broken(request: object) -> bool:
        raise ZeroDivisionError

    def ask() -> bytes:
        with FakeKafka(topics={"t": 1}) as kafka:
            kafka.add_fault(Fault(match=broken))
            with socket.create_connection(("127.0.0.1", kafka.cluster.nodes[0].port), TIMEOUT) as sock:
                sock.settimeout(TIMEOUT)
                sock.sendall(API_VERSIONS_V0)
                return sock.recv(100)

    with pytest.raises(ZeroDivisionError):
        ask()


def test_closing_twice_and_without_starting() -> None:
    never_started = FakeKafka()
    never_started.close()
    with FakeKafka() as kafka:
        assert kafka.bootstrap_servers.startswith("127.0.0.1:")
    kafka.close()


# ------------------------------------------------------------------------------------------------ librdkafka


class Rdkafka:
    """confluent-kafka's producer, as far as needed here."""

    def __init__(self, kafka: FakeKafka, **config: Any) -> None:
        confluent = pytest.importorskip("confluent_kafka")
        self.errors: list[Any] = []
        settings = {"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 0, "log_level": 0}
        settings |= {"error_cb": self.errors.append}
        self.producer = confluent.Producer(
            settings | {name.replace("_", "."): v for name, v in config.items()}
        )
        self.failed: list[Any] = []

    def send(self, count: int, start: int = 0) -> None:
        for index in range(start, start + count):
            self.producer.produce("t", b"%04d" % index, on_delivery=self._delivered)
        assert self.producer.flush(TIMEOUT) == 0

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failed.append(error)


@pytest.mark.slow
@pytest.mark.parametrize("release", ["2.4", "3.9", "4.3"])
@pytest.mark.parametrize("idempotent", [False, True])
def test_librdkafka_produces(release: str, idempotent: bool) -> None:
    with FakeKafka(topics={"t": 3}, release=release) as kafka:
        client = Rdkafka(kafka, enable_idempotence=idempotent)
        client.send(100)
        assert client.failed == []
        del client
        assert all_values(kafka) == [b"%04d" % index for index in range(100)]


@pytest.mark.slow
def test_librdkafka_does_not_duplicate_when_an_answer_is_lost(kafka: FakeKafka) -> None:
    kafka.add_fault(Fault(api=PRODUCE, cut="after"))
    client = Rdkafka(kafka, enable_idempotence=True, reconnect_backoff_ms=5)
    client.send(20)
    assert client.failed == []
    del client
    assert all_values(kafka) == [b"%04d" % index for index in range(20)]


@pytest.mark.slow
@pytest.mark.parametrize("release", ["2.8", "3.9", "4.3"])
def test_librdkafka_commits_and_aborts(release: str) -> None:
    with FakeKafka(brokers=2, topics={"t": 3}, release=release) as kafka:
        client = Rdkafka(kafka, transactional_id="x")
        client.producer.init_transactions(TIMEOUT)
        client.producer.begin_transaction()
        client.send(10)
        client.producer.commit_transaction(TIMEOUT)
        client.producer.begin_transaction()
        client.send(10, start=10)
        client.producer.abort_transaction(TIMEOUT)
        client.producer.begin_transaction()
        client.send(10, start=20)
        client.producer.commit_transaction(TIMEOUT)
        assert client.failed == []
        del client
        assert all_values(kafka) == [b"%04d" % index for index in (*range(10), *range(20, 30))]


# ------------------------------------------------------------------------------------------------ aiokafka


@pytest.mark.slow
@pytest.mark.parametrize("release", ["2.4", "3.9", "4.3"])
@pytest.mark.parametrize("idempotent", [False, True])
@pytest.mark.filterwarnings("ignore::DeprecationWarning:aiokafka")
def test_aiokafka_produces(release: str, idempotent: bool) -> None:
    import asyncio

    aiokafka = pytest.importorskip("aiokafka")

    async def send(servers: str) -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=servers, enable_idempotence=idempotent)
        await producer.start()
        try:
            await asyncio.gather(*[await producer.send("t", b"%04d" % index) for index in range(50)])
        finally:
            await producer.stop()

    with FakeKafka(topics={"t": 3}, release=release) as kafka:
        asyncio.run(asyncio.wait_for(send(kafka.bootstrap_servers), TIMEOUT))
        assert all_values(kafka) == [b"%04d" % index for index in range(50)]


# ------------------------------------------------------------------------------------------------ our own guarantees


@pytest.mark.slow
@pytest.mark.parametrize("release", ["2.8", "3.9", "4.3"])
def test_our_producer_commits_aborts_and_does_not_duplicate(release: str) -> None:
    with FakeKafka(brokers=2, topics={"t": 3}, release=release) as kafka:
        kafka.add_fault(Fault(api=PRODUCE, cut="after"))
        with Producer(bootstrap_servers=kafka.bootstrap_servers, transactional_id="x") as producer:
            producer.init_transactions()
            for start, commits in ((0, True), (10, False), (20, True)):
                producer.begin_transaction()
                for index in range(start, start + 10):
                    producer.send("t", b"%04d" % index)
                producer.flush(TIMEOUT)
                if commits:
                    producer.commit_transaction()
                else:
                    producer.abort_transaction()
        assert all_values(kafka) == [b"%04d" % index for index in (*range(10), *range(20, 30))]
