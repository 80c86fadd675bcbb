# SPDX-License-Identifier: Apache-2.0
"""The rows of a task through a real producer: all of them, bounded, and bad ones told or put aside."""

from __future__ import annotations

import contextlib
import datetime
import struct
import weakref
from collections.abc import Iterator
from typing import Any, cast

import pyarrow as pa
import pytest

from penstock import Producer
from penstock.errors import BadRowsError, KafkaError
from penstock.records.reader import Record
from penstock.spark.dead_letters import (
    ERROR_HEADER,
    HEADERS_LEFT_OUT_HEADER,
    KEY_SIZE_HEADER,
    PARTITION_HEADER,
    ROW_HEADER,
    TIMESTAMP_HEADER,
    TOPIC_HEADER,
    VALUE_SIZE_HEADER,
    WANTED_PARTITION_HEADER,
)
from penstock.spark.options import SinkOptions
from penstock.spark.partition_sender import PartitionSender, PartitionSums
from penstock.testing import FakeKafka

COLUMNS = ["value", "timestamp", "partition"]
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    with FakeKafka(topics={"orders": 2, "stock": 1, "bad": 1}) as kafka:
        yield kafka


@pytest.fixture
def producer(kafka: FakeKafka) -> Iterator[Producer]:
    # Small memory, so that a test of some megabytes has to wait for it.
    config = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "max.request.size": "10000",
        "buffer.memory": "200000",
    }
    with Producer(config) as producer:
        yield producer


def sender(producer: Producer, topic: str | None = "orders", dead_letters: bool = False) -> PartitionSender:
    options = SinkOptions(
        streaming=False,
        topic=topic,
        on_bad_row="dead-letter" if dead_letters else "fail",
        dead_letter_topic="bad" if dead_letters else None,
        producer={"bootstrap.servers": "not:1"},
    )
    return PartitionSender(producer, options, 4)


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def all_records(kafka: FakeKafka, topic: str, partitions: int) -> list[Record]:
    return [record for number in range(partitions) for record in kafka.records(topic, number)]


def headers(record: Record) -> dict[str, bytes | None]:
    return {header.key: header.value for header in record.headers}


def test_batches_arrive_whole_and_are_counted(kafka: FakeKafka, producer: Producer) -> None:
    task = sender(producer)
    task.send(batch(key=["a", "b"], value=[b"1", b"2"]))
    task.send(batch(key=["a", None], value=[b"3", None]))
    report = task.finish()
    records = all_records(kafka, "orders", 2)
    assert sorted((record.key or b"", record.value or b"") for record in records) == [
        (b"", b""),
        (b"a", b"1"),
        (b"a", b"3"),
        (b"b", b"2"),
    ]
    assert (report.rows, report.bytes, report.dead_letters) == (4, 6, 0)
    counts = report.partitions["orders"]
    assert sum(count.rows for count in counts.values()) == 4
    for number, count in counts.items():
        assert count == PartitionSums(
            len(kafka.records("orders", number)), len(kafka.records("orders", number))
        )


def test_the_column_topic_says_where_rows_go_unless_the_option_does(
    kafka: FakeKafka, producer: Producer
) -> None:
    rows = batch(topic=["orders", "stock"], value=[b"1", b"2"])
    by_column = sender(producer, None)
    by_column.send(rows)
    assert sorted(by_column.finish().partitions) == ["orders", "stock"]
    by_option = sender(producer, "stock")
    by_option.send(rows)
    assert by_option.finish().partitions["stock"][0].rows == 2


@pytest.mark.slow
def test_more_rows_than_memory_pass_and_no_batch_is_kept(kafka: FakeKafka, producer: Producer) -> None:
    task = sender(producer)
    kept: list[weakref.ref[pa.RecordBatch]] = []
    for _ in range(40):
        rows = batch(value=[bytes(100)] * 1000)
        kept.append(weakref.ref(rows))
        task.send(rows)
        del rows
        assert not [one for one in kept if one() is not None]
    assert task.finish().rows == 40_000
    assert len(all_records(kafka, "orders", 2)) == 40_000


