# SPDX-License-Identifier: Apache-2.0
"""The fields of a batch, and what is asked of every one, without the interpreter. Compiled if possible.

Only the ordinary is here. `batch.Batch` has the states and outcomes of a batch.

A batch belongs to the thread that makes it until it is queued, then to the lock of its queue, then to the I/O thread.
"""

from __future__ import annotations

from typing import Any

from penstock.errors import IllegalStateError
from penstock.producer.batch.batch_states import TRANSITIONS, BatchState
from penstock.producer.batch.delivery import BatchResult
from penstock._identity import ProducerIdentity
from penstock.producer.batch.identity import ANONYMOUS, BatchIdentity

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

if cython.compiled:
    from cython.cimports.penstock.producer.batch._queue_cy import PartitionQueue
    from cython.cimports.penstock.records._batch_cy import BatchWriter
else:
    from penstock.producer.batch._queue_cy import PartitionQueue
    from penstock.records._batch_cy import BatchWriter

# C variables when compiled.
_NONE = cython.declare(cython.int, -1)
_MASK = cython.declare(cython.longlong, 0x7FFFFFFF)
_HALF = cython.declare(cython.longlong, 1 << 30)
_QUEUED = BatchState.QUEUED


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


def is_later(sequence: cython.int, than: cython.int) -> cython.bint:
    """Whether a number comes after another one in the circle of sequence numbers."""
    if than == _NONE:
        return True
    ahead: cython.longlong = (cython.cast(cython.longlong, sequence) - than) & _MASK
    return 0 < ahead < _HALF


@cython.cclass
class BatchFields:
    """The fields of a batch, and what is asked of every one.

    Args:
        queue: where it waits.
        writer: its records.
        created: when, in monotonic seconds; the delivery time-out counts from here.
        buffers: its memory, from the pool; empty for a piece of a split batch, which lives outside the pool.
    """

    def __init__(
        self,
        queue: PartitionQueue,
        writer: BatchWriter,
        created: cython.double,
        buffers: list,  # type: ignore[type-arg]
    ) -> None:
        self.queue = queue
        self.writer = writer
        self.created = created
        self.buffers = buffers
        self.queued_as = 0  # the how-manieth of its queue it was, when it was opened there
        self.counted = 0  # bytes charged to the pool beyond `buffers`
        self.result = BatchResult(queue.topic, queue.partition, queue.active)
        self.state: BatchState = _QUEUED
        self.attempts = 0  # times it was queued again after a request
        self.retry_at = 0.0  # not before this moment, unless the leader has changed
        self.leader_epoch = -1  # of the partition when it was last drained
        self.drained_at = created
        self.request_pending = False  # a request holds its bytes
        self._identity: BatchIdentity = ANONYMOUS
        self.base_sequence = _NONE  # as in its identity
        self._numbered_for: Any = None  # the producer's identity that its own was made of; None: it was set
        self.numbered_as = 0  # the how-manieth of its partition it was, when it was numbered
        self.stamped: BatchIdentity = ANONYMOUS  # what the header of `wire` says
        self.renumbered = False  # its numbers changed since it was sent last
        self.last_error: Any = None  # why it was queued again, the last time
        self.in_doubt = False  # a request for it ended without word of whether it was written
        self.is_piece = False  # made by a split
        self.wire: memoryview | None = None  # the sealed bytes

    @property
    def identity(self) -> BatchIdentity:
        """What its header is to say."""
        return self._identity

    @identity.setter
    def identity(self, identity: BatchIdentity) -> None:
        self._take_identity(identity)

    def _take_identity(self, identity: Any) -> None:
        self._identity = identity
        self._numbered_for = None
        self.base_sequence = identity[2]

    def take_numbers(
        self,
        producer: ProducerIdentity,
        base_sequence: cython.int,
        numbered_as: cython.Py_ssize_t,
        transactional: cython.bint,
    ) -> None:
        """Take the numbers that it is given at its first drain.

        Args:
            producer: who the producer is.
            base_sequence: the number of its first record.
            numbered_as: how many batches of its partition were numbered before it.
            transactional: whether it belongs to a transaction.
        """
        fields = (producer[0], producer[1], base_sequence, bool(transactional))
        self._identity = tuple.__new__(BatchIdentity, fields)  # without its constructor, which is Python
        self._numbered_for = producer
        self.base_sequence = base_sequence
        self.numbered_as = numbered_as

    def is_numbered_for(self, producer: ProducerIdentity) -> cython.bint:
        """Whether it has its numbers under that identity of the producer."""
        return self._numbered_for is producer or bool(producer == self._identity[:2])

    def move_to(self, state: BatchState) -> None:
        """Change the state.

        Raises:
            IllegalStateError: the table does not allow it.
        """
        if state not in TRANSITIONS[self.state]:
            raise IllegalStateError(
                f"a batch of {self.queue.place} that {_has(self.state)} cannot become {state.value}"
            )
        self.state = state

    def wire_size(self) -> cython.Py_ssize_t:
        """Bytes on the wire: known once sealed, estimated before."""
        if self.wire is None:
            return self.writer.estimated_size()
        return len(self.wire)

    def backing_off(self, now: cython.double, leader_epoch: cython.int) -> cython.bint:
        """Whether it must wait before it is tried again; a new leader is worth trying at once."""
        if self.attempts == 0 or now >= self.retry_at:
            return False
        return leader_epoch <= self.leader_epoch


def _has(state: BatchState) -> str:
    return {BatchState.QUEUED: "is queued", BatchState.IN_FLIGHT: "is in flight"}.get(
        state, f"has {state.value}"
    )
