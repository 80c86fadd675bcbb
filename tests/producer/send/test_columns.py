# SPDX-License-Identifier: Apache-2.0
"""send_many and send_arrow: the same records, in the same order, as a loop of send(); bad rows; memory; outcomes."""

from __future__ import annotations

import re
import struct
from collections import defaultdict
from typing import Any
from unittest import mock

import fix_arrow
import pyarrow as pa
import pytest
from fix_arrow import Row, Types
from hypothesis import given, settings
from hypothesis import strategies as st
from producer.fakes_sender import Rig

from penstock.errors import (
    BadRowsError,
    BufferExhaustedError,
    BulkDeliveryError,
    DamagedRowError,
    KafkaTimeoutError,
    MessageTooLargeError,
    ProducerClosedError,
    RecordTooLargeError,
)
from penstock.partitioners import Partitioner
from penstock.producer.batch._appending_cy import BulkWake
from penstock.producer.send import columns
from penstock.producer.steps import Checkpoint
from penstock.protocol.messages import PRODUCE
from penstock.records.arrow import ArrowSource
from penstock.records.arrow_rows import ColumnNames, arrow_rows
from penstock.types import PartitionReport, ProducerRecord, TopicPartition

PARTITIONS = 3


def make_rig(**options: Any) -> Rig:
    rig = Rig(**{"batch_size": 300, "max_block_ms": 3000} | options)
    rig.know("t", PARTITIONS)
    rig.cluster.add_topic("u", 2)
    rig.acknowledge_all()
    return rig


def send_arrow(rig: Rig, data: Any, topic: str | None = "t", *, skip: bool = False, **names: Any) -> Any:
    if topic is None:
        names["topic"] = "topic"
    chunks = arrow_rows(ArrowSource(data), ColumnNames(**names))
    return rig.drive(rig.parts.columns.steps(topic, chunks, skip))


def deliver(rig: Rig) -> dict[tuple[str, int], list[tuple[Any, ...]]]:
    """Let everything be written; the records by partition."""
    ticket = rig.parts.accumulator.flush()
    rig.run_until(lambda: ticket.done, turns=5000)
    written = defaultdict(list)
    for request in rig.seen(PRODUCE):
        for batch in rig.read(request):
            written[batch.topic, batch.partition] += [
                (record.value, record.key, record.headers, record.timestamp) for record in batch.records
            ]
    return dict(written)


def batch_sizes(rig: Rig) -> list[tuple[int, int]]:
    """How many records each batch has, by partition."""
    deliver(rig)
    batches = [batch for request in rig.seen(PRODUCE) for batch in rig.read(request)]
    return sorted((batch.partition, len(batch.records)) for batch in batches)


def numbered(some: list[Row]) -> list[Row]:
    """Rows whose timestamps tell them apart."""
    return [
        Row(row.value, row.key, row.headers, row.partition, 86_400_000 * number, row.topic)
        for number, row in enumerate(some)
    ]


def loop_of_send(rig: Rig, some: list[Row], topic: str | None = "t") -> None:
    for row in some:
        rig.send(
            topic or row.topic or "",
            row.value,
            row.key,
            headers=row.headers,
            partition=row.partition,
            timestamp_ms=row.timestamp,
        )


def everything(written: dict[Any, list[Any]]) -> list[Any]:
    return sorted((record[3], record[:3], place[0]) for place, some in written.items() for record in some)


def in_order(written: dict[Any, list[Any]]) -> bool:
    return all(
        [record[3] for record in some] == sorted(record[3] for record in some) for some in written.values()
    )


# ------------------------------------------------------------------------------------- the same as a loop of send()


@pytest.mark.parametrize("compression", ["none", "lz4"])
@pytest.mark.parametrize("window", [7, 65_536])
@settings(max_examples=25, deadline=None)
@given(
    some=fix_arrow.rows(PARTITIONS, text=True),
    kinds=fix_arrow.types(text=True),
    sizes=st.lists(st.integers(0, 20), max_size=4),
)
def test_a_table_is_the_same_as_a_loop_of_send(window, compression, some, kinds, sizes):
    some = numbered(some)
    theirs, ours = make_rig(compression_type=compression), make_rig(compression_type=compression)
    loop_of_send(theirs, some)
    with mock.patch.object(columns, "WINDOW_ROWS", window):
        bulk = send_arrow(ours, fix_arrow.in_chunks(fix_arrow.table(some, kinds), sizes))
    expected, written = deliver(theirs), deliver(ours)
    assert everything(written) == everything(expected)
    assert in_order(written)
    placed = [row.timestamp for row in some if row.key is not None or row.partition is not None]
    for place in [("t", partition) for partition in range(PARTITIONS)]:
        # Rows without a key go to random partitions.
        assert [r for r in written.get(place, []) if r[3] in placed] == [
            r for r in expected.get(place, []) if r[3] in placed
        ]
    assert bulk.result(0).records == len(some) == bulk.accepted


