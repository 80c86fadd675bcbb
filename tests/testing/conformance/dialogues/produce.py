# SPDX-License-Identifier: Apache-2.0
"""Produce: what is no batch, sequences, the rules of topics, wrong addresses, and transactions."""

from __future__ import annotations

from testing.batches import NO_BATCH, SEQUENCES
from testing.conformance.cases import UNANSWERED, Cases
from testing.conformance.raw import V2, Body, Raw
from testing.wire import Producer, batch

from penstock.protocol.messages import PRODUCE
from penstock.testing import Code

CASES = Cases(PRODUCE)


# ------------------------------------------------------------------------------------------------ batches


def add_no_batch(name: str, data: bytes | None) -> None:
    @CASES.case(name)
    def no_batch(raw: Raw, version: int) -> None:
        raw.produce(data, version)
        raw.produce(batch(2), version)
        raw.fetch()


for _name, _data, _ in NO_BATCH:
    if _name not in UNANSWERED:
        add_no_batch(_name, _data)


@CASES.case("several batches", *range(3, 14))
def several_batches(raw: Raw, version: int) -> None:
    raw.produce(raw.batch(3), version)
    raw.produce(raw.batch([b"", None]), version, partition=1)
    raw.produce(raw.batch(2, key=b"k"), version, acks=1)
    raw.fetch()


@CASES.case("corrupt", 3, 8, 9)
def corrupt(raw: Raw, version: int) -> None:
    data = raw.batch(1)
    raw.produce(data[:-1] + bytes([data[-1] ^ 1]), version)


@CASES.case("codecs")
def codecs(raw: Raw, version: int) -> None:
    for compression in ("gzip", "snappy", "lz4", "zstd"):
        raw.produce(raw.batch(5, compression=compression), version)
    raw.fetch()


@CASES.case("zstd", 6, 7, 13)
def zstd(raw: Raw, version: int) -> None:
    raw.produce(raw.batch(compression="zstd"), version)


def add_sequence(name: str) -> None:
    @CASES.case(f"sequences {name}")
    def sequences(raw: Raw, version: int) -> None:
        for (producer, sequence, count), _ in SEQUENCES[name]:
            raw.produce(raw.batch(count, producer, sequence), version)
        raw.fetch()


for _name in SEQUENCES:
    add_sequence(_name)


@CASES.case("version that nobody answers", 2, 99)
def unanswered_version(raw: Raw, version: int) -> None:
    raw.ask_version(PRODUCE, version, b"\xff\xff" + bytes(10))
    raw.produce(raw.batch())


# ------------------------------------------------------------------------------------------------ topics


@CASES.case("too large for the topic", 3, 13)
def too_large(raw: Raw, version: int) -> None:
    raw.make_topic("-small", max_message_bytes="200")
    raw.produce(raw.batch([b"v" * 300]), version)
    raw.produce(raw.batch([b"v" * 100]), version)


@CASES.case("compacted topic", 3, 8, 13)
def compacted(raw: Raw, version: int) -> None:
    raw.make_topic("-compacted", cleanup_policy="compact")
    raw.produce(raw.batch(2), version)
    raw.produce(raw.batch(2, key=b"k"), version)


@CASES.case("timestamps out of range", 3, 8, 13)
def timestamps(raw: Raw, version: int) -> None:
    raw.make_topic("-timely", message_timestamp_before_max_ms="60000", message_timestamp_after_max_ms="60000")
    for away_ms in (-120_000, 120_000, 0):
        raw.produce(raw.batch(2, timestamp=raw.names.now_ms + away_ms), version)


@CASES.case("far in the future")
def far_future(raw: Raw, version: int) -> None:
    raw.produce(raw.batch(timestamp=raw.names.now_ms + 7_200_000), version)


