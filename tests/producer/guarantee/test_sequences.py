# SPDX-License-Identifier: Apache-2.0
"""The numbering of batches, without a network: who gets which number, and what becomes of it afterwards."""

from __future__ import annotations

import itertools

import pytest
from producer.fakes_core import TIME

from penstock._identity import NO_IDENTITY, ProducerIdentity
from penstock.producer.batch._batch_cy import Batch, comes_before
from penstock.producer.batch._queue_cy import PartitionQueue
from penstock.producer.guarantee._sequences_cy import (
    Numbering,
    SequenceBook,
    identity_of,
    last_sequence_of,
)
from penstock.producer.guarantee.response_policy import Action, BatchSituation
from penstock.records._batch_cy import BatchWriter

OLD, NEW = ProducerIdentity(7, 0), ProducerIdentity(7, 1)
LAST = 2**31 - 1
RETRIES = 5


@pytest.fixture
def queue() -> PartitionQueue:
    return PartitionQueue("t", 0, set(), set())


def batch_of(queue: PartitionQueue, count: int = 1) -> Batch:
    writer = BatchWriter(bytearray(100 + 20 * count), 100 + 20 * count)
    for _ in range(count):
        assert writer.append(TIME, None, b"v", None) > 0
    return Batch(queue, writer, 1000.0, [])


def numbered(book: SequenceBook, queue: PartitionQueue, *counts: int, identity=OLD) -> list[Batch]:
    batches = [batch_of(queue, count) for count in counts]
    for batch in batches:
        book.number(batch, identity, transactional=False)
    return batches


def bases(*batches: Batch) -> list[int]:
    return [batch.identity.base_sequence for batch in batches]


# ------------------------------------------------------------------------------------------------- numbers


def test_numbers_count_records_in_each_partition(queue):
    book = SequenceBook()
    other = PartitionQueue("t", 1, set(), set())
    batches = numbered(book, queue, 3, 1, 2)
    (elsewhere,) = numbered(book, other, 4)
    assert bases(*batches, elsewhere) == [0, 3, 4, 0]
    assert [last_sequence_of(batch) for batch in batches] == [2, 3, 5]
    assert {identity_of(batch) for batch in batches} == {OLD}


def test_after_the_largest_number_comes_zero(queue):
    """Requirement 59."""
    book = SequenceBook()
    book.of(queue).identity = OLD
    book.of(queue).next = LAST - 1
    first, second, third = numbered(book, queue, 102, 5, 1)
    assert bases(first, second, third) == [LAST - 1, 100, 105]
    assert last_sequence_of(first) == 99
    for batch in (first, second):
        book.acknowledge(batch, 10)
    assert book.of(queue).last_acked_sequence == 104
    assert book.of(queue).is_next(105)


@pytest.mark.parametrize(
    ("next_number", "count", "following"), [(LAST, 1, 0), (LAST, 101, 100), (LAST - 99, 100, 0)]
)
def test_the_number_behind_a_batch_that_crosses_the_end(queue, next_number, count, following):
    """Requirement 59."""
    book = SequenceBook()
    book.of(queue).identity = OLD
    book.of(queue).next = next_number
    numbered(book, queue, count)
    assert book.of(queue).next == following


def test_a_batch_counts_as_in_flight_until_its_outcome(queue):
    book = SequenceBook()
    first, second = numbered(book, queue, 1, 1)
    assert book.of(queue).in_flight == [first, second]
    book.acknowledge(first, 0)
    book.drop(second)
    assert book.of(queue).in_flight == []
    book.drop(second)
    book.acknowledge(first, 0)  # twice changes nothing
    assert book.of(queue).last_acked_sequence == 0


def test_answers_out_of_order_do_not_lower_what_is_acknowledged(queue):
    """Requirement 56."""
    book = SequenceBook()
    first, second = numbered(book, queue, 1, 1)
    book.acknowledge(second, 1000)
    book.acknowledge(first, -1)  # a duplicate: the broker has it, and does not say where
    assert (book.of(queue).last_acked_sequence, book.of(queue).last_acked_offset) == (1, 1000)


