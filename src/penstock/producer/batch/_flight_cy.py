# SPDX-License-Identifier: Apache-2.0
"""What every batch goes through on its way, without the interpreter: its fields, and its numbers. Compiled if possible.

Only the ordinary is here. `batch.Batch` has the states and outcomes of a batch, `sequences.SequenceBook` what becomes
of numbers when something goes wrong, by the rules that are written there.

A batch belongs to the thread that makes it until it is queued, then to the lock of its queue, then to the I/O thread;
the numbers belong to the I/O thread.
"""

from __future__ import annotations

from typing import Any

from penstock.errors import IllegalStateError
from penstock.producer.batch.batch_states import TRANSITIONS, BatchState
from penstock.producer.batch._delivery_cy import BatchResult
from penstock._identity import NO_IDENTITY, ProducerIdentity
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
# Of each producer a broker remembers so many batches of a partition.
_REMEMBERED = cython.declare(cython.Py_ssize_t, 5)
_QUEUED = BatchState.QUEUED


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


def next_sequence(base_sequence: cython.int, count: cython.Py_ssize_t) -> cython.int:
    """The number behind so many records that start with another one; after 2147483647 comes 0."""
    if base_sequence == _NONE:
        return _NONE
    if cython.compiled:
        return cython.cast(cython.int, (cython.cast(cython.longlong, base_sequence) + count) & _MASK)
    return (base_sequence + count) & _MASK


def last_sequence_of(batch: BatchFields) -> cython.int:
    """The sequence number of a batch's last record."""
    return next_sequence(batch.base_sequence, batch.writer.count - 1)


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


@cython.cclass
class PartitionNumbers:
    """The numbering of one partition."""

    def __init__(self) -> None:
        self.identity: ProducerIdentity = NO_IDENTITY
        self.next = 0
        self.numbered = 0  # batches, so far
        self.last_acked_sequence = _NONE
        self.last_acked_offset = _NONE
        self.in_flight: list[Any] = []  # batches

    def is_next(self, sequence: cython.int) -> bool:
        """Whether a sequence number follows directly on what was acknowledged."""
        expected = 0 if self.last_acked_sequence == _NONE else next_sequence(self.last_acked_sequence, 1)
        return sequence == expected

    def restart(self, identity: ProducerIdentity, transactional: bool) -> None:
        """Number the batches in flight from 0 again, under another identity or the same one."""
        self.identity = identity
        self.last_acked_sequence = _NONE
        self.next = 0
        for batch in self.in_flight:
            batch.identity = BatchIdentity(identity.producer_id, identity.epoch, self.next, transactional)
            batch.renumbered = True
            self.next = next_sequence(self.next, batch.record_count)


