# SPDX-License-Identifier: Apache-2.0
"""Idempotence and transactions on a real broker, in both protocols, read back with Kafka's own tools."""

from __future__ import annotations

import threading
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator

import pytest
from fix_broker import consume_from, dump_log_of

from penstock import Producer, complete_transaction
from penstock.devbroker import DevCluster
from penstock.devbroker.settings import QUICK_JVM
from penstock.errors import KafkaError, ProducerFencedError, TransactionAbortedError
from penstock.types import TopicPartition

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(600)]

_FEATURES = "org.apache.kafka.tools.FeatureCommand"
_GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
RECORDS = 30_000
PARTITIONS = 3


class ProtocolCluster:
    """A broker whose transaction.version can be changed."""

    def __init__(self, cluster: DevCluster) -> None:
        self.cluster = cluster
        self.level = 2  # of a new cluster

    def set_level(self, level: int) -> None:
        if level == self.level:
            return
        done = self.cluster.run_tool(
            _FEATURES,
            *("--bootstrap-server", self.cluster.bootstrap_servers),
            *("upgrade" if level > self.level else "downgrade", "--feature", f"transaction.version={level}"),
            jvm=QUICK_JVM,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        self.level = level

    def producer(self, transactional_id: str, **options: object) -> Producer:
        return Producer(
            bootstrap_servers=self.cluster.bootstrap_servers, transactional_id=transactional_id, **options
        )

    def topic(self, partitions: int = 1) -> str:
        name = f"t-{uuid.uuid4().hex[:12]}"
        self.cluster.create_topic(name, partitions)
        return name

    def committed(self, topic: str, count: int) -> list[bytes | None]:
        found = consume_from(self.cluster, topic, count=count, isolation_level="read_committed")
        return [record.value for record in found]


@pytest.fixture(scope="module")
def own_cluster() -> Iterator[ProtocolCluster]:
    with DevCluster() as cluster:
        yield ProtocolCluster(cluster)


@pytest.fixture(scope="module", params=[2, 1], ids=["v2", "v1"])
def kafka(request: pytest.FixtureRequest, own_cluster: ProtocolCluster) -> ProtocolCluster:
    own_cluster.set_level(request.param)
    return own_cluster


def fresh_id() -> str:
    return f"x-{uuid.uuid4().hex[:12]}"


def test_what_is_committed_can_be_read_with_its_offsets(kafka: ProtocolCluster) -> None:
    topic, source, name = kafka.topic(2), kafka.topic(), fresh_id()
    expected = []
    with kafka.producer(name) as producer:
        producer.init_transactions()
        for number in range(6):
            producer.begin_transaction()
            for partition in range(2):
                producer.send(topic, b"%d" % number, partition=partition)
            producer.send_offsets_to_transaction({TopicPartition(source, 0): number}, name)
            if number % 3 == 1:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
                expected.append(b"%d" % number)
    assert kafka.committed(topic, 2 * len(expected)) == expected * 2
    done = kafka.cluster.run_tool(
        _GROUPS,
        *("--bootstrap-server", kafka.cluster.bootstrap_servers, "--describe", "--group", name),
        jvm=QUICK_JVM,
    )
    rows = [line.split() for line in done.stdout.splitlines() if source in line]
    assert [row[3] for row in rows] == ["5"], done.stdout + done.stderr


def test_a_record_that_fails_fails_one_transaction_only(kafka: ProtocolCluster) -> None:
    topic = f"t-{uuid.uuid4().hex[:12]}"
    kafka.cluster.create_topic(topic, 1, config={"max.message.bytes": 2000})
    with kafka.producer(fresh_id()) as producer:
        producer.init_transactions()
        for number in range(3):
            try:
                with producer.transaction():
                    producer.send(topic, b"before %d" % number)
                    if number == 1:
                        producer.send(topic, bytes(5000)).exception(60)
                    producer.send(topic, b"after %d" % number)
            except KafkaError:
                assert number == 1
            else:
                assert number != 1
    wanted = [b"before 0", b"after 0", b"before 2", b"after 2"]
    assert kafka.committed(topic, 4) == wanted


def test_a_newer_producer_shuts_out_the_older_one(kafka: ProtocolCluster) -> None:
    topic, name = kafka.topic(), fresh_id()
    with kafka.producer(name) as older, kafka.producer(name) as newer:
        older.init_transactions()
        older.begin_transaction()
        older.send(topic, b"older").result(60)
        newer.init_transactions()
        with newer.transaction():
            newer.send(topic, b"newer")
        older.send(topic, b"too late").exception(60)
        with pytest.raises(KafkaError):
            older.commit_transaction()
        with pytest.raises(ProducerFencedError):
            older.abort_transaction()
        with newer.transaction():
            newer.send(topic, b"newer still")
    assert kafka.committed(topic, 2) == [b"newer", b"newer still"]


def test_a_transaction_is_handed_over(kafka: ProtocolCluster) -> None:
    topic, config = kafka.topic(), {"bootstrap.servers": kafka.cluster.bootstrap_servers}
    handles = []
    with kafka.producer(fresh_id()) as producer:
        for number in range(3):
            producer.init_transactions(fresh_id())
            producer.begin_transaction()
            producer.send(topic, b"%d" % number)
            handles.append(producer.detach_transaction())
    assert complete_transaction(handles[0], config=config).committed
    assert not complete_transaction(handles[1], commit=False, config=config).committed
    assert complete_transaction(handles[2], config=config).committed
    assert complete_transaction(handles[2], config=config).committed
    with pytest.raises(TransactionAbortedError):
        complete_transaction(handles[1], config=config)
    assert kafka.committed(topic, 2) == [b"0", b"2"]


def test_closing_aborts_what_is_open(kafka: ProtocolCluster) -> None:
    topic, name = kafka.topic(), fresh_id()
    with kafka.producer(name) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"dropped")
    with kafka.producer(name) as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send(topic, b"kept")
    assert kafka.committed(topic, 1) == [b"kept"]