def test_the_acknowledged_offset_is_that_of_the_last_record(queue):
    book = SequenceBook()
    first, second = numbered(book, queue, 3, 2)
    book.acknowledge(first, 40)
    assert book.of(queue).last_acked_offset == 42
    book.acknowledge(second, 10)
    assert book.of(queue).last_acked_offset == 42


# ---------------------------------------------------------------------------------------------- identities


def test_a_new_identity_waits_until_nothing_is_in_flight_with_the_old_one(queue):
    """Requirement 58."""
    book = SequenceBook()
    (acknowledged,) = numbered(book, queue, 1)
    book.acknowledge(acknowledged, 0)
    (first,) = numbered(book, queue, 2)
    assert book.may_number(queue, OLD)
    assert not book.may_number(queue, NEW)
    assert book.may_resend(queue, first)  # what is in flight may go on
    book.acknowledge(first, 0)
    assert book.may_number(queue, NEW)
    (second,) = numbered(book, queue, 1, identity=NEW)
    assert identity_of(second) == NEW
    assert bases(second) == [0]


def test_a_restart_numbers_what_is_in_flight_anew(queue):
    book = SequenceBook()
    first, second, third = numbered(book, queue, 2, 3, 1)
    book.acknowledge(first, 0)
    book.restart(queue, NEW, transactional=False)
    assert bases(second, third) == [0, 3]
    assert {identity_of(batch) for batch in (second, third)} == {NEW}
    assert second.renumbered
    assert not first.renumbered
    assert book.of(queue).next == 4
    assert book.of(queue).is_next(0)


def test_an_answer_for_the_old_identity_says_nothing_about_the_new_one(queue):
    book = SequenceBook()
    (first,) = numbered(book, queue, 5)
    book.drop(first)
    book.restart(queue, NEW, transactional=False)
    book.acknowledge(first, 0)
    assert book.of(queue).last_acked_sequence == -1


def test_forgetting_all_starts_every_partition_from_zero(queue):
    book = SequenceBook()
    (batch,) = numbered(book, queue, 5)
    book.mark_unresolved(batch)
    book.forget_all()
    assert book.unresolved == {}
    (again,) = numbered(book, queue, 1)
    assert bases(again) == [0]


def test_the_first_batch_of_an_identity_is_in_flight_alone(queue):
    book = SequenceBook()
    for identity in (OLD, NEW):
        assert book.may_number(queue, identity)
        (first,) = numbered(book, queue, 2, identity=identity)
        assert not book.may_number(
            queue, identity
        )  # a broker that refused the first would take any second one
        book.acknowledge(first, 0)
        assert book.may_number(queue, identity)
        (second,) = numbered(book, queue, 1, identity=identity)
        assert book.may_number(queue, identity)
        book.acknowledge(second, 2)


def test_the_oldest_batch_in_flight_is_sent_again_first(queue):
    """Requirement 51."""
    book = SequenceBook()
    first, second = numbered(book, queue, 1, 1)
    assert book.may_resend(queue, first)
    assert not book.may_resend(queue, second)
    book.acknowledge(first, 0)
    assert book.may_resend(queue, second)


# ------------------------------------------------------------------------------------ unresolved and closed


def test_an_unresolved_partition_gives_no_new_numbers(queue):
    """Requirement 55."""
    book = SequenceBook()
    first, second = numbered(book, queue, 2, 1)
    book.drop(first)
    book.mark_unresolved(first)
    assert book.unresolved == {queue: 2}
    assert not book.may_number(queue, OLD)
    assert book.resolve() == []  # the second one may tell
    book.acknowledge(second, 7)
    assert book.resolve() == []
    assert book.unresolved == {}
    assert book.may_number(queue, OLD)


def test_a_gap_that_nothing_in_flight_can_close_is_told(queue):
    """Requirement 55."""
    book = SequenceBook()
    first, second = numbered(book, queue, 2, 1)
    book.mark_unresolved(second)
    book.mark_unresolved(first)  # the later one is what counts
    assert book.unresolved == {queue: 3}
    book.drop(first)
    assert book.resolve() == []
    book.drop(second)
    assert book.resolve() == [queue]
    book.restart(queue, NEW, transactional=False)
    assert book.unresolved == {}


