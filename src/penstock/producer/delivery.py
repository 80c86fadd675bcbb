# SPDX-License-Identifier: Apache-2.0
"""What became of the records of one batch, shared by all their Deliveries.

One BatchResult serves every record of a batch: a Delivery is only a reference to it and an index. It holds numbers and
errors, never the batch's buffer.

Rules:
1. Values are set first, then callbacks run in the order of the records, then `done` turns true and waiters are
   released: a Delivery that is done has had its callback.
2. Only the I/O thread settles or forwards; any thread may ask, wait, or add a callback.
3. After a split, `pieces` says which later result answers for which range of indexes; waiters go on there.

There is no lock here. A waiter puts itself into a list and then looks at `done`; the I/O thread sets `done` and then
empties the list. Whichever comes second sees the other, so nobody is left waiting; list operations are atomic.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

from penstock.errors import IllegalStateError, KafkaError
from penstock.types import RecordMetadata, TopicPartition

log = logging.getLogger("penstock.producer")

_thread = threading.local()


def mark_io_thread() -> None:
    """Say that the calling thread is a producer's I/O thread: blocking calls on it would wait for themselves."""
    _thread.is_io = True


def on_io_thread() -> bool:
    """Whether the calling thread is a producer's I/O thread."""
    return getattr(_thread, "is_io", False)


def forbid_on_io_thread(call: str) -> None:
    """Raise where a blocking call is made from a callback.

    Raises:
        IllegalStateError: always on an I/O thread.
    """
    if on_io_thread():
        raise IllegalStateError(
            f"{call} was called from a delivery callback: it would wait for the very thread it runs on. "
            "Hand the work to another thread."
        )


class BatchResult:
    """The outcome of one batch."""

    __slots__ = (
        "base_offset",
        "callbacks",
        "done",
        "error",
        "followers",
        "log_append_time_ms",
        "partition",
        "pieces",
        "record_errors",
        "settled",
        "topic",
        "waiters",
    )

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        # Set once by the I/O thread.
        self.base_offset = -1
        self.log_append_time_ms = -1
        self.error: KafkaError | None = None
        self.record_errors: dict[int, KafkaError] = {}
        self.settled = False  # values are set; callbacks may still be running
        self.done = False
        self.pieces: list[tuple[int, BatchResult]] = []  # (first index, result), in order, after a split
        # (delivery, on_delivery): appended under the partition lock while the batch is open, then the I/O thread's.
        self.callbacks: list[tuple[Any, Callable[[RecordMetadata, KafkaError | None], None]]] = []
        self.followers: list[tuple[Any, Callable[[Any], object]]] = []  # add_done_callback: any thread
        self.waiters: list[threading.Event] = []  # any thread

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition the batch was for."""
        return TopicPartition(self.topic, self.partition)

    def resolve(self, index: int) -> tuple[BatchResult, int]:
        """The result that answers for a record now, and the record's index there."""
        result = self
        while result.pieces:
            piece = bisect_right(result.pieces, index, key=lambda pair: pair[0]) - 1
            first, result = result.pieces[piece]
            index -= first
        return result, index

    def error_of(self, index: int) -> KafkaError | None:
        """The error of one record of a settled result."""
        if self.record_errors:
            return self.record_errors.get(index, self.error)
        return self.error

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
    ) -> None:
        """Set the outcome, run the callbacks, release who waits. I/O thread only, once."""
        if self.settled or self.pieces:
            raise IllegalStateError(f"the result of a batch of {self.topic_partition} was set twice")
        self.base_offset = base_offset
        self.log_append_time_ms = log_append_time_ms
        self.error = error
        self.record_errors = record_errors or {}
        self.settled = True
        callbacks, self.callbacks = self.callbacks, []
        for delivery, callback in callbacks:
            metadata, failure = delivery.outcome()
            try:
                callback(metadata, failure)
            except Exception:
                log.exception("on_delivery callback for %s raised", self.topic_partition)
        self.done = True
        self._release()

    def forward(self, pieces: Sequence[tuple[int, BatchResult]]) -> None:
        """Let the results of a split's pieces answer from now on. I/O thread only, before the pieces are sent."""
        for delivery, callback in self.callbacks:
            index = bisect_right(pieces, delivery.index, key=lambda pair: pair[0]) - 1
            pieces[index][1].callbacks.append((delivery, callback))
        self.callbacks = []
        self.pieces = list(pieces)
        self._release()

    def wait(self, index: int, timeout: float | None) -> tuple[BatchResult, int] | None:
        """Block until the record's outcome is known; None when the time is up. Ctrl-C interrupts."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            result, index_there = self.resolve(index)
            if result.done or (result.settled and on_io_thread()):
                return result, index_there
            forbid_on_io_thread("Delivery.result()")
            remaining = None if deadline is None else deadline - time.monotonic()
            if remaining is not None and remaining <= 0:
                return None
            released = threading.Event()
            result.waiters.append(released)
            if result.still_pending():
                released.wait(remaining)

    def follow(self, delivery: Any, callback: Callable[[Any], object]) -> None:
        """Call `callback(delivery)` once the record is done, on the I/O thread; at once when it is done already."""
        entry = (delivery, callback)
        result, _ = self.resolve(delivery.index)
        result.followers.append(entry)
        if not result.still_pending() and _take(result.followers, entry):
            if result.done:
                _call_follower(entry)
            else:
                result.follow(delivery, callback)

    def when_settled(self, callback: Callable[[], None]) -> None:
        """Call back once this result and all pieces that answer for it are done. For flush; never from under a lock."""
        self.follow(_Whole(self), lambda whole: whole.after(callback))

    def still_pending(self) -> bool:
        """Whether neither the outcome nor a split has released those who wait here."""
        return not (self.done or self.pieces)

    def _release(self) -> None:
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            waiter.set()
        while self.followers:
            # Popped one by one: `follow` takes its own entry back when it sees `done` before we see the entry.
            try:
                entry = self.followers.pop(0)
            except IndexError:
                break
            if isinstance(entry[0], _Whole) or not self.pieces:
                _call_follower(entry)
            else:
                self.follow(*entry)

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


class _Whole:
    """Stands for all records of a result, so that a flush can follow it through splits."""

    __slots__ = ("result",)
    index = 0

    def __init__(self, result: BatchResult) -> None:
        self.result = result

    def after(self, callback: Callable[[], None]) -> None:
        pieces = self.result.pieces
        if not pieces:
            callback()
            return
        left = [len(pieces)]

        def one_less() -> None:
            left[0] -= 1
            if left[0] == 0:
                callback()

        for _, piece in pieces:
            piece.when_settled(one_less)


def _take(entries: list[Any], entry: object) -> bool:
    """Remove an entry by identity; False when somebody else has taken it."""
    for at, candidate in enumerate(entries):
        if candidate is entry:
            del entries[at]
            return True
    return False


def _call_follower(entry: tuple[Any, Callable[[Any], object]]) -> None:
    try:
        entry[1](entry[0])
    except Exception:
        log.exception("a done callback of a delivery raised")
