# SPDX-License-Identifier: Apache-2.0
"""The future of many rows: parts of batches that are added up, through splits and failures, and then forgotten."""

from __future__ import annotations

import tracemalloc
from array import array
from typing import Any

import pytest

from penstock.errors import BulkDeliveryError, InvalidRecordError, KafkaTimeoutError, NetworkError
from penstock.producer.batch._delivery_cy import BatchResult
from penstock.producer.send.bulk_delivery import BulkDelivery, BulkPromise, row_ranges, span_of
from penstock.types import PartitionReport, RowErrors, TopicPartition

LOST = NetworkError("lost")


def promise_of(*parts: Any, base_row: int = 0) -> BulkPromise:
    promise = BulkPromise()
    promise.begin_chunk(base_row)
    promise.parts.extend(parts)
    promise.gather()
    return promise


def bulk_of(*parts: Any) -> BulkDelivery:
    return promise_of(*parts).delivery


def rows(bulk: BulkDelivery) -> list[tuple[int, int]]:
    return [(entry.first_row, entry.last_row) for entry in bulk.errors]


def steps(*numbers: int) -> bytes:
    return array("i", numbers).tobytes()


def test_parts_are_added_up_by_partition():
    first, second, other = BatchResult("t", 0), BatchResult("t", 0), BatchResult("t", 1)
    bulk = bulk_of(
        (first, 5, 10, 100, (0, 10, None)),
        (second, 0, 3, 30, (10, 3, None)),
        (other, 0, 2, 20, (13, 2, None)),
    )
    assert not bulk.done()
    second.settle(400)
    first.settle(200)
    other.settle(-1)  # no offset is known
    report = bulk.result(0)
    assert (report.records, report.bytes, report.errors) == (15, 150, ())
    assert report.partitions == {
        TopicPartition("t", 0): PartitionReport(13, 205, 402),
        TopicPartition("t", 1): PartitionReport(2, -1, -1),
    }


def test_offsets_are_told_from_the_smallest_to_the_largest_whatever_came_first():
    late, early, between = (BatchResult("t", 0) for _ in range(3))
    bulk = bulk_of(*((result, 0, 2, 0, (0, 2, None)) for result in (late, early, between)))
    for result, offset in ((late, 90), (early, 10), (between, 50)):
        result.settle(offset)
    assert bulk.result(0).partitions == {TopicPartition("t", 0): PartitionReport(6, 10, 91)}


def test_failed_rows_are_named_over_all_chunks():
    failed, fine = BatchResult("t", 0), BatchResult("t", 1)
    promise = promise_of(
        (failed, 2, 4, 0, (10, 4, steps(0, 1, 5, 7))), (fine, 0, 2, 8, (12, 2, None)), base_row=1000
    )
    bulk = promise.delivery
    promise.refuse([(ValueError("bad"), 1000, (8, 2, None))])
    failed.settle(error=LOST)
    fine.settle(0)
    assert rows(bulk) == [(1008, 1009), (1010, 1011), (1015, 1015), (1017, 1017)]
    error = bulk.exception(0)
    assert isinstance(error, BulkDeliveryError)
    assert str(error).startswith("4 of 6 records were not delivered; rows 1010 to 1011: ")
    assert repr(error.__cause__) == repr(LOST)
    assert error.__cause__ is error.report.errors[1].error
    assert (error.report.records, error.report.bytes) == (2, 8)


def test_skipped_rows_alone_are_no_failure():
    promise = promise_of()
    bulk = promise.delivery
    promise.refuse([(ValueError("bad"), 0, (3, 1, None))])
    assert bulk.exception(0) is None
    assert [entry.first_row for entry in bulk.result(0).errors] == [3]


def test_records_of_a_batch_can_fail_for_reasons_of_their_own():
    result = BatchResult("t", 0)
    bulk = bulk_of((result, 1, 3, 0, (0, 3, None)))
    wrong = InvalidRecordError("wrong")
    result.settle(error=LOST, record_errors={2: wrong})
    assert [(entry.first_row, entry.last_row, repr(entry.error)) for entry in bulk.errors] == [
        (0, 0, repr(LOST)),
        (1, 1, repr(wrong)),
        (2, 2, repr(LOST)),
    ]