@settings(max_examples=25, deadline=None)
@given(
    some=fix_arrow.rows(2, topics=("t", "u"), text=True),
    kinds=fix_arrow.types(text=True),
    sizes=st.lists(st.integers(0, 20), max_size=4),
)
def test_a_topic_column_groups_rows_by_topic(some, kinds, sizes):
    some = numbered(some)
    theirs, ours = make_rig(), make_rig()
    loop_of_send(theirs, some, None)
    with mock.patch.object(columns, "WINDOW_ROWS", 11):
        send_arrow(ours, fix_arrow.in_chunks(fix_arrow.table(some, kinds, topic=True), sizes), None)
    written = deliver(ours)
    assert everything(written) == everything(deliver(theirs))
    assert in_order(written)


def test_batches_are_as_full_as_those_of_send():
    some = numbered([Row(b"v" * (number % 60), b"%d" % number) for number in range(400)])
    theirs, ours = make_rig(linger_ms=50), make_rig(linger_ms=50)
    loop_of_send(theirs, some)
    send_arrow(ours, fix_arrow.table(some, Types()))
    assert batch_sizes(ours) == batch_sizes(theirs)


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_rows_without_key_take_turns_as_those_of_send_do(compression):
    rig = make_rig(compression_type=compression)
    send_arrow(rig, pa.table({"value": [b"%0100d" % number for number in range(3000)]}))
    written = deliver(rig)
    assert sorted(value for some in written.values() for value, *_ in some) == [
        b"%0100d" % n for n in range(3000)
    ]
    assert sorted(written) == [("t", 0), ("t", 1), ("t", 2)]
    assert min(map(len, written.values())) > 500


def test_a_table_without_rows_sends_nothing():
    rig = make_rig()
    for empty in (
        pa.table({"value": pa.array([], pa.binary())}),
        pa.table({"value": pa.array([], pa.null())}),
    ):
        bulk = send_arrow(rig, empty)
        assert bulk.done()
        assert (bulk.result(0).records, bulk.accepted, bulk.errors) == (0, 0, [])
    assert deliver(rig) == {}


def test_rows_without_a_timestamp_get_the_time():
    rig = make_rig()
    send_arrow(
        rig,
        pa.table({"value": [b"a", b"b"], "timestamp": pa.array([None, 5], pa.int64()), "partition": [0, 0]}),
    )
    assert [record[3] for record in deliver(rig)["t", 0]] == [rig.clock.wall_ms(), 5]


def test_keys_do_not_choose_where_the_options_say_so():
    rig = make_rig(partitioner_ignore_keys=True, batch_size=100_000)
    send_arrow(rig, pa.table({"value": [b"v"] * 50, "key": [b"%d" % number for number in range(50)]}))
    assert [len(some) for some in deliver(rig).values()] == [50]


# ------------------------------------------------------------------------------------------------ bad rows


BAD = pa.table(
    {
        "value": [b"good", b"x" * 3000, b"p", b"t", b"good", b"h"],
        "partition": [0, 0, 3, 0, 1, 0],
        "timestamp": pa.array([1, 1, 1, -1, 1, 1], pa.int64()),
        "headers": pa.array([[], [], [], [], [], [{"key": None, "value": b""}]], fix_arrow.HEADER_TYPES[0]),
    }
)
BAD_ROWS = [
    (1, RecordTooLargeError, "max.request.size"),
    (2, ValueError, "no partition of that number: 3"),
    (3, ValueError, "before 1970"),
    (5, ValueError, "header"),
]


def told(errors: Any) -> list[tuple[int, type]]:
    return [
        (row, type(entry.error)) for entry in errors for row in range(entry.first_row, entry.last_row + 1)
    ]


