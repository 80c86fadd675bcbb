# SPDX-License-Identifier: Apache-2.0
"""Records written without a producer, plainly and in transactions of both protocols."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock._identity import TransactionalIdentity
from penstock.control import ControlClient
from penstock.control.partition_log import (
    KeyValue,
    TransactionalWrite,
    add_to_transaction,
    end_transaction_once,
    init_producer_id,
    write_batch,
)
from penstock.errors import BrokerError, KafkaError, UnknownTopicOrPartitionError
from penstock.protocol.messages import ADD_PARTITIONS_TO_TXN, END_TXN, PRODUCE
from penstock.testing import Code, FakeKafka, Fault
from penstock.types import TopicPartition

LOG = TopicPartition("log", 0)
NOW = 1_700_000_000_000


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def kafka(request: pytest.FixtureRequest) -> Iterator[FakeKafka]:
    features = {"transaction.version": request.param}
    with FakeKafka(brokers=3, topics={"log": 1}, features=features) as kafka:
        yield kafka


@pytest.fixture
def client(kafka: FakeKafka) -> Iterator[ControlClient]:
    with ControlClient({"bootstrap.servers": kafka.bootstrap_servers}) as client:
        yield client


def begin(client: ControlClient) -> TransactionalIdentity:
    identity = init_producer_id(client, "x", 30_000)
    if identity.end_txn_version < 5:
        add_to_transaction(client, identity, LOG)
    return identity


def write(client: ControlClient, identity: TransactionalIdentity, sequence: int, *values: bytes) -> int:
    within = TransactionalWrite(identity, sequence)
    return write_batch(client, LOG, [KeyValue(b"k", value) for value in values], NOW, within)


def values(kafka: FakeKafka) -> list[bytes | None]:
    return [record.value for record in kafka.records(*LOG)]


def test_plain_records_and_tombstones(kafka: FakeKafka, client: ControlClient) -> None:
    assert write_batch(client, LOG, [KeyValue(b"a", b"1"), KeyValue(b"b", None)], NOW) == 0
    assert write_batch(client, LOG, [KeyValue(b"c", b"3")], NOW) == 2
    found = [(record.key, record.value, record.timestamp) for record in kafka.records(*LOG)]
    assert found == [(b"a", b"1", NOW), (b"b", None, NOW), (b"c", b"3", NOW)]


def test_the_protocol_is_that_of_the_cluster(kafka: FakeKafka, client: ControlClient) -> None:
    wanted = 5 if kafka.cluster.features["transaction.version"] == 2 else 3
    assert client.end_txn_version() == wanted
    assert init_producer_id(client, "x", 30_000).end_txn_version == wanted


def test_an_old_cluster_has_the_older_protocol() -> None:
    with (
        FakeKafka(release="3.0") as kafka,
        ControlClient({"bootstrap.servers": kafka.bootstrap_servers}) as client,
    ):
        assert client.end_txn_version() == 3


def test_a_transaction_of_several_batches(kafka: FakeKafka, client: ControlClient) -> None:
    identity = begin(client)
    write(client, identity, 0, b"1", b"2")
    write(client, identity, 2, b"3")
    assert values(kafka) == []
    end_transaction_once(client, identity, commit=True)
    assert values(kafka) == [b"1", b"2", b"3"]
    end_transaction_once(client, identity, commit=True)  # once more is the same
    with pytest.raises(BrokerError):
        end_transaction_once(client, identity, commit=False)


def test_an_aborted_transaction(kafka: FakeKafka, client: ControlClient) -> None:
    identity = begin(client)
    write(client, identity, 0, b"1")
    end_transaction_once(client, identity, commit=False)
    assert values(kafka) == []


def test_partitions_are_added_in_the_older_protocol_only(kafka: FakeKafka, client: ControlClient) -> None:
    identity = begin(client)
    write(client, identity, 0, b"1")
    with kafka.locked() as cluster:
        added = any(request.api is ADD_PARTITIONS_TO_TXN for request in cluster.received)
        versions = {request.version for request in cluster.received if request.api is PRODUCE}
    old = identity.end_txn_version < 5
    assert added == old
    assert all((version <= 11) == old for version in versions)


def test_a_fenced_writer_can_neither_write_nor_end(client: ControlClient) -> None:
    identity = begin(client)
    write(client, identity, 0, b"1")
    init_producer_id(client, "x", 30_000)
    with pytest.raises(KafkaError):
        write(client, identity, 1, b"2")
    with pytest.raises(BrokerError):
        end_transaction_once(client, identity, commit=True)


def test_a_batch_whose_answer_was_lost_is_written_once(kafka: FakeKafka, client: ControlClient) -> None:
    identity = begin(client)
    kafka.add_fault(Fault(api=PRODUCE, cut="after"))
    write(client, identity, 0, b"1")
    kafka.add_fault(Fault(api=END_TXN, cut="after"))
    end_transaction_once(client, identity, commit=True)
    assert values(kafka) == [b"1"]


def test_passing_trouble_is_waited_out(kafka: FakeKafka, client: ControlClient) -> None:
    kafka.add_fault(Fault(api=PRODUCE, error=Code.NOT_LEADER_OR_FOLLOWER))
    write_batch(client, LOG, [KeyValue(b"a", b"1")], NOW)
    kafka.add_fault(Fault(api=PRODUCE, error=Code.MESSAGE_TOO_LARGE))
    with pytest.raises(BrokerError, match="MESSAGE_TOO_LARGE"):
        write_batch(client, LOG, [KeyValue(b"a", b"2")], NOW)
    assert values(kafka) == [b"1"]


def test_a_topic_that_is_not_there(client: ControlClient) -> None:
    identity = init_producer_id(client, "x", 30_000)
    place = TopicPartition("nowhere", 0)
    with pytest.raises((UnknownTopicOrPartitionError, TimeoutError)):
        add_to_transaction(client, identity, place, timeout=0.5)
    with pytest.raises(TimeoutError, match="nowhere"):
        write_batch(client, place, [KeyValue(b"a", b"1")], NOW, timeout=0.5)
