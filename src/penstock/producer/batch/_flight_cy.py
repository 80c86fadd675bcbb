# SPDX-License-Identifier: Apache-2.0
"""The numbers that every batch gets. Compiled if possible.

Only the ordinary is here. `sequences.SequenceBook` has the rules, and what becomes of numbers when something goes
wrong. The numbers belong to the I/O thread.
"""

from __future__ import annotations

from typing import Any

from penstock._identity import NO_IDENTITY, ProducerIdentity

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

# In this order the type checker sees the Python classes.
if not cython.compiled:
    from penstock.producer.batch._batch_cy import Batch, BatchIdentity, is_later, new_identity
    from penstock.producer.batch._queue_cy import PartitionQueue
else:
    from cython.cimports.penstock.producer.batch._batch_cy import Batch, BatchIdentity, is_later, new_identity
    from cython.cimports.penstock.producer.batch._queue_cy import PartitionQueue

# C variables when compiled.
_NONE = cython.declare(cython.int, -1)
_MASK = cython.declare(cython.longlong, 0x7FFFFFFF)
# Of each producer a broker remembers so many batches of a partition.
_REMEMBERED = cython.declare(cython.Py_ssize_t, 5)


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


def last_sequence_of(batch: Batch) -> cython.int:
    """The sequence number of a batch's last record."""
    return next_sequence(batch.identity.base_sequence, batch.writer.count - 1)


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
        oldest: Batch = numbers.in_flight[0]
        if numbers.numbered - oldest.numbered_as >= _REMEMBERED:
            return False  # behind one more the broker would not know it any more, if it has to be sent again
        return numbers.last_acked_sequence != _NONE and bool(numbers.identity == identity)

    def may_resend(self, queue: PartitionQueue, batch: Batch) -> cython.bint:
        """Whether a batch that has its number may go now: retries go one at a time, the oldest first."""
        in_flight = self.of(queue).in_flight
        return not in_flight or in_flight[0] is batch

    def number(self, batch: Batch, identity: Any, transactional: cython.bint) -> None:
        """Give a batch its numbers, at its first drain."""
        numbers: PartitionNumbers = self.of(batch.queue)
        if numbers.identity is not identity and numbers.identity != identity:
            numbers.restart(identity, bool(transactional))
        batch.identity = new_identity(identity[0], identity[1], numbers.next, transactional)
        batch.numbered_as = numbers.numbered
        numbers.next = next_sequence(numbers.next, batch.writer.count)
        numbers.numbered += 1
        numbers.in_flight.append(batch)

    def acknowledge(self, batch: Batch, base_offset: cython.longlong) -> None:
        """A batch was written, also when that became known too late for its caller."""
        numbers: PartitionNumbers = self.of(batch.queue)
        in_flight: list = numbers.in_flight
        if in_flight and in_flight[0] is batch:
            del in_flight[0]  # nearly always: answers come in the order of requests
        elif batch in in_flight:
            in_flight.remove(batch)
        if not batch.identity.is_of(numbers.identity):
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

    def may_drain(self, queue: PartitionQueue, batch: Batch) -> bool:
        """Whether a batch can have its number now, or has it and is the oldest of its partition in flight."""
        return self._may_drain(queue, batch)

    def _may_drain(self, queue: PartitionQueue, batch: Batch) -> cython.bint:
        if not self._valid:
            return False
        if batch.identity.base_sequence < 0:
            return self.book.may_number(queue, self._identity)
        return self.book.may_resend(queue, batch)

    def assign(self, batch: Batch) -> BatchIdentity:
        """Number a batch at its first drain."""
        return self._assign(batch)

    def _assign(self, batch: Batch) -> Any:
        if batch.identity.base_sequence < 0:
            self.book.number(batch, self._identity, self.transactional)
        batch.renumbered = False  # from here on the broker sees the numbers that it has now
        return batch.identity

    def on_success(self, batch: Batch, base_offset: cython.longlong) -> None:
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

    def may_drain(self, queue: PartitionQueue, batch: Batch) -> bool:
        """Whether the batch can have its number now, or may be sent again with the one it has."""
        book: NumberedBook = self.numbering.book
        if book.broken and not book.may_resend_broken(queue, batch):
            return False
        return self.numbering._may_drain(queue, batch)

    def assign(self, batch: Batch) -> BatchIdentity:
        """Number a batch at its first drain."""
        return self.numbering._assign(batch)

    def on_success(self, batch: Batch, base_offset: cython.longlong) -> None:
        """A batch was written."""
        self.numbering.book.acknowledge(batch, base_offset)
