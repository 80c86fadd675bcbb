# SPDX-License-Identifier: Apache-2.0
"""What topics do to records: made on demand, missing, growing, too small for a batch, with a clock of their own."""

from __future__ import annotations

import random
import re
import time
import uuid
from pathlib import Path

import pytest
from fix_broker import Consume, MakeTopic
from fix_patience import why_it_waited
from integration.support import grow_topic

from penstock import Producer
from penstock.devbroker import DevCluster
from penstock.errors import MessageTooLargeError, UnknownTopicOrPartitionError

pytestmark = [pytest.mark.broker, pytest.mark.slow]


@pytest.fixture
def servers(dev_cluster: DevCluster) -> str:
    return dev_cluster.bootstrap_servers


@pytest.mark.core
def test_a_topic_is_created_by_the_first_record(servers: str, consume: Consume) -> None:
    name = f"fresh-{uuid.uuid4().hex[:12]}"
    with Producer(bootstrap_servers=servers) as producer:
        assert producer.send(name, b"first").result(60).offset == 0
    assert [record.value for record in consume(name, count=1)] == [b"first"]


def test_a_topic_that_nobody_creates_is_named_as_the_cause(breakable: DevCluster) -> None:
    options = {"bootstrap_servers": breakable.bootstrap_servers, "max_block_ms": 1500}
    with Producer(**options) as producer:
        before = time.monotonic()
        error = why_it_waited(producer, lambda: producer.send("nowhere", b"lost"))
        assert time.monotonic() - before > 1.4
    assert re.search(r"'nowhere' does not exist.*auto\.create", str(error))
    assert isinstance(error.__cause__, UnknownTopicOrPartitionError)


def test_new_partitions_are_used_while_records_are_sent(
    servers: str, dev_cluster: DevCluster, topic: MakeTopic, consume: Consume
) -> None:
    name = topic(partitions=1)
    sent: dict[bytes, tuple[int, int]] = {}
    with Producer(bootstrap_servers=servers, metadata_max_age_ms=500, linger_ms=0) as producer:

        def send_some() -> set[int]:
            values = [b"%d" % (len(sent) + number) for number in range(40)]
            deliveries = [producer.send(name, value, value) for value in values]
            for value, delivery in zip(values, deliveries, strict=True):
                found = delivery.result(60)
                sent[value] = (found.partition, found.offset)
            return {sent[value][0] for value in values}

        assert send_some() == {0}
        grow_topic(dev_cluster, name, 4)
        deadline = time.monotonic() + 60
        while send_some() != {0, 1, 2, 3}:
            assert time.monotonic() < deadline, "the new partitions were never used"
        assert len(producer.partitions_for(name)) == 4
    read = {record.value: (record.partition, record.offset) for record in consume(name)}
    assert read == sent


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_batch_too_large_for_the_topic_is_split(
    servers: str, topic: MakeTopic, consume: Consume, codec: str
) -> None:
    name = topic(max_message_bytes=20_000)
    rng = random.Random(codec)
    values = [b"%04d" % number + rng.randbytes(1000) for number in range(300)]
    options = {"batch_size": 200_000, "linger_ms": 1000, "compression_type": codec}
    with Producer(bootstrap_servers=servers, **options) as producer:
        deliveries = [producer.send(name, value) for value in values]
        producer.flush(60)
        offsets = [delivery.result(0).offset for delivery in deliveries]
        splits = producer.metrics()["producer-metrics"]["batch-split-total"]
    assert splits >= 2
    assert sorted(offsets) == list(range(len(values)))
    at = {record.offset: record.value for record in consume(name)}
    assert [at[offset] for offset in offsets] == values


@pytest.mark.core
def test_a_record_too_large_for_the_topic_fails_alone(
    servers: str, topic: MakeTopic, consume: Consume
) -> None:
    name = topic(max_message_bytes=20_000)
    with Producer(bootstrap_servers=servers, batch_size=200_000, linger_ms=1000) as producer:
        before = producer.send(name, b"before")
        large = producer.send(name, b"x" * 30_000)
        after = producer.send(name, b"after")
        producer.flush(60)
        error = large.exception(0)
        assert isinstance(error, MessageTooLargeError)
        assert name in str(error)
        assert not error.retriable
        assert before.result(0).offset >= 0
        assert after.result(0).offset >= 0
    assert sorted(record.value or b"" for record in consume(name)) == [b"after", b"before"]


def test_the_brokers_time_is_told_where_the_topic_uses_it(
    servers: str, topic: MakeTopic, consume: Consume
) -> None:
    name = topic(message_timestamp_type="LogAppendTime")
    before_ms = int(time.time() * 1000)
    with Producer(bootstrap_servers=servers) as producer:
        deliveries = [producer.send(name, b"%d" % number, timestamp_ms=1000 + number) for number in range(5)]
        told = [delivery.result(60).timestamp for delivery in deliveries]
    read = consume(name)
    assert [record.timestamp_type for record in read] == ["LogAppendTime"] * 5
    assert [record.timestamp_ms for record in read] == told
    assert all(before_ms <= moment <= time.time() * 1000 for moment in told)


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_records_arrive_with_each_kind_of_acknowledgement(
    servers: str, topic: MakeTopic, consume: Consume, acks: str
) -> None:
    name = topic()
    with Producer(bootstrap_servers=servers, acks=acks) as producer:
        deliveries = [producer.send(name, b"%d" % number) for number in range(500)]
        producer.flush(60)
        told = [delivery.result(0).offset for delivery in deliveries]
    assert told == ([-1] * 500 if acks == "0" else list(range(500)))
    assert [record.value for record in consume(name, count=500)] == [b"%d" % number for number in range(500)]


LEVELS = (
    ("gzip", 1),
    ("gzip", 9),
    ("lz4", 1),
    ("lz4", 17),
    ("zstd", -7),
    ("zstd", 1),
    ("zstd", 19),
    ("zstd", 22),
)


def test_every_level_of_compression_can_be_read(
    servers: str, dev_cluster: DevCluster, topic: MakeTopic, consume: Consume
) -> None:
    name = topic(partitions=len(LEVELS))
    rng = random.Random(7)
    words = [b"weir", b"gate", b"flow", b"head", b"race", b"sluice"]
    values = [b" ".join(rng.choices(words, k=40)) for _ in range(400)]
    for partition, (codec, level) in enumerate(LEVELS):
        options = {"compression.type": codec, f"compression.{codec}.level": level, "batch.size": 500_000}
        config = {"bootstrap.servers": servers, "linger.ms": 1000, **options}
        with Producer(config) as producer:
            for value in values:
                producer.send(name, value, partition=partition)
    read: dict[int, list[bytes | None]] = {}
    for record in consume(name):
        read.setdefault(record.partition, []).append(record.value)
    assert read == dict.fromkeys(range(len(LEVELS)), values)
    (folder,) = dev_cluster.log_dirs().values()
    sizes = {case: _size_of_log(folder / f"{name}-{number}") for number, case in enumerate(LEVELS)}
    for codec in ("gzip", "lz4", "zstd"):
        by_level = [sizes[case] for case in LEVELS if case[0] == codec]
        assert by_level[0] > by_level[-1], sizes


def _size_of_log(folder: Path) -> int:
    return sum(name.stat().st_size for name in folder.glob("*.log"))
