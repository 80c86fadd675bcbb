# SPDX-License-Identifier: Apache-2.0
"""Appends records and rows to batches, and gets the chunks of their memory, with waits as steps. Compiled if possible.

Application threads call it once for every chunk, or when the fast path of send() does not apply.

Rules:
1. Memory is requested outside the partition lock. Then the append is tried again under the lock, before the chunk is
   used: another thread may have opened a batch meanwhile, or let it grow (the double-checked append).
2. A chunk that was taken ends in a queued batch or goes back to the pool, also after an error.
3. Memory follows the data: a batch begins in a small chunk and grows by half of what it holds, so that most of the
   memory in use holds data. It gets more at once for rows that are at hand. While half of the pool is free it doubles,
   and begins with as much as its queue's last batch had. Where few queues have batches, the second chunk is a whole
   batch.size, and it is the first if the last batch was not small.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock._ticket import Ticket, TicketKind
from penstock.errors import BufferExhaustedError, ProducerClosedError
from penstock.producer.batch._queue_cy import NotAdmitted, TopicForgotten
from penstock.producer.steps import Checkpoint, Steps, TimeIsUp
from penstock.types import Header

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

# In this order, so that type checkers see the classes: to them the second branch is of an unknown type.
if not cython.compiled:
    from penstock._locks import inside
    from penstock.producer.batch._delivery_cy import Delivery
    from penstock.producer.batch._batch_cy import Batch
    from penstock.producer.batch._partitioner_cy import TopicState
    from penstock.producer.batch._queue_cy import GROW, MOVED, NO_BATCH, Admission, PartitionQueue
    from penstock.records._batch_cy import NEEDS_SEGMENT, BatchWriter
    from penstock.records.format import HEADER_SIZE
else:
    from cython.cimports.penstock._short_lock_cy import holds_any as inside  # type: ignore[no-redef]
    from cython.cimports.penstock.producer.batch._delivery_cy import Delivery  # type: ignore[no-redef]
    from cython.cimports.penstock.producer.batch._batch_cy import Batch  # type: ignore[no-redef]
    from cython.cimports.penstock.producer.batch._partitioner_cy import TopicState  # type: ignore[no-redef]
    from cython.cimports.penstock.producer.batch._queue_cy import (  # type: ignore[no-redef]
        GROW,
        MOVED,
        NO_BATCH,
        Admission,
        PartitionQueue,
    )
    from cython.cimports.penstock.records._batch_cy import (  # type: ignore[no-redef]
        NEEDS_SEGMENT,
        BatchWriter,
    )
    from cython.cimports.penstock.records._layout_cy import HEADER_SIZE  # type: ignore[no-redef]

if TYPE_CHECKING:
    from penstock.producer.batch._buffer_pool_cy import BufferPool
    from penstock.producer.batch._sealing_cy import Sealer

# The I/O thread is woken for the first and the second batch of a queue: with the first it must check the queue, and the
# second one makes the first ready. With two batches in the queue, the I/O thread knows of it, and no other wake-up is
# needed. So it is for single records. For rows it is woken after some bytes (BulkWake), and when a call waits or ends.
_NEWS = cython.declare(cython.Py_ssize_t, 2)

# Few queues have batches: a batch.size for each takes one so-many-th of the pool at most. With five batches of each in
# flight and one open, less than half of the pool is held without need, even if all of them are nearly empty.
_PART_OF_FEW = cython.declare(cython.Py_ssize_t, 16)

# In place of one of the reasons of _queue_cy: the append has succeeded.
_ACCEPTED = cython.declare(cython.Py_ssize_t, -1)

# Bytes of rows after which the I/O thread is woken: about the default size of a request. If it were woken for each
# batch, it would send requests with one batch, and take a turn for each. A request can take a batch of each partition.
_UNTOLD_BYTES = 1024 * 1024


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


class EncodedRecord(NamedTuple):
    """A record as bytes, and the most bytes that it can need in a batch of its own."""

    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] | None
    size_bound: int


# The tuple that an EncodedRecord is.
RecordFields = tuple[int, bytes | None, bytes | None, Any, int]


class BulkWake:
    """Wakes the I/O thread for the rows of one call: now and then, and when the call waits or ends.

    Args:
        wake: wakes it.
    """

    def __init__(self, wake: Callable[[], object]) -> None:
        self._wake = wake
        self._untold = 0  # bytes appended since the last wake-up

    def after(self, size: int) -> None:
        """Rows were appended."""
        self._untold += size
        if self._untold >= _UNTOLD_BYTES:
            self.now()

    def now(self) -> None:
        """Wake the I/O thread now: no more rows will come for a while."""
        self._untold = 0
        self._wake()


def _always() -> None:
    """Do nothing: records are always accepted. In place of a check of the gate."""


@cython.final
@cython.cclass
class Appender:
    """Appends records, singly or by rows, and opens batches for them. The accumulator owns it.

    Args:
        batch_size: bytes that a batch shall have at most.
        pool: record memory.
        sealer: knows how well topics compress.
        admission: whether the transaction accepts records.
        lock: the accumulator's.
        wake: wakes the I/O thread.
        now: the monotonic clock.
    """

    batch_size = cython.declare(cython.Py_ssize_t, visibility="readonly")
    pool = cython.declare(object, visibility="readonly")
    _total: cython.Py_ssize_t
    _whole: cython.Py_ssize_t
    _smallest: cython.Py_ssize_t
    _sealer = cython.declare(object)
    _admission: Admission
    _lock = cython.declare(object)  # the accumulator's; here it guards the first choice of a sticky partition
    _wake = cython.declare(object)
    _now = cython.declare(object)

    def __init__(
        self,
        batch_size: cython.Py_ssize_t,
        pool: BufferPool,
        sealer: Sealer,
        admission: Admission,
        lock: Any,
        wake: Callable[[], object],
        now: Callable[[], float],
    ) -> None:
        self.batch_size = batch_size
        self.pool = pool
        # Of the pool, at hand.
        self._total = pool.total
        self._whole = min(pool.buffer_size, pool.total)
        self._smallest = min(pool.smallest, pool.total)
        self._sealer = sealer
        self._admission = admission
        self._lock = lock
        self._wake = wake
        self._now = now

    # ------------------------------------------------------------------------------------ single records

    def append_now(
        self,
        topic: TopicState,
        partition: int | None,
        record: RecordFields,
        on_delivery: Any,
    ) -> Delivery | None:
        """Append an ordinary record, and open a batch if needed. If that is not enough, return None and change nothing.

        It is not enough if the call must wait for memory or metadata, or needs a larger batch than usual: see
        `append_steps`. Nor is it if the call interrupts another one that holds a lock: see `DeferredSends`.

        Args:
            record: as an EncodedRecord has it.
        """
        queue: PartitionQueue
        batch: Batch | None
        sticky: TopicState | None = topic if partition is None else None
        size: cython.Py_ssize_t = record[4]
        if size > self.batch_size or not topic.known or inside():
            return None
        try:
            while True:
                queue = self._queue(topic, partition)
                batch = queue.open_batch()
                if batch is not None and batch.appended != NEEDS_SEGMENT:
                    outcome = self._append_to(queue, sticky, record, on_delivery, None)
                    if not isinstance(outcome, int):
                        return outcome
                    if outcome == MOVED:
                        continue
                buffer = self.pool.try_take(self._chunk_size(queue, size, 0))
                if buffer is None:
                    return None
                outcome = self._append_to(queue, sticky, record, on_delivery, buffer)
                if not isinstance(outcome, int):
                    return outcome
        except (ProducerClosedError, NotAdmitted, TopicForgotten):
            return None  # the general path raises the error

    def try_append(
        self, topic: TopicState, partition: int | None, record: RecordFields, on_delivery: Any
    ) -> Delivery | None:
        """Append to an open batch, which may grow without a wait. None if a new batch is needed, or a wait.

        Args:
        partition: the partition, or None: the present sticky partition of the topic.
        """
        buffer: Any = None
        while True:
            outcome = self._append(topic, partition, record, on_delivery, buffer)
            if not isinstance(outcome, int):
                return outcome
            if outcome == GROW:
                buffer = self.pool.try_take(self._chunk_size(self._queue(topic, partition), record[4], 0))
                if buffer is None:
                    return None
            elif outcome != MOVED:
                return None

    def append_steps(
        self,
        topic: TopicState,
        partition: int | None,
        record: EncodedRecord,
        on_delivery: Any,
        admitted: Callable[[], None] = _always,
    ) -> Steps[Delivery]:
        """Append, taking memory where needed. Yields Tickets for memory, and Checkpoints.

        Args:
            admitted: raises when records are not accepted any more. It is called after each wait, since the transaction
                may have ended meanwhile.

        Raises:
            BufferExhaustedError: TimeIsUp was thrown in while it waited for memory.
            ProducerClosedError: the producer was closed.
            TopicForgotten: `topic` is not used any more: ask for it again.
        """
        while True:
            admitted()
            try:
                delivery = self.try_append(topic, partition, record, on_delivery)
                if delivery is not None:
                    return delivery
                size = self._chunk_size(self._queue(topic, partition), record.size_bound, 0)
                buffer = yield from self._memory_steps(size, admitted)
                outcome = self._append(topic, partition, record, on_delivery, buffer)
            except NotAdmitted as error:
                self._ask_why(admitted, error)
                continue
            if not isinstance(outcome, int):
                return outcome

    @cython.ccall
    def _append(
        self,
        topic: TopicState,
        partition: Any,
        record: Any,
        on_delivery: Any,
        buffer: Any,
    ) -> Any:
        try:
            queue = self._queue(topic, partition)
        except BaseException:
            self._return_unused([] if buffer is None else [buffer], None)
            raise
        return self._append_to(queue, topic if partition is None else None, record, on_delivery, buffer)

    @cython.cfunc
    def _append_to(
        self,
        queue: PartitionQueue,
        sticky: TopicState | None,
        record: Any,
        on_delivery: Any,
        buffer: Any,
    ) -> Any:
        """Append as `PartitionQueue.append` says. An unused `buffer` goes back to the pool, also on an error.

        With a `buffer` the record is accepted: the open batch has room or grows by it, or a new batch begins in it.
        """
        why: cython.Py_ssize_t
        fresh: Batch | None = None
        held: list = [] if buffer is None else [buffer]
        try:
            while True:
                fresh = None
                if held and queue.open_batch() is None:
                    fresh = self._new_batch(queue, held[0])
                    held = fresh.buffers
                timestamp, key, value, headers, _ = record
                outcome = queue.append(timestamp, key, value, headers, on_delivery, sticky, held, fresh)
                why = outcome if isinstance(outcome, int) else _ACCEPTED
                if why == _ACCEPTED or not held:
                    break
                if why == MOVED:
                    # Records without key go to another partition now. The call has waited for memory, and keeps it.
                    if queue.depth() < _NEWS and queue.head()[1]:
                        self._wake()
                    queue = self._queue(sticky, None)
        finally:
            if held and (fresh is None or not fresh.queued_as):
                self._return_unused(held, fresh)
        if fresh is not None and fresh.queued_as:
            if fresh.queued_as <= _NEWS:
                self._wake()
        elif why == _ACCEPTED or why == MOVED:
            # Perhaps the batch became full, or was closed because the sticky partition has changed.
            batch: Batch | None = queue.open_batch()
            if (batch is None or batch.writer.is_full()) and queue.depth() < _NEWS and queue.head()[1]:
                self._wake()
        return outcome

    # ---------------------------------------------------------------------------------------------- rows

    def append_rows_now(
        self,
        where: PartitionQueue | TopicState,
        window: Any,
        rows: tuple[int, int],
        accepted: list[Any],
        wake: BulkWake,
    ) -> int:
        """Append rows of a window as far as that needs no waiting. Returns the first row that is left.

        The ordinary case of `append_rows_steps`, with the same arguments. Those steps append the remaining rows: they
        wait, or raise why no more is accepted.
        """
        first, last = rows
        bound: cython.Py_ssize_t
        left: cython.Py_ssize_t
        queue: PartitionQueue
        fresh: Batch | None = None
        held: list = []
        try:
            while first < last:
                queue, sticky = self._place(where)
                fresh = None
                if held and queue.open_batch() is None:
                    fresh = self._new_batch(queue, held[0])
                    held = fresh.buffers
                taken, why = queue.append_rows(window, first, last, accepted, sticky, held, fresh)
                if fresh is not None and fresh.queued_as:
                    held = []  # it belongs to the queue now
                if taken:
                    first += taken
                    wake.after(window.payload)
                    if held:  # the rows went into a batch of another thread; the next row may be larger
                        break
                if first < last and not held and (why == NO_BATCH or why == GROW):
                    bound = window.size_bound(first)
                    if bound > self.batch_size:
                        break
                    left = last - first
                    buffer = self.pool.try_take(self._chunk_size(queue, bound, left * (bound - HEADER_SIZE)))
                    if buffer is None:
                        break
                    held = [buffer]
        except (ProducerClosedError, NotAdmitted, TopicForgotten):
            pass  # the steps raise it
        finally:
            self._return_unused(held, fresh)
        return first

    def append_rows_steps(
        self,
        where: PartitionQueue | TopicState,
        window: Any,
        rows: tuple[int, int],
        accepted: list[Any],
        wake: BulkWake,
        admitted: Callable[[], None] = _always,
    ) -> Steps[None]:
        """Append rows of a window, taking memory where needed; yields as `append_steps` does, and PROGRESS.

        Args:
            where: the queue of their partition, or a topic, whose sticky partition they go to.
            rows: the first, and the one behind the last.
            accepted: gets what was appended; see `PartitionQueue.append_rows`.
            wake: told what was appended. The caller calls its `now` at the end, since it may have more rows.
        """
        first, last = rows
        needs_memory = False
        while first < last:
            admitted()
            buffer = None
            if needs_memory:
                queue, _ = self._place(where)
                bound = window.size_bound(first)
                size = self._chunk_size(queue, bound, (last - first) * (bound - HEADER_SIZE))
                buffer = yield from self._memory_steps(size, admitted)
            try:
                taken, why = self._append_rows(where, window, (first, last), accepted, buffer)
            except NotAdmitted as error:
                self._ask_why(admitted, error)
                continue
            needs_memory = why in (NO_BATCH, GROW)
            if taken:
                first += taken
                wake.after(window.payload)
                yield Checkpoint.PROGRESS

    @cython.cfunc
    def _append_rows(
        self,
        where: Any,
        window: Any,
        rows: tuple,
        accepted: list,
        buffer: Any,
    ) -> tuple:
        """Append what one chunk takes. An unused `buffer` goes back to the pool, also after an error."""
        queue: PartitionQueue
        fresh: Batch | None = None
        held: list = [] if buffer is None else [buffer]
        try:
            while True:
                queue, sticky = self._place(where)
                fresh = None
                if held and queue.open_batch() is None:
                    fresh = self._new_batch(queue, held[0])
                    held = fresh.buffers
                taken, why = queue.append_rows(window, rows[0], rows[1], accepted, sticky, held, fresh)
                if taken or not held:
                    break
        finally:
            self._return_unused(held, fresh)
        return taken, why

    # -------------------------------------------------------------------------------------- what both need

    @cython.cfunc
    def _chunk_size(
        self, queue: PartitionQueue, needed: cython.Py_ssize_t, at_hand: cython.Py_ssize_t
    ) -> cython.Py_ssize_t:
        """How much memory to take for the batch of a queue. See the third rule.

        Args:
            queue: what it tells may change meanwhile: it is a hint.
            needed: bytes that the next record needs at most.
            at_hand: bytes of the records that will follow for certain.
        """
        batch: Batch | None = queue.open_batch()
        whole: cython.Py_ssize_t = self._whole
        size: cython.Py_ssize_t = self._smallest
        wanted: cython.Py_ssize_t = at_hand
        written: cython.Py_ssize_t = 0
        few: cython.bint = (len(queue.active) + 1) * whole <= self._total // _PART_OF_FEW
        if few:
            if batch is not None or queue.expected > size:
                wanted = whole
        else:
            plenty: cython.bint = self.pool.available() > self._total // 2
            if batch is not None:
                written = batch.writer.raw_size
                wanted = max(wanted, batch.writer.held if plenty else batch.writer.held // 2)
            if plenty:
                wanted = max(wanted, queue.expected - written)
            if batch is not None and batch.writer.ratio == 1.0:
                wanted = min(wanted, batch.writer.limit - written)
        if wanted >= whole:
            size = whole
        while 2 * size <= wanted and size < whole:
            size *= 2
        return max(size, needed)

    def _memory_steps(self, size: int, admitted: Callable[[], None]) -> Steps[bytearray]:
        """Wait for memory of this size. An interrupt does not lose the memory."""
        yield Checkpoint.MEMORY
        buffer = yield from self._wait_for_memory(size)
        try:
            yield Checkpoint.SECOND_LOOK
            admitted()
        except BaseException:
            self.pool.give_back((buffer,))
            raise
        return buffer

    def _wait_for_memory(self, size: int) -> Steps[bytearray]:
        ticket: Ticket[bytearray] = Ticket(f"{size} bytes of buffer.memory", TicketKind.MEMORY)
        try:
            self.pool.take_for(ticket, size)
            if ticket.done:
                return ticket.result
            self._wake()  # memory pressure makes every batch ready: let the I/O thread see it
            return (yield ticket)
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

    @cython.cfunc
    def _return_unused(self, held: list, fresh: Batch | None) -> Any:  # type: ignore[type-arg]
        """Give back memory that was taken for a batch and is not in one; also if Ctrl-C came before the batch."""
        if held and (fresh is None or fresh.writer.count == 0):
            self.pool.give_back(held)

    def _ask_why(self, admitted: Callable[[], None], error: NotAdmitted) -> None:
        """A queue refused a record: `admitted` raises the reason. Return if the reason is gone meanwhile."""
        admitted()
        if not self._admission.open:
            raise error  # `admitted` knows no reason

    @cython.ccall
    def _queue(self, topic: TopicState, partition: Any) -> PartitionQueue:
        """The queue of a partition; without a partition, that of the sticky partition."""
        queues: list = topic.queues
        if partition is not None:
            return queues[partition]
        chosen: cython.Py_ssize_t = topic.sticky_partition
        while not 0 <= chosen < len(queues):
            with self._lock:  # the first choice; later ones are made under the lock of the partition left
                if topic.sticky_partition == chosen:
                    topic.switch()
            queues = topic.queues
            chosen = topic.sticky_partition
        return queues[chosen]

    @cython.cfunc
    def _place(self, where: Any) -> tuple:
        """The queue of rows, and their topic if the queue is that of its sticky partition."""
        if isinstance(where, TopicState):
            return self._queue(where, None), where
        return where, None

    @cython.cfunc
    def _new_batch(self, queue: PartitionQueue, buffer: Any) -> Any:
        # A first record larger than batch.size is accepted, and the batch is full with it.
        writer: BatchWriter = BatchWriter(buffer, self.batch_size, self._sealer.expected_ratio(queue.topic))
        # The batch's memory is the very list to which the writer adds the segments by which it grows.
        return Batch(queue, writer, self._now(), writer.segments)