def test_a_bad_row_fails_the_task_with_its_number_and_nothing_of_its_batch_is_sent(
    kafka: FakeKafka, producer: Producer
) -> None:
    task = sender(producer)
    task.send(batch(value=[b"fine"] * 10))
    with pytest.raises(BadRowsError) as caught:
        task.send(batch(value=[b"fine", bytes(20_000), b"fine"]))
    said = str(caught.value)
    assert said.startswith(
        "1 row of partition 4 of the DataFrame cannot be written to topic 'orders' (row 11: the record"
    )
    assert (
        "takes up to 20087 bytes, more than kafka.max.request.size allows (10000). Raise that option" in said
    )
    assert "onBadRow" in said
    producer.flush()
    assert len(all_records(kafka, "orders", 2)) == 10


def test_of_many_bad_rows_some_are_named_with_each_reason_once(producer: Producer) -> None:
    with pytest.raises(BadRowsError) as caught:
        sender(producer).send(batch(value=[b""] * 5, partition=pa.array([7, 7, 8, 7, 7], pa.int32())))
    assert str(caught.value).startswith(
        "5 rows of partition 4 of the DataFrame cannot be written to topic 'orders' (rows 0, 1: the topic has no "
        "partition of that number: 7; row 2: the topic has no partition of that number: 8; and 2 more). To go on"
    )


def test_a_bad_row_is_told_with_the_topic_of_its_column(producer: Producer) -> None:
    with pytest.raises(BadRowsError, match=r"cannot be written to topic 'stock' \(row 1: the record"):
        sender(producer, None).send(batch(topic=["orders", "stock"], value=[b"fine", bytes(20_000)]))


def test_a_bad_row_without_a_topic_could_not_go_to_kafka(producer: Producer) -> None:
    with pytest.raises(BadRowsError, match=r"cannot be written to Kafka \(row 1: "):
        sender(producer, None).send(batch(topic=["orders", None], value=[b"fine", b"fine"]))


def test_a_bad_row_becomes_a_dead_letter_with_all_it_had(kafka: FakeKafka, producer: Producer) -> None:
    task = sender(producer, dead_letters=True)
    task.send(batch(value=[b"fine"] * 3))
    task.send(
        pa.RecordBatch.from_arrays(
            [
                pa.array([b"k0", b"k1"]),
                pa.array([b"v0", b"v1"]),
                pa.array([[], [{"key": "h", "value": b"1"}, {"key": "n", "value": None}]], HEADERS),
                pa.array([0, 99], pa.int32()),
            ],
            names=["key", "value", "headers", "partition"],
        )
    )
    report = task.finish()
    assert (report.rows, report.dead_letters) == (5, 1)
    assert len(all_records(kafka, "orders", 2)) == 4
    (letter,) = kafka.records("bad")
    assert (letter.key, letter.value) == (b"k1", b"v1")
    said = headers(letter)
    assert (said["h"], said["n"]) == (b"1", None)
    assert b"no partition of that number: 99" in (said[ERROR_HEADER] or b"")
    assert (said[TOPIC_HEADER], said[PARTITION_HEADER], said[ROW_HEADER]) == (b"orders", b"4", b"4")


def test_a_row_too_large_for_any_record_goes_without_its_value(kafka: FakeKafka, producer: Producer) -> None:
    task = sender(producer, dead_letters=True)
    task.send(batch(key=["k"], value=[bytes(20_000)]))
    assert task.finish().dead_letters == 1
    (letter,) = kafka.records("bad")
    assert (letter.key, letter.value) == (b"k", None)
    assert headers(letter)[VALUE_SIZE_HEADER] == b"20000"


