# SPDX-License-Identifier: Apache-2.0
"""Records that a finalizer or a signal handler sends in the middle of another call of the same thread.

That call may hold a lock, so the record cannot be appended there. It is checked, serialized and deferred, and its
caller gets a Delivery. The I/O thread appends it in its next turn, by the same steps as `send`.

Rules:
1. To defer a record takes no lock and waits for nothing. All other methods belong to the I/O thread. A call that defers
   a record after the end of that thread takes the record back and raises.
2. A deferred record counts as accepted: flush, commit and close wait for it. If it cannot be appended within
   max.block.ms, or no broker accepts this client meanwhile, its Delivery fails, and so does the transaction that it was
   sent in.
3. They are appended in the order in which they were put aside. Until they are, the fast path of send() is closed, so
   that a second record of the same handler does not overtake the first.
4. The Delivery's result is forwarded to the one of the batch that the record came into, as after a split.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

from penstock._counted import counted
from penstock._ticket import Countdown, Ticket
from penstock._time import FOREVER
from penstock.errors import KafkaError, ReentrantCallError
from penstock.producer.batch._appending_cy import EncodedRecord
from penstock.producer.batch._delivery_cy import BatchResult, Delivery, place_in_batch
from penstock.producer.owner import Owner
from penstock.producer.steps import Checkpoint, Steps, TimeIsUp
from penstock.producer.unseen import UnseenFailures

log = logging.getLogger("penstock.producer")

# The most bytes that may wait to be appended. They are not part of buffer.memory, and one garbage collection can run
# many finalizers.
_MOST_BYTES = 1024 * 1024
_AT_A_TIME = 100
_GONE = object()


class LaterRecord(NamedTuple):
    """A record that is to be appended later.

    Attributes:
        topic: its topic.
        encoded: its bytes.
        steps: append it. They have not begun.
        admitted: raises when it is not accepted any more; asked while the steps wait.
        on_refused: tells interceptors and tracing the error, where the steps are not run to their end.
    """

    topic: str
    encoded: EncodedRecord
    steps: Steps[Delivery]
    admitted: Callable[[], None]
    on_refused: Callable[[BaseException], None]


class _Deferred:
    """A record that was put aside."""

    __slots__ = ("appended", "budget", "deadline", "delivery", "on_delivery", "record", "result", "waits_for")

    def __init__(
        self,
        delivery: Delivery,
        result: BatchResult,
        record: LaterRecord,
        on_delivery: Any,
        deadline: float,
        budget: float,
    ) -> None:
        self.delivery = delivery
        self.result = result  # the delivery's
        self.record = record
        self.on_delivery = on_delivery
        self.deadline = deadline
        self.budget = budget
        self.waits_for: Ticket[Any] | None = None
        self.appended: Ticket[None] = Ticket("a record that was put aside")


class DeferredSends:
    """The records of one producer that were put aside.

    Args:
        owner: whose I/O thread appends them.
        wake: wakes it.
        now: the monotonic clock.
        unseen: logs those that failed and whose outcome nobody asked for.

    Attributes:
        waiting: what waits, in order. The sender checks it in every turn.
        on_waiting: told whether any record waits, for the fast path.
        on_failed: told of a record that could not be appended. It returns whether a call of the transaction will raise
        for that. Both are set when the producer is put together.
    """

    def __init__(
        self, owner: Owner, wake: Callable[[], object], now: Callable[[], float], unseen: UnseenFailures
    ) -> None:
        self._owner = owner
        self._wake = wake
        self._now = now
        self._unseen = unseen
        self.waiting: dict[_Deferred, object] = {}  # any thread adds, the I/O thread removes
        self._end: KafkaError | None = None  # why nothing is appended any more
        self._bytes = 0  # not exact: threads may add at the same time; set to 0 whenever nothing waits
        self.on_waiting: Callable[[bool], None] = _nobody_asks
        self.on_failed: Callable[[KafkaError], bool] = _nobody_tells

    def __len__(self) -> int:
        return len(self.waiting)

    # ------------------------------------------------------------------------------------------- any thread

    def put_aside(self, record: LaterRecord, on_delivery: Any, budget: float) -> Delivery:
        """Put a record aside; its Delivery.

        Args:
            record: what is put aside.
            on_delivery: the user's callback, in case the steps fail; the steps have it as well.
            budget: seconds that they may wait.

        Raises:
            ReentrantCallError: too many records wait already.
            ProducerClosedError: the I/O thread has ended meanwhile.
        """
        encoded = record.encoded
        if self._bytes + encoded.size_bound > _MOST_BYTES:
            error = ReentrantCallError(
                f"finalizers and signal handlers have sent {counted(len(self.waiting), 'record')} in the middle of "
                "other calls, and there is no room for more until the I/O thread has taken them over"
            )
            record.on_refused(error)
            raise error
        self._bytes += encoded.size_bound
        key_size, value_size = (-1 if part is None else len(part) for part in (encoded.key, encoded.value))
        result = BatchResult(record.topic, -1, self._owner)
        delivery = Delivery(result, 0, encoded.timestamp, key_size, value_size)
        deadline = self._now() + budget
        deferred = _Deferred(delivery, result, record, on_delivery, deadline, budget)
        self.waiting[deferred] = None
        # Either this sees the end, or `fail_all` sees the record.
        if self._end is not None and self._take(deferred):
            self._settle(deferred, self._end)  # for a flush that has seen it
            record.on_refused(self._end)
            raise self._end.twin()
        self.on_waiting(True)
        self._wake()
        return delivery

    def results(self) -> list[BatchResult]:
        """The results of all that wait, for a flush."""
        return [deferred.result for deferred in list(self.waiting)]

    def all_appended(self) -> Ticket[None]:
        """A Ticket that is granted when all that wait now have been appended, or have failed."""
        ticket: Ticket[None] = Ticket("records that were put aside")
        waiting = list(self.waiting)
        countdown = Countdown(len(waiting) + 1, lambda: ticket.complete(None))
        for deferred in waiting:
            deferred.appended.on_done(lambda _: countdown.one_less())
        countdown.one_less()
        return ticket

    # ------------------------------------------------------------------------------------------- I/O thread

    def run(self, now: float) -> float:
        """Append what can be appended. Returns seconds until the next of the others times out."""
        if not self.waiting:
            return FOREVER
        # Only a few at a time, so that a turn stays short.
        for deferred in self._first():
            self._go_on(deferred, now)
        if not self.waiting:
            self._bytes = 0
            self.on_waiting(False)
            if self.waiting:  # another one came between the check and the call
                self.on_waiting(True)
        if any(one.waits_for is None for one in self._first()):
            return 0.0  # others moved up, which have not begun
        return min((max(0.0, one.deadline - now) for one in self._first()), default=FOREVER)

    def _first(self) -> list[_Deferred]:
        return list(self.waiting)[:_AT_A_TIME]

    def fail_all(self, error: KafkaError) -> None:
        """The producer has closed: fail all that wait. An error with one does not affect the others."""
        self._end = error
        with ExitStack() as stack:
            for deferred in reversed(list(self.waiting)):
                stack.callback(self._fail, deferred, error, is_unfinished=True)

    def _go_on(self, deferred: _Deferred, now: float) -> None:
        """Run the steps of a record until they are over, or have to wait."""
        try:
            while (answer := _next_answer(deferred, now)) is not None:
                item = answer()
                while isinstance(item, Checkpoint):
                    item = next(deferred.record.steps)
                deferred.waits_for = item
                item.on_done(lambda _: self._wake())
        except StopIteration as stop:
            self._appended(deferred, stop.value)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the outcome of that record
            self._fail(deferred, _as_kafka_error(error))

    def _appended(self, deferred: _Deferred, delivery: Delivery) -> None:
        result, index = place_in_batch(delivery)
        del self.waiting[deferred]
        deferred.result.forward([(-index, result)])
        deferred.appended.complete(None)

    def _fail(self, deferred: _Deferred, error: KafkaError, *, is_unfinished: bool = False) -> None:
        """Fail a record; `is_unfinished`: its steps are not over, and so have told nobody."""
        is_told = False
        try:
            # Before it leaves `waiting`: no transaction may commit without it.
            is_told = self.on_failed(error)
        finally:
            if self._take(deferred):
                try:
                    if is_unfinished:
                        deferred.record.steps.close()
                        deferred.record.on_refused(error)
                finally:
                    self._tell(deferred, error, is_told)

    def _tell(self, deferred: _Deferred, error: KafkaError, is_told: bool) -> None:
        if deferred.on_delivery is not None:
            deferred.result.callbacks.append((deferred.delivery, deferred.on_delivery))
        self._settle(deferred, error, count=1)
        if not is_told:
            self._unseen.watch(deferred.result.unseen)

    def _settle(self, deferred: _Deferred, error: KafkaError, count: int = 0) -> None:
        deferred.result.settle(error=error, count=count)
        deferred.appended.complete(None)

    def _take(self, deferred: _Deferred) -> bool:
        """Remove a record; False when another thread has removed it."""
        return self.waiting.pop(deferred, _GONE) is not _GONE


def _next_answer(deferred: _Deferred, now: float) -> Callable[[], Any] | None:
    """A function that continues the steps; None while they have to wait."""
    steps, ticket = deferred.record.steps, deferred.waits_for
    if ticket is None:
        return lambda: next(steps)
    if ticket.done:
        failure = _raised_by(lambda: ticket.result)
        if failure is None:
            return lambda: steps.send(ticket.result)
    elif now >= deferred.deadline:
        failure = TimeIsUp(round(deferred.budget * 1000))
    else:
        failure = _raised_by(deferred.record.admitted)
        if failure is None:
            return None
    return lambda: steps.throw(failure)


def _raised_by(call: Callable[[], object]) -> Exception | None:
    try:
        call()
    except Exception as error:  # noqa: BLE001 - it is raised where the steps wait
        return error
    return None


def _as_kafka_error(error: Exception) -> KafkaError:
    if isinstance(error, KafkaError):
        return error
    wrapped = KafkaError(f"the record could not be accepted: {error!r}")
    wrapped.__cause__ = error
    return wrapped


def _nobody_asks(_: object) -> None:
    """Do nothing; the default of `on_waiting`."""


def _nobody_tells(_: object) -> bool:
    """No call of a transaction raises for the record; the default of `on_failed`."""
    return False
