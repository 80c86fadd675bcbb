# SPDX-License-Identifier: Apache-2.0
"""A partition is read to its end, with everything in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.control import ControlClient
from penstock.control.partition_log import (
    KeyValue,
    TransactionalWrite,
    init_producer_id,
    log_end,
    log_start,
    read_log,
    write_batch,
)
from penstock.control.steps import LeaderOf
from penstock.errors import BrokerError, KafkaTimeoutError
from penstock.protocol.messages import FETCH, LIST_OFFSETS
from penstock.records.reader import RecordBatch
from penstock.testing import Code, FakeKafka, Fault
from penstock.types import TopicPartition

LOG = TopicPartition("log", 0)
LEADER = LeaderOf(*LOG)


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    with FakeKafka(brokers=3, topics={"log": 1}) as kafka:
        yield kafka


@pytest.fixture
def client(kafka: FakeKafka) -> Iterator[ControlClient]:
    with ControlClient({"bootstrap.servers": kafka.bootstrap_servers}) as client:
        yield client


def write(client: ControlClient, *values: bytes) -> None:
    write_batch(client, LOG, [KeyValue(b"k", value) for value in values], 1)


def read(client: ControlClient, start: int, end: int) -> list[RecordBatch]:
    batches: list[RecordBatch] = []
    after = client.run(read_log(LEADER, start, end, batches.append), 10)
    assert after == (batches[-1].last_offset + 1 if batches else start)
    return batches


def test_ends(kafka: FakeKafka, client: ControlClient) -> None:
    assert client.run(log_end(LEADER)).offset == 0
    write(client, b"a", b"b")
    write(client, b"c")
    assert client.run(log_end(LEADER)).offset == 3
    with kafka.locked() as cluster:
        cluster.delete_records(*LOG, before=2)
        epoch = cluster.partition(*LOG).leader_epoch
    assert client.run(log_start(LEADER)) == (2, epoch)


def test_open_transactions_and_markers_are_read(client: ControlClient) -> None:
    identity = init_producer_id(client, "x", 30_000)
    write_batch(client, LOG, [KeyValue(b"k", b"open")], 1, TransactionalWrite(identity, 0))
    write(client, b"behind it")
    init_producer_id(client, "x", 30_000)  # aborts it, with a marker
    batches = read(client, 0, client.run(log_end(LEADER)).offset)
    assert [(batch.is_transactional, batch.is_control) for batch in batches] == [
        (True, False),
        (False, False),
        (True, True),
    ]


def test_from_the_middle_of_a_batch_the_whole_batch_is_given(client: ControlClient) -> None:
    write(client, b"a", b"b", b"c")
    write(client, b"d")
    assert [batch.base_offset for batch in read(client, 1, 4)] == [0, 3]
    assert [batch.base_offset for batch in read(client, 3, 4)] == [3]
    assert read(client, 4, 4) == []


def test_passing_trouble_is_waited_out(kafka: FakeKafka, client: ControlClient) -> None:
    write(client, b"a")
    kafka.add_fault(Fault(api=LIST_OFFSETS, error=Code.NOT_LEADER_OR_FOLLOWER))
    kafka.add_fault(Fault(api=FETCH, cut="before"))
    kafka.add_fault(Fault(api=FETCH, error=Code.NOT_LEADER_OR_FOLLOWER))
    assert client.run(log_end(LEADER)).offset == 1
    assert len(read(client, 0, 1)) == 1


def test_what_is_gone_is_told(kafka: FakeKafka, client: ControlClient) -> None:
    write(client, b"a")
    write(client, b"b")
    with kafka.locked() as cluster:
        cluster.delete_records(*LOG, before=1)
    with pytest.raises(BrokerError, match="OFFSET_OUT_OF_RANGE"):
        read(client, 0, 2)


def test_an_end_that_is_never_reached(client: ControlClient) -> None:
    write(client, b"a")
    with pytest.raises(KafkaTimeoutError, match="empty"):
        client.run(read_log(LEADER, 0, 5, lambda _: None), 0.5)