def test_the_cluster_changes_the_protocol_meanwhile(own_cluster: ProtocolCluster) -> None:
    topic, level_before = own_cluster.topic(), own_cluster.level
    own_cluster.set_level(1)
    # Idle connections are closed at once, so that each transaction sees the features as they are.
    with own_cluster.producer(fresh_id(), connections_max_idle_ms=100) as producer:
        producer.init_transactions()
        for number, level in enumerate((1, 2, 2, 1, 1)):
            own_cluster.set_level(level)
            with producer.transaction():
                producer.send(topic, b"%d" % number)
    assert own_cluster.committed(topic, 5) == [b"%d" % number for number in range(5)]
    own_cluster.set_level(level_before)


# --------------------------------------------------------------------------------------------- with restarts


def test_idempotence_survives_a_broker_that_is_killed(
    breakable: DevCluster, note: Callable[[str], None]
) -> None:
    topic = f"t-{uuid.uuid4().hex[:12]}"
    breakable.create_topic(topic, PARTITIONS)
    errors: list[KafkaError | None] = []
    half_way = threading.Event()

    def on_delivery(metadata: object, error: KafkaError | None) -> None:
        errors.append(error)
        if len(errors) == RECORDS // 4:
            half_way.set()

    options = {"batch_size": 2000, "buffer_memory": 300_000, "max_in_flight_requests_per_connection": 5}
    with Producer(bootstrap_servers=breakable.bootstrap_servers, **options) as producer:

        def send() -> None:
            for number in range(RECORDS):
                producer.send(topic, b"%d" % number, partition=number % PARTITIONS, on_delivery=on_delivery)

        sending = threading.Thread(target=send)
        sending.start()
        assert half_way.wait(60)
        breakable.kill(1)
        breakable.start_node(1)
        sending.join(120)
        producer.flush(60)
        retries = producer.metrics()["producer-metrics"]["record-retry-total"]
    assert len(errors) == RECORDS
    assert set(errors) == {None}
    assert retries > 0, "the restart did not disturb anything: this test proves nothing"
    found: defaultdict[int, list[int]] = defaultdict(list)
    for record in consume_from(breakable, topic):
        found[record.partition].append(int(record.value or b""))
    assert found == {
        partition: list(range(partition, RECORDS, PARTITIONS)) for partition in range(PARTITIONS)
    }
    batches = dump_log_of(breakable, topic, 0)
    assert all(batch.is_valid and batch.producer_id >= 0 for batch in batches)
    note(f"{RECORDS:,} records once each, {retries:,} sent again")


@pytest.mark.parametrize("graceful", [True, False], ids=["stopped", "killed"])
def test_transactions_survive_a_broker_that_goes_away(breakable: DevCluster, graceful: bool) -> None:
    topic = f"t-{uuid.uuid4().hex[:12]}"
    breakable.create_topic(topic, 1)
    committed = []
    with Producer(bootstrap_servers=breakable.bootstrap_servers, transactional_id=fresh_id()) as producer:
        producer.init_transactions()
        for number in range(9):
            back: threading.Thread | None = None
            producer.begin_transaction()
            producer.send(topic, b"%d" % number)
            if number % 4 == 2:
                (breakable.stop_node if graceful else breakable.kill)(1)
                back = threading.Thread(target=breakable.start_node, args=(1,))
                back.start()
            if number % 3 == 1:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
                committed.append(b"%d" % number)
            if back is not None:
                back.join()
    found = consume_from(breakable, topic, count=len(committed), isolation_level="read_committed")
    assert [record.value for record in found] == committed
