# SPDX-License-Identifier: Apache-2.0
"""Opening batches: memory becomes a batch with its first record, or goes back. Compiled if possible.

Once for every batch, on the thread that sends. `appending` has what waits, what grows, and rows; and the rules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock._locks import inside, new_lock
from penstock.errors import ProducerClosedError
from penstock.producer.batch._queue_cy import NotAdmitted, TopicForgotten

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

if cython.compiled:
    from cython.cimports.penstock.producer.batch._delivery_cy import Delivery
    from cython.cimports.penstock.producer.batch._batch_cy import Batch
    from cython.cimports.penstock.producer.batch._queue_cy import PartitionQueue, TopicState
    from cython.cimports.penstock.records._batch_cy import BatchWriter
else:
    from penstock.producer.batch._delivery_cy import Delivery
    from penstock.producer.batch._batch_cy import Batch
    from penstock.producer.batch._queue_cy import PartitionQueue, TopicState
    from penstock.records._batch_cy import BatchWriter

if TYPE_CHECKING:
    from penstock.producer.batch.buffer_pool import BufferPool
    from penstock.producer.batch._sealing_cy import Sealer

# A batch that is queued as the first one lets a queue be looked at, and as the second one makes the first ready. With
# two before it, the I/O thread has been woken for this queue, and whatever it waits for since tells it by itself. So it
# is for single records; for rows it is woken by bytes (BulkWake), and by ColumnSender whenever a call waits or ends.
_NEWS = cython.declare(cython.Py_ssize_t, 2)

# As in _queue_cy.
_NO_BATCH = cython.declare(cython.Py_ssize_t, 0)
_NEEDS_SEGMENT = cython.declare(cython.Py_ssize_t, 1)
_MOVED = cython.declare(cython.Py_ssize_t, 2)
_ACCEPTED = cython.declare(cython.Py_ssize_t, -1)

# What an EncodedRecord has, which is one of these.
RecordFields = tuple[int, bytes | None, bytes | None, Any, int]


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


@cython.cclass
class BatchOpener:
    """Appends single records, and opens batches for them.

    Args:
        batch_size: bytes that a batch shall have at most.
        pool: record memory.
        sealer: knows how well topics compress.
        wake: wakes the I/O thread.
        now: the monotonic clock.
    """

    def __init__(
        self,
        batch_size: cython.Py_ssize_t,
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
        self._lock: Any = new_lock()

    def append_now(
        self,
        topic: TopicState,
        partition: int | None,
        record: RecordFields,
        on_delivery: Any,
    ) -> Delivery | None:
        """Append an ordinary record, opening a batch if need be; None, with nothing changed, when that needs more.

        More is waiting for memory or metadata, or memory for a batch larger than usual: see `append_steps`. Also where
        this call interrupts another one, which holds a lock: see `DeferredSends`.

        Args:
            record: as an EncodedRecord has it.
        """
        queue: PartitionQueue
        size: cython.Py_ssize_t = record[4]
        if size > self.batch_size or not topic.known or inside():
            return None
        try:
            while True:
                queue = self._queue(topic, partition)
                if not queue.needs_batch():
                    delivery = self.try_append(topic, partition, record, on_delivery)
                    if delivery is not None:
                        return delivery
                    queue = self._queue(topic, partition)
                buffer = self.pool.try_take(self.batch_size)
                if buffer is None:
                    return None
                outcome = self._append_to(
                    queue, topic if partition is None else None, record, on_delivery, buffer
                )
                if not isinstance(outcome, int):
                    return outcome
        except (ProducerClosedError, NotAdmitted, TopicForgotten):
            return None  # the general path says so

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
            if outcome != _MOVED:
                return None

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
            self._return_unused(buffer, None, None)
            raise
        return self._append_to(queue, topic if partition is None else None, record, on_delivery, buffer)

    def _append_to(
        self,
        queue: PartitionQueue,
        sticky: TopicState | None,
        record: Any,
        on_delivery: Any,
        buffer: Any,
    ) -> Any:
        """One append, as `PartitionQueue.append` says; an unused `buffer` goes back to the pool, whatever happens."""
        why: cython.Py_ssize_t
        fresh: Batch | None = None
        spares: list | None = None  # type: ignore[type-arg]
        try:
            fresh = None if buffer is None else self._new_batch(queue, buffer)
            timestamp, key, value, headers, _ = record
            outcome = queue.append(timestamp, key, value, headers, on_delivery, sticky, None, fresh)
            why = outcome if isinstance(outcome, int) else _ACCEPTED
            if why == _NEEDS_SEGMENT:
                spare = self.pool.try_take(self.batch_size)
                spares = [] if spare is None else [spare]
                outcome = queue.append(timestamp, key, value, headers, on_delivery, sticky, spares, fresh)
                why = outcome if isinstance(outcome, int) else _ACCEPTED
        finally:
            if spares or (buffer is not None and (fresh is None or not fresh.queued_as)):
                self._return_unused(buffer, fresh, spares)
        if fresh is not None and fresh.queued_as:
            if fresh.queued_as <= _NEWS:
                self._wake()
        elif why != _NO_BATCH and queue.depth() < _NEWS and queue.head()[1]:
            self._wake()  # the batch became full, or was closed because records go elsewhere now
        return outcome

    def _return_unused(self, buffer: Any, fresh: Any, spares: Any) -> None:
        """Give back what was taken for a batch and is not in it, also when Ctrl-C came before there was a batch."""
        if fresh is not None:
            if fresh.record_count == 0:
                self.pool.give_back(fresh.buffers)
        elif buffer is not None:
            self.pool.give_back((buffer,))
        if spares:
            self.pool.give_back(spares)

    def _queue(self, topic: TopicState, partition: Any) -> PartitionQueue:
        """The queue of a partition; without one, of wherever records without key go now."""
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

    def _new_batch(self, queue: PartitionQueue, buffer: Any) -> Any:
        # A first record larger than batch.size is accepted all the same, and the batch is full with it.
        writer: BatchWriter = BatchWriter(buffer, self.batch_size, self.sealer.expected_ratio(queue.topic))
        # The batch's memory is the very list to which the writer adds the segments it grows by.
        return Batch(queue, writer, self._now(), writer.segments)
