# SPDX-License-Identifier: Apache-2.0
"""The future of the rows of one `send_many` or `send_arrow`.

It consists of parts. A part is a number of records of one batch, and says which rows they are. A part that is done is
added to the sums and dropped, so the memory for a bulk depends on the rows without an outcome, not on all its rows.

Rules:
1. Only the sending thread adds parts, through the BulkPromise, until its call returns. Any thread may ask.
2. Parts are added up under the lock, which is held for arithmetic only; no thread waits while it holds the lock.
"""

from __future__ import annotations

import logging
import time
from array import array
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from penstock._arguments import check_timeout
from penstock._counted import counted
from penstock._done_callbacks import DoneCallback, DoneCallbacks
from penstock._events import Event, tell_error
from penstock._locks import forbid_reentry, inside, new_lock
from penstock._other_clients import GET, dir_without_them
from penstock._ticket import Countdown
from penstock.errors import BrokerError, BulkDeliveryError, KafkaError, KafkaTimeoutError
from penstock.producer.batch._delivery_cy import (
    BatchResult,
    Delivery,
    payload_of,
    place_in_batch,
)
from penstock.producer.unseen import UnseenFailures, UnseenRows
from penstock.types import BulkReport, PartitionReport, RowErrors, TopicPartition

if TYPE_CHECKING:
    from penstock._tracing import BulkEnd

log = logging.getLogger("penstock.producer")

# The first row, the number of rows and, if they do not follow each other, the distance of each from the first: 32-bit
# numbers.
Span = tuple[int, int, bytes | None]
# What PartitionQueue.append_rows notes: the batch's result, the first index there, count, bytes, and the span of rows.
Part = tuple[BatchResult, int, int, int, Span]
# Rows that were not delivered: the error, the number of the row from which the span counts, and the span. They stay in
# this form until they are asked for: a RowErrors for each of them would be larger than most rows.
Lost = tuple[Exception, int, Span]
Failed = tuple[KafkaError, int, Span]  # of those that were accepted

_FEW_PARTS = 256  # fewer than this are not worth adding up while rows are sent