def test_one_bad_row_means_that_none_is_sent():
    rig = make_rig(max_request_size=2000)
    with pytest.raises(
        BadRowsError, match=r"^4 of 6 rows cannot be sent, and none was sent\. row 1: "
    ) as caught:
        send_arrow(rig, BAD)
    assert caught.value.count == 4
    assert [row for row, _ in told(caught.value.errors)] == [row for row, _, _ in BAD_ROWS]
    for entry, (_, kind, text) in zip(caught.value.errors, BAD_ROWS, strict=True):
        assert isinstance(entry.error, kind)
        assert text in str(entry.error)
    assert deliver(rig) == {}


@pytest.mark.parametrize("row_by_row", [False, True])
def test_bad_rows_can_be_left_out(row_by_row):
    rig = make_rig(max_request_size=2000)
    rig.parts.columns.row_by_row = row_by_row
    with mock.patch.object(columns, "WINDOW_ROWS", 4):
        bulk = send_arrow(rig, fix_arrow.in_chunks(BAD, [1, 3]), skip=True)
    written = deliver(rig)
    assert {place: [record[0] for record in some] for place, some in written.items()} == {
        ("t", 0): [b"good"],
        ("t", 1): [b"good"],
    }
    report = bulk.result(0)
    assert report.records == bulk.accepted == 2
    assert told(report.errors) == [(row, kind) for row, kind, _ in BAD_ROWS] == told(bulk.errors)


def test_a_number_beyond_64_bits_with_a_sign_is_bad():
    rig = make_rig()
    far = pa.array([5, 2**63, 2**64 - 1], pa.uint64())
    for column in ("timestamp", "partition"):
        numbers = far if column == "timestamp" else pa.array([0, 2**63, 2**64 - 1], pa.uint64())
        bulk = send_arrow(rig, pa.table({"value": [b"a", b"b", b"c"], column: numbers}), skip=True)
        assert told(bulk.errors) == [(1, ValueError), (2, ValueError)]
        assert bulk.accepted == 1


@pytest.mark.parametrize("watched", [False, True])
def test_a_header_whose_name_is_no_text_is_bad_on_every_path(watched):
    rig = make_rig(interceptors=[Watcher()] if watched else [])
    headers = pa.array([[(b"\xff", b"")], [("\u00e9".encode(), b"")]], pa.map_(pa.binary(), pa.binary()))
    bulk = send_arrow(rig, pa.table({"value": [b"1", b"2"], "headers": headers}), skip=True)
    assert told(bulk.errors) == [(0, ValueError)]
    assert [record[2][0][0] for some in deliver(rig).values() for record in some] == ["\u00e9"]