def test_and_without_its_key_where_that_is_too_large(kafka: FakeKafka, producer: Producer) -> None:
    task = sender(producer, dead_letters=True)
    task.send(batch(key=[bytes(20_000), b"k"], value=[b"v", b"fine"]))
    assert task.finish().dead_letters == 1
    (letter,) = kafka.records("bad")
    assert (letter.key, letter.value) == (None, None)
    assert (headers(letter)[KEY_SIZE_HEADER], headers(letter)[VALUE_SIZE_HEADER]) == (b"20000", b"1")


def test_headers_that_cannot_be_sent_are_left_out_and_counted(kafka: FakeKafka, producer: Producer) -> None:
    task = sender(producer, dead_letters=True)
    rows = pa.RecordBatch.from_arrays(
        [
            pa.array([b"v"]),
            pa.array([[{"key": None, "value": b"1"}, {"key": "good", "value": b"2"}]], HEADERS),
        ],
        names=["value", "headers"],
    )
    task.send(rows)
    assert task.finish().dead_letters == 1
    (letter,) = kafka.records("bad")
    assert headers(letter)["good"] == b"2"
    assert headers(letter)[HEADERS_LEFT_OUT_HEADER] == b"1"


def test_a_row_without_topic_is_a_dead_letter_that_says_so(kafka: FakeKafka, producer: Producer) -> None:
    task = sender(producer, None, dead_letters=True)
    task.send(batch(topic=["orders", None], value=["1", "2"]))
    task.finish()
    (letter,) = kafka.records("bad")
    assert (letter.value, headers(letter)[TOPIC_HEADER]) == (b"2", None)


def test_a_bad_timestamp_is_in_every_dead_letter_as_it_was(kafka: FakeKafka, producer: Producer) -> None:
    task = sender(producer, dead_letters=True)
    moments = pa.array([-1] * 120, pa.int64()).view(pa.timestamp("us", "UTC"))
    values = pa.array([b"v"] * 120)
    task.send(pa.RecordBatch.from_arrays([values, moments, pa.array([9] * 120, pa.int32())], COLUMNS))
    assert task.finish().dead_letters == 120
    letters = [headers(record) for record in kafka.records("bad")]
    assert len(letters) == 120
    for letter in letters:  # also those that share their error with others
        assert letter[TIMESTAMP_HEADER] == b"1969-12-31T23:59:59.999999Z (-1 us since 1970)"
        assert letter[WANTED_PARTITION_HEADER] == b"9"
    assert b"1969-12-31T23:59:59.999999Z" in (letters[0][ERROR_HEADER] or b"")


FAR = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=10)  # Kafka allows an hour


@pytest.mark.parametrize("transactional", [False, True], ids=["plain", "in a transaction"])
def test_a_row_that_the_broker_refuses_is_a_dead_letter(kafka: FakeKafka, transactional: bool) -> None:
    options: dict[str, Any] = {"transactional_id": "x"} if transactional else {}
    with Producer(bootstrap_servers=kafka.bootstrap_servers, linger_ms=20, **options) as producer:
        if transactional:
            producer.init_transactions()
        with producer.transaction() if transactional else contextlib.nullcontext():
            task = sender(producer, dead_letters=True)
            task.send(batch(value=[b"0"], partition=[0]))
            rows = batch(value=[b"1", b"2", b"3"], timestamp=[None, FAR, None], partition=[0, 0, 0])
            task.send(rows)
            report = task.finish()
    assert (report.rows, report.dead_letters) == (4, 1)
    assert [record.value for record in kafka.records("orders", 0)] == [b"0", b"1", b"3"]
    [letter] = kafka.records("bad")
    assert (letter.value, headers(letter)[ROW_HEADER]) == (b"2", b"2")
    assert b"is out of range" in (headers(letter)[ERROR_HEADER] or b"")
    assert (headers(letter)[TIMESTAMP_HEADER] or b"").startswith(FAR.isoformat()[:19].encode())


