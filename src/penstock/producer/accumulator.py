# SPDX-License-Identifier: Apache-2.0
"""Records on their way in, batches on their way out: one queue of batches per partition.

Application threads append (through the fast path, or `append_steps`); the I/O thread asks which brokers have something
ready, drains it, queues batches again after a failure, splits and expires them.

Rules:
1. Memory is asked for outside the partition lock, and the append is tried again under it before a new batch is opened:
   meanwhile another thread may have opened one (the double-checked append).
2. A batch is in `incomplete` from the moment it is queued until it has its outcome; a split replaces it by its pieces.
3. Once the accumulator is closed nothing can be appended: each queue refuses under its own lock, so no record slips in
   behind the one who empties the queues.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

from penstock._ticket import Ticket
from penstock.errors import BufferExhaustedError, KafkaError, ProducerClosedError
from penstock.producer._delivery_cy import Delivery
from penstock.producer._queue_cy import MOVED, NEEDS_SEGMENT, NO_BATCH, PartitionQueue, TopicState
from penstock.producer.batch import ANONYMOUS, Batch
from penstock.producer.buffer_pool import BufferPool
from penstock.producer.delivery import Countdown
from penstock.producer.partitioner import BuiltInPartitioner
from penstock.producer.sealing import Sealer
from penstock.producer.sequences import comes_before
from penstock.records._batch_cy import BatchWriter
from penstock.types import Header

Steps = Generator[Ticket[Any] | str, Any, Delivery]

# A checkpoint: something was accepted, and the time allowed for waiting counts anew.
PROGRESS = "progress"

_BY_NAME_AND_NUMBER = attrgetter("topic", "partition")

# Seconds: a moment that was waited for as a sum must also count as reached when it is looked at as a difference.
_ROUNDING = 1e-6


def _always() -> None:
    """Records are accepted, whatever happens."""


class TimeIsUp(Exception):
    """Thrown into waiting steps by whoever drives them when the time allowed for waiting is used up."""

    def __init__(self, waited_ms: int) -> None:
        super().__init__(f"{waited_ms} ms")
        self.waited_ms = waited_ms


class EncodedRecord(NamedTuple):
    """A record as bytes, with the most it can take in a batch of its own."""

    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] | None
    size_bound: int


@dataclass(frozen=True, slots=True)
class AccumulatorSettings:
    """The options of the same names."""

    batch_size: int
    linger_ms: int
    delivery_timeout_ms: int


class Appended(NamedTuple):
    """Outcome of an append that did not wait: the Delivery if any, and whether the caller's new batch is needed."""

    delivery: Delivery | None
    moved: bool


