# SPDX-License-Identifier: Apache-2.0
"""What became of the records of one batch, shared by all their Deliveries.

One BatchResult serves every record of a batch: a Delivery is only a reference to it and an index. It holds numbers and
errors, never the batch's buffer.

Rules:
1. Values are set first, then callbacks run in the order of the records, then `done` turns true and waiters are
   released: a Delivery that is done has had its callback.
2. Only the I/O thread settles or forwards; any thread may ask, wait, or add a callback.
3. After a split, `pieces` says which later result answers for which range of indexes; waiters go on there.

There is no lock around the outcome. A waiter puts itself into a list and then looks at `done`; the I/O thread sets
`done` and then takes the list apart, one entry at a time. Whichever comes second sees the other, so nobody is left
waiting. Each entry is taken once, by `pop` or by `remove`: single list operations are atomic, loops over them are not.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, TypeVar

from penstock._latch import Latch
from penstock._locks import forbid_reentry, new_lock
from penstock.errors import ForkedProducerError, IllegalStateError, KafkaError
from penstock.producer.batch._result_cy import NO_ERRORS, NOBODY, ResultFields, process
from penstock.producer.batch.unseen import UnseenRecords
from penstock.types import RecordMetadata, TopicPartition

log = logging.getLogger("penstock.producer")

_thread = threading.local()
_EVERYBODY = object()

E = TypeVar("E")


def mark_io_thread(owner: object = None) -> None:
    """Say that the calling thread is the I/O thread of `owner`: what waits for that one would wait for itself."""
    _thread.works_for = _EVERYBODY if owner is None else owner


def on_io_thread(owner: object = None) -> bool:
    """Whether the calling thread is the I/O thread of `owner`; without one, of any producer."""
    works_for = getattr(_thread, "works_for", None)
    return works_for is not None and (owner is None or works_for is owner or works_for is _EVERYBODY)


def check_may_wait(call: str, owner: object = None) -> None:
    """Raise where a blocking call would wait for the very thread that makes it.

    Raises:
        IllegalStateError: on that I/O thread: in a delivery callback, or in a finalizer that runs there.
        ReentrantCallError: in a finalizer or a signal handler that interrupted a call of this thread under a lock.
    """
    if on_io_thread(owner):
        raise IllegalStateError(
            f"{call} was called from a delivery callback, or from a finalizer that runs on the I/O thread: it would "
            "wait for the very thread it runs on. Hand the work to another thread."
        )
    forbid_reentry(call)


class BatchResult(ResultFields):
    """The outcome of one batch.

    Args: as for `ResultFields`, which has what is known of every one.
    """

    __slots__ = ()

    @property
    def followers(self) -> list[_Follower]:
        """Who added a done callback, and was not called yet."""
        return self.interested.get("followers", [])

    @property
    def waiters(self) -> list[Latch]:
        """Who waits for the outcome."""
        return self.interested.get("waiters", [])

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition the batch was for."""
        return TopicPartition(self.topic, self.partition)

    @property
    def is_written(self) -> bool:
        """Whether the outcome is known, and every record of it was written."""
        return self.settled and self.error is None and not self.record_errors

    @property
    def still_unknown(self) -> bool:
        """Whether no outcome is known, and no split says who knows it."""
        return not (self.settled or self.pieces)

    def add_expendable(self, first: int, count: int) -> None:
        """Rows behind all others may be left out. Many small calls that follow each other make one range."""
        ranges = self.expendable
        if ranges is None:
            self.expendable = [(first, count)]
        elif sum(ranges[-1]) == first:
            ranges[-1] = (ranges[-1][0], ranges[-1][1] + count)
        else:
            ranges.append((first, count))

    def may_lose(self, indexes: Iterable[int]) -> bool:
        """Whether all these records are rows of calls that go on without those that the broker refuses."""
        ranges = self.expendable or ()
        return all(any(first <= index < first + count for first, count in ranges) for index in indexes)

    def may_lose_all(self, record_count: int) -> bool:
        """The same for all records of the batch, which are so many."""
        ranges = self.expendable or ()
        kept = sum(
            max(0, min(first + count, record_count) - max(first, 0)) for first, count in ranges
        )  # of a piece they say what the whole had
        return kept >= record_count

    def take_expendable(self, whole: BatchResult, first: int) -> None:
        """Be a piece of a result, from that index on, in what may be left out."""
        if whole.expendable:
            self.expendable = [(start - first, count) for start, count in whole.expendable]

    def resolve(self, index: int) -> tuple[BatchResult, int]:
        """The result that answers for a record now, and the record's index there."""
        result = self
        while result.pieces:
            piece = bisect_right(result.pieces, index, key=lambda pair: pair[0]) - 1
            first, result = result.pieces[piece]
            index -= first
        return result, index

    def error_of(self, index: int) -> KafkaError | None:
        """The error of one record of a settled result. Users get a `twin`.

        Whoever raised this one would hang his frames on it and, where they hold a Delivery, close a circle that the
        garbage collector does not see.
        """
        if self.record_errors:
            return self.record_errors.get(index, self.error)
        return self.error

    def look_at(self, index: int, count: int = 1) -> None:
        """Somebody is told of the outcome of these records."""
        if self.unseen is not None:
            self.unseen.look(index, count)

    def metadata_of(self, index: int, timestamp: int, key_size: int, value_size: int) -> RecordMetadata:
        """Where one record of a settled result is; -1 for what is not known."""
        if self.error_of(index) is not None:
            return RecordMetadata(self.topic, self.partition, -1, -1, -1, -1)
        offset = -1 if self.base_offset < 0 else self.base_offset + index
        if self.log_append_time_ms >= 0:
            timestamp = self.log_append_time_ms
        return RecordMetadata(self.topic, self.partition, offset, timestamp, key_size, value_size)

    def settle(
        self,
        base_offset: int = -1,
        log_append_time_ms: int = -1,
        error: KafkaError | None = None,
        record_errors: dict[int, KafkaError] | None = None,
        count: int = 0,
    ) -> None:
        """Set the outcome, run the callbacks, release who waits. I/O thread only, once.

        Args:
            base_offset: of the first record, and `log_append_time_ms`, where the broker tells it.
            error: why the batch failed, and `record_errors`, why some records of it did.
            count: how many records have failed; 0: nobody need be told of those that are never looked at.
        """
        if self.settled or self.pieces:
            raise IllegalStateError(f"the result of a batch of {self.topic_partition} was set twice")
        self.base_offset = base_offset
        self.log_append_time_ms = log_append_time_ms
        # Its own, because no traceback may ever hang on it; see `error_of`.
        self.error = None if error is None else error.twin()
        self.record_errors = record_errors or NO_ERRORS
        if self.error is not None and count:
            self.unseen = UnseenRecords(self.topic, count, self.error, self.record_errors)
        self.settled = True
        callbacks, self.callbacks = self.callbacks, NOBODY
        for delivery, callback in callbacks:
            look = self.unseen is None or getattr(callback, "is_look", True)
            try:
                callback(*delivery._outcome(look))
            except BaseException:  # whatever it is: a callback has no say in whether the I/O thread goes on
                log.exception("on_delivery callback for %s raised", self.topic_partition)
        self.done = True
        if self.interested:
            self._release()

    def forward(self, pieces: Sequence[tuple[int, BatchResult]]) -> None:
        """Let the results of a split's pieces answer from now on. I/O thread only, before the pieces are sent."""
        self.pieces = list(pieces)
        callbacks, self.callbacks = self.callbacks, NOBODY
        for delivery, callback in callbacks:
            # A Delivery counts from the batch it was made for, which this one may itself be a piece of.
            delivery._answered_by().callbacks.append((delivery, callback))
        self._release()

    def wait(self, index: int, timeout: float | None) -> tuple[BatchResult, int] | None:
        """Block until the record's outcome is known; None when the time is up. Ctrl-C interrupts."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            result, index_there = self.resolve(index)
            if result.done or (result.settled and on_io_thread(result.owner)):
                return result, index_there
            if result.pid != process.id:
                raise ForkedProducerError(
                    f"the outcome of a record of {self.topic_partition} goes to the process that sent it; this is a "
                    "child of it, forked before the outcome was known"
                )
            check_may_wait("Delivery.result()", result.owner)
            remaining = None if deadline is None else deadline - time.monotonic()
            if remaining is not None and remaining <= 0:
                return None
            released = Latch()
            result.interested.setdefault("waiters", []).append(released)  # in one step, whoever else does
            try:
                if result.still_pending():
                    released.wait(remaining)
            finally:
                _take(result.waiters, released)  # who asks again and again leaves nothing behind

    def when_settled(self, callback: Callable[[], None]) -> None:
        """Call back once this result and all pieces that answer for it are done. For flush; never from under a lock."""
        follow(_Whole(self), lambda whole: whole.after(callback))

    def still_pending(self) -> bool:
        """Whether neither the outcome nor a split has released those who wait here."""
        return not (self.done or self.pieces)

    def add_follower(self, entry: _Follower) -> None:
        """Let somebody follow this result; see `follow`."""
        self.interested.setdefault("followers", []).append(entry)
        if not self.still_pending() and _take(self.followers, entry):
            self._pass_on(entry)

    def _release(self) -> None:
        # One by one: `wait` and `add_follower` take their own entry back when they see `done` before we see the entry.
        while self.waiters and (waiter := _take_first(self.waiters)) is not None:
            waiter.set()
        while self.followers and (entry := _take_first(self.followers)) is not None:
            self._pass_on(entry)

    def _pass_on(self, entry: _Follower) -> None:
        """Tell a follower that this result is done; after a split, let it follow the piece that answers for it."""
        if self.pieces and not isinstance(entry.delivery, _Whole):
            entry.delivery._answered_by().add_follower(entry)
        else:
            entry.call()

    def __repr__(self) -> str:
        state = (
            "split"
            if self.pieces
            else "pending"
            if not self.settled
            else "failed"
            if self.error
            else "acknowledged"
        )
        return f"<BatchResult {self.topic_partition} {state}>"


def follow(delivery: Any, callback: Callable[[Any], object]) -> None:
    """Call `callback(delivery)` once the record is done, on the I/O thread; at once when it is done already.

    That is no look at its outcome yet: see `BatchResult.look_at`.
    """
    delivery._answered_by().add_follower(_Follower(delivery, callback))


def until_done(delivery: Any) -> Generator[Any, None, None]:
    """Let a coroutine wait for a delivery of either kind: what its `__await__` does before it gives the result."""
    import asyncio

    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def finish() -> None:
        if not done.done():
            done.set_result(None)

    delivery._follow(lambda _: loop.call_soon_threadsafe(finish))
    yield from done


class Countdown:
    """Calls back after so many calls, which may come from several threads at once."""

    __slots__ = ("_callback", "_left", "_lock")

    def __init__(self, count: int, callback: Callable[[], object]) -> None:
        self._callback = callback
        self._lock: Any = new_lock()  # guards _left
        self._left = count

    def one_less(self) -> None:
        """Count one; the last one calls back, outside the lock."""
        with self._lock:
            self._left -= 1
            last = self._left == 0
        if last:
            self._callback()


class _Follower:
    """Who wants to know when a record is done."""

    __slots__ = ("callback", "delivery")

    def __init__(self, delivery: Any, callback: Callable[[Any], object]) -> None:
        self.delivery = delivery
        self.callback = callback

    def call(self) -> None:
        try:
            self.callback(self.delivery)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and not on_io_thread():
                raise  # it was done already: this is the thread of whoever added the callback
            log.exception("a done callback of a delivery raised")


class _Whole:
    """Stands for all records of a result, so that a flush can follow it through splits."""

    __slots__ = ("result",)

    def __init__(self, result: BatchResult) -> None:
        self.result = result

    def _answered_by(self) -> BatchResult:
        return self.result

    def after(self, callback: Callable[[], None]) -> None:
        pieces = self.result.pieces
        if not pieces:
            callback()
            return
        countdown = Countdown(len(pieces), callback)
        for _, piece in pieces:
            piece.when_settled(countdown.one_less)


def _take(entries: list[Any], entry: object) -> bool:
    """Remove an entry; False when somebody else has taken it."""
    try:
        entries.remove(entry)
    except ValueError:
        return False
    return True


def _take_first(entries: list[E]) -> E | None:
    """Remove the first entry; None when there is none."""
    try:
        return entries.pop(0)
    except IndexError:
        return None