@pytest.mark.parametrize("transactional", [False, True], ids=["plain", "in a transaction"])
def test_rows_for_a_topic_that_may_not_be_written_to_are_dead_letters(
    kafka: FakeKafka, transactional: bool
) -> None:
    with kafka.locked() as cluster:
        cluster.read_only_topics.add("stock")
    options: dict[str, Any] = {"transactional_id": "x"} if transactional else {}
    with Producer(bootstrap_servers=kafka.bootstrap_servers, linger_ms=20, **options) as producer:
        if transactional:
            producer.init_transactions()
        with producer.transaction() if transactional else contextlib.nullcontext():
            task = sender(producer, topic=None, dead_letters=True)
            task.send(batch(topic=["orders", "stock", "orders"], value=[b"0", b"1", b"2"]))
            report = task.finish()
    assert (report.rows, report.dead_letters) == (3, 1)
    assert sorted(record.value or b"" for record in all_records(kafka, "orders", 2)) == [b"0", b"2"]
    [letter] = kafka.records("bad")
    assert (letter.value, headers(letter)[ROW_HEADER]) == (b"1", b"1")
    assert b"TOPIC_AUTHORIZATION_FAILED" in (headers(letter)[ERROR_HEADER] or b"")


@pytest.mark.parametrize("wait", [False, True])
def test_a_dead_letter_that_the_broker_refuses_fails_the_task(
    kafka: FakeKafka, producer: Producer, wait: bool
) -> None:
    """There is no other place for it: the row would be gone, and counted as a dead letter."""
    with kafka.locked() as cluster:
        cluster.read_only_topics.add("bad")
    task = sender(producer, dead_letters=True)
    task.send(batch(value=[b"0", b"1", b"2"], partition=[0, 9, 1]))

    def go_on() -> None:
        if wait:
            producer.flush()
            task.send(batch(value=[b"3"], partition=[0]))
        task.finish()

    with pytest.raises(
        KafkaError,
        match=r"1 bad row of partition 4 .* was not written to the dead-letter topic 'bad'.*TOPIC_AUTHORIZATION_FAILED",
    ):
        go_on()


def test_a_row_that_the_broker_refuses_fails_the_task_by_its_number(
    kafka: FakeKafka, producer: Producer
) -> None:
    task = sender(producer)
    task.send(batch(value=[b"0"], partition=[0]))
    task.send(batch(value=[b"1", b"2", b"3"], timestamp=[None, FAR, None], partition=[0, 0, 0]))
    with pytest.raises(
        KafkaError,
        match=r"1 row of partition 4 .* was not delivered .* the broker refused row 2: .*out of range",
    ):
        task.finish()
    assert [record.value for record in kafka.records("orders", 0)] == [b"0", b"1", b"3"]


def test_of_a_row_that_lies_nothing_is_read(kafka: FakeKafka, producer: Producer) -> None:
    memory = bytearray(16)
    topics = pa.Array.from_buffers(pa.string(), 3, [None, pa.py_buffer(memory), pa.py_buffer(b"stock")])
    memory[:] = struct.pack("=4i", 0, 5, 1 << 30, 5)
    columns = [pa.array([b"1", b"2", b"3"]), topics]
    with pytest.raises(BadRowsError, match=r"2 rows of partition 4 .* written to Kafka .*contradicts itself"):
        sender(producer, None).send(pa.RecordBatch.from_arrays(columns, ["value", "topic"]))
    task = sender(producer, None, dead_letters=True)
    task.send(pa.RecordBatch.from_arrays(columns, ["value", "topic"]))
    assert task.finish().dead_letters == 2
    letters = kafka.records("bad")
    assert [(record.key, record.value) for record in letters] == [(None, None)] * 2
    assert [headers(record)[ROW_HEADER] for record in letters] == [b"1", b"2"]
    assert [headers(record)[TOPIC_HEADER] for record in letters] == [None, None]


def test_many_bad_rows_are_all_dead_letters(kafka: FakeKafka, producer: Producer) -> None:
    task = sender(producer, dead_letters=True)
    task.send(batch(value=["x"] * 1200, partition=pa.array([5] * 1200, pa.int32())))
    assert task.finish().dead_letters == 1200
    rows = [headers(letter)[ROW_HEADER] for letter in kafka.records("bad")]
    assert rows == [str(number).encode() for number in range(1200)]