def test_what_may_have_been_written_before_a_missing_batch_keeps_its_numbers(queue):
    """Requirement 53."""
    book = SequenceBook()
    before, missing, behind = numbered(book, queue, 1, 2, 1)
    book.drop(missing)
    book.mark_broken(queue, 1)
    book.mark_broken(queue, 3)  # the earlier one is what counts
    assert book.restartable() == []
    assert book.may_resend_broken(queue, before)
    assert not book.may_resend_broken(queue, behind)
    assert not book.may_resend_broken(queue, batch_of(queue))
    book.acknowledge(before, 0)
    assert book.restartable() == [queue]
    book.restart(queue, NEW, transactional=False)
    assert book.restartable() == []
    assert book.may_resend_broken(queue, behind)
    assert bases(behind) == [0]


def test_a_failed_batch_lowers_the_numbers_behind_it(queue):
    """Requirement 53."""
    book = SequenceBook()
    before, failed, after, last = numbered(book, queue, 1, 3, 2, 1)
    book.drop(failed)
    book.close_gap(failed)
    assert bases(before, after, last) == [0, 1, 3]
    assert (before.renumbered, after.renumbered, last.renumbered) == (False, True, True)
    assert book.of(queue).next == 4


def test_numbers_are_lowered_across_the_end(queue):
    """Requirements 53 and 59."""
    book = SequenceBook()
    book.of(queue).identity = OLD
    book.of(queue).next = LAST
    failed, after = numbered(book, queue, 3, 2)
    assert bases(failed, after) == [LAST, 2]
    book.drop(failed)
    book.close_gap(failed)
    assert bases(after) == [LAST]
    assert book.of(queue).next == 1


def test_a_failed_batch_of_an_old_identity_lowers_nothing(queue):
    book = SequenceBook()
    (failed,) = numbered(book, queue, 3)
    book.drop(failed)
    (other,) = numbered(book, queue, 2, identity=NEW)
    book.close_gap(failed)
    assert bases(other) == [0]
    assert book.of(queue).next == 2


def test_pieces_share_the_numbers_of_the_batch_that_was_split(queue):
    """Requirement 60."""
    book = SequenceBook()
    before, split, after = numbered(book, queue, 1, 5, 1)
    pieces = [batch_of(queue, 3), batch_of(queue, 2)]
    book.replace(split, pieces)
    assert bases(*pieces) == [1, 4]
    assert book.of(queue).in_flight == [before, *pieces, after]
    assert bases(after) == [6]
    assert {identity_of(piece) for piece in pieces} == {OLD}


@pytest.mark.parametrize("split", [False, True])
def test_five_are_numbered_from_the_oldest_on_whatever_became_of_the_others(queue, split):
    book = SequenceBook()
    for batch in numbered(book, queue, *[1] * 7):
        book.acknowledge(batch, 0)
    oldest, *others = numbered(book, queue, 2, 1, 1, 1)
    if split:
        pieces = [batch_of(queue, 1), batch_of(queue, 1)]
        book.replace(oldest, pieces)
        book.acknowledge(pieces[0], 1)
        oldest = pieces[1]
    assert book.may_number(queue, OLD)
    others += numbered(book, queue, 1)
    for batch in others[1:]:
        book.acknowledge(batch, 9)
    assert not book.may_number(queue, OLD)
    book.acknowledge(oldest, 1)
    assert book.may_number(queue, OLD)


def test_retries_are_queued_in_the_order_of_their_numbers(queue):
    """Requirement 52."""
    book = SequenceBook()
    first, second, third = numbered(book, queue, 1, 1, 1)
    fresh = batch_of(queue)
    for order in itertools.permutations((first, second, third)):
        waiting = PartitionQueue("t", 0, set(), set())
        waiting.put_back([fresh])
        for batch in order:
            waiting.put_back_in_order(batch, comes_before)
        assert waiting.take_all() == [first, second, third, fresh]


