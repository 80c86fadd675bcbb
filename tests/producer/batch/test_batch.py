# SPDX-License-Identifier: Apache-2.0
"""One batch: its states, its outcome, its times."""

from __future__ import annotations

import math
import threading

import pytest
from producer.fakes_core import START, TIME, Core, encoded, run, value_for, values

from penstock.errors import IllegalStateError, InvalidRecordError, KafkaError, NetworkError
from penstock.producer.batch._batch_cy import ANONYMOUS, TRANSITIONS, Batch, BatchIdentity, BatchState
from penstock.producer.batch._delivery_cy import Delivery, place_in_batch
from penstock.producer.batch._queue_cy import PartitionQueue
from penstock.producer.owner import Owner, mark_io_thread
from penstock.records._batch_cy import NEEDS_SEGMENT, NO_ROOM, BatchWriter
from penstock.records.format import HEADER_SIZE
from penstock.types import RecordMetadata, TopicPartition

FINAL = [BatchState.SUCCEEDED, BatchState.FAILED, BatchState.ABORTED, BatchState.SPLIT]
ERROR = KafkaError("first")
HALF = value_for((1024 - HEADER_SIZE) // 2)  # two of them fill a batch of 1024 bytes, but for one byte


def new_batch(state: BatchState = BatchState.QUEUED, count: int = 3) -> Batch:
    """A batch with some records, brought into a state."""
    buffer = bytearray(500)
    queue = PartitionQueue("orders", 2, set(), set(), None, Owner())
    batch = Batch(queue, BatchWriter(buffer, 500), START, [buffer])
    for _ in range(count):
        batch.writer.append(TIME, None, b"value", None)
    if state is not BatchState.QUEUED and state is not BatchState.ABORTED:
        batch.move_to(BatchState.IN_FLIGHT)
    if state is BatchState.SUCCEEDED:
        batch.succeed(70, -1)
    elif state is BatchState.FAILED:
        batch.fail(ERROR)
    elif state is BatchState.ABORTED:
        batch.abort(ERROR)
    elif state is BatchState.SPLIT:
        batch.move_to(state)
    assert batch.state is state
    return batch


def deliveries(batch: Batch) -> list[Delivery]:
    return [Delivery(batch.result, index, TIME, -1, 5) for index in range(batch.record_count)]


# --------------------------------------------------------------------------------------- while it is open


def open_batch(size: int = 500, limit: int = 500, ratio: float = 1.0) -> Batch:
    buffer = bytearray(size)
    queue = PartitionQueue("orders", 2, set(), set(), None, Owner())
    return Batch(queue, BatchWriter(buffer, limit, ratio), START, [buffer])


def test_a_record_gets_its_delivery_and_its_callback():
    batch = open_batch()
    seen: list[tuple[RecordMetadata, KafkaError | None]] = []
    first = batch.append(TIME, b"k", b"value", None, None)
    second = batch.append(TIME + 1, None, None, [("h", b"x")], lambda *told: seen.append(told))
    assert [place_in_batch(delivery) for delivery in (first, second)] == [
        (batch.result, 0),
        (batch.result, 1),
    ]
    assert batch.appended == 11  # six numbers of a byte, the number of headers, a header of four bytes
    batch.move_to(BatchState.IN_FLIGHT)
    batch.succeed(70, -1)
    assert first.result(0) == RecordMetadata("orders", 2, 70, TIME, 1, 5)
    assert seen == [(RecordMetadata("orders", 2, 71, TIME + 1, -1, -1), None)]


@pytest.mark.parametrize(("limit", "ratio", "why"), [(100, 1.0, NO_ROOM), (10_000, 0.5, NEEDS_SEGMENT)])
def test_a_record_without_room_changes_nothing(limit, ratio, why):
    batch = open_batch(100, limit, ratio)
    batch.append(TIME, None, b"value", None, None)
    size = batch.writer.raw_size
    assert batch.append(TIME, None, bytes(200), None, lambda *_: None) is None
    assert (batch.appended, batch.record_count, batch.writer.raw_size) == (why, 1, size)
    assert batch.result.callbacks == []


class Rows:
    """A window whose rows all take ten bytes."""

    payload = 40
    expendable = True
    refusal = 0

    def __init__(self, *taken: int) -> None:
        self._taken = list(taken)
        self.asked: list[tuple[int, int, int]] = []

    def append_to(self, writer: BatchWriter, first: int, last: int, budget: int) -> int:
        self.asked.append((first, last, budget))
        count = self._taken.pop(0)
        self.refusal = 0 if count else NEEDS_SEGMENT
        for _ in range(count):
            writer.append(TIME, None, b"value", None)
        return count

    def span(self, first: int, count: int) -> tuple[int, int]:
        return first, first + count


def test_the_call_is_told_where_its_rows_are():
    batch = open_batch()
    batch.append(TIME, None, b"value", None, None)
    window, accepted = Rows(4), []
    assert batch.append_rows(window, 5, 9, 1000, None) == 4
    assert (window.asked, accepted) == ([(5, 9, 1000)], [])
    batch.tell_of_rows(window, 5, 4, accepted)
    assert accepted == [(batch.result, 1, 4, 40, (5, 9))]
    assert batch.result.expendable == [(1, 4)]


def test_a_batch_grows_for_rows_by_a_spare_segment_if_there_is_one():
    batch = open_batch(100, 10_000, 0.5)
    spares = [bytearray(300)]
    assert batch.append_rows(Rows(0), 0, 4, 1000, None) == 0
    assert batch.append_rows(Rows(0), 0, 4, 1000, []) == 0
    assert batch.append_rows(Rows(0, 4), 0, 4, 1000, spares) == 4
    assert spares == []
    assert len(batch.writer.segments) == 2


# ---------------------------------------------------------------------------------------------- states


@pytest.mark.parametrize("after", BatchState)
@pytest.mark.parametrize("before", BatchState)
def test_the_table_decides_about_every_change(before, after):
    """Requirement 39."""
    batch = new_batch(before)
    if after in TRANSITIONS[before]:
        batch.move_to(after)
        assert batch.state is after
    else:
        with pytest.raises(IllegalStateError, match=f"orders-2 that (is|has) {before.value} cannot become"):
            batch.move_to(after)
        assert batch.state is before


@pytest.mark.parametrize("state", BatchState)
def test_a_batch_is_done_in_its_final_states(state):
    """Requirement 39."""
    assert new_batch(state).done is (state in FINAL)


def test_acknowledged_records_have_offsets():
    """Requirement 39."""
    batch = new_batch(BatchState.IN_FLIGHT)
    assert batch.succeed(70, -1)
    assert [delivery.result(0) for delivery in deliveries(batch)] == [
        RecordMetadata("orders", 2, offset, TIME, -1, 5) for offset in (70, 71, 72)
    ]


def test_the_brokers_time_replaces_the_records():
    batch = new_batch(BatchState.IN_FLIGHT)
    batch.succeed(70, TIME + 5)
    assert {delivery.result(0).timestamp for delivery in deliveries(batch)} == {TIME + 5}


def test_an_unknown_base_offset_gives_no_offsets():
    batch = new_batch(BatchState.IN_FLIGHT)
    batch.succeed(-1, -1)
    assert {delivery.result(0).offset for delivery in deliveries(batch)} == {-1}


@pytest.mark.parametrize("state", [BatchState.FAILED, BatchState.ABORTED])
def test_an_answer_that_comes_too_late_changes_nothing(state):
    """Requirements 39 and 45."""
    batch = new_batch(state)
    assert not batch.succeed(70, -1)
    assert not batch.fail(KafkaError("second"))
    assert batch.state is state
    assert {repr(delivery.exception(0)) for delivery in deliveries(batch)} == {repr(ERROR)}


def test_an_acknowledged_batch_cannot_fail():
    """Requirement 39."""
    batch = new_batch(BatchState.SUCCEEDED)
    for change in (lambda: batch.fail(ERROR), lambda: batch.abort(ERROR), lambda: batch.succeed(9, -1)):
        with pytest.raises(IllegalStateError):
            change()
    assert [delivery.result(0).offset for delivery in deliveries(batch)] == [70, 71, 72]


def test_a_batch_is_not_aborted_twice():
    """Requirement 39."""
    batch = new_batch(BatchState.ABORTED)
    with pytest.raises(IllegalStateError, match="has aborted cannot become aborted"):
        batch.abort(ERROR)


@pytest.mark.parametrize("state", [BatchState.QUEUED, BatchState.IN_FLIGHT])
def test_a_batch_can_be_aborted_wherever_it_is(state):
    """Requirement 39."""
    batch = new_batch(state)
    batch.abort(ERROR)
    assert {repr(delivery.exception(0)) for delivery in deliveries(batch)} == {repr(ERROR)}


def test_single_records_may_have_errors_of_their_own():
    """Requirements 39 and 47."""
    batch = new_batch(BatchState.IN_FLIGHT)
    own = InvalidRecordError("too old")
    assert batch.fail(ERROR, {1: own})
    assert [repr(delivery.exception(0)) for delivery in deliveries(batch)] == list(
        map(repr, [ERROR, own, ERROR])
    )
    metadata, _ = deliveries(batch)[1]._outcome()
    assert metadata == RecordMetadata("orders", 2, -1, -1, -1, -1)


# ---------------------------------------------------------------------------------------------- time


def test_the_delivery_timeout_counts_from_the_creation():
    """Requirement 27."""
    batch = new_batch()
    assert not batch.reached_timeout(START + 29.999, 30)
    assert batch.reached_timeout(START + 30, 30)


def test_the_longest_delivery_timeout_does_not_overflow():
    """Requirement 27."""
    batch = new_batch()
    assert not batch.reached_timeout(START + 1e6, (2**31 - 1) / 1000)
    assert not batch.reached_timeout(START + 1e12, math.inf)


def test_a_clock_that_goes_backwards_expires_nothing():
    """Requirement 40."""
    batch = new_batch()
    assert batch.age(START - 100) == 0
    assert not batch.reached_timeout(START - 100, 30)


def test_a_clock_that_goes_backwards_does_not_end_the_backoff():
    """Requirement 40."""
    batch = new_batch()
    batch.attempts, batch.retry_at, batch.leader_epoch = 1, START + 1, 5
    assert batch.backing_off(START - 100, 5)


def test_a_batch_that_was_never_sent_does_not_back_off():
    """Requirement 24."""
    batch = new_batch()
    batch.retry_at = START + 1
    assert not batch.backing_off(START, 0)


@pytest.mark.parametrize(
    ("now", "epoch", "waits"),
    [
        (START, 5, True),
        (START + 0.999, 5, True),
        (START + 1, 5, False),
        (START, 4, True),  # an older answer, of a broker that is behind
        (START, -1, True),  # nothing is known about the leader
        (START, 6, False),  # a new leader is worth trying at once
    ],
)
def test_a_retried_batch_backs_off_unless_the_leader_changed(now, epoch, waits):
    """Requirements 24 and 39."""
    batch = new_batch()
    batch.attempts, batch.retry_at, batch.leader_epoch = 1, START + 1, 5
    assert batch.backing_off(now, epoch) is waits


# ---------------------------------------------------------------------------------------------- expiry


def test_batches_expire_oldest_first():
    """Requirement 27."""
    core = Core([1, 1], delivery_timeout_ms=30_000, linger_ms=60_000)
    core.append(HALF, 0)
    core.append(HALF, 0)
    core.now += 10
    core.append(b"younger", 0)
    core.append(b"other", 1)
    core.now = START + 29.99
    assert core.accumulator.take_expired(core.now) == []
    core.now = START + 30
    [expired] = core.accumulator.take_expired(core.now)
    assert expired.record_count == 2
    core.now = START + 40
    assert [batch.queue.partition for batch in core.accumulator.take_expired(core.now)] == [0, 1]
    assert not core.accumulator.has_undrained()


@pytest.mark.parametrize("created", [2.6782, 0.1, 1e6 / 3, 123456.789])
def test_what_waits_expires_at_the_very_moment_at_which_what_is_in_flight_does(created):
    """Else the pieces of a split that wait could fail a moment before the one that is sent, which has older records."""
    core = Core(delivery_timeout_ms=160, linger_ms=60)
    core.now = created
    core.append(b"v")
    [batch] = core.queue().batches
    expiry = core.expiry()
    for moment in (math.nextafter(expiry, 0), expiry - 5e-7):
        assert not batch.reached_timeout(moment, core.accumulator.delivery_timeout)
        assert core.accumulator.take_expired(moment) == []
    assert batch.reached_timeout(expiry, core.accumulator.delivery_timeout)
    assert core.accumulator.take_expired(expiry) == [batch]


def test_the_next_expiry_is_known():
    """Requirements 27 and 49."""
    core = Core([1, 1], delivery_timeout_ms=30_000, linger_ms=60_000)
    assert core.expiry() == float("inf")
    core.append(b"v", 1)
    core.now += 3
    core.append(b"v", 0)
    assert core.expiry() == START + 30


def test_the_longest_delivery_timeout_expires_nothing():
    """Requirement 27."""
    core = Core(delivery_timeout_ms=2**31 - 1)
    core.append(b"v")
    core.now += 24 * 3600
    assert core.accumulator.take_expired(core.now) == []
    assert core.expiry() > core.now


def test_a_clock_that_goes_backwards_expires_nothing_that_waits():
    """Requirement 40."""
    core = Core(delivery_timeout_ms=30_000, linger_ms=100)
    core.append(b"v")
    core.now -= 1000
    assert core.accumulator.take_expired(core.now) == []
    assert core.ready().next_delay == pytest.approx(0.1)


def test_an_expired_batch_may_be_open_and_takes_no_further_record():
    """Requirement 27."""
    core = Core(delivery_timeout_ms=30_000, linger_ms=60_000)
    core.append(b"old")
    core.now += 30
    [expired] = core.accumulator.take_expired(core.now)
    core.append(b"new")
    assert expired.record_count == 1
    assert core.queue().depth() == 1


def test_a_retried_batch_expires_in_its_queue():
    """Requirement 27."""
    core = Core(delivery_timeout_ms=30_000)
    core.append(b"v")
    [batch] = core.drain()
    core.now += 29
    core.retry(batch, backoff=5)
    core.now += 1
    assert core.accumulator.take_expired(core.now) == [batch]


def test_a_record_can_be_appended_from_the_callback_of_an_expired_one():
    """Requirement 44."""
    core = Core(delivery_timeout_ms=30_000, memory=2048)
    again: list[Delivery] = []
    core.append(b"old", on_delivery=lambda metadata, error: again.append(core.append(b"again")))
    core.now += 30
    [expired] = core.accumulator.take_expired(core.now)
    core.fail(expired, KafkaError("too late"))
    assert len(again) == 1
    [batch] = core.drain()
    assert values(batch) == [b"again"]
    core.acknowledge(batch, 5)
    assert again[0].result(0).offset == 5
    assert core.pool.available() == 2048


def test_memory_of_a_batch_that_expired_in_flight_is_kept_until_the_answer():
    """Requirements 45 and 46."""
    core = Core(memory=1024, delivery_timeout_ms=30_000)
    delivery = core.append(b"v")
    [batch] = core.drain()
    sent = bytes(batch.wire)
    assert batch.fail(KafkaError("expired"))
    core.accumulator.finish(batch)
    steps = core.steps(encoded(b"next"))
    ticket = run(steps)
    assert not ticket.done  # the request still holds the bytes
    assert bytes(batch.wire) == sent
    core.acknowledge(batch, 9)  # the late answer
    assert str(delivery.exception(0)) == "expired"
    assert ticket.done


def test_memory_is_freed_exactly_once():
    """Requirement 46."""
    core = Core(memory=4096)
    core.append(b"v")
    [batch] = core.drain()
    core.acknowledge(batch)
    for _ in range(3):
        core.accumulator.release(batch)
        core.accumulator.finish(batch)
    assert core.pool.available() == 4096
    taken = [core.pool.try_take(1024) for _ in range(4)]
    assert len({id(buffer) for buffer in taken}) == 4


def test_memory_of_a_batch_without_outcome_is_not_freed():
    """Requirement 46."""
    core = Core(memory=4096)
    core.append(b"v")
    [batch] = core.drain()
    batch.request_pending = False
    core.accumulator.release(batch)
    assert core.pool.available() == 3072


# ---------------------------------------------------------------------------------------------- the rest


def test_the_size_is_that_on_the_wire_once_it_is_known():
    batch = new_batch()
    assert batch.size == batch.writer.raw_size
    batch.wire = memoryview(b"123")
    assert batch.size == 3


def test_a_batch_says_where_it_goes_and_how_it_stands():
    batch = new_batch(BatchState.IN_FLIGHT)
    assert batch.topic_partition == TopicPartition("orders", 2)
    assert repr(batch) == "<Batch orders-2: 3 records, in flight, attempt 0>"


def test_an_error_reaches_everybody_who_asks():
    batch = new_batch()
    error = NetworkError("gone")
    batch.fail(error)
    for delivery in deliveries(batch):
        with pytest.raises(NetworkError, match="gone"):
            delivery.result(0)


# ------------------------------------------------------------------------------------------------- doubts


def test_a_batch_is_in_doubt_only_once_somebody_says_so():
    batch = new_batch()
    assert not batch.in_doubt
    batch.in_doubt = True
    batch.move_to(BatchState.IN_FLIGHT)
    batch.move_to(BatchState.QUEUED)
    assert batch.in_doubt  # an attempt that may have succeeded is not undone by the next one


def test_only_the_thread_that_settles_a_batch_may_not_wait_for_it():
    batch = new_batch()
    (delivery, *_) = deliveries(batch)
    outcomes = []

    def on_a_thread_of(owner: object) -> None:
        mark_io_thread(owner)
        try:
            delivery.result(0)
        except (IllegalStateError, TimeoutError) as error:
            outcomes.append(type(error))

    for owner in (batch.queue.owner, Owner()):
        thread = threading.Thread(target=on_a_thread_of, args=(owner,))
        thread.start()
        thread.join(60)
    assert outcomes[0] is IllegalStateError
    assert outcomes[1] is not IllegalStateError


# -------------------------------------------------------------------------------------------- identity


def test_identities_are_compared_by_their_fields():
    identity = BatchIdentity(9, 8, 7)
    assert identity == BatchIdentity(9, 8, 7, transactional=False)
    others = [
        BatchIdentity(1, 8, 7),
        BatchIdentity(9, 1, 7),
        BatchIdentity(9, 8, 1),
        BatchIdentity(9, 8, 7, transactional=True),
        (9, 8, 7, False),
        None,
    ]
    assert all(identity != other for other in others)


def test_an_identity_without_fields_is_nobodys():
    identity = BatchIdentity()
    assert identity == ANONYMOUS
    assert (identity.producer_id, identity.producer_epoch, identity.base_sequence) == (-1, -1, -1)
    assert not identity.transactional


def test_an_identity_goes_on_with_another_sequence_number():
    large = 2**63 - 1
    identity = BatchIdentity(large, 32767, 5, transactional=True)
    assert identity.with_sequence(2**31 - 1) == BatchIdentity(large, 32767, 2**31 - 1, transactional=True)
    assert identity.base_sequence == 5
    assert repr(identity) == f"<BatchIdentity {large}, 32767, 5, transactional>"