class BulkDelivery:
    """The future of all rows of one call.

    It can be waited for (`result`, `exception`), asked (`done`, `errors`), followed (`add_done_callback`), and awaited
    inside a running asyncio loop. It cannot be cancelled: the records are on their way.

    Args:
        unseen: told of lost rows, if this is dropped before anybody has asked for them.
    """

    get = GET
    __dir__ = dir_without_them

    def __init__(self, unseen: UnseenFailures | None = None) -> None:
        self._callbacks = DoneCallbacks()
        self._is_followed = False  # the callbacks will be called when it is done
        # The BulkPromise writes the next three. The list is never replaced: both have it.
        self._parts: list[Part] = []
        self._skips = False  # rows that are bad are left out
        self._base_row = 0  # of the chunk that is being sent: spans count from there
        self._lock: Any = new_lock()  # guards all that follows
        self._pending: list[tuple[int, Part]] = []  # with the number of the row from which the span counts
        self._records = 0
        self._bytes = 0
        self._accepted = 0
        # By topic and partition: records, first offset, last offset.
        self._sums: dict[tuple[str, int], list[int]] = {}
        self._failed: list[Failed] = []  # accepted and not delivered
        self._refused: list[Lost] = []  # not accepted
        # Rows of both that nobody has asked for yet. For pending parts, the results of their batches do the same.
        self._untold = UnseenRows(unseen)

    # ------------------------------------------------------------------------------------------ for users

    @property
    def accepted(self) -> int:
        """How many records were accepted: all, unless some were skipped or the call was interrupted."""
        forbid_reentry("BulkDelivery.accepted")
        self._take_over()
        return self._accepted

    @property
    def errors(self) -> list[RowErrors]:
        """The rows that are known as not delivered by now, in order: those that failed, and those not sent."""
        forbid_reentry("BulkDelivery.errors")
        self._add_up()
        with self._lock:
            self._untold.clear()
            return _in_order(_row_errors([*_twins(self._failed), *self._refused]))

    def done(self) -> bool:
        """Whether the outcome of every row is known."""
        pending = self._pending  # another thread may replace it
        if pending and pending[-1][1][0].still_unknown:
            return False  # without a check of the others: most of the time this is the answer
        if inside():  # a finalizer or a signal handler asks: it must not wait for a lock
            return not self._parts and all(_first_pending(part) is None for _, part in pending)
        self._add_up()
        return not self._pending

    def result(self, timeout: float | None = None) -> BulkReport:
        """Wait for all outcomes; what was written where.

        Raises:
            BulkDeliveryError: some accepted records were not delivered; its `report` tells which, and `__cause__` why
                the first of them was not. Rows that were skipped are no reason: they are in the report's `errors`.
            KafkaTimeoutError: the time is up; the records go on.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self._report([])

    def exception(self, timeout: float | None = None) -> BulkDeliveryError | None:
        """Wait for all outcomes; the error that `result` would raise, or None.

        Raises:
            KafkaTimeoutError: the time is up; the records go on.
        """
        check_timeout(timeout)
        forbid_reentry("BulkDelivery.exception()")
        self._wait(timeout)
        if not self._failed:
            return None
        failed = _twins(self._failed)
        first = _in_order(_row_errors(failed))[0]
        error = BulkDeliveryError(
            f"{_part(_count(failed), self._accepted, 'was', 'were')} not delivered; {first}",
            self._report(failed),
        )
        error.__cause__ = first.error
        return error

    def cancelled(self) -> bool:
        """Always False: it cannot be cancelled."""
        return False

    def add_done_callback(self, fn: Callable[[BulkDelivery], object]) -> None:
        """Call `fn(bulk)` when it is done: in the event loop that runs on this thread now, if one does.

        Otherwise on the I/O thread, or at once when it is done already.
        """
        forbid_reentry("BulkDelivery.add_done_callback()")
        self._take_over()
        owner = next((part[0].owner for _, part in list(self._pending)), None)
        entry = DoneCallback(fn, BulkDelivery._look, log, None if owner is None else owner.post)
        self._callbacks.add(entry, self._call)
        if not self._is_followed:
            self._is_followed = True
            self._follow(BulkDelivery._release)

    def remove_done_callback(self, fn: Callable[[BulkDelivery], object]) -> int:
        """Forget callbacks that are this function and were not called yet; how many."""
        return self._callbacks.remove(fn)

    def _release(self) -> None:
        self._callbacks.release(self._call)

    def _call(self, callback: Callable[[BulkDelivery], object]) -> None:
        try:
            callback(self)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - it is logged
            text = "a done callback of a bulk delivery raised"
            tell_error(log, Event.CALLBACK_FAILED, text, error=error)

    def _look(self) -> None:
        """The application gets the outcome: neither batches nor this object need log failed rows any more."""
        self._add_up()
        with self._lock:
            self._untold.clear()

    def _follow(self, fn: Callable[[BulkDelivery], object]) -> None:
        """Call back when it is done. This does not count as a request for the outcome."""
        self._add_up()
        parts = list(self._pending)
        countdown = Countdown(len(parts) + 1, lambda: self._call(fn))
        for _, (result, *_) in parts:
            result.when_settled(countdown.one_less)
        countdown.one_less()

    def __await__(self) -> Generator[Any, None, BulkReport]:
        from penstock._loops import until  # programs without await need no event loop

        self._add_up()
        for _, part in list(self._pending):
            while (leaf := _first_pending(part)) is not None:
                yield from until(leaf.result)
        return self.result(0)

    def __repr__(self) -> str:
        state = "done" if self.done() else "pending"
        if inside():
            return f"<BulkDelivery {state}>"
        lost = _count(self._failed) + _count(self._refused)
        accepted = counted(self.accepted, "record")
        return f"<BulkDelivery {state}: {accepted} accepted, {self._records} acknowledged, {lost} not>"

    # ------------------------------------------------------------------------------------------ inside

    def _wait(self, timeout: float | None) -> None:
        self._add_up()
        if not self._pending:
            return
        deadline = None if timeout is None else time.monotonic() + timeout
        for _, part in list(self._pending):
            while (leaf := _first_pending(part)) is not None:
                remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
                if leaf.result.wait(leaf.index, remaining) is None:
                    self._add_up()
                    left = sum(part[2] for _, part in self._pending)
                    raise KafkaTimeoutError(
                        f"{_part(left, self._accepted, 'has', 'have')} no outcome within {timeout} s; "
                        f"{'it is' if left == 1 else 'they are'} still on the way"
                    )
        self._add_up()

    def _take_over(self) -> None:
        if not self._parts:
            return
        with self._lock:
            new = self._parts[:]
            del self._parts[: len(new)]
            self._accepted += sum(part[2] for part in new)
            self._pending += [(self._base_row, part) for part in new]

    def _add_up(self) -> None:
        """Add the parts that are done to the sums, and drop them."""
        self._take_over()
        if not self._pending:
            return
        with self._lock:
            still_pending = []
            for waiting in self._pending:
                base_row, part = waiting
                result = part[0]
                if result.is_written:  # nearly all
                    self._add_written_locked(result, part[1], part[2], part[3])
                elif _first_pending(part) is not None:
                    still_pending.append(waiting)
                else:
                    for leaf in _leaves(*part[:3]):
                        self._add_locked(leaf, part, base_row)
            self._pending = still_pending

    def _add_written_locked(self, result: BatchResult, index: int, count: int, payload: int) -> None:
        """Add records of a batch that was written."""
        self._records += count
        self._bytes += payload
        place = (result.topic, result.partition)
        sums = self._sums.get(place)
        if sums is None:
            sums = self._sums[place] = [0, -1, -1]
        sums[0] += count
        if result.base_offset >= 0:
            first = result.base_offset + index
            last = first + count - 1
            if not 0 <= sums[1] < first:
                sums[1] = first
            sums[2] = max(sums[2], last)

    def _add_locked(self, leaf: Leaf, part: Part, base_row: int) -> None:
        result = leaf.result
        if result.is_written:
            # Each piece of a split batch gets a share of the bytes; the sum is exact if all pieces are written.
            done, count, payload = leaf.skipped, part[2], part[3]
            share = payload * (done + leaf.count) // count - payload * done // count
            self._add_written_locked(result, leaf.index, leaf.count, share)
            return
        result.look_at(leaf.index, leaf.count)  # this object tells of it, or logs it, from now on
        for first, last, error in _failures(leaf):
            self._untold.add(result.topic, error, last - first)
            lost = (error, base_row, _part_of_span(part[4], leaf.skipped + first, last - first))
            if self._skips and isinstance(error, BrokerError) and error.names_record:
                self._refused.append((error.twin(), *lost[1:]))  # a bad row that only the broker has noticed
            else:
                self._failed.append(lost)

    def _report(self, failed: list[Lost]) -> BulkReport:
        with self._lock:
            self._untold.clear()
            errors = _in_order(_row_errors([*failed, *self._refused]))
            partitions = {
                TopicPartition(*place): PartitionReport(*sums) for place, sums in self._sums.items()
            }
            return BulkReport(self._records, self._bytes, partitions, tuple(errors))


class BulkPromise:
    """The side of a BulkDelivery that belongs to the call which sends. Only its thread uses it.

    Args:
        unseen: as for the BulkDelivery.
        skips: whether rows that are bad are left out.

    Attributes:
        delivery: what the user gets.
        parts: what was accepted, as `PartitionQueue.append_rows` notes it under its lock. The call only appends to it;
            the delivery takes parts out of it.
    """

    def __init__(self, unseen: UnseenFailures | None = None, *, skips: bool = False) -> None:
        self.delivery = BulkDelivery(unseen)
        self.delivery._skips = skips
        self.parts = self.delivery._parts
        self._worth = _FEW_PARTS  # with more pending parts than this, they are added up

    @property
    def base_row(self) -> int:
        """The number of the first row of the chunk that is being sent: spans count from there."""
        return self.delivery._base_row

    def begin_chunk(self, base_row: int) -> None:
        """Rows of another chunk follow; all parts of the one before have been gathered."""
        self.delivery._base_row = base_row

    def note(self, delivery: Delivery, row: int) -> None:
        """A single record was accepted; `row` counts from `base_row`."""
        result, index = place_in_batch(delivery)
        payload = payload_of(delivery)
        if self.parts:
            before, first, count, size, (start, _, _) = self.parts[-1]
            if before is result and first + count == index and start + count == row:
                self.parts[-1] = (result, first, count + 1, size + payload, (start, count + 1, None))
                return
        self.parts.append((result, index, 1, payload, (row, 1, None)))

    def maybe_gather(self) -> None:
        """Call `gather` if there are many new parts."""
        if len(self.parts) > _FEW_PARTS:
            self.gather()

    def gather(self) -> None:
        """Give new parts to the delivery, which sometimes adds up. Called after each window, before the next chunk."""
        delivery = self.delivery
        delivery._take_over()
        if len(delivery._pending) > self._worth:
            delivery._add_up()
            self._worth = 2 * len(delivery._pending) + _FEW_PARTS

    def refuse(self, lost: list[Lost]) -> None:
        """Note rows that were not accepted. The call raises, so they need not be logged."""
        with self.delivery._lock:
            self.delivery._refused += lost

    def skip(self, lost: list[Lost], topic: str) -> None:
        """Note rows that were not accepted, while the call goes on without them."""
        with self.delivery._lock:
            self.delivery._refused += lost
            for error, _, span in lost:
                self.delivery._untold.add(topic, error, span[1])


@dataclass(frozen=True, slots=True)
class Leaf:
    """Records of a part that one result answers for: one that was not split, or not yet."""

    result: BatchResult
    index: int
    count: int
    skipped: int  # records of the part before these


def trace(bulk: BulkDelivery, end: BulkEnd) -> None:
    """Call `end(records, first error)` when a bulk is done. This does not count as a request for the outcome."""

    def tell(_bulk: BulkDelivery) -> None:
        bulk._add_up()
        failed = bulk._failed  # nothing is added any more
        end(bulk._records, failed[0][0] if failed else None)

    bulk._follow(tell)


def _leaves(result: BatchResult, index: int, count: int, skipped: int = 0) -> Iterator[Leaf]:
    """All results that answer for records of a batch, in order."""
    pieces = result.pieces
    if not pieces:
        yield Leaf(result, index, count, skipped)
        return
    for number, (first, piece) in enumerate(pieces):
        end = pieces[number + 1][0] if number + 1 < len(pieces) else index + count
        start = max(first, index)
        length = min(end, index + count) - start
        if length > 0:
            yield from _leaves(piece, start - first, length, skipped + start - index)


def _first_pending(part: Part) -> Leaf | None:
    if part[0].settled and not part[0].pieces:
        return None
    return next((leaf for leaf in _leaves(*part[:3]) if not leaf.result.settled), None)


def _failures(leaf: Leaf) -> Iterator[tuple[int, int, KafkaError]]:
    """Failed records of a batch, in groups with the same error: the first, the one behind the last, and the error."""
    result = leaf.result
    if not result.record_errors:
        yield 0, leaf.count, _known(result.error)
        return
    numbers = groupby(range(leaf.count), lambda number: _known(result.error_of(leaf.index + number)))
    for error, some in numbers:
        first, *others = some
        yield first, first + len(others) + 1, error


def span_rows(span: Span, base_row: int) -> Sequence[int]:
    """The numbers of the rows of a part."""
    start, count, steps = span
    if steps is None:
        return range(base_row + start, base_row + start + count)
    return [base_row + start + step for step in array("i", steps)]


def span_of(start: int, steps: array[int]) -> Span:
    """The span of rows in ascending order, given by their distances from `start`."""
    if steps[-1] - steps[0] + 1 == len(steps):
        return start + steps[0], len(steps), None
    return start, len(steps), steps.tobytes()


def _part_of_span(span: Span, first: int, count: int) -> Span:
    """The span of some rows of a span."""
    start, _, steps = span
    if steps is None:
        return start + first, count, None
    return start, count, steps[4 * first : 4 * (first + count)]


def _row_errors(lost: list[Lost]) -> list[RowErrors]:
    found: list[RowErrors] = []
    for error, base_row, span in lost:
        first = base_row + span[0]
        if span[2] is None:
            found.append(RowErrors(first, first + span[1] - 1, error))
        else:
            found += row_ranges(span_rows(span, base_row), error)
    return found


def _twins(failed: list[Failed]) -> list[Lost]:
    """The same rows with copies of the errors, for callers; see `BatchResult.error_of`. One for all rows of a batch."""
    twins = {id(error): error.twin() for error, _, _ in failed}
    return [(twins[id(error)], base_row, span) for error, base_row, span in failed]


def _part(some: int, accepted: int, one: str, several: str) -> str:
    return f"{some:,} of {counted(accepted, 'record')} {one if some == 1 else several}"


def _count(lost: Sequence[Lost]) -> int:
    return sum(span[1] for _, _, span in lost)


def row_ranges(rows: Iterable[int], error: Exception) -> list[RowErrors]:
    """Rows in ascending order that have the same error, those that follow each other as one."""
    found: list[RowErrors] = []
    for row in rows:
        if found and row == found[-1].last_row + 1:
            found[-1] = replace(found[-1], last_row=row)
        else:
            found.append(RowErrors(row, row, error))
    return found


def _known(error: KafkaError | None) -> KafkaError:
    """The error of a record whose batch failed."""
    return error or KafkaError("the record's batch failed, and the broker does not say why")


def _in_order(errors: list[RowErrors]) -> list[RowErrors]:
    """Errors in the order of their rows, neighbours with the same error as one."""
    joined: list[RowErrors] = []
    for entry in sorted(errors, key=lambda entry: entry.first_row):
        before = joined[-1] if joined else None
        if before is not None and before.error is entry.error and before.last_row + 1 == entry.first_row:
            joined[-1] = replace(before, last_row=entry.last_row)
        else:
            joined.append(entry)
    return joined