def test_retries_are_in_order_across_the_end_of_the_numbers(queue):
    """Requirements 52 and 59."""
    book = SequenceBook()
    book.of(queue).identity = OLD
    book.of(queue).next = LAST
    last, first = numbered(book, queue, 1, 1)
    assert bases(last, first) == [LAST, 0]
    assert comes_before(last, first)
    assert not comes_before(first, last)


# --------------------------------------------------------------------------------------------- the judgement


def judge(
    numbering: Numbering, batch: Batch, code: int, log_start_offset: int = -1, **changes
) -> tuple[Action, bool]:
    situation = BatchSituation(batch.record_count, attempts=0, expired=False, done=False)._replace(**changes)
    decision = numbering.decide(code, log_start_offset, batch, situation)
    return decision.action, decision.bump_epoch


def numbering_with(
    queue: PartitionQueue, count: int, *, transactional: bool = False
) -> tuple[Numbering, list[Batch]]:
    """A numbering with so many batches in flight, behind one that was acknowledged at offset 0."""
    numbering = Numbering(RETRIES, transactional)
    numbering.identity = OLD
    acknowledged = batch_of(queue)
    numbering.assign(acknowledged)
    numbering.on_success(acknowledged, 0)
    batches = [batch_of(queue) for _ in range(count)]
    for batch in batches:
        assert numbering.may_drain(queue, batch)
        numbering.assign(batch)
    return numbering, batches


def test_without_an_identity_nothing_leaves(queue):
    numbering = Numbering(RETRIES, transactional=False)
    assert numbering.identity == NO_IDENTITY
    assert not numbering.may_drain(queue, batch_of(queue))


def test_the_gate_is_left_alone_while_there_is_nothing_to_settle(queue):
    assert not Numbering(RETRIES, transactional=False).at_rest  # a producer id is needed
    assert numbering_with(queue, 1)[0].at_rest
    assert not numbering_with(queue, 1, transactional=True)[0].at_rest


@pytest.mark.parametrize("trouble", ["broken", "unresolved", "away", "halted"])
def test_the_gate_is_asked_while_there_is_something_to_settle(queue, trouble):
    numbering, (batch,) = numbering_with(queue, 1)
    if trouble == "broken":
        numbering.book.mark_broken(queue, 0)
    elif trouble == "unresolved":
        numbering.book.mark_unresolved(batch)
    elif trouble == "away":
        numbering.book.put_away(queue)
    else:
        numbering.halted = True
    assert not numbering.at_rest


def test_assigning_again_keeps_the_numbers(queue):
    numbering, (first, second) = numbering_with(queue, 2)
    assert numbering.assign(first) == first.identity
    assert bases(first, second) == [1, 2]
    assert not numbering.may_drain(queue, second)
    assert numbering.may_drain(queue, first)


def test_of_a_broken_partition_only_what_is_before_the_missing_batch_leaves(queue):
    """Requirement 53."""
    numbering, (first, second) = numbering_with(queue, 2)
    numbering.book.mark_broken(queue, 2)
    assert numbering.may_drain(queue, first)
    assert not numbering.may_drain(queue, second)
    assert not numbering.may_drain(queue, batch_of(queue))
    other = PartitionQueue("t", 1, set(), set())
    assert numbering.may_drain(other, batch_of(other))


def test_out_of_order_behind_another_batch_is_only_retried(queue):
    """Requirement 54."""
    numbering, (first, second) = numbering_with(queue, 2)
    assert judge(numbering, second, 45) == (Action.RETRY, False)
    assert judge(numbering, first, 45) == (Action.RETRY, True)  # nothing is missing before it


def test_out_of_order_after_a_new_number_is_only_retried(queue):
    """Requirement 54."""
    numbering, (first,) = numbering_with(queue, 1)
    first.renumbered = True
    assert judge(numbering, first, 45) == (Action.RETRY, False)


def test_out_of_order_behind_an_unresolved_batch_needs_a_new_epoch(queue):
    """Requirement 54."""
    numbering, (first, second, third) = numbering_with(queue, 3)
    numbering.on_expired(first)
    assert judge(numbering, second, 45) == (Action.RETRY, True)
    assert judge(numbering, third, 45) == (Action.RETRY, False)


