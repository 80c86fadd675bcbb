# SPDX-License-Identifier: Apache-2.0
"""How records get into batches: what application threads do, beyond the fast path.

Rules:
1. Memory is asked for outside the partition lock, and the append is tried again under it before a new batch is opened:
   meanwhile another thread may have opened one (the double-checked append).
2. A buffer that was taken ends in a queued batch or goes back to the pool, whatever happens in between.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from penstock._ticket import Ticket
from penstock.errors import BufferExhaustedError, ProducerClosedError
from penstock.producer._delivery_cy import Delivery
from penstock.producer._queue_cy import (
    MOVED,
    NEEDS_SEGMENT,
    NO_BATCH,
    NotAdmitted,
    PartitionQueue,
    TopicState,
)
from penstock.producer.batch import Batch
from penstock.producer.buffer_pool import BufferPool
from penstock.producer.sealing import Sealer
from penstock.records._batch_cy import BatchWriter
from penstock.types import Header

Steps = Generator[Ticket[Any] | str, Any, Delivery]

# A checkpoint: something was accepted, and the time allowed for waiting counts anew.
PROGRESS = "progress"

# Bytes of rows after which the I/O thread is told of them: about what one request holds, by default. Told of each batch
# at once it would send requests of one batch, at the cost of a turn each, where one can take a batch of each partition.
_UNTOLD_BYTES = 1024 * 1024

# A batch that is queued as the first one lets a queue be looked at, and as the second one makes the first ready. With
# two before it, the I/O thread has been woken for this queue, and whatever it waits for since tells it by itself. So it
# is for single records; for rows it is woken by bytes (BulkWake), and by ColumnSender whenever a call waits or ends.
_NEWS = 2


def _always() -> None:
    """Records are accepted, whatever happens."""


class TimeIsUp(Exception):
    """Thrown into waiting steps by whoever drives them when the time allowed for waiting is used up."""

    def __init__(self, waited_ms: int) -> None:
        super().__init__(f"{waited_ms} ms")
        self.waited_ms = waited_ms


# What an EncodedRecord has, which is one of these.
RecordFields = tuple[int, bytes | None, bytes | None, Any, int]


class EncodedRecord(NamedTuple):
    """A record as bytes, with the most it can take in a batch of its own."""

    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] | None
    size_bound: int


class BulkWake:
    """Wakes the I/O thread for the rows of one call: now and then, and when the call waits or ends.

    Args:
        wake: wakes it.
    """

    def __init__(self, wake: Callable[[], object]) -> None:
        self._wake = wake
        self._untold = 0  # bytes appended since

    def after(self, size: int) -> None:
        """Rows were appended."""
        self._untold += size
        if self._untold >= _UNTOLD_BYTES:
            self.now()

    def now(self) -> None:
        """No more will come for a while."""
        self._untold = 0
        self._wake()


class Appender:
    """Appends records, singly or by rows, and opens batches for them: the half of the accumulator that sends use.

    Args:
        batch_size: bytes that a batch shall have at most.
        pool: record memory.
        sealer: knows how well topics compress.
        wake: wakes the I/O thread.
        now: the monotonic clock.
    """

    def __init__(
        self,
        batch_size: int,
        pool: BufferPool,
        sealer: Sealer,
        wake: Callable[[], object],
        now: Callable[[], float],
    ) -> None:
        self.batch_size = batch_size
        self.pool = pool
        self.sealer = sealer
        self._wake = wake
        self._now = now
        # Guards the first choice of a topic's sticky partition, and what the accumulator says.
        self._lock = threading.Lock()

    def try_append(
        self, topic: TopicState, partition: int | None, record: RecordFields, on_delivery: Any
    ) -> Delivery | None:
        """Append to an open batch, letting a compressed one grow; None when a new batch is needed.

        Args:
            partition: the partition, or None: wherever records without key of this topic go now.
        """
        while True:
            outcome = self._append(topic, partition, record, on_delivery, None)
            if not isinstance(outcome, int):
                return outcome
            if outcome != MOVED:
                return None

    def append_now(
        self,
        topic: TopicState,
        partition: int | None,
        record: RecordFields,
        on_delivery: Any,
    ) -> Delivery | None:
        """Append an ordinary record, opening a batch if need be; None, with nothing changed, when that needs more.

        More is waiting for memory or metadata, or memory for a batch larger than usual: see `append_steps`.

        Args:
            record: as an EncodedRecord has it.
        """
        if record[-1] > self.batch_size or not topic.known:
            return None
        try:
            while True:
                queue, sticky = self._queue(topic, partition)
                if not queue.needs_batch():
                    delivery = self.try_append(topic, partition, record, on_delivery)
                    if delivery is not None:
                        return delivery
                    queue, sticky = self._queue(topic, partition)
                buffer = self.pool.try_take(self.batch_size)
                if buffer is None:
                    return None
                outcome = self._append_to(queue, sticky, record, on_delivery, buffer)
                if not isinstance(outcome, int):
                    return outcome
        except (ProducerClosedError, NotAdmitted):
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
            outcome = self._append(topic, partition, record, on_delivery, buffer)
            if not isinstance(outcome, int):
                return outcome

    def _append(
        self,
        topic: TopicState,
        partition: int | None,
        record: RecordFields,
        on_delivery: Any,
        buffer: bytearray | None,
    ) -> Delivery | int:
        try:
            queue, sticky = self._queue(topic, partition)
        except BaseException:
            self._return_unused(buffer, None, None)
            raise
        return self._append_to(queue, sticky, record, on_delivery, buffer)

    def _append_to(
        self,
        queue: PartitionQueue,
        sticky: TopicState | None,
        record: RecordFields,
        on_delivery: Any,
        buffer: bytearray | None,
    ) -> Delivery | int:
        """One append, as `PartitionQueue.append` says; an unused `buffer` goes back to the pool, whatever happens."""
        fresh: Batch | None = None
        spares: list[bytearray] | None = None
        try:
            fresh = None if buffer is None else self._new_batch(queue, buffer)
            timestamp, key, value, headers, _ = record
            outcome = queue.append(timestamp, key, value, headers, on_delivery, sticky, None, fresh)
            if outcome is NEEDS_SEGMENT:
                spare = self.pool.try_take(self.batch_size)
                spares = [] if spare is None else [spare]
                outcome = queue.append(timestamp, key, value, headers, on_delivery, sticky, spares, fresh)
        finally:
            if spares or (buffer is not None and (fresh is None or not fresh.queued_as)):
                self._return_unused(buffer, fresh, spares)
        if fresh is not None and fresh.queued_as:
            if fresh.queued_as <= _NEWS:
                self._wake()
        elif outcome != NO_BATCH and queue.depth() < _NEWS and queue.head()[1]:
            self._wake()  # the batch became full, or was closed because records go elsewhere now
        return outcome

    def _return_unused(
        self, buffer: bytearray | None, fresh: Batch | None, spares: list[bytearray] | None
    ) -> None:
        """Give back what was taken for a batch and is not in it, also when Ctrl-C came before there was a batch."""
        if fresh is not None:
            if fresh.record_count == 0:
                self.pool.give_back(fresh.buffers)
        elif buffer is not None:
            self.pool.give_back((buffer,))
        if spares:
            self.pool.give_back(spares)

    def bulk_wake(self) -> BulkWake:
        """What wakes the I/O thread for the rows of one call."""
        return BulkWake(self._wake)

    def append_rows_now(
        self,
        where: PartitionQueue | TopicState,
        window: Any,
        rows: tuple[int, int],
        accepted: list[Any],
        wake: BulkWake,
    ) -> int:
        """Append rows of a window as far as that needs no waiting; the first that is left.

        The ordinary case of `append_rows_steps`, whose arguments these are. Where it stops, those steps go on: they
        wait, let a compressed batch grow, or say why nothing more is accepted.
        """
        first, last = rows
        buffer: bytearray | None = None
        fresh: Batch | None = None
        try:
            while first < last:
                queue, sticky = self._queue(where, None) if isinstance(where, TopicState) else (where, None)
                fresh = None if buffer is None else self._new_batch(queue, buffer)
                taken, why = queue.append_rows(window, first, last, accepted, sticky, None, fresh)
                if fresh is not None and fresh.queued_as:
                    buffer = fresh = None  # it is the queue's now
                if taken:
                    first += taken
                    wake.after(window.payload)
                if why == NO_BATCH and first < last and buffer is None:
                    if window.size_bound(first) > self.batch_size:
                        break
                    buffer = self.pool.try_take(self.batch_size)
                    if buffer is None:
                        break
                elif why == NEEDS_SEGMENT:
                    break
        except (ProducerClosedError, NotAdmitted):
            pass  # the steps say so
        finally:
            self._return_unused(buffer, fresh, None)
        return first

    def append_rows_steps(
        self,
        where: PartitionQueue | TopicState,
        window: Any,
        rows: tuple[int, int],
        accepted: list[Any],
        wake: BulkWake,
        admitted: Callable[[], None] = _always,
    ) -> Generator[Ticket[Any] | str, Any, None]:
        """Append rows of a window, opening batches where needed; yields as `append_steps` does, and PROGRESS.

        Args:
            where: the queue of their partition, or a topic: wherever records without key of it go now.
            rows: the first, and the one behind the last.
            accepted: gets what was appended; see `PartitionQueue.append_rows`.
            wake: told what was appended. To tell it of the end is up to the caller, who may have more.
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
                wake.after(window.payload)
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
        fresh: Batch | None = None
        spares: list[bytearray] | None = None
        try:
            queue, sticky = self._queue(where, None) if isinstance(where, TopicState) else (where, None)
            fresh = None if buffer is None else self._new_batch(queue, buffer)
            taken, why = queue.append_rows(window, *rows, accepted, sticky, None, fresh)
            if taken == 0 and why == NEEDS_SEGMENT:
                spare = self.pool.try_take(self.batch_size)
                spares = [] if spare is None else [spare]
                taken, why = queue.append_rows(window, *rows, accepted, sticky, spares, fresh)
        finally:
            self._return_unused(buffer, fresh, spares)
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
