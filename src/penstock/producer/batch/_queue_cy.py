# SPDX-License-Identifier: Apache-2.0
# cython: boundscheck=False, wraparound=False, initializedcheck=False
"""The queue of one partition: where records become batches. Compiled if possible.

The fast path of send() appends here, once per record. Code that runs once per batch uses the methods of the queues:
only hot modules can take the lock (in compiled code it is a ShortLock).

Rule: a partition lock is innermost. While it is held, no other lock is taken, nothing is waited for, and no callback
runs. A finalizer or a signal handler that sends meanwhile does not wait for it, see `_locks`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock._locks import OwnedLock, inside
from penstock.errors import IllegalStateError, ProducerClosedError
from penstock.types import TopicPartition

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

if cython.compiled:
    from cython.cimports.penstock.producer.batch._batch_cy import Batch
    from cython.cimports.penstock.producer.batch._delivery_cy import Delivery
    from cython.cimports.penstock.producer.batch._partitioner_cy import TopicState
    from cython.cimports.penstock._short_lock_cy import ShortLock
    from cython.cimports.penstock.records._batch_cy import NEEDS_SEGMENT
    from cython.cimports.penstock.records._layout_cy import HEADER_SIZE
else:
    from penstock.producer.batch._batch_cy import Batch
    from penstock.producer.batch._delivery_cy import Delivery
    from penstock.producer.batch._partitioner_cy import TopicState
    from penstock._short_lock_cy import ShortLock
    from penstock.records._batch_cy import NEEDS_SEGMENT
    from penstock.records.format import HEADER_SIZE

if TYPE_CHECKING:
    from penstock.producer.owner import Owner

if not cython.compiled:
    # Why an append did not happen; compiled code has them in the .pxd.
    NO_BATCH = 0  # no batch is open, or the open one was full and is closed now
    GROW = 1  # the open batch takes it, if there is a segment for it
    MOVED = 2  # records without key go to another partition now

_NOT_ADMITTED = "the transaction ended, by commit, abort or error, while the record was being accepted"

# A C variable when compiled.
_NO_BUDGET = cython.declare(cython.Py_ssize_t, 0x7FFFFFFF)
# The first batch of a queue gives it an oldest one, and the second one makes that ready.
_NEWS = cython.declare(cython.Py_ssize_t, 2)


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


class NotAdmitted(IllegalStateError):
    """The transaction ended during a call that sends. That call asks the gate for the reason."""


class TopicForgotten(Exception):
    """The topic was forgotten during a call that sends. That call looks the topic up again."""


@cython.final
@cython.cclass
class Admission:
    """Whether the transaction of a producer accepts records now. All its queues read it, under their locks."""

    def __init__(self) -> None:
        self.open = True


# The admission of queues that were forgotten: it says that records are not accepted, and also why.
_FORGOTTEN = cython.declare(Admission, Admission())
_FORGOTTEN.open = False


@cython.final
@cython.cclass
class PartitionQueue:
    """The batches of one partition that wait to be sent, oldest first; the last one may be open for records.

    Args:
        topic: the partition's topic.
        partition: its number.
        active: all queues that have batches; this one adds and removes itself.
        incomplete: all batches whose outcome is not known; a batch is added when it is queued.
        admission: whether records are accepted; without it they always are.
        owner: whose I/O thread serves this queue.
        news: queues that the I/O thread is to look at; this one adds itself when its oldest batch may leave earlier
            than before, or is another one.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        active: set,  # type: ignore[type-arg]
        incomplete: set,  # type: ignore[type-arg]
        admission: Admission | None = None,
        owner: Owner | None = None,
        news: list | None = None,  # type: ignore[type-arg]
    ) -> None:
        self._admission = Admission() if admission is None else admission
        self.topic = topic
        self.partition = partition
        self.place = TopicPartition(topic, partition)
        self.owner = owner
        self.active = active
        self.incomplete = incomplete
        self.news: list = [] if news is None else news  # type: ignore[type-arg]
        self.led: Any = None  # the I/O thread's: where it is listed, see `_drain_cy`
        self.muted = False
        self.seen_full = False  # by the last `look`
        self.closed = False
        self._open: Batch | None = None
        self._openings = 0
        self.expected = 0
        self._wakes = False
        self.batches: list[Batch] = []
        # Guards what changes here, but for `muted`, which the I/O thread owns.
        self._lock: Any = ShortLock() if cython.compiled else OwnedLock()

    def append(
        self,
        timestamp: cython.longlong,
        key: bytes | None,
        value: bytes | None,
        headers: Any,
        on_delivery: Any,
        sticky: TopicState | None = None,
        spares: list | None = None,  # type: ignore[type-arg]
        fresh: Batch | None = None,
    ) -> Any:
        """Append one record. Returns its Delivery, or why there is none: NO_BATCH, GROW or MOVED.

        Args:
        sticky: the topic, if the record goes to its sticky partition.
            spares: segments by which the open batch may grow; a used one is taken out.
            fresh: a new batch, queued when no open one has room.

        Raises:
            ProducerClosedError: the producer was closed meanwhile.
            NotAdmitted: records are not accepted now.
            TopicForgotten: another queue has taken the place of this one.
        """
        if not cython.compiled:
            with self._lock:
                return self._append_or_say_locked(
                    timestamp, key, value, headers, on_delivery, sticky, spares, fresh
                )
        self._lock.acquire()
        try:
            return self._append_or_say_locked(
                timestamp, key, value, headers, on_delivery, sticky, spares, fresh
            )
        finally:
            self._lock.release()

    def _append_or_say_locked(
        self,
        timestamp: cython.longlong,
        key: bytes | None,
        value: bytes | None,
        headers: Any,
        on_delivery: Any,
        sticky: TopicState | None,
        spares: list | None,  # type: ignore[type-arg]
        fresh: Batch | None,
    ) -> Any:
        batch: Batch | None = self._open
        delivery: Delivery | None = None
        if self.closed:
            raise ProducerClosedError("the producer is closed")
        if not self._admission.open:
            self._refuse_locked()
        if sticky is not None and sticky.sticky_partition != self.partition:
            return MOVED
        if batch is not None:
            delivery = batch.append(timestamp, key, value, headers, on_delivery)
            if delivery is None and batch.appended == NEEDS_SEGMENT:
                if not spares:
                    return GROW
                batch.writer.grow(spares.pop())
                delivery = batch.append(timestamp, key, value, headers, on_delivery)
            if delivery is None:
                self._shut_locked(True)
            else:
                self._note_full_locked(batch)
        if batch is None or delivery is None:
            if sticky is not None and sticky.maybe_switch_locked():
                return MOVED
            if fresh is None:
                return NO_BATCH
            batch = fresh
            delivery = batch.append(timestamp, key, value, headers, on_delivery)
            self._open_locked(batch)
        if sticky is not None:
            sticky.count_locked(batch.appended, batch.writer.is_full())
        return delivery

    def append_to_open(
        self,
        timestamp: cython.longlong,
        key: bytes | None,
        value: bytes | None,
        headers: Any,
        on_delivery: Any,
        sticky: TopicState | None,
        wake: Any,
    ) -> Delivery | None:
        """Append one record to the open batch, for the fast path. None if the batch or the partition does not take it.

        A batch without room is closed. A call that interrupts another one of its thread, which holds a lock, gets None.

        Args:
            sticky: as for `append`.
            wake: wakes the I/O thread. It is called after the lock was released, if the batch that leaves next has
                become full.
        """
        delivery: Delivery | None
        wakes: cython.bint
        if cython.compiled:
            if not self._lock.take():
                return None
            try:
                delivery = self._append_to_open_locked(timestamp, key, value, headers, on_delivery, sticky)
                wakes = self._wakes
            finally:
                self._lock.let_go()
        else:
            if inside():
                return None
            with self._lock:
                delivery = self._append_to_open_locked(timestamp, key, value, headers, on_delivery, sticky)
                wakes = self._wakes
        if wakes:
            wake()
        return delivery

    def _append_to_open_locked(
        self,
        timestamp: cython.longlong,
        key: bytes | None,
        value: bytes | None,
        headers: Any,
        on_delivery: Any,
        sticky: TopicState | None,
    ) -> Delivery | None:
        full: cython.bint = False
        batch: Batch | None = self._open
        delivery: Delivery | None = None
        if self._admission.open and (sticky is None or sticky.sticky_partition == self.partition):
            if batch is not None:
                delivery = batch.append(timestamp, key, value, headers, on_delivery)
            if batch is None or delivery is None:
                full = self._maybe_shut_locked(sticky)
            else:
                full = batch.writer.is_full()
                if sticky is not None:
                    sticky.count_locked(batch.appended, full)
        # If another batch is before it, the queue was ready already, and the I/O thread knows of it.
        self._wakes = full and len(self.batches) == 1
        if self._wakes:
            self.news.append(self)
        return delivery

    def append_rows(
        self,
        window: Any,
        first: cython.Py_ssize_t,
        last: cython.Py_ssize_t,
        accepted: list,  # type: ignore[type-arg]
        sticky: TopicState | None = None,
        spares: list | None = None,  # type: ignore[type-arg]
        fresh: Batch | None = None,
    ) -> tuple[int, int]:
        """Append rows until a batch is full. Returns how many, and why not more, as `append` says; -1: none refused.

        Args:
            window: where the rows are: `append_to(writer, first, last, budget)` appends them, and `refusal`,
                `payload` and `span(first, count)` tell of it.
            first: where to start in it, and `last`, where to end.
            accepted: gets (result, first index, count, payload, span) of what was appended, before an interrupt can
                come.
            sticky: as for `append`, and so are `spares` and `fresh`.

        Raises:
            ProducerClosedError: the producer was closed meanwhile.
            NotAdmitted: records are not accepted now.
            TopicForgotten: another queue has taken the place of this one.
        """
        taken: cython.Py_ssize_t
        before: cython.Py_ssize_t = HEADER_SIZE  # a batch without records
        budget: cython.Py_ssize_t = _NO_BUDGET
        batch: Batch | None
        with self._lock:
            if self.closed:
                raise ProducerClosedError("the producer is closed")
            if not self._admission.open:
                self._refuse_locked()
            if sticky is not None:
                if sticky.sticky_partition != self.partition:
                    return 0, MOVED
                budget = 2 * sticky.sticky_size - sticky.sticky_bytes
                if budget <= 0:  # Ctrl-C came after the count, and before the choice of another partition
                    sticky.switch()
                    return 0, MOVED
            batch = self._open
            if batch is not None:
                before = batch.writer.raw_size
                taken = batch.append_rows(window, first, last, budget, spares)
            elif sticky is not None and sticky.maybe_switch_locked():
                return 0, MOVED
            elif fresh is None:
                return 0, NO_BATCH
            else:
                batch = fresh
                taken = batch.append_rows(window, first, last, budget, None)
                self._open_locked(batch)
            if taken:
                batch.tell_of_rows(window, first, taken, accepted)
                if sticky is not None:
                    sticky.count_locked(batch.writer.raw_size - before, batch.writer.is_full())
                self._note_full_locked(batch)
            return taken, self._end_chunk_locked(batch, window.refusal, sticky)

    def _end_chunk_locked(
        self,
        batch: Batch,
        refusal: cython.Py_ssize_t,
        sticky: TopicState | None,
    ) -> cython.Py_ssize_t:
        """Why the open batch took no more rows; -1 if it refused none. Closes a full batch."""
        if refusal == 0:
            return -1
        if refusal == NEEDS_SEGMENT:
            return GROW
        # The space that a full batch cannot use counts as used. So each partition gets one batch at a time, and a
        # request takes one batch of each.
        unused: cython.Py_ssize_t = HEADER_SIZE + max(0, batch.writer.limit - batch.writer.estimated_size())
        self._shut_locked(True)
        if (
            sticky is not None
            and sticky.sticky_partition == self.partition
            and sticky.count_locked(unused, True)
        ):
            return MOVED
        return NO_BATCH

    def _open_locked(self, fresh: Batch) -> None:
        """Queue a new batch after it has got its first record: so an error before that leaves no empty batch."""
        if fresh.writer.count == 0:
            raise ValueError(f"a new batch of {self.topic}-{self.partition} has no room for its first record")
        self.batches.append(fresh)
        self.active.add(self)
        fresh.queued_as = len(self.batches)
        if fresh.queued_as <= _NEWS:
            self.news.append(self)
        self._openings += 1
        fresh.opening = self._openings
        self.incomplete.add(fresh)
        self._open = fresh

    def _shut_locked(self, full: cython.bint) -> None:
        """Close the open batch: it is ready now, if it is the oldest. The next one will probably have as many bytes."""
        batch: Batch | None = self._open
        if batch is not None:
            self.expected = max(batch.writer.raw_size, batch.writer.limit if full else 0)
            self._open = None
        if len(self.batches) == 1:
            self.news.append(self)

    def _note_full_locked(self, batch: Batch) -> None:
        if len(self.batches) == 1 and batch.writer.is_full():
            self.news.append(self)

    def _maybe_shut_locked(self, sticky: TopicState | None) -> cython.bint:
        """Close the open batch, which has just refused a record, unless it may grow.

        Args:
            sticky: the topic, if the record goes to its sticky partition.

        Returns:
        Whether the batch was closed and the record goes to another partition. Then no later record of this partition
        wakes the I/O thread for the batch.
        """
        batch: Batch | None = self._open
        if batch is not None:
            if batch.appended == NEEDS_SEGMENT:
                return False
            self._shut_locked(True)
        if sticky is None or not sticky.maybe_switch_locked():
            return False
        return batch is not None and sticky.sticky_partition != self.partition

    def needs_batch(self) -> bool:
        """Whether no batch is open for records."""
        return self._open is None

    def open_batch(self) -> Batch | None:
        """The batch that is open for records; another thread may be about to close it."""
        return self._open

    def head(self) -> tuple[Batch | None, bool]:
        """The oldest batch, and whether it is full or closed (later ones make it so)."""
        with self._lock:
            return (self.batches[0], bool(self._is_full_locked())) if self.batches else (None, False)

    def look(self) -> Batch | None:
        """The oldest batch; `seen_full` says whether it is full or closed. I/O thread only."""
        if not cython.compiled:
            with self._lock:
                return self._look_locked()
        self._lock.acquire()
        try:
            return self._look_locked()
        finally:
            self._lock.release()

    def _look_locked(self) -> Batch | None:
        if not self.batches:
            return None
        self.seen_full = self._is_full_locked()
        return self.batches[0]

    def _is_full_locked(self) -> cython.bint:
        batch: Batch | None = self._open
        if len(self.batches) > 1:
            return True
        # A closed producer has no open batch: that alone does not make a batch full.
        return not self.closed if batch is None else batch.writer.is_full()

    def depth(self) -> int:
        """How many batches wait."""
        return len(self.batches)

    def is_empty(self) -> cython.bint:
        """Whether no batch waits. No lock: a length is read in one step."""
        return not self.batches

    def take(self, batch: Batch) -> bool:
        """Take the oldest batch, if it still is `batch`, and close it for further records."""
        if not cython.compiled:
            with self._lock:
                return self._take_locked(batch)
        self._lock.acquire()
        try:
            return self._take_locked(batch)
        finally:
            self._lock.release()

    def _take_locked(self, batch: Batch) -> cython.bint:
        if not self.batches or self.batches[0] is not batch:
            return False
        self._pop_locked()
        return True

    def take_expired(self, now: float, timeout: float) -> list[Batch]:
        """Take the batches at the head whose delivery time-out is over."""
        taken: list = []
        with self._lock:
            while self.batches and self.batches[0].reached_timeout(now, timeout):
                taken.append(self._pop_locked())
            if taken:
                self.news.append(self)  # also if none is left: the broker may be ready for no other
        return taken

    def close(self) -> None:
        """Refuse records from now on. Batches that wait stay."""
        with self._lock:
            self.closed = True
            self._open = None

    def _refuse_locked(self) -> None:
        if self._admission is _FORGOTTEN:
            raise TopicForgotten(self.topic)
        raise NotAdmitted(_NOT_ADMITTED)

    def try_forget(self) -> bool:
        """Refuse records from now on, if none waits here: another queue may take this one's place."""
        with self._lock:
            if self.batches or self._open is not None:
                return False
            self._admission = _FORGOTTEN
            return True

    def revive(self, admission: Admission) -> None:
        """Accept records again as before `try_forget`: the queue was not replaced."""
        with self._lock:
            self._admission = admission

    def pass_lock(self) -> None:
        """Return when appends in progress have ended: all later ones see what was set before."""
        with self._lock:
            pass

    def take_all(self) -> list[Batch]:
        """Take every batch."""
        taken: list = []
        with self._lock:
            while self.batches:
                taken.append(self._pop_locked())
            self.news.append(self)
        return taken

    def put_back(self, batches: list[Batch]) -> None:
        """Queue batches again, in their order, behind those at the head that were opened earlier.

        There are such batches if several requests were in flight. The order of opening is the order of the records. The
        oldest batch must be at the head: expiry only checks the head. The time of creation cannot be used: a batch is
        made before the lock is taken, so a younger one may be opened first.
        """
        at: cython.Py_ssize_t = 0
        with self._lock:
            for queued in self.batches:
                if queued.opening >= batches[0].opening:
                    break
                at += 1
            for batch in reversed(batches):
                self.batches.insert(at, batch)
            self.active.add(self)
            self._note_oldest_locked()

    def put_back_in_order(self, batch: Batch, comes_before: Callable[[Batch, Batch], bool]) -> None:
        """Queue a batch again behind those at the head that `comes_before(queued, batch)` says precede it."""
        at: cython.Py_ssize_t = 0
        with self._lock:
            for queued in self.batches:
                if not comes_before(queued, batch):
                    break
                at += 1
            self.batches.insert(at, batch)
            self.active.add(self)
            self._note_oldest_locked()

    def take_some(self, wanted: Callable[[Batch], bool]) -> list[Batch]:
        """Take the batches that `wanted` says; the others stay in their order."""
        taken: list = []
        kept: list = []
        with self._lock:
            while self.batches:
                batch: Any = self._pop_locked()
                if wanted(batch):
                    taken.append(batch)
                else:
                    kept.append(batch)
            self.batches.extend(kept)
            if kept:
                self.active.add(self)
            self.news.append(self)
        return taken

    def unmute(self) -> None:
        """Let the next batch leave: nothing of this partition is on the way any more."""
        self.muted = False
        with self._lock:
            self._note_oldest_locked()

    def _note_oldest_locked(self) -> None:
        if self.batches:
            self.news.append(self)

    def _pop_locked(self) -> Batch:
        batch: Batch = self.batches[0]
        del self.batches[0]
        if batch is self._open:
            self._shut_locked(False)
        if not self.batches:
            self.active.discard(self)
        return batch

    def __repr__(self) -> str:
        return f"<PartitionQueue {self.topic}-{self.partition}: {len(self.batches)} batches>"