@cython.cclass
class NumberedBook:
    """The numbering of all partitions of one producer, as far as every batch needs it."""

    def __init__(self) -> None:
        self._partitions: dict[PartitionQueue, PartitionNumbers] = {}
        # Of partitions whose queue was forgotten, by place: a broker expects them to go on where they were.
        self.away: dict[Any, PartitionNumbers] = {}
        # Partitions where an expired batch may or may not have been written, with the sequence number behind it.
        self.unresolved: dict[PartitionQueue, int] = {}
        # Partitions to be numbered anew, with the first number that is known to be missing at the broker.
        self.broken: dict[PartitionQueue, int] = {}

    def of(self, queue: PartitionQueue) -> PartitionNumbers:
        """The numbering of a partition."""
        numbers = self._partitions.get(queue)
        if numbers is None:
            numbers = self.away.pop(queue.place, None) if self.away else None
            if numbers is None:
                numbers = PartitionNumbers()
            self._partitions[queue] = numbers
        return numbers

    def may_number(self, queue: PartitionQueue, identity: Any) -> cython.bint:
        """Whether a new batch of the partition may be numbered now, with the producer's identity."""
        if self.unresolved and queue in self.unresolved:
            return False
        numbers: PartitionNumbers = self.of(queue)
        if not numbers.in_flight:
            return True
        oldest: BatchFields = numbers.in_flight[0]
        if numbers.numbered - oldest.numbered_as >= _REMEMBERED:
            return False  # behind one more the broker would not know it any more, if it has to be sent again
        return numbers.last_acked_sequence != _NONE and bool(numbers.identity == identity)

    def may_resend(self, queue: PartitionQueue, batch: BatchFields) -> cython.bint:
        """Whether a batch that has its number may go now: retries go one at a time, the oldest first."""
        in_flight = self.of(queue).in_flight
        return not in_flight or in_flight[0] is batch

    def number(self, batch: BatchFields, identity: Any, transactional: cython.bint) -> None:
        """Give a batch its numbers, at its first drain."""
        numbers: PartitionNumbers = self.of(batch.queue)
        if numbers.identity is not identity and numbers.identity != identity:
            numbers.restart(identity, bool(transactional))
        fields = (identity[0], identity[1], numbers.next, bool(transactional))
        batch._identity = tuple.__new__(BatchIdentity, fields)  # without its constructor, which is Python
        batch._numbered_for = identity
        batch.base_sequence = numbers.next
        batch.numbered_as = numbers.numbered
        numbers.next = next_sequence(numbers.next, batch.writer.count)
        numbers.numbered += 1
        numbers.in_flight.append(batch)

    def acknowledge(self, batch: BatchFields, base_offset: cython.longlong) -> None:
        """A batch was written, also when that became known too late for its caller."""
        numbers: PartitionNumbers = self.of(batch.queue)
        in_flight: list = numbers.in_flight
        if in_flight and in_flight[0] is batch:
            del in_flight[0]  # nearly always: answers come in the order of requests
        elif batch in in_flight:
            in_flight.remove(batch)
        if batch._numbered_for is not numbers.identity and numbers.identity != batch._identity[:2]:
            return
        sequence: cython.int = last_sequence_of(batch)
        if is_later(sequence, numbers.last_acked_sequence):
            numbers.last_acked_sequence = sequence
        last_offset: cython.longlong = base_offset + batch.writer.count - 1
        if base_offset >= 0 and last_offset > numbers.last_acked_offset:
            numbers.last_acked_offset = last_offset


@cython.cclass
class NumberedLeave:
    """Lets batches leave with a number, in order.

    Args:
        retries: how often a batch may be queued again.
        transactional: whether batches belong to transactions.
        book: the numbers.
    """

    def __init__(self, retries: cython.Py_ssize_t, transactional: cython.bint, book: NumberedBook) -> None:
        self.retries = retries
        self.transactional = transactional
        self.book = book
        self._identity: ProducerIdentity = NO_IDENTITY
        self._valid = False

    @property
    def identity(self) -> ProducerIdentity:
        """Who the producer is."""
        return self._identity

    @identity.setter
    def identity(self, identity: ProducerIdentity) -> None:
        self._identity = identity
        self._valid = identity.valid

    def may_drain(self, queue: PartitionQueue, batch: BatchFields) -> bool:
        """Whether a batch can have its number now, or has it and is the oldest of its partition in flight."""
        return self._may_drain(queue, batch)

    def _may_drain(self, queue: PartitionQueue, batch: BatchFields) -> cython.bint:
        if not self._valid:
            return False
        if batch.base_sequence < 0:
            return self.book.may_number(queue, self._identity)
        return self.book.may_resend(queue, batch)

    def assign(self, batch: BatchFields) -> BatchIdentity:
        """Number a batch at its first drain."""
        return self._assign(batch)

    def _assign(self, batch: BatchFields) -> Any:
        if batch.base_sequence < 0:
            self.book.number(batch, self._identity, self.transactional)
        batch.renumbered = False  # from here on the broker sees the numbers that it has now
        return batch._identity

    def on_success(self, batch: BatchFields, base_offset: cython.longlong) -> None:
        """A batch was written."""
        self.book.acknowledge(batch, base_offset)


@cython.cclass
class NumberedGate:
    """What the idempotent gate is asked of every batch.

    Args:
        numbering: gives the numbers, and keeps them.
    """

    def __init__(self, numbering: NumberedLeave) -> None:
        self.numbering = numbering

    def may_drain(self, queue: PartitionQueue, batch: BatchFields) -> bool:
        """Whether the batch can have its number now, or may be sent again with the one it has."""
        book: NumberedBook = self.numbering.book
        if book.broken and not book.may_resend_broken(queue, batch):
            return False
        return self.numbering._may_drain(queue, batch)

    def assign(self, batch: BatchFields) -> BatchIdentity:
        """Number a batch at its first drain."""
        return self.numbering._assign(batch)

    def on_success(self, batch: BatchFields, base_offset: cython.longlong) -> None:
        """A batch was written."""
        self.numbering.book.acknowledge(batch, base_offset)