class Watched:
    """A producer that notes how large the tables for a topic are."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self._producer = producer
        self._topic = topic
        self.sizes: list[int] = []

    def send_arrow(self, topic: str | None, rows: pa.RecordBatch, **more: Any) -> Any:
        if topic == self._topic:
            self.sizes.append(rows.nbytes)
        return self._producer.send_arrow(topic, rows, **more)

    def flush(self) -> None:
        self._producer.flush()


def test_large_bad_rows_are_copied_a_few_at_a_time(kafka: FakeKafka, producer: Producer) -> None:
    watched = Watched(producer, "bad")
    task = sender(cast("Producer", watched), dead_letters=True)
    task.send(batch(value=[bytes(8000)] * 300, partition=pa.array([5] * 300, pa.int32())))
    assert task.finish().dead_letters == len(kafka.records("bad")) == 300
    assert max(watched.sizes) < 1_500_000


def test_what_is_too_large_is_not_copied(kafka: FakeKafka, producer: Producer) -> None:
    watched = Watched(producer, "bad")
    task = sender(cast("Producer", watched), dead_letters=True)
    task.send(batch(key=["k"] * 3, value=[b"fine", bytes(3_000_000), bytes(20_000)]))
    assert task.finish().dead_letters == 2
    assert [headers(letter)[VALUE_SIZE_HEADER] for letter in kafka.records("bad")] == [b"3000000", b"20000"]
    assert max(watched.sizes) < 10_000


@pytest.mark.parametrize(("count", "told"), [(1, "1 row"), (7, "7 rows")])
def test_rows_that_are_not_delivered_fail_the_task(
    kafka: FakeKafka, producer: Producer, count: int, told: str
) -> None:
    task = sender(producer)
    task.send(batch(value=[b"0"]))  # the topic is known from here on
    producer.flush()
    with kafka.locked() as cluster:
        cluster.denied_topics.add("orders")
    task.send(batch(value=[b"1"] * count))
    with pytest.raises(
        KafkaError,
        match=rf"{told} of partition 4 .* (was|were) not delivered to topic 'orders': .*authori[sz]ed",
    ):
        task.finish()


def with_offsets(kind: pa.DataType, *offsets: int, data: bytes = b"abc") -> pa.Array:
    """Texts with these offsets, of which the library only looks at the first and the last."""
    memory = struct.pack(f"={len(offsets)}i", *offsets)
    return pa.Array.from_buffers(kind, len(offsets) - 1, [None, pa.py_buffer(memory), pa.py_buffer(data)])


def test_of_a_row_that_lies_nothing_is_read_whatever_else_is_wrong_with_it(
    kafka: FakeKafka, producer: Producer
) -> None:
    beyond = 2000  # whatever lies there belongs to somebody else
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    values = with_offsets(pa.binary(), 0, 1, beyond, 3)
    entries = pa.StructArray.from_arrays(
        [pa.array([None, "b", "c"], pa.string()), values], fields=list(header)
    )
    headers_of = pa.ListArray.from_arrays(pa.array([0, 3, 3], pa.int32()), entries)
    rows = {
        "no topic": [
            pa.array([b"1", b"2"]), pa.array([None, "stock"]), with_offsets(pa.binary(), 0, beyond, 3),
        ],
        "a null header before": [pa.array([b"1", b"2"]), pa.array(["stock", "stock"]), headers_of],
    }  # fmt: skip
    for name, columns in rows.items():
        names = ["value", "topic", "key" if name == "no topic" else "headers"]
        task = sender(producer, None, dead_letters=True)
        task.send(pa.RecordBatch.from_arrays(columns, names))
        assert task.finish().dead_letters >= 1, name
    assert {(record.key, record.value) for record in kafka.records("bad")} == {(None, None)}