def test_out_of_order_in_a_transaction_fails_where_it_cannot_help(queue):
    """Requirement 54."""
    numbering, (first, second) = numbering_with(queue, 2, transactional=True)
    assert judge(numbering, second, 45) == (Action.RETRY, False)
    assert judge(numbering, first, 45) == (Action.FAIL, False)


@pytest.mark.parametrize("code", [45, 59])
def test_a_broken_numbering_is_mended_also_when_retries_are_used_up(queue, code):
    numbering, (first, second) = numbering_with(queue, 2)
    assert judge(numbering, second, code, attempts=RETRIES) == (Action.FAIL, True)
    assert judge(numbering, first, 19, attempts=RETRIES) == (Action.FAIL, False)


@pytest.mark.parametrize(
    ("transactional", "log_start", "acked", "expected"),
    [
        (False, -1, 10, (Action.RETRY, False)),  # the broker does not say
        (False, 50, 10, (Action.RETRY, True)),  # retention has removed all that was written
        (False, 5, 10, (Action.RETRY, True)),
        (True, -1, 10, (Action.RETRY, False)),
        (True, 50, 10, (Action.RETRY, False)),  # and starts again from 0
        (True, 5, 10, (Action.FAIL, False)),
    ],
)
def test_an_unknown_producer_by_the_start_of_the_log(queue, transactional, log_start, acked, expected):
    """Requirement 57."""
    numbering, (first, second) = numbering_with(queue, 2, transactional=transactional)
    numbering.on_success(first, acked)
    assert judge(numbering, second, 59, log_start) == expected
    situation = BatchSituation(1, 0, expired=False, done=False)
    restarts = numbering.decide(59, log_start, second, situation).restart_sequences
    assert restarts == (transactional and log_start == 50)
    second.renumbered = True
    assert judge(numbering, second, 59, log_start) == (Action.RETRY, False)


def test_only_a_batch_that_was_sent_is_in_doubt_when_it_expires(queue):
    """Requirement 55."""
    numbering, (sent,) = numbering_with(queue, 1)
    numbering.on_expired(batch_of(queue))
    assert numbering.book.unresolved == {}
    numbering.on_expired(sent)
    assert numbering.book.unresolved == {queue: 2}
    assert not numbering.may_drain(queue, batch_of(queue))


@pytest.mark.parametrize("order", [(1, 3), (3, 1)])
def test_of_several_missing_batches_the_first_decides(queue, order):
    book = SequenceBook()
    first, second, third = numbered(book, queue, 1, 2, 1)
    for missing in order:
        book.mark_broken(queue, missing)
    assert book.may_resend_broken(queue, first)
    assert not book.may_resend_broken(queue, second)
    assert not book.may_resend_broken(queue, third)


@pytest.mark.parametrize("latest_first", [True, False])
def test_of_several_batches_in_doubt_the_last_decides(queue, latest_first):
    book = SequenceBook()
    batches = numbered(book, queue, 1, 2)
    for batch in reversed(batches) if latest_first else batches:
        book.mark_unresolved(batch)
    assert book.unresolved == {queue: 3}


# ------------------------------------------------------------------------------------- numbered by another way


def test_a_batch_that_was_numbered_anew_counts_when_it_is_acknowledged(queue):
    book = SequenceBook()
    (batch,) = numbered(book, queue, 3)
    book.restart(queue, NEW, transactional=False)
    assert (batch.identity.producer_id, batch.identity.producer_epoch) == NEW
    book.acknowledge(batch, 10)
    assert book.of(queue).last_acked_sequence == 2
    assert book.of(queue).in_flight == []


def test_a_batch_of_an_identity_that_is_no_longer_used_does_not_count(queue):
    book = SequenceBook()
    (batch,) = numbered(book, queue, 3)
    book.of(queue).in_flight.clear()
    book.restart(queue, NEW, transactional=False)
    book.acknowledge(batch, 10)
    assert book.of(queue).last_acked_sequence == -1
