# SPDX-License-Identifier: Apache-2.0
"""The outcome of records: the Delivery of one record, and the BatchResult of one batch. Compiled if possible.

`send` returns a Delivery for each record. All Deliveries of a batch share its BatchResult. A Delivery adds only what is
the record's own, because an application may keep millions of them. A BatchResult holds numbers and errors, never the
batch's buffer.

Rules:
1. Values are set first, then callbacks run in the order of the records, then `done` turns true and waiters are
   released: a Delivery that is done has had its callback.
2. Only the I/O thread settles or forwards; any thread may ask, wait, or follow.
3. After a split, `pieces` says which later result answers for which range of indexes; who waits goes on there.
4. There is no lock around the outcome. The I/O thread sets `done`, or `pieces`, and then looks for `Followers`; who
   makes them looks at both after that. `_followers_cy` has the rest.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from penstock._arguments import check_timeout
from penstock._done_callbacks import DoneCallback
from penstock._events import ON_DELIVERY_RAISED, Event, tell_error
from penstock._other_clients import GET, dir_without_them
from penstock.errors import ForkedProducerError, IllegalStateError, KafkaError, KafkaTimeoutError
from penstock.producer.batch._followers_cy import Follower, Followers, WholeResult
from penstock.producer.owner import Owner, check_may_wait, on_io_thread, process
from penstock.producer.unseen import UnseenRecords
from penstock.types import RecordMetadata, TopicPartition

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

if not cython.compiled:
    from penstock._metadata_cy import new_metadata
else:
    from cython.cimports.penstock._metadata_cy import new_metadata  # type: ignore[no-redef]

log = logging.getLogger("penstock.producer")

NO_ERRORS: Mapping[int, KafkaError] = {}

# By another name, so that Cython looks at what users give instead of converting it.
Seconds = float
_FIRST_INDEX = itemgetter(0)  # of an entry of `pieces`
_join: Any = None  # see _joined


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


@cython.final
@cython.cclass
class BatchResult:
    """The outcome of one batch.

    Args:
        topic: the batch's topic.
        partition: its partition.
        owner: whose I/O thread settles it.
    """

    def __init__(self, topic: str, partition: cython.int, owner: Owner | None = None) -> None:
        self.owner = owner
        self.topic = topic
        self.partition = partition
        self.pid = process.id  # a fork's copy will never be settled
        # Set once by the I/O thread.
        self.base_offset = -1
        self.log_append_time_ms = -1
        self.error: KafkaError | None = None
        self.record_errors: Mapping[int, KafkaError] = NO_ERRORS
        self.settled = False  # values are set; callbacks may still be running
        self.done = False
        self.pieces: Sequence[tuple[int, Any]] = ()  # (first index, result), in order, after a split
        self._callbacks: list[tuple[Any, Any]] | None = None  # see `callbacks`
        if cython.compiled:
            self._followers: Any = None  # see `followers`
        # (first index, count) of rows that may be left out if the broker refuses them; set as `callbacks` are.
        self.expendable: list[tuple[int, int]] | None = None
        self.unseen: Any = None  # an UnseenRecords, once the batch has failed

    @property
    def callbacks(self) -> list[tuple[Any, Callable[[RecordMetadata, KafkaError | None], None]]]:
        """(delivery, on_delivery): appended under the partition lock while the batch is open, then the I/O thread's.

        Most batches have none, and a list for each would be one more thing that the garbage collector goes through.
        """
        if self._callbacks is None:
            self._callbacks = []
        return self._callbacks

    @callbacks.setter
    def callbacks(self, callbacks: list[Any] | None) -> None:
        self._callbacks = callbacks

    def add_callback(self, delivery: Any, on_delivery: Any) -> None:
        """The same as an append to `callbacks`, for compiled code."""
        if self._callbacks is None:
            self._callbacks = [(delivery, on_delivery)]
        else:
            self._callbacks.append((delivery, on_delivery))

    @property
    def followers(self) -> Followers:
        """Who follows it, and who waits; made for the first who asks. Any thread.

        Most results are done before anybody asks. A program that keeps its Deliveries keeps the results, too.
        """
        found: Any = self._followers
        if found is None:
            found = Followers()
            if not cython.compiled:
                # One step: if several threads do it, they all get what the first of them has made.
                found = vars(self).setdefault("_followers", found)
            elif self._followers is None:  # the same: nobody comes between this look and the next line
                self._followers = found
            else:
                found = self._followers
        if not self.still_pending():
            found.end()  # if it was made after the I/O thread has looked for it
        return found

    @property
    def is_followed(self) -> bool:
        """Whether somebody has begun to follow it, or to wait."""
        return self._followers is not None

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def is_written(self) -> bool:
        """Whether the outcome is known, and every record of it was written."""
        return self.settled and self.error is None and not self.record_errors

    @property
    def still_unknown(self) -> bool:
        """Whether no outcome is known, and no split says who knows it."""
        return not (self.settled or self.pieces)

    def add_expendable(self, first: cython.Py_ssize_t, count: cython.Py_ssize_t) -> None:
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
        """The same for all records of the batch; `record_count` says how many it has."""
        ranges = self.expendable or ()
        kept = sum(
            max(0, min(first + count, record_count) - max(first, 0)) for first, count in ranges
        )  # of a piece they say what the whole had
        return kept >= record_count

    def take_expendable(self, whole: BatchResult, first: cython.Py_ssize_t) -> None:
        """Take over what may be left out of a batch, as its piece from index `first` on."""
        if whole.expendable:
            self.expendable = [(start - first, count) for start, count in whole.expendable]

    def resolve(self, index: cython.Py_ssize_t) -> tuple[BatchResult, int]:
        """The result that answers for a record now, and the record's index there."""
        result = self
        while result.pieces:
            at = bisect_right(result.pieces, index, key=_FIRST_INDEX) - 1
            first, result = result.pieces[at]
            index -= first
        return result, index

    def error_of(self, index: cython.Py_ssize_t) -> KafkaError | None:
        """The error of one record of a settled result. Users get a `twin`.

        A raise of this very object would hang frames on it. Where they hold a Delivery, that would be a cycle which the
        garbage collector does not see.
        """
        if self.record_errors:
            return self.record_errors.get(index, self.error)
        return self.error

    def look_at(self, index: int, count: int = 1) -> None:
        """Note that the application was told of the outcome of these records."""
        if self.unseen is not None:
            self.unseen.look(index, count)

    def metadata_of(
        self, index: cython.Py_ssize_t, timestamp: cython.longlong, key_size: Any, value_size: Any
    ) -> RecordMetadata:
        """Where one record of a settled result is; -1 for what is not known."""
        if self.error_of(index) is not None:
            return RecordMetadata(self.topic, self.partition, -1, -1, -1, -1)
        offset = -1 if self.base_offset < 0 else self.base_offset + index
        if self.log_append_time_ms >= 0:
            timestamp = self.log_append_time_ms
        return new_metadata(self.topic, self.partition, offset, timestamp, key_size, value_size)

    def settle(
        self,
        base_offset: cython.longlong = -1,
        log_append_time_ms: cython.longlong = -1,
        error: KafkaError | None = None,
        record_errors: Mapping[int, KafkaError] | None = None,
        count: cython.Py_ssize_t = 0,
    ) -> None:
        """Set the outcome, run the callbacks, release those who wait. I/O thread only, once.

        Args:
            base_offset: of the first record, and `log_append_time_ms`, where the broker tells it.
            error: why the batch failed, and `record_errors`, why some records of it did.
            count: how many records have failed; 0: those that the application never asks about need no warning.
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
        callbacks, self._callbacks = self._callbacks, None
        if callbacks:
            call_callbacks(self, callbacks)
        self.done = True
        if self._followers is not None:
            self._followers.release()

    def settle_unwatched(
        self, base_offset: cython.longlong, log_append_time_ms: cython.longlong
    ) -> cython.bint:
        """Settle it as written, if it has no callback and nobody waits; False: `settle` has to do it. I/O thread only.

        Compiled code only: there no other thread runs between the look at who waits and the end.
        """
        if not cython.compiled or self.settled or self._callbacks or len(self.pieces):
            return False
        if self._followers is not None:
            return False
        self.base_offset = base_offset
        self.log_append_time_ms = log_append_time_ms
        self._callbacks = None
        self.settled = True
        self.done = True
        return True

    def forward(self, pieces: Sequence[tuple[int, BatchResult]]) -> None:
        """Let the results of a split's pieces answer from now on. I/O thread only, before the pieces are sent."""
        self.pieces = list(pieces)
        callbacks, self._callbacks = self._callbacks, None
        for delivery, callback in callbacks or ():
            # A Delivery counts from the batch it was made for, which this one may itself be a piece of.
            delivery._answered_by().add_callback(delivery, callback)
        if self._followers is not None:
            self._followers.release()

    def wait(self, index: cython.Py_ssize_t, timeout: Seconds | None) -> tuple[BatchResult, int] | None:
        """Block until the record's outcome is known; None when the time is up. Ctrl-C interrupts."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            result, index_there = self.resolve(index)
            if result.done or (result.settled and on_io_thread(result.owner)):
                return result, index_there
            result._check_process()
            check_may_wait("Delivery.result()", result.owner)
            remaining = None if deadline is None else deadline - time.monotonic()
            if remaining is not None and remaining <= 0:
                return None
            if result.owner is not None:
                result.owner.warn_in_loop("Delivery.result()")
            result.followers.wait(remaining)

    def _check_process(self) -> None:
        if self.pid != process.id:
            raise ForkedProducerError(
                f"the outcome of a record of {self.topic_partition} goes to the process that sent it; this is a child "
                "of it, forked before the outcome was known"
            )

    def when_settled(self, callback: Callable[[], None]) -> None:
        """Call back once this result and all pieces that answer for it are done. For flush; never from under a lock."""
        follow(WholeResult(self), lambda whole: whole.after(callback))

    def still_pending(self) -> bool:
        """Whether neither the outcome nor a split has released those who wait here."""
        return not (self.done or self.pieces)

    def join(self, waiting: Any) -> None:
        """Tell those who wait in an event loop that it is done or was split; see `_waiting_cy`."""
        self._check_process()
        self.followers.join(waiting, WholeResult(self))

    def quit(self, waiting: Any) -> None:
        """Nobody waits in that loop any more."""
        self.followers.quit(waiting)

    def __repr__(self) -> str:
        outcome = "failed" if self.error else "acknowledged"
        state = "split" if self.pieces else outcome if self.settled else "pending"
        return f"<BatchResult {self.topic_partition} {state}>"


if not cython.compiled:
    BatchResult._followers = None  # of the class, until somebody asks; see `followers`


def call_callbacks(result: BatchResult, callbacks: list[Any]) -> None:
    """Call the callbacks of a settled result, in the order of the records. The simulator watches this function."""
    for delivery, callback in callbacks:
        look: cython.bint = result.unseen is None or bool(getattr(callback, "is_look", True))
        try:
            callback(*_outcome_of(delivery, look))
        except BaseException as raised:  # noqa: BLE001 - whatever its class, it may not end the I/O thread
            tell_error(
                log, Event.CALLBACK_FAILED, ON_DELIVERY_RAISED, result.topic_partition,
                each=result.topic, place=result.topic_partition, error=raised,
            )  # fmt: skip


def follow(delivery: Any, callback: Callable[[Any], object]) -> None:
    """Call `callback(delivery)` once the record is done, on the I/O thread; at once when it is done already.

    The callback does not count as a look at the outcome: see `BatchResult.look_at`.
    """
    delivery._answered_by().followers.add(Follower(delivery, callback))


def _joined() -> Any:
    """The function `joined`; who awaits nothing needs no event loop."""
    global _join
    if _join is None:
        from penstock._loops import joined

        _join = joined
    return _join


@cython.final
# No garbage collection: a Delivery refers to its batch's result only, and once that is done, nothing in it leads back.
# Its errors are its own, and users get twins of them, so that no traceback, and with it no frame that holds the
# Delivery, hangs on them.
@cython.no_gc
@cython.freelist(256)
@cython.cclass
class Delivery:
    """The future of one accepted record.

    It can be waited for (`result`, `exception`), asked (`done`), followed (`add_done_callback`), and awaited inside a
    running asyncio loop. It cannot be cancelled: the record is on its way.
    """

    __slots__ = ("_batch", "_index", "_key_size", "_timestamp", "_value_size")  # for plain Python
    get = GET
    __dir__ = dir_without_them

    def __init__(
        self,
        batch: BatchResult,
        index: cython.int,
        timestamp: cython.longlong = -1,
        key_size: cython.int = -1,
        value_size: cython.int = -1,
    ) -> None:
        self._batch = batch
        self._index = index
        self._timestamp = timestamp
        self._key_size = key_size
        self._value_size = value_size

    def done(self) -> bool:
        """Whether the outcome is known and its callback has run."""
        batch = self._batch
        if batch.pieces:
            batch = self._answered_by()
        return bool(batch.done)

    def result(self, timeout: Seconds | None = None) -> RecordMetadata:
        """Wait for the acknowledgement; where the record is.

        Raises:
            KafkaTimeoutError: the time is up; the record goes on.
            KafkaError: the record was not acknowledged, and why.
        """
        if timeout is not None and type(timeout) is not int and type(timeout) is not float:
            check_timeout(timeout)
        if self._batch.wait(self._index, timeout) is None:
            raise self._out_of_time(timeout)
        return _told(self)

    def exception(self, timeout: Seconds | None = None) -> KafkaError | None:
        """Wait for the outcome; the error, or None when the record was acknowledged.

        Raises:
            KafkaTimeoutError: the time is up; the record goes on.
        """
        # What is plainly right costs no call: a program may ask for each record.
        if timeout is not None and type(timeout) is not int and type(timeout) is not float:
            check_timeout(timeout)
        batch = self._batch
        if batch.done and batch.error is None:
            return None  # the ordinary case: all records of the batch were acknowledged
        answer = batch.wait(self._index, timeout)
        if answer is None:
            raise self._out_of_time(timeout)
        error = answer[0].error_of(answer[1])
        if error is None:
            return None
        answer[0].look_at(answer[1])
        return error.twin()

    def cancelled(self) -> bool:
        """False: it cannot be."""
        return False

    def add_done_callback(self, fn: Callable[[Delivery], object]) -> None:
        """Call `fn(delivery)` when it is done: in the event loop that runs on this thread now, if one does.

        Otherwise on the I/O thread, or at once when it is done already.
        """
        batch: BatchResult = self._answered_by()
        entry = DoneCallback(fn, _look_at, log, None if batch.owner is None else batch.owner.post)
        if batch.still_pending():
            batch._check_process()
        batch.followers.add(Follower(self, entry))

    def remove_done_callback(self, fn: Callable[[Delivery], object]) -> int:
        """Forget callbacks that are this function and were not called yet; how many."""
        count = 0
        while True:
            batch: BatchResult = self._answered_by()
            count += batch.followers.remove(self, fn)
            if self._answered_by() is batch:  # else it was split meanwhile
                return count

    def _place_now(self) -> tuple[BatchResult, int]:
        """The result that answers for the record now, and its index there."""
        return self._batch.resolve(self._index)

    def _answered_by(self) -> BatchResult:
        """The result that answers for the record now: its batch's or, after a split, a piece's."""
        return self._batch.resolve(self._index)[0]

    def _outcome(self) -> tuple[RecordMetadata, KafkaError | None]:
        """Metadata and error of a settled record, as callbacks get them."""
        return _outcome_of(self, True)

    def _out_of_time(self, timeout: Seconds | None) -> KafkaTimeoutError:
        return KafkaTimeoutError(
            f"no outcome for a record of {self._batch.topic_partition} within {timeout} s; it is still on its way"
        )

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        batch: BatchResult = self._batch
        while not batch.done:
            if not batch.pieces:
                waiting: Any = None if batch._followers is None else batch._followers.waiting
                token = None if waiting is None else waiting.try_enter()
                if token is None:
                    waiting = _joined()(batch)
                    token = waiting.enter()
                try:
                    if waiting.takes_waiters:
                        yield token  # as `sleep` does it
                    else:
                        yield from waiting.sleep(token)
                except BaseException:
                    waiting.leave(token)  # who was told to go on has left
                    raise
            if not batch.done:
                batch = self._answered_by()
        return _told(self)

    def __repr__(self) -> str:
        batch, _ = self._batch.resolve(self._index)
        if not batch.done:
            return f"<Delivery {batch.topic_partition} pending>"
        metadata, error = _outcome_of(self, True)
        return f"<Delivery {batch.topic_partition} {error!r}>" if error else f"<Delivery {metadata}>"


@cython.cfunc
def new_delivery(
    batch: BatchResult,
    index: cython.Py_ssize_t,
    timestamp: cython.longlong,
    key_size: cython.Py_ssize_t,
    value_size: cython.Py_ssize_t,
) -> Delivery:
    """The Delivery of a record that was appended, without a call of its constructor. Compiled code only."""
    delivery: Delivery = Delivery.__new__(Delivery)
    delivery._batch = batch
    delivery._index = index
    delivery._timestamp = timestamp
    delivery._key_size = key_size
    delivery._value_size = value_size
    return delivery


@cython.cfunc
def _outcome_of(delivery: Delivery, look: cython.bint) -> tuple:  # type: ignore[type-arg]
    """See `Delivery._outcome`; `look`: for the sender. As a method of C it would make every Delivery larger."""
    batch: BatchResult = delivery._batch
    index: cython.Py_ssize_t = delivery._index
    if batch.pieces:
        batch, index = batch.resolve(index)
    error: Any = batch.error_of(index)
    if error is not None and look:
        batch.look_at(index)
    metadata = batch.metadata_of(index, delivery._timestamp, delivery._key_size, delivery._value_size)
    return metadata, None if error is None else error.twin()


@cython.cfunc
def _told(delivery: Delivery) -> RecordMetadata:
    """Where a settled record is; its error is raised."""
    batch: BatchResult = delivery._batch
    if batch.error is None and not batch.record_errors and not batch.pieces:
        # The ordinary case.
        return batch.metadata_of(
            delivery._index, delivery._timestamp, delivery._key_size, delivery._value_size
        )
    metadata, error = _outcome_of(delivery, True)
    if error is not None:
        raise error
    return metadata  # type: ignore[no-any-return]


# What the rest of the package asks of a Delivery, and no user needs, are functions.


def place_in_batch(delivery: Delivery) -> tuple[BatchResult, int]:
    """The result of the batch that a record was accepted in, and its index there."""
    return delivery._batch, delivery._index


def payload_of(delivery: Delivery) -> int:
    """Bytes of key and value."""
    return max(0, delivery._key_size) + max(0, delivery._value_size)


def _look_at(delivery: Delivery) -> None:
    """Note that the application was told of the outcome of a record."""
    batch, index = delivery._place_now()
    batch.look_at(index)