class RecordAccumulator:
    """Collects records into batches, partition by partition.

    Args:
        settings: sizes and times.
        pool: record memory.
        sealer: compresses and splits; knows how well topics compress.
        partitioner: chooses among partitions for records without key.
        wake: wakes the I/O thread.
        now: the monotonic clock.
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
        self._now = now
        self._lock = threading.Lock()  # guards the creation of topics and queues, flushes and closed
        self.topics: dict[str, TopicState] = {}  # written under the lock, read by anyone
        self._queues: dict[tuple[str, int], PartitionQueue] = {}
        self._flushes = 0
        self._closed = False
        # A queue adds itself, and its batches, under its own lock. Copies of sets are atomic.
        self._active: set[PartitionQueue] = set()
        self._incomplete: set[Batch] = set()
        # Batches that have their outcome while a request still holds them. I/O thread only.
        self._given_up: set[Batch] = set()

    @property
    def owner(self) -> object:
        """What tells the I/O thread of this producer from those of others; see `delivery.on_io_thread`."""
        return self._active

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
            state.load = None  # it speaks of the partitions that there were before
            state.queues = [self._queue_locked(name, number) for number in range(partition_count)]
            self.topics[name] = state
        return state

    def _queue_locked(self, topic: str, partition: int) -> PartitionQueue:
        """The one queue of a partition: kept for ever, also when the topic is made anew with fewer partitions."""
        queue = self._queues.get((topic, partition))
        if queue is None:
            queue = self._queues[topic, partition] = PartitionQueue(
                topic, partition, self._active, self._incomplete
            )
            if self._closed:
                queue.close()
        return queue

    def follow_partition_counts(self, partition_count: Callable[[str], int | None]) -> None:
        """Let keys be placed among the partitions that topics have now. I/O thread, after new metadata."""
        for name in list(self.topics):
            count = partition_count(name)
            if count is not None:
                self.topic(name, count)

    def try_append(
        self, topic: TopicState, partition: int | None, record: EncodedRecord, on_delivery: Any
    ) -> Delivery | None:
        """Append to an open batch, letting a compressed one grow; None when a new batch is needed.

        Args:
            partition: the partition, or None: wherever records without key of this topic go now.
        """
        while True:
            appended = self._append(topic, partition, record, on_delivery, None)
            if not appended.moved:
                return appended.delivery

    def append_now(
        self,
        topic: TopicState,
        partition: int | None,
        fields: tuple[int, bytes | None, bytes | None, Any, int],
        on_delivery: Any,
    ) -> Delivery | None:
        """Append an ordinary record, opening a batch if need be; None, with nothing changed, when that needs more.

        More is waiting for memory, or memory for a batch larger than usual: see `append_steps`.

        Args:
            fields: those of an EncodedRecord.
        """
        record = EncodedRecord._make(fields)
        if record.size_bound > self.batch_size:
            return None
        try:
            while True:
                delivery = self.try_append(topic, partition, record, on_delivery)
                if delivery is not None:
                    return delivery
                buffer = self.pool.try_take(self.batch_size)
                if buffer is None:
                    return None
                delivery = self._append(topic, partition, record, on_delivery, buffer).delivery
                if delivery is not None:
                    return delivery
        except ProducerClosedError:
            return None  # the general path says so

    def append_steps(
        self,
        topic: TopicState,
        partition: int | None,
        record: EncodedRecord,
        on_delivery: Any,
        admitted: Callable[[], None] = _always,
    ) -> Steps:
        """Append, opening a new batch where needed. Yields Tickets for memory, and checkpoints by name.

        Args:
            admitted: raises when records are not accepted any more; asked after each wait, because what was allowed
                before (a transaction was open) may have ended meanwhile.

        Raises:
            BufferExhaustedError: TimeIsUp was thrown in while it waited for memory.
            ProducerClosedError: the producer was closed.
        """
        while True:
            admitted()
            delivery = self.try_append(topic, partition, record, on_delivery)
            if delivery is not None:
                return delivery
            yield "memory"
            buffer = yield from self._memory(max(self.batch_size, record.size_bound))
            try:
                yield "second look"
                admitted()
            except BaseException:
                self.pool.give_back((buffer,))
                raise
            appended = self._append(topic, partition, record, on_delivery, buffer)
            if appended.delivery is not None:
                return appended.delivery

    def _append(
        self,
        topic: TopicState,
        partition: int | None,
        record: EncodedRecord,
        on_delivery: Any,
        buffer: bytearray | None,
    ) -> Appended:
        """One append; an unused `buffer` goes back to the pool, whatever happens."""
        queue, sticky = self._queue(topic, partition)
        fresh = None if buffer is None else self._new_batch(queue, buffer)
        spares: list[bytearray] | None = None
        try:
            outcome = queue.append(*record[:4], on_delivery, sticky, None, fresh)
            if outcome is NEEDS_SEGMENT:
                spare = self.pool.try_take(self.batch_size)
                spares = [] if spare is None else [spare]
                outcome = queue.append(*record[:4], on_delivery, sticky, spares, fresh)
        finally:
            if fresh is not None and fresh.record_count == 0:
                self.pool.give_back(fresh.buffers)
            if spares:
                self.pool.give_back(spares)
        if isinstance(outcome, int):
            return Appended(None, outcome is MOVED)
        if (fresh is not None and fresh.record_count) or queue.head()[1]:
            self._wake()  # a first batch was made, or one became full
        return Appended(outcome, False)

    def append_rows_steps(
        self,
        where: PartitionQueue | TopicState,
        window: Any,
        rows: tuple[int, int],
        accepted: list[Any],
        admitted: Callable[[], None] = _always,
    ) -> Generator[Ticket[Any] | str, Any, None]:
        """Append rows of a window, opening batches where needed; yields as `append_steps` does, and PROGRESS.

        Args:
            where: the queue of their partition, or a topic: wherever records without key of it go now.
            rows: the first, and the one behind the last.
            accepted: gets what was appended; see `PartitionQueue.append_rows`.
        """
        first, last = rows
        needs_batch = False
        while first < last:
            admitted()
            buffer = None
            if needs_batch:
                yield "memory"
                buffer = yield from self._memory(max(self.batch_size, window.size_bound(first)))
                try:
                    yield "second look"
                    admitted()
                except BaseException:
                    self.pool.give_back((buffer,))
                    raise
            taken, why = self._append_rows(where, window, (first, last), accepted, buffer)
            needs_batch = why == NO_BATCH
            if taken:
                first += taken
                yield PROGRESS

    def _append_rows(
        self,
        where: PartitionQueue | TopicState,
        window: Any,
        rows: tuple[int, int],
        accepted: list[Any],
        buffer: bytearray | None,
    ) -> tuple[int, int]:
        """One chunk; an unused `buffer` goes back to the pool, whatever happens."""
        queue, sticky = self._queue(where, None) if isinstance(where, TopicState) else (where, None)
        fresh = None if buffer is None else self._new_batch(queue, buffer)
        spares: list[bytearray] | None = None
        try:
            taken, why = queue.append_rows(window, *rows, accepted, sticky, None, fresh)
            if taken == 0 and why == NEEDS_SEGMENT:
                spare = self.pool.try_take(self.batch_size)
                spares = [] if spare is None else [spare]
                taken, why = queue.append_rows(window, *rows, accepted, sticky, spares, fresh)
        finally:
            if fresh is not None and fresh.record_count == 0:
                self.pool.give_back(fresh.buffers)
            if spares:
                self.pool.give_back(spares)
        if (fresh is not None and fresh.record_count) or (taken and queue.head()[1]):
            self._wake()  # a first batch was made, or one became full
        return taken, why

    def _queue(self, topic: TopicState, partition: int | None) -> tuple[PartitionQueue, TopicState | None]:
        if partition is not None:
            return topic.queues[partition], None
        queues = topic.queues
        chosen = topic.sticky_partition
        while not 0 <= chosen < len(queues):
            with self._lock:  # the first choice; later ones are made under the lock of the partition left
                if topic.sticky_partition == chosen:
                    topic.switch()
            queues, chosen = topic.queues, topic.sticky_partition
        return queues[chosen], topic

    def _memory(self, size: int) -> Generator[Ticket[Any] | str, Any, bytearray]:
        ticket = self.pool.take(size)
        if ticket.done:
            return ticket.result
        self._wake()  # memory pressure makes every batch ready: let the I/O thread see it
        try:
            buffer: bytearray = yield ticket
        except TimeIsUp as up:
            self.pool.withdraw(ticket)
            raise BufferExhaustedError(
                f"no {size} bytes of buffer.memory ({self.pool.total}) became free within max.block.ms: waited "
                f"{up.waited_ms} ms. The brokers take records more slowly than they are sent, or not at all; slow "
                "down, raise buffer.memory or max.block.ms, or see whether the brokers can be reached."
            ) from None
        except BaseException:
            self.pool.withdraw(ticket)
            raise
        return buffer

    def _new_batch(self, queue: PartitionQueue, buffer: bytearray) -> Batch:
        # A first record larger than batch.size is accepted all the same, and the batch is full with it.
        writer = BatchWriter(buffer, self.batch_size, self.sealer.expected_ratio(queue.topic))
        # The batch's memory is the very list to which the writer adds the segments it grows by.
        return Batch(queue, writer, self._now(), writer.segments)

    def flush(self) -> Ticket[None]:
        """Make everything sendable; the Ticket is granted when all that was accepted before has its outcome."""
        ticket: Ticket[None] = Ticket("the end of a flush")
        with self._lock:
            self._flushes += 1
        ticket.on_done(self._flush_ended)
        results = [batch.result for batch in list(self._incomplete)]
        countdown = Countdown(len(results) + 1, lambda: ticket.complete(None))
        for result in results:
            result.when_settled(countdown.one_less)
        countdown.one_less()
        self._wake()
        return ticket

    def _flush_ended(self, _: Ticket[None]) -> None:
        with self._lock:
            self._flushes -= 1

    def incomplete_records(self) -> int:
        """How many accepted records have no outcome yet."""
        return sum(batch.record_count for batch in list(self._incomplete))

    def close(self) -> None:
        """Accept nothing more; what is queued becomes sendable."""
        with self._lock:
            self._closed = True
            queues = list(self._queues.values())
        for queue in queues:
            queue.close()
        self.pool.close()
        self._wake()

    # ---------------------------------------------------------------------------------------- I/O thread

    def active_queues(self) -> list[PartitionQueue]:
        """The queues that have batches, in a stable order."""
        return sorted(self._active, key=_BY_NAME_AND_NUMBER)

    @property
    def everything_sendable(self) -> bool:
        """Whether batches need not wait for more records: a flush, a close, or memory is short."""
        return self._closed or self._flushes > 0 or self.pool.waiting() > 0

    def has_undrained(self) -> bool:
        """Whether any batch waits in a queue."""
        return any(queue.depth() for queue in list(self._active))

    def has_incomplete(self) -> bool:
        """Whether any batch has no outcome yet."""
        return bool(self._incomplete)

    def may_still_be_written(self) -> bool:
        """Whether any batch has no outcome yet, or was given up while its request is on the way."""
        return bool(self._incomplete or self._given_up)

    def requeue(self, batches: Sequence[Batch]) -> None:
        """Put batches back at the head of their queue: in order, and numbered ones in the order of their numbers."""
        if batches[0].identity is ANONYMOUS:
            batches[0].queue.put_back(list(batches))
            return
        for batch in batches:
            batch.queue.put_back_in_order(batch, comes_before)

    def split(self, batch: Batch, on_split: Callable[[Batch, Sequence[Batch]], None]) -> int:
        """Replace a batch that was too large by its pieces, at the head of its queue; how many.

        Args:
            on_split: told of the pieces before they are queued, so that they can be numbered.
        """
        pieces = self.sealer.split(batch)
        on_split(batch, pieces)
        self._incomplete.update(pieces)
        self._incomplete.discard(batch)
        self.requeue(pieces)
        return len(pieces)

    def take_expired(self, now: float) -> list[Batch]:
        """Take batches out of their queues whose delivery time-out is over."""
        expired: list[Batch] = []
        for queue in self.active_queues():
            expired.extend(queue.take_older(now - self.delivery_timeout + _ROUNDING))
        return expired

    def take_unsent(self, *, also_retried: bool = False) -> list[Batch]:
        """Take the batches out of their queues that never were on the wire; or all that wait there."""
        taken: list[Batch] = []
        for queue in self.active_queues():
            taken.extend(queue.take_all() if also_retried else queue.take_some(_never_sent))
        return taken

    def finish(self, batch: Batch) -> None:
        """A batch has its outcome: forget it, and free its memory as soon as no request holds it."""
        self._incomplete.discard(batch)
        if batch.request_pending:
            self._given_up.add(batch)
        self.release(batch)

    def release(self, batch: Batch) -> None:
        """Return a finished batch's memory, unless a request still holds its bytes. Once; later calls do nothing."""
        if batch.request_pending or not batch.done:
            return
        self._given_up.discard(batch)
        buffers, counted = batch.buffers, batch.counted
        batch.buffers, batch.counted, batch.wire = [], 0, None
        if buffers or counted:
            self.pool.give_back(buffers, counted)

    def abort_all(self, error: KafkaError) -> None:
        """Fail everything that has no outcome, queued or in flight. For a forced close; the accumulator is closed."""
        queued: list[Batch] = []
        for queue in self.active_queues():
            queued.extend(queue.take_all())
        # Callbacks come in the order of each partition's records: what was drained is older than what waits.
        in_flight = self._incomplete.difference(queued)
        for batch in [*sorted(in_flight, key=_age_order), *queued]:
            batch.abort(error)
            self.finish(batch)

    def used_topics(self) -> Iterable[str]:
        """Topics sent to since this was asked before, or that still have batches."""
        used = {queue.topic for queue in list(self._active)}
        for name, state in list(self.topics.items()):
            if state.used:
                state.used = False
                used.add(name)
        return used


def _never_sent(batch: Batch) -> bool:
    return batch.identity is ANONYMOUS and batch.attempts == 0


def _age_order(batch: Batch) -> tuple[float, float]:
    return batch.created, batch.drained_at