def test_a_split_is_followed_piece_by_piece():
    whole, left, right = (BatchResult("t", 0) for _ in range(3))
    inner = [BatchResult("t", 0), BatchResult("t", 0)]
    bulk = bulk_of((whole, 2, 8, 80, (0, 8, steps(0, 2, 4, 6, 8, 10, 12, 14))))
    done: list[Any] = []
    bulk.add_done_callback(done.append)
    whole.forward([(0, left), (5, right)])
    right.forward([(0, inner[0]), (2, inner[1])])
    left.settle(100)
    inner[0].settle(error=LOST)
    assert not bulk.done()
    assert done == []
    inner[1].settle(500)
    assert done == [bulk]
    # Of the whole 2 to 9 are ours: the left piece has 2 to 4, the inner ones 5 and 6, and 7 to 9.
    assert rows(bulk) == [(6, 6), (8, 8)]
    report = bulk.exception(0).report  # type: ignore[union-attr]
    assert (report.records, report.bytes) == (6, 60)
    assert report.partitions == {TopicPartition("t", 0): PartitionReport(6, 102, 502)}


def test_what_has_its_outcome_is_forgotten_while_more_is_sent():
    promise = BulkPromise()
    bulk = promise.delivery
    stuck = BatchResult("t", 1)
    promise.parts.append((stuck, 0, 1, 1, (0, 1, None)))
    kept = []
    for number in range(2000):
        result = BatchResult("t", 0)
        promise.parts.append((result, 0, 1, 1, (number + 1, 1, None)))
        promise.gather()
        result.settle(number)
        kept.append(len(bulk._pending))
    assert max(kept) < 600
    stuck.settle(0)
    assert bulk.result(0).records == 2001


@pytest.mark.parametrize("record_errors", [None, {3: InvalidRecordError("wrong")}])
def test_rows_that_failed_take_little_memory_until_somebody_asks(record_errors):
    promise = BulkPromise()
    bulk = promise.delivery
    tracemalloc.start()
    try:
        for number in range(20):
            result = BatchResult("t", 0)
            promise.parts.append((result, 0, 1000, 0, (1000 * number, 1000, steps(*range(0, 2000, 2)))))
            promise.gather()
            result.settle(error=LOST, record_errors=record_errors)
            assert bulk.done()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 20_000 * 10
    assert "20000 not" in repr(bulk)
    assert sum(entry.count for entry in bulk.errors) == 20_000


def test_a_span_without_gaps_has_no_steps():
    assert span_of(10, array("i", [2, 3, 4])) == (12, 3, None)
    assert span_of(10, array("i", [2, 4])) == (10, 2, steps(2, 4))


def test_the_time_to_wait_is_shared_by_all_parts():
    bulk = bulk_of((BatchResult("t", 0), 0, 3, 3, (0, 3, None)), (BatchResult("t", 1), 0, 2, 2, (3, 2, None)))
    with pytest.raises(KafkaTimeoutError, match=r"^5 of 5 records have no outcome within 0\.01 s"):
        bulk.result(0.01)


def test_the_repr_is_a_status_line():
    result = BatchResult("t", 0)
    bulk = bulk_of((result, 0, 2, 2, (0, 2, None)))
    assert repr(bulk) == "<BulkDelivery pending: 2 records accepted, 0 acknowledged, 0 not>"
    result.settle(error=LOST)
    assert repr(bulk) == "<BulkDelivery done: 2 records accepted, 0 acknowledged, 2 not>"


def test_one_record_is_told_as_one():
    result = BatchResult("t", 0)
    bulk = bulk_of((result, 0, 1, 1, (0, 1, None)))
    assert repr(bulk) == "<BulkDelivery pending: 1 record accepted, 0 acknowledged, 0 not>"
    with pytest.raises(
        KafkaTimeoutError, match=r"^1 of 1 record has no outcome within 0 s; it is still on the way$"
    ):
        bulk.result(0)
    result.settle(error=LOST)
    with pytest.raises(BulkDeliveryError, match=r"^1 of 1 record was not delivered; row 0: "):
        bulk.result(0)


def test_an_error_object_is_joined_with_its_neighbours():
    assert row_ranges([1, 2, 5, 6, 7, 9], LOST) == [
        RowErrors(1, 2, LOST),
        RowErrors(5, 7, LOST),
        RowErrors(9, 9, LOST),
    ]
    assert [str(entry) for entry in row_ranges([1, 2, 4], ValueError("bad"))] == [
        "rows 1 to 2: bad",
        "row 4: bad",
    ]
