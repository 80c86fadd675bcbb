# SPDX-License-Identifier: Apache-2.0
"""Collects records into batches, with one queue of batches per partition. Compiled if possible.

Application threads append, through the fast path or the accumulator's Appender. The I/O thread drains the ready
batches, queues batches again after a failure, splits and expires them.

Rules:
1. A batch is in `incomplete` from the moment it is queued until it has its outcome; a split replaces it by its pieces.
2. Once the accumulator is closed nothing can be appended: each queue refuses under its own lock, so no record comes
   after the queues were emptied.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from penstock._locks import new_lock
from penstock._ticket import Countdown, Ticket
from penstock.errors import AuthenticationError, KafkaError
from penstock.producer.batch._appending_cy import Appender, BulkWake
from penstock.producer.batch._batch_cy import ANONYMOUS, CLOSE, FLUSH, MEMORY, comes_before
from penstock.producer.batch._delivery_cy import BatchResult
from penstock.producer.batch._partitioner_cy import BuiltInPartitioner, TopicState
from penstock.producer.batch._sealing_cy import Sealer
from penstock.producer.batch._buffer_pool_cy import BufferPool
from penstock.producer.unseen import UnseenFailures
from penstock.producer.owner import Owner
from penstock.types import TopicPartition

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

if TYPE_CHECKING:
    from penstock.producer.send.deferring import DeferredSends

# In this order, so that type checkers see the classes: to them the second branch is of an unknown type.
if not cython.compiled:
    from penstock.producer.batch._batch_cy import Batch, take_memory
    from penstock.producer.batch._queue_cy import Admission, PartitionQueue
else:
    from cython.cimports.penstock.producer.batch._batch_cy import Batch, take_memory  # type: ignore[no-redef]
    from cython.cimports.penstock.producer.batch._queue_cy import (  # type: ignore[no-redef]
        Admission,
        PartitionQueue,
    )


_BY_PLACE = attrgetter("place")
_NO_QUEUES: list = []  # type: ignore[type-arg]  # of nearly every turn; never changed


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


@dataclass(frozen=True, slots=True)
class AccumulatorSettings:
    """The options of the same names."""

    batch_size: int
    linger_ms: int
    delivery_timeout_ms: int


@cython.cclass
class RecordAccumulator:
    """Collects records into batches, partition by partition.

    Not final: the simulator, and tests, watch it through the methods of a class of their own.

    Args:
        settings: sizes and times.
        pool: record memory.
        sealer: compresses and splits; knows how well topics compress.
        partitioner: chooses among partitions for records without key.
        wake: wakes the I/O thread.
        now: the monotonic clock.

    Attributes:
        appender: appends records, and opens batches for them.
        unseen: logs failed records whose outcome nobody asked for.
        watches_failures: whether it is told of batches that fail. False with transactions, whose calls raise the error.
    """

    def __init__(
        self,
        settings: AccumulatorSettings,
        pool: BufferPool,
        sealer: Sealer,
        partitioner: BuiltInPartitioner,
        wake: Callable[[], object],
        now: Callable[[], float],
    ) -> None:
        self.batch_size = max(1, settings.batch_size)
        self.linger = settings.linger_ms / 1000
        self.delivery_timeout = settings.delivery_timeout_ms / 1000
        self.pool = pool
        self.sealer = sealer
        self.partitioner = partitioner
        self._wake = wake
        self.unseen = UnseenFailures(wake, now)
        self.watches_failures = True
        # Guards the creation of topics and queues, the first choice of a topic's sticky partition, flushes and closed.
        self._lock: Any = new_lock()
        self.topics: dict[str, TopicState] = {}  # written under the lock, read by anyone
        self.fast_topics: dict[str, TopicState] = {}  # likewise: those that the fast path may use
        self._followed: str | None = None  # the topic that the fast path may not use
        self._queues: dict[str, dict[int, PartitionQueue]] = {}  # by topic and partition, likewise
        self._admission = Admission()
        self.appender = Appender(self.batch_size, pool, sealer, self._admission, self._lock, wake, now)
        self._flushes: set[Ticket[None]] = set()
        self._closed = False
        # A queue adds itself, and its batches, under its own lock. Copies of sets are atomic.
        self._active: set[PartitionQueue] = set()
        # Queues that the I/O thread is to look at, likewise; one may be in it more than once.
        self._news: list[PartitionQueue] = []
        self._incomplete: set[Batch] = set()
        # Batches that have their outcome while a request still holds them. Written by the I/O thread; any thread may
        # ask whether there are any, which is one step.
        self._given_up: set[Batch] = set()
        # Records that were accepted and are in no batch yet. Set once, when the producer is put together.
        self.deferred: DeferredSends
        self.owner = Owner()  # whose I/O thread settles the records; see `owner.on_io_thread`

    # ------------------------------------------------------------------------------- application threads

    def topic(self, name: str, partition_count: int) -> TopicState:
        """The state of a topic, with that many partitions."""
        state = self.topics.get(name)
        if state is not None and len(state.queues) == partition_count:
            return state
        with self._lock:
            state = self.topics.get(name)
            if state is None:
                state = TopicState(name, self.batch_size, self.partitioner.choose)
            state.load = None  # it is about the former partitions
            state.queues = [self._queue_locked(name, number) for number in range(partition_count)]
            self.topics[name] = state
            if name != self._followed:
                self.fast_topics[name] = state
        return state

    def follow(self, name: str | None) -> None:
        """Let all records of this topic take the general path, and of no other; None: of no topic any more."""
        with self._lock:
            self._followed = name
            self.fast_topics.update(self.topics)
            if name is not None:
                self.fast_topics.pop(name, None)

    def _queue_locked(self, topic: str, partition: int) -> PartitionQueue:
        """The only queue of a partition: kept while the topic is used, also if the topic has fewer partitions now."""
        queues = self._queues.setdefault(topic, {})
        queue = queues.get(partition)
        if queue is None:
            queue = queues[partition] = PartitionQueue(
                topic, partition, self._active, self._incomplete, self._admission, self.owner, self._news
            )
            if self._closed:
                queue.close()
        return queue

    def queue(self, topic: str, partition: int) -> PartitionQueue:
        """The queue of a partition, whether the topic has it or had it."""
        with self._lock:
            return self._queue_locked(topic, partition)

    def _all_queues(self) -> list[PartitionQueue]:
        # Copies of dictionaries are atomic, loops over them are not.
        return [queue for queues in list(self._queues.values()) for queue in list(queues.values())]

    def follow_partition_counts(self, partition_count: Callable[[str], int | None]) -> None:
        """Let keys be placed among the partitions that topics have now. I/O thread, after new metadata."""
        for name in list(self.topics):
            count = partition_count(name)
            if count is not None:
                self.topic(name, count)
            self.topics[name].known = count is not None

    def admit(self, records: bool) -> None:
        """Accept records from now on, or refuse them. When this returns, no earlier append is still in progress.

        The general path also asks the gate, which knows the reason. But after that, and before the append, another
        thread may end the transaction, so each queue checks again under its own lock.
        """
        self._admission.open = records
        if not records:
            for queue in self._all_queues():
                queue.pass_lock()

    def admits_records(self) -> bool:
        """Whether the transaction accepts records."""
        return bool(self._admission.open)

    def bulk_wake(self) -> BulkWake:
        """The BulkWake for the rows of one call."""
        return BulkWake(self._wake)

    def flush(self) -> Ticket[None]:
        """Make everything sendable; the Ticket is granted when all that was accepted before has its outcome."""
        ticket: Ticket[None] = Ticket("the end of a flush")
        with self._lock:
            self._flushes.add(ticket)
        ticket.on_done(self._flush_ended)
        # First the records that were put aside: if one is appended meanwhile, it is found in its batch.
        results = self.deferred.results()
        results += [batch.result for batch in list(self._incomplete)]
        countdown = Countdown(len(results) + 1, lambda: ticket.complete(None))
        for result in results:
            result.when_settled(countdown.one_less)
        countdown.one_less()
        self._wake()
        return ticket

    def _flush_ended(self, ticket: Ticket[None]) -> None:
        with self._lock:
            self._flushes.discard(ticket)

    def incomplete_batches(self) -> list[Batch]:
        """The batches that have no outcome yet, queued or in flight. Takes no lock: the copy is made in one step."""
        return list(self._incomplete)

    def incomplete_records(self) -> int:
        """How many accepted records have no outcome yet."""
        # Batches of an answer are forgotten together. Those that already have their outcome do not count any more.
        queued = sum(batch.record_count for batch in list(self._incomplete) if not batch.result.done)
        return queued + len(self.deferred)

    def try_oldest_incomplete(self) -> Batch | None:
        """The oldest batch without an outcome; None without one. From any thread."""
        waiting = [batch for batch in list(self._incomplete) if not batch.result.done]
        return min(waiting, key=lambda batch: batch.created, default=None)

    def close(self) -> None:
        """Accept nothing more; what is queued becomes sendable."""
        with self._lock:
            self._closed = True
            queues = self._all_queues()
        for queue in queues:
            queue.close()
        self.pool.close()
        self._wake()

    # ---------------------------------------------------------------------------------------- I/O thread

    def active_queues(self) -> list:
        """The queues that have batches, in a stable order."""
        return sorted(self._active, key=_BY_PLACE)  # the copy is made in one step

    def take_news(self) -> list:
        """The queues that changed since this was called before, in the order of the changes."""
        count: cython.Py_ssize_t = len(self._news)
        if not count:
            return _NO_QUEUES
        news: list = self._news[:count]
        del self._news[:count]  # what was added meanwhile stays
        return news

    def everything_sendable(self) -> cython.bint:
        """Whether batches need not wait for more records: a flush, a close, or memory is short."""
        return True if self._closed or self._flushes else self.pool.waiting() > 0

    def why_sendable(self) -> int:
        """The reason why batches need not wait, as in `Batch.left_by`."""
        return CLOSE if self._closed else FLUSH if self._flushes else MEMORY

    def on_refused(self, error: AuthenticationError) -> None:
        """No broker accepts this client. Calls that wait for a flush or for memory raise; the records stay."""
        with self._lock:
            flushes = list(self._flushes)
        for ticket in flushes:
            left = self.incomplete_records()
            have = "1 record has" if left == 1 else f"{left} records have"
            ticket.fail(
                error.told_to(f"{have} no outcome yet: Penstock sends what is left when the cause is fixed")
            )
        if error.guessed:
            return  # perhaps a broker has another problem: memory may become free as usual
        self.pool.fail_waiting(
            lambda: error.told_to(
                "buffer.memory is full with records that wait for this, so this call accepted no more: send again when "
                "the cause is fixed"
            )
        )

    def has_undrained(self) -> bool:
        """Whether any batch waits in a queue."""
        return bool(self._active)

    def has_incomplete(self) -> bool:
        """Whether any batch has no outcome yet."""
        return bool(self._incomplete)

    def may_still_be_written(self) -> bool:
        """Whether any batch has no outcome yet, or was given up while its request is on the way. From any thread.

        A call that waited for a batch may come here before the I/O thread has forgotten it. So the result counts.
        A batch that is given up is in both sets for a moment, so none is missed if they are read in this order.
        """
        if len(self.deferred):
            return True
        pending = any(batch.request_pending or not batch.result.done for batch in list(self._incomplete))
        return pending or bool(self._given_up)

    def requeue(self, batches: Sequence[Batch]) -> None:
        """Put batches back into their queue: in the order of their age, and numbered ones in that of their numbers."""
        if batches[0].identity is ANONYMOUS:
            batches[0].queue.put_back(list(batches))
            return
        for batch in batches:
            batch.queue.put_back_in_order(batch, comes_before)

    def split(self, batch: Batch, on_split: Callable[[Batch, Sequence[Batch]], None]) -> int:
        """Replace a batch that was too large by its pieces, at the head of its queue; how many.

        Args:
            on_split: called with the pieces before they are queued, to number them. If it raises, the batch is
                unchanged, and the caller has to end it.
        """
        pieces = self.sealer.split(batch)
        on_split(batch, pieces)
        batch.split_into(pieces)
        self._incomplete.update(pieces)
        self._incomplete.discard(batch)
        self.requeue(pieces)
        return len(pieces)

    def leave_out(
        self,
        batch: Batch,
        refused: Mapping[int, KafkaError],
        on_split: Callable[[Batch, Sequence[Batch]], None],
    ) -> int:
        """Fail the records of a batch that the broker refused, and queue the others again. Returns how many these are.

        Args:
            on_split: as for `split`.
        """
        numbered = self.sealer.without(batch, refused)
        pieces = [piece for _, piece in numbered]
        on_split(batch, pieces)
        self._incomplete.update(pieces)
        batch.leave_out(refused, numbered, self._watch)
        self._incomplete.discard(batch)
        if pieces:
            self.requeue(pieces)
        return sum(piece.record_count for piece in pieces)

    def take_expired(self, now: float) -> list[Batch]:
        """Take batches out of their queues whose delivery time-out is over."""
        expired: list[Batch] = []
        for queue in self.active_queues():
            expired.extend(queue.take_expired(now, self.delivery_timeout))
        return expired

    def take_unsent(self, *, also_retried: bool = False) -> list[Batch]:
        """Take the batches that were never sent out of their queues; or all batches that wait there."""
        taken: list[Batch] = []
        for queue in self.active_queues():
            taken.extend(queue.take_all() if also_retried else queue.take_some(_never_sent))
        return taken

    def take_waiting_for(self, partitions: Container[TopicPartition]) -> list[Batch]:
        """Take the batches of these partitions that were never sent out of their queues."""
        taken: list[Batch] = []
        for queue in self.active_queues():
            if queue.place in partitions:
                taken.extend(queue.take_some(_never_sent))
        return taken

    def finish(self, batch: Batch) -> None:
        """A batch has its outcome: forget it, and free its memory as soon as no request holds it."""
        self._watch(batch.result)
        if batch.request_pending:
            self._given_up.add(batch)
        self.forget(batch)
        self.release(batch)

    def _watch(self, result: BatchResult) -> None:
        if self.watches_failures:
            self.unseen.watch(result.unseen)

    def forget(self, batch: Batch) -> None:
        """Forget a batch that has its outcome, and whose memory is handled elsewhere."""
        self._incomplete.discard(batch)

    def forget_all(self, batches: list) -> None:
        """As `forget`, for several batches."""
        for batch in batches:
            self._incomplete.discard(batch)

    def release(self, batch: Batch) -> None:
        """Return a finished batch's memory, unless a request still holds its bytes. Once; later calls do nothing."""
        self.release_all([batch])

    def release_all(self, batches: list) -> None:
        """Return the memory of several batches in one go, so that the pool's lock is taken once."""
        buffers: list = []
        take_memory(batches, self._given_up, buffers)
        if buffers:
            self.pool.give_back(buffers)

    def abort_all(self, error: KafkaError) -> GivenUp:
        """Fail everything that has no outcome, queued or in flight. For a forced close; the accumulator is closed."""
        given_up = GivenUp()
        queued: list[Batch] = []
        for queue in self.active_queues():
            queued.extend(queue.take_all())
        # Callbacks are called in the order of each partition's records: a drained batch is older than one that waits.
        in_flight = self._incomplete.difference(queued)
        for batch in [*sorted(in_flight, key=_age_order), *queued]:
            if not batch.done:  # False if an error came after its outcome, before it was forgotten
                given_up.add(batch)
                batch.abort(error)
            self.finish(batch)
        return given_up

    def used_topics(self) -> Iterable[str]:
        """Topics sent to since this was asked before, or that still have batches, queued or in flight."""
        used = {queue.topic for queue in list(self._active)}
        used.update(queue.topic for queue in self._queues_to_come_back_to())
        for name, state in list(self.topics.items()):
            if state.used:
                state.used = False
                used.add(name)
        return used

    def _queues_to_come_back_to(self) -> set[PartitionQueue]:
        """The queues of batches without outcome, which may be queued again, and of those that a request still holds."""
        return {batch.queue for batch in [*self._incomplete.copy(), *self._given_up]}

    def forget_unused(
        self, in_use: Collection[str], may_forget: Callable[[PartitionQueue], bool]
    ) -> list[PartitionQueue]:
        """Forget topics that are not in use, unless a record is on its way there; the queues that are gone.

        Under the accumulator lock nobody can make a second queue for a partition before the first is forgotten.
        A caller that has the old one looks the topic up again. I/O thread, which alone puts batches back into queues.

        Args:
            in_use: topics to be kept.
            may_forget: whether nothing about a queue is left to be settled.
        """
        forgotten: list[PartitionQueue] = []
        busy = self._queues_to_come_back_to()
        for name in [name for name in list(self._queues) if name not in in_use]:
            # Called outside of the lock: the gate may take its own. Only this thread can make a queue unsettled.
            settled = {
                queue
                for queue in list(self._queues[name].values())
                if queue not in busy and may_forget(queue)
            }
            with self._lock:
                queues = list(self._queues[name].values())
                gone = [queue for queue in queues if queue in settled and queue.try_forget()]
                if len(gone) < len(queues):
                    for queue in gone:
                        queue.revive(self._admission)
                    continue
                del self._queues[name]
                self.topics.pop(name, None)
                self.fast_topics.pop(name, None)
            forgotten += gone
        return forgotten


class GivenUp:
    """What a producer gave up when it was closed.

    Attributes:
        records: how many records.
        maybe_written: those of them that were sent, so that the broker may have written them.
        topics: their topics.
    """

    def __init__(self) -> None:
        self.records = 0
        self.maybe_written = 0
        self.topics: set[str] = set()

    def add(self, batch: Batch) -> None:
        """Count a batch."""
        self.records += batch.record_count
        self.topics.add(batch.queue.topic)
        if batch.request_pending or batch.attempts:
            self.maybe_written += batch.record_count


def _never_sent(batch: Batch) -> bool:
    return batch.identity is ANONYMOUS and batch.attempts == 0


def _age_order(batch: Batch) -> tuple[float, float]:
    return batch.created, batch.drained_at