@CASES.case("time of the broker", 3, 13)
def brokers_time(raw: Raw, version: int) -> None:
    raw.make_topic("-stamped", message_timestamp_type="LogAppendTime")
    producer = Producer(1000, 0)
    for _ in range(2):
        raw.produce(raw.batch(2, producer, timestamp=1000), version)
    raw.fetch()


@CASES.case("too few in step", 3, 13)
def too_few(raw: Raw, version: int) -> None:
    raw.make_topic("-safe", min_insync_replicas="2")
    with raw.expecting(Code.NOT_ENOUGH_REPLICAS):
        raw.produce(raw.batch(), version)
    raw.produce(raw.batch(), version, acks=1)


@CASES.case("unknown partition", 3, 12, 13)
def unknown_partition(raw: Raw, version: int) -> None:
    with raw.expecting(Code.UNKNOWN_TOPIC_OR_PARTITION):
        raw.produce(raw.batch(), version, partition=9)


@CASES.case("unknown topic", 3, 12, 13)
def unknown_topic(raw: Raw, version: int) -> None:
    raw.topic_id, raw.topic = b"\x07" * 16, f"{raw.topic}-missing"
    with raw.expecting(Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNKNOWN_TOPIC_ID):
        raw.produce(raw.batch(), version)


@CASES.case("acks", 3, 9, 13)
def impossible_acks(raw: Raw, version: int) -> None:
    raw.produce(raw.batch(), version, acks=2)


@CASES.case("several partitions at once", 3, 8, 13)
def several_partitions(raw: Raw, version: int) -> None:
    rows = [
        {"index": 0, "records": raw.batch(1)},
        {"index": 1, "records": b""},
        {"index": 9, "records": raw.batch(1)},
    ]
    body = {
        "acks": -1,
        "timeout_ms": 10_000,
        "topic_data": [{"name": raw.topic, "topic_id": raw.topic_id, "partition_data": rows}],
    }
    with raw.expecting(Code.UNKNOWN_TOPIC_OR_PARTITION):
        raw.call(PRODUCE, body, version, only=sorted_partitions)


def sorted_partitions(answer: Body) -> Body:
    """Kafka answers first for what it found wrong without asking the log."""
    for topic in answer["responses"]:
        topic["partition_responses"].sort(key=lambda row: row["index"])
    return answer


# ------------------------------------------------------------------------------------------------ transactions


@CASES.case("partition that was not added", 3, 10, 11, 12, 13)
def not_added(raw: Raw, version: int) -> None:
    producer = raw.init()
    raw.produce(raw.batch(1, producer, transactional=True), version, txn=True)
    raw.describe()


@CASES.case("transactional without an id", 3, 13)
def no_transactional_id(raw: Raw, version: int) -> None:
    raw.produce(raw.batch(1, raw.init(), transactional=True), version)


@CASES.case("stranger in a transaction", 11, 13)
def stranger(raw: Raw, version: int) -> None:
    producer = raw.init()
    raw.produce(
        raw.batch(1, Producer(producer.id + 1_000_000, 0), transactional=True),
        version,
        txn=True,
    )


@CASES.case("not transactional in a transaction", 11, 13)
def not_transactional(raw: Raw, version: int) -> None:
    producer = raw.begin(V2)
    raw.produce(raw.batch(1, producer, 1), version)
    raw.produce(raw.batch(1), version)
    raw.fetch(committed=True)


@CASES.case("first sequence in a transaction", 11, 13)
def first_sequence(raw: Raw, version: int) -> None:
    producer = raw.init()
    if version == 11:
        raw.add(producer)
    for sequence in (3, 0, 1, 1):
        raw.produce(raw.batch(1, producer, sequence, transactional=True), version, txn=True)


@CASES.case("fenced producer", 11, 13)
def fenced(raw: Raw, version: int) -> None:
    producer = raw.begin(V2)
    with raw.unrecorded():
        raw.init()
    raw.produce(raw.batch(1, producer, 1, transactional=True), version, txn=True)