def test_what_a_null_row_would_point_to_is_not_looked_at():
    count = 64
    views = b"".join(
        struct.pack("<iiii", 1 << 20, 0, 0x7FFF_0000, 1 << 30) if number % 2 else b"\1\0\0\0v" + bytes(11)
        for number in range(count)
    )
    bitmap = pa.py_buffer(b"\x55" * (count // 8))
    values = pa.Array.from_buffers(pa.binary_view(), count, [bitmap, pa.py_buffer(views)])
    values.validate(full=True)
    rig = make_rig()
    send_arrow(rig, pa.table({"value": values, "key": [b"k"] * count}))
    [some] = deliver(rig).values()
    assert [record[0] for record in some] == [b"v", None] * (count // 2)


def test_rows_that_are_all_bad_send_nothing():
    rig = make_rig()
    bulk = send_arrow(rig, pa.table({"value": [b"v"] * 200, "partition": [9] * 200}), skip=True)
    assert bulk.done()
    assert sum(entry.count for entry in bulk.errors) == 200
    assert len(bulk.errors) < 150  # beyond the first hundred they are told together


def test_rows_that_are_left_out_take_little_memory():
    rig = make_rig()
    data = pa.table({"value": [b"v"] * 3000, "partition": [0, 9] * 1500})
    with mock.patch.object(columns, "WINDOW_ROWS", 500):
        bulk = send_arrow(rig, data, skip=True)
    assert len(bulk._refused) < 120  # a hundred have an error of their own, the others one for each window
    assert [row for row, _ in told(bulk.errors)] == list(range(1, 3000, 2))
    assert len({id(entry.error) for entry in bulk.errors}) == 101


def test_what_is_told_together_has_the_same_class():
    rig = make_rig(max_request_size=500)
    bulk = send_arrow(rig, pa.table({"value": [b"v" * 1000] * 200}), skip=True)
    assert {type(entry.error) for entry in bulk.errors} == {RecordTooLargeError}


@pytest.mark.parametrize("name", [None, "", "x" * 250, b"\xff"])
def test_a_row_without_a_topic_that_can_be_is_bad(name):
    rig = make_rig()
    topics = pa.array(["u", name], pa.binary() if isinstance(name, bytes) else pa.string())
    data = pa.table({"value": [b"a", b"b"], "topic": topics})
    with pytest.raises(BadRowsError, match="row 1: the topic is null, or a name that no topic can have"):
        send_arrow(rig, data, None)
    bulk = send_arrow(rig, data, None, skip=True)
    deliver(rig)
    assert bulk.result(0).records == 1
    assert [entry.first_row for entry in bulk.errors] == [1]


def test_a_topic_that_does_not_exist_times_out():
    rig = make_rig()
    with pytest.raises(KafkaTimeoutError, match="gone"):
        send_arrow(rig, pa.table({"value": [b"a"]}), "gone")


# ------------------------------------------------------------------------------------------------ memory


def test_memory_is_bounded_and_the_rows_wait_for_it():
    rig = make_rig(buffer_memory=2000, batch_size=300)
    lowest = []
    original = rig.parts.accumulator.pool.available
    steps = rig.parts.columns.steps(
        "t", arrow_rows(ArrowSource(pa.table({"value": [b"v" * 90] * 500})), ColumnNames()), False
    )
    watched = _watch(steps, lambda: lowest.append(original()))
    bulk = rig.drive(watched)
    assert min(lowest) >= 0
    assert sum(map(len, deliver(rig).values())) == 500
    assert bulk.result(0).records == 500
    assert rig.available_memory == 2000


def _watch(steps: Any, look: Any) -> Any:
    answer = None
    try:
        while True:
            item = steps.send(answer)
            look()
            answer = yield item
    except StopIteration as stop:
        return stop.value


@pytest.mark.parametrize("key", [None, b"%d"])
def test_without_progress_the_wait_ends_and_nothing_is_lost(key):
    rig = make_rig(buffer_memory=2000, batch_size=300)
    for broker in rig.brokers:
        broker.rules.pop(PRODUCE.key)  # nobody answers
    data = {"value": [b"v" * 90 + b"%d" % number for number in range(100)]}
    if key:
        data["key"] = [key % number for number in range(100)]
    with pytest.raises(BufferExhaustedError, match=r"within max\.block\.ms") as caught:
        send_arrow(rig, fix_arrow.in_chunks(pa.table(data), [60]))
    bulk = caught.value.bulk_delivery
    assert 0 < bulk.accepted < 100
    assert any(f"{bulk.accepted} rows had been accepted" in note for note in caught.value.__notes__)
    missing = {row for entry in bulk.errors for row in range(entry.first_row, entry.last_row + 1)}
    assert len(missing) == 100 - bulk.accepted
    rig.acknowledge_all()
    for request in list(rig.waiting()):
        rig.answer(request)
    written = {value for some in deliver(rig).values() for value, *_ in some}
    assert written == {value for row, value in enumerate(data["value"]) if row not in missing}


def test_an_interrupt_leaves_nothing_behind():
    rig = make_rig(buffer_memory=2000, batch_size=300)
    chunks = arrow_rows(ArrowSource(pa.table({"value": [b"v" * 90] * 100})), ColumnNames())
    steps = rig.parts.columns.steps("t", chunks, False)
    ticket = next(item for item in steps if not isinstance(item, str) and not item.done)
    assert ticket.what.endswith("buffer.memory")
    with pytest.raises(KeyboardInterrupt) as caught:
        steps.throw(KeyboardInterrupt())
    assert "rows had been accepted" in caught.value.__notes__[0]
    deliver(rig)
    assert rig.available_memory == 2000


class Fixed(Exception):
    """An object whose attributes cannot be changed."""

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(name)


@pytest.mark.parametrize("error", [OSError("disk"), MemoryError(), KeyboardInterrupt(), Fixed("fixed")])
def test_whatever_is_raised_tells_what_was_accepted(error):
    rig = make_rig()

    def chunks() -> Any:
        yield from arrow_rows(ArrowSource(pa.table({"value": [b"a", b"b"]})), ColumnNames())
        raise error

    with pytest.raises(type(error)) as caught:
        rig.drive(rig.parts.columns.steps("t", chunks(), True))
    assert caught.value is error
    if not isinstance(error, Fixed):
        deliver(rig)
        assert error.bulk_delivery.result(0).records == 2
        assert "2 rows had been accepted" in error.__notes__[0]


def count_wakeups(rig: Rig) -> list[None]:
    """Counts how often rows woke the I/O thread."""
    woken: list[None] = []
    rig.parts.accumulator.bulk_wake = lambda: BulkWake(lambda: woken.append(None))  # type: ignore[method-assign]
    return woken


@pytest.mark.parametrize("data", [{"value": [b"a"]}, {"value": [b"v" * 200] * 50}, {"value": []}])
def test_the_end_of_a_call_wakes_the_sender(data):
    rig = make_rig()
    woken = count_wakeups(rig)
    send_arrow(rig, fix_arrow.in_chunks(pa.table({"value": pa.array(data["value"], pa.binary())}), [10, 10]))
    assert len(woken) == 1


@pytest.mark.parametrize("error", [ProducerClosedError("closed"), KeyboardInterrupt()])
def test_an_end_before_its_time_wakes_the_sender_too(error):
    rig = make_rig()
    woken = count_wakeups(rig)
    chunks = arrow_rows(ArrowSource(pa.table({"value": [b"v"] * 10})), ColumnNames())
    steps = rig.parts.columns.steps("t", chunks, False)
    assert next(item for item in steps if item == Checkpoint.PROGRESS)
    assert woken == []
    with pytest.raises(type(error)):
        steps.throw(error)
    assert len(woken) == 1


def test_the_sender_is_woken_before_a_source_is_asked_for_more():
    rig = make_rig()
    woken = count_wakeups(rig)
    seen = []

    def chunks() -> Any:
        for _ in range(3):
            seen.append(len(woken))
            yield from arrow_rows(ArrowSource(pa.table({"value": [b"v"]})), ColumnNames())

    rig.drive(rig.parts.columns.steps("t", chunks(), True))
    assert seen == [0, 1, 2]


def test_the_sender_is_woken_before_topics_are_looked_for():
    rig = make_rig()
    woken = count_wakeups(rig)
    with mock.patch.object(columns, "WINDOW_ROWS", 1), pytest.raises(KafkaTimeoutError):
        send_arrow(rig, pa.table({"value": [b"a", b"b"], "topic": ["t", "gone"]}), None, skip=True)
    assert len(woken) >= 3


def test_a_producer_that_is_closed_takes_no_rows():
    rig = make_rig()
    rig.parts.send_path.closed = True
    with pytest.raises(ProducerClosedError):
        send_arrow(rig, pa.table({"value": [b"a"]}))


# ------------------------------------------------------------------------------------------------ outcomes


def test_the_report_tells_offsets_by_partition():
    rig = make_rig()
    data = pa.table({"value": [b"v" * 90] * 30, "partition": [0, 1, 1] * 10, "key": [b"k"] * 30})
    first, second = send_arrow(rig, data), send_arrow(rig, data)
    deliver(rig)
    for bulk, start in ((first, 0), (second, 1)):
        report = bulk.result(0)
        assert (report.records, report.bytes, report.errors) == (30, 30 * 91, ())
        assert report.partitions == {
            TopicPartition("t", 0): PartitionReport(10, 10 * start, 10 * start + 9),
            TopicPartition("t", 1): PartitionReport(20, 20 * start, 20 * start + 19),
        }


def fail_partition(rig: Rig, partition: int, code: int) -> None:
    """Let brokers refuse one partition."""
    (rule,) = {broker.rules[PRODUCE.key] for broker in rig.brokers}

    def answer(request: Any) -> Any:
        body = rule(request)
        for topic in body["responses"]:
            for row in topic["partition_responses"]:
                if row["index"] == partition:
                    row["error_code"] = code
        return body

    for broker in rig.brokers:
        broker.rules[PRODUCE.key] = answer


def test_rows_that_were_not_delivered_are_an_error_with_a_report():
    rig = make_rig(batch_size=100_000)
    fail_partition(rig, 1, 18)  # RECORD_LIST_TOO_LARGE: one that does not pass
    data = pa.table({"value": [b"a", b"b", b"c", b"d", b"e"], "partition": [0, 1, 1, 0, 1]})
    bulk = send_arrow(rig, fix_arrow.in_chunks(data, [2]))
    deliver(rig)
    with pytest.raises(BulkDeliveryError, match=r"^3 of 5 records were not delivered; row") as caught:
        bulk.result(0)
    assert caught.value.__cause__ is caught.value.report.errors[0].error
    assert [(entry.first_row, entry.last_row) for entry in bulk.errors] == [(1, 2), (4, 4)]
    assert caught.value.report.records == 2
    assert caught.value.report.partitions == {TopicPartition("t", 0): PartitionReport(2, 0, 1)}


def test_a_batch_that_is_split_is_followed_to_its_pieces():
    rig = make_rig(batch_size=100_000)
    refused = []
    (rule,) = {broker.rules[PRODUCE.key] for broker in rig.brokers}

    def too_large_once(request: Any) -> Any:
        body = rule(request)
        largest = max(len(batch.records) for batch in rig.read(request))
        if largest > 3:
            refused.append(largest)
            for topic in body["responses"]:
                for row in topic["partition_responses"]:
                    row["error_code"] = 10
        return body

    for broker in rig.brokers:
        broker.rules[PRODUCE.key] = too_large_once
    bulk = send_arrow(rig, pa.table({"value": [b"v" * 50] * 20, "partition": [0] * 20}))
    done = []
    bulk.add_done_callback(done.append)
    ticket = rig.parts.accumulator.flush()
    rig.run_until(lambda: ticket.done, turns=5000)
    assert refused[0] == 20
    report = bulk.result(0)
    assert (report.records, report.bytes) == (20, 1000)
    assert done == [bulk]


def test_a_wait_for_the_result_can_time_out():
    rig = Rig()
    rig.know("t", PARTITIONS)
    bulk = send_arrow(rig, pa.table({"value": [b"a"] * 4}))
    with pytest.raises(KafkaTimeoutError, match="4 of 4 records have no outcome within 0 s"):
        bulk.result(0)
    assert "pending: 4 records accepted" in repr(bulk)


def test_what_is_done_is_not_kept():
    rig = make_rig(batch_size=200)
    with mock.patch.object(columns, "WINDOW_ROWS", 500):
        bulk = send_arrow(rig, pa.table({"value": [b"v" * 90] * 5000}))
        deliver(rig)
    assert bulk.done()
    assert not bulk._pending
    assert bulk.result(0).records == 5000


# ------------------------------------------------------------------------------------------------ row by row


class Modulo(Partitioner):
    """Places by the value."""

    def partition(self, topic, key, key_bytes, value, value_bytes, cluster):
        return int(value_bytes or 0) % 3


class Watcher:
    """An interceptor that changes and counts."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        return ProducerRecord(record.topic, (record.value or b"") + b"0", record.key, record.headers)

    def on_acknowledgement(self, metadata: Any, error: Any, headers: Any) -> None:
        self.told.append(error)


def test_a_partitioner_of_the_users_places_each_row():
    rig = make_rig(partitioner=Modulo())
    bulk = send_arrow(rig, pa.table({"value": [b"%d" % number for number in range(50)]}))
    written = deliver(rig)
    for partition in range(3):
        assert [record[0] for record in written["t", partition]] == [
            b"%d" % n for n in range(partition, 50, 3)
        ]
    assert bulk.result(0).records == 50


def test_interceptors_see_each_row():
    watcher = Watcher()
    rig = make_rig(interceptors=[watcher])
    bulk = send_arrow(rig, pa.table({"value": ["1", "2"], "headers": [[{"key": "h", "value": b"x"}], None]}))
    written = deliver(rig)
    assert sorted((r[0], [tuple(h) for h in r[2]]) for some in written.values() for r in some) == [
        (b"10", [("h", b"x")]),
        (b"20", []),
    ]
    assert watcher.told == [None, None]
    assert bulk.result(0).records == 2


def test_a_row_that_a_partitioner_refuses_stops_the_call_there():
    rig = make_rig(partitioner=Modulo())
    with pytest.raises(ValueError, match="invalid literal") as caught:
        send_arrow(rig, pa.table({"value": [b"1", b"2", b"x", b"3"]}))
    assert "2 rows had been accepted" in caught.value.__notes__[0]
    assert sum(map(len, deliver(rig).values())) == 2


def test_messages_too_large_for_the_broker_fail_alone():
    rig = make_rig(batch_size=100_000)
    fail_partition(rig, 0, 10)
    bulk = send_arrow(rig, pa.table({"value": [b"a", b"b"], "partition": [0, 1]}))
    deliver(rig)
    error = bulk.exception(0)
    assert isinstance(error, BulkDeliveryError)
    assert isinstance(error.__cause__, MessageTooLargeError)
    assert [entry.first_row for entry in error.report.errors] == [0]


# ------------------------------------------------------------------------------------------------ tables that lie


def by_offsets(offsets: list[int], data: bytes, kind: Any = None) -> pa.Array:
    """A column of bytes with these offsets, which Arrow does not look at."""
    kind = kind or pa.binary()
    large = kind in (pa.large_binary(), pa.large_string())
    packed = struct.pack(f"={len(offsets)}{'q' if large else 'i'}", *offsets)
    memory = bytearray(len(packed))
    array = pa.Array.from_buffers(kind, len(offsets) - 1, [None, pa.py_buffer(memory), pa.py_buffer(data)])
    memory[:] = packed  # Arrow has had its look
    return array


def by_views(*views: tuple[int, int, int], data: bytes) -> pa.Array:
    packed = b"".join(struct.pack("=i4sii", size, b"pref", number, start) for size, number, start in views)
    return pa.Array.from_buffers(
        pa.binary_view(), len(views), [None, pa.py_buffer(packed), pa.py_buffer(data)]
    )


def by_list(offsets: list[int], pairs: pa.Array) -> pa.Array:
    packed = pa.py_buffer(struct.pack(f"={len(offsets)}i", *offsets))
    return pa.Array.from_buffers(pa.list_(pairs.type), len(offsets) - 1, [None, packed], children=[pairs])


WORDS = pa.array([b"a", b"b"], pa.binary())
ONE_PAIR = pa.StructArray.from_arrays([pa.array(["n"]), pa.array([b"v"])], names=["key", "value"])
LYING_PAIR = pa.StructArray.from_arrays(
    [pa.array(["n"] * 3), by_offsets([0, 60_000, 1, 2], b"vw")], names=["key", "value"]
)
LYING = {
    "beyond the data": ("value", by_offsets([0, 1, 60_000, 5], b"12345"), [1, 2]),
    "less than nothing": ("value", by_offsets([0, 1, 71, 2], b"12"), [1, 2]),
    "before the data": ("value", by_offsets([0, -9, 1, 2], b"12"), [0, 1]),
    "in 64 bits": ("key", by_offsets([0, 2**62, 1, 2], b"12", pa.large_binary()), [0, 1]),
    "a string": ("key", by_offsets([0, 1, -1, 2], b"12", pa.string()), [1, 2]),
    "a view": ("value", by_views((13, 0, 0), (13, 1, 0), (13, 0, 1), data=b"x" * 13), [1, 2]),
    "a view of less than nothing": (
        "value", by_views((13, 0, 0), (-2, 0, 0), (13, 0, -1), data=b"x" * 13), [1, 2]
    ),
    "a code": (
        "value", pa.DictionaryArray.from_arrays(pa.array([0, 2, -1], pa.int8()), WORDS, safe=False), [1, 2]
    ),
    "a code like null": (
        "key", pa.DictionaryArray.from_arrays(pa.array([0, 1, -(2**63)], pa.int64()), WORDS, safe=False), [2]
    ),
    "a list": ("headers", by_list([0, 1, 2, 1], ONE_PAIR), [1, 2]),
    "a list before its entries": ("headers", by_list([0, 1, -1, 1], ONE_PAIR), [1, 2]),
    "the value of a header": ("headers", by_list([0, 1, 2, 3], LYING_PAIR), [0, 1]),
    "a topic": ("topic", by_offsets([0, 1, 9, 2], b"tt"), [1, 2]),
}  # fmt: skip


@pytest.mark.parametrize("case", LYING)
@pytest.mark.parametrize("watched", [False, True], ids=["columns", "row by row"])
def test_a_row_that_lies_is_a_bad_row(case, watched):
    part, column, rows = LYING[case]
    table = pa.table({"value": pa.array([b"v"] * 3)} | {part: column})
    topic = None if part == "topic" else "t"
    rig = make_rig(interceptors=[Watcher()] if watched else [])
    with pytest.raises(BadRowsError, match=f"the table contradicts itself.*its {part}") as caught:
        send_arrow(rig, table, topic)
    assert told(caught.value.errors) == [(row, DamagedRowError) for row in rows]
    assert deliver(rig) == {}
    bulk = send_arrow(rig, table, topic, skip=True)
    assert told(bulk.errors) == [(row, DamagedRowError) for row in rows]
    assert sum(len(some) for some in deliver(rig).values()) == bulk.accepted == 3 - len(rows)


def test_offsets_behind_a_null_mean_nothing():
    offsets = pa.py_buffer(struct.pack("=4i", 0, 1, -70, 2))
    column = pa.Array.from_buffers(pa.binary(), 3, [pa.py_buffer(b"\1"), offsets, pa.py_buffer(b"12")])
    rig = make_rig()
    send_arrow(rig, pa.table({"value": column, "partition": [0, 0, 0]}))
    assert [record[0] for record in deliver(rig)["t", 0]] == [b"1", None, None]


def test_a_table_with_less_data_than_its_last_offset_says_is_refused_as_a_whole():
    memory = bytearray(8)
    column = pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(memory), pa.py_buffer(b"12345")])
    damaged = pa.table({"value": column})
    memory[:] = struct.pack("=2i", 0, 60_000)  # as in a file that is read without a look
    with pytest.raises(ValueError, match=r"the table is damaged: .*larger than values array"):
        send_arrow(make_rig(), damaged)
    with pytest.raises(OSError, match="the table is damaged"):
        send_arrow(make_rig(), damaged.to_reader())


def test_a_table_that_is_changed_while_it_is_sent_is_an_error_that_tells_what_was_sent():
    memory = bytearray(struct.pack("=5i", 0, 1, 2, 3, 4))
    pairs = pa.StructArray.from_arrays([pa.array(["n"] * 4), pa.array([b"v"] * 4)], names=["key", "value"])
    column = pa.Array.from_buffers(pa.list_(pairs.type), 4, [None, pa.py_buffer(memory)], children=[pairs])
    rig = make_rig()
    table = pa.table(
        {"value": [b"%d" % row for row in range(4)], "headers": column, "partition": [0, 0, 1, 1]}
    )
    steps = rig.parts.columns.steps("t", arrow_rows(ArrowSource(table), ColumnNames()), False)
    assert next(steps) is Checkpoint.PROGRESS  # the rows of the first partition were accepted
    memory[12:16] = struct.pack("=i", 1_000_000)
    with pytest.raises(ValueError, match="the table was changed while it was sent: row 2") as caught:
        rig.drive(steps)
    bulk = caught.value.bulk_delivery  # type: ignore[attr-defined]
    assert (bulk.accepted, [row for row, _ in told(bulk.errors)]) == (2, [2, 3])
    assert [record[0] for record in deliver(rig)["t", 0]] == [b"0", b"1"]


@pytest.mark.parametrize(
    ("kind", "number", "text"),
    [
        (pa.timestamp("us"), -1, r"1969-12-31T23:59:59.999999Z \(-1 us since 1970\)"),
        (pa.timestamp("s", "UTC"), 2**62, "too large: 4611686018427387904 s since 1970"),
        (pa.timestamp("ns"), -(2**63), r"1677-09-21T00:12:43.145224Z \(-9223372036854775808 ns since 1970\)"),
        (pa.int64(), -(2**63), "too large: -9223372036854775808 ms since 1970"),
        (pa.uint64(), 2**63, "too large: 9223372036854775808 ms since 1970"),
        (pa.date32(), -1, r"1969-12-31T00:00:00Z \(-1 days since 1970\)"),
    ],
)
def test_a_bad_timestamp_is_told_as_it_was(kind, number, text):
    width = pa.int32() if kind == pa.date32() else pa.uint64() if kind == pa.uint64() else pa.int64()
    moments = pa.array([0, number], width).view(kind)
    bulk = send_arrow(make_rig(), pa.table({"value": [b"1", b"2"], "timestamp": moments}), skip=True)
    [entry] = bulk.errors
    assert entry.first_row == 1
    assert re.search(text, str(entry.error)), str(entry.error)
