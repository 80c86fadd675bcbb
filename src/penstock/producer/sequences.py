# SPDX-License-Identifier: Apache-2.0
"""The numbers that make a broker recognise a batch: producer id, epoch, and a sequence number per partition.

Pure bookkeeping without I/O; it belongs to the I/O thread.

Rules:
1. Sequence numbers are given at the first drain and count records; after 2^31-1 comes 0.
2. A batch is `in flight` here from its first drain until its outcome, also while it waits in the queue to be retried;
   those batches are kept in the order of their sequence numbers.
3. A partition numbers new batches with the producer's current identity only when none of its batches is in flight with
   another one; until then nothing new leaves it.
4. The first batch of a partition under an identity travels alone until it is acknowledged. A broker without state of
   a producer accepts any first number (Kafka 2.5 and later), so a second batch could be written although the first was
   refused, and then neither be told from a gap nor be renumbered safely.
5. Renumbering changes the identity of a batch; its bytes are stamped anew at the next drain, when no request has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.producer._queue_cy import PartitionQueue
from penstock.producer.batch import Batch, BatchIdentity
from penstock.records.format import last_sequence, next_sequence

_NONE = -1
_HALF = 1 << 30


class ProducerIdentity(NamedTuple):
    """A producer id and its epoch."""

    producer_id: int = _NONE
    epoch: int = _NONE

    @property
    def valid(self) -> bool:
        """Whether a coordinator gave it."""
        return self.producer_id >= 0


NO_IDENTITY = ProducerIdentity()


def identity_of(batch: Batch) -> ProducerIdentity:
    """The producer id and epoch that a batch was numbered with."""
    return ProducerIdentity(batch.identity.producer_id, batch.identity.producer_epoch)


def last_sequence_of(batch: Batch) -> int:
    """The sequence number of a batch's last record."""
    return last_sequence(batch.identity.base_sequence, batch.record_count - 1)


class PartitionNumbers:
    """The numbering of one partition."""

    __slots__ = ("identity", "in_flight", "last_acked_offset", "last_acked_sequence", "next")

    def __init__(self, identity: ProducerIdentity) -> None:
        self.identity = identity
        self.next = 0
        self.last_acked_sequence = _NONE
        self.last_acked_offset = _NONE
        self.in_flight: list[Batch] = []

    def is_next(self, sequence: int) -> bool:
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


class SequenceBook:
    """The numbering of all partitions of one producer."""

    def __init__(self) -> None:
        self._partitions: dict[PartitionQueue, PartitionNumbers] = {}
        # Partitions where an expired batch may or may not have been written, with the sequence number behind it.
        self.unresolved: dict[PartitionQueue, int] = {}
        # Partitions to be numbered anew, with the first number that is known to be missing at the broker.
        self.broken: dict[PartitionQueue, int] = {}

    def of(self, queue: PartitionQueue) -> PartitionNumbers:
        """The numbering of a partition."""
        numbers = self._partitions.get(queue)
        if numbers is None:
            numbers = self._partitions[queue] = PartitionNumbers(NO_IDENTITY)
        return numbers

    def may_number(self, queue: PartitionQueue, identity: ProducerIdentity) -> bool:
        """Whether a new batch of the partition may be numbered now, with the producer's identity."""
        if queue in self.unresolved:
            return False
        numbers = self.of(queue)
        return not numbers.in_flight or (
            numbers.identity == identity and numbers.last_acked_sequence != _NONE
        )

    def may_resend(self, queue: PartitionQueue, batch: Batch) -> bool:
        """Whether a batch that has its number may go now: retries go one at a time, the oldest first."""
        in_flight = self.of(queue).in_flight
        return not in_flight or in_flight[0] is batch

    def number(self, batch: Batch, identity: ProducerIdentity, transactional: bool) -> None:
        """Give a batch its numbers, at its first drain."""
        numbers = self.of(batch.queue)
        if numbers.identity != identity:
            numbers.restart(identity, transactional)
        batch.identity = BatchIdentity(identity.producer_id, identity.epoch, numbers.next, transactional)
        numbers.next = next_sequence(numbers.next, batch.record_count)
        numbers.in_flight.append(batch)

    def acknowledge(self, batch: Batch, base_offset: int) -> None:
        """A batch was written, also when that became known too late for its caller."""
        numbers = self.of(batch.queue)
        in_flight = numbers.in_flight
        if in_flight and in_flight[0] is batch:
            del in_flight[0]  # nearly always: answers come in the order of requests
        elif batch in in_flight:
            in_flight.remove(batch)
        if numbers.identity != batch.identity[:2]:
            return
        sequence = last_sequence_of(batch)
        if _is_later(sequence, numbers.last_acked_sequence):
            numbers.last_acked_sequence = sequence
        last_offset = base_offset + batch.record_count - 1
        if base_offset >= 0 and last_offset > numbers.last_acked_offset:
            numbers.last_acked_offset = last_offset

    def drop(self, batch: Batch) -> None:
        """A batch ended without being acknowledged."""
        numbers = self.of(batch.queue)
        if batch in numbers.in_flight:
            numbers.in_flight.remove(batch)

    def mark_unresolved(self, batch: Batch) -> None:
        """A batch that was sent has expired: whether it was written decides what the next number must be."""
        following = next_sequence(last_sequence_of(batch), 1)
        known = self.unresolved.get(batch.queue)
        if known is None or _is_later(following, known):
            self.unresolved[batch.queue] = following

    def resolve(self) -> list[PartitionQueue]:
        """Settle the unresolved partitions that have nothing in flight; those where a gap remains."""
        gaps = []
        for queue in list(self.unresolved):
            numbers = self.of(queue)
            if numbers.in_flight:
                continue
            if numbers.is_next(numbers.next):
                del self.unresolved[queue]
            else:
                gaps.append(queue)
        return gaps

    def mark_broken(self, queue: PartitionQueue, missing: int) -> None:
        """A batch with that number is not at the broker and will not come: what is behind it needs other numbers."""
        known = self.broken.get(queue)
        if known is None or _is_later(known, missing):
            self.broken[queue] = missing

    def restartable(self) -> list[PartitionQueue]:
        """The broken partitions that can be numbered anew.

        What is in flight before the missing number may have been written and not answered: under other numbers it would
        be written twice. It is sent again as it was, and the rest waits for it.
        """
        return [queue for queue, missing in self.broken.items() if not self._in_flight_before(queue, missing)]

    def may_resend_broken(self, queue: PartitionQueue, batch: Batch) -> bool:
        """Whether a batch of a partition that may be broken keeps its numbers when it is sent again."""
        missing = self.broken.get(queue)
        base = batch.identity.base_sequence
        return missing is None or (base >= 0 and _is_later(missing, base))

    def _in_flight_before(self, queue: PartitionQueue, sequence: int) -> bool:
        return any(_is_later(sequence, batch.identity.base_sequence) for batch in self.of(queue).in_flight)

    def restart(self, queue: PartitionQueue, identity: ProducerIdentity, transactional: bool) -> None:
        """Number a partition from 0 again."""
        self.of(queue).restart(identity, transactional)
        self.unresolved.pop(queue, None)
        self.broken.pop(queue, None)

    def close_gap(self, batch: Batch) -> None:
        """A batch failed for good and was not written: move the numbers behind it down by its records."""
        numbers = self.of(batch.queue)
        if numbers.identity != identity_of(batch):
            return
        for later in numbers.in_flight:
            if _is_later(later.identity.base_sequence, batch.identity.base_sequence):
                base = _lowered(later.identity.base_sequence, batch.record_count)
                later.identity = later.identity._replace(base_sequence=base)
                later.renumbered = True
        numbers.next = _lowered(numbers.next, batch.record_count)

    def replace(self, batch: Batch, pieces: Sequence[Batch]) -> None:
        """Let the pieces of a split batch take its place, numbered from its own first number."""
        numbers = self.of(batch.queue)
        sequence = batch.identity.base_sequence
        for piece in pieces:
            piece.identity = batch.identity._replace(base_sequence=sequence)
            sequence = next_sequence(sequence, piece.record_count)
        at = numbers.in_flight.index(batch) if batch in numbers.in_flight else len(numbers.in_flight)
        numbers.in_flight[at : at + 1] = list(pieces)

    def forget_all(self) -> None:
        """Start anew: every partition begins at 0 with whatever identity comes next."""
        self._partitions.clear()
        self.unresolved.clear()
        self.broken.clear()


def comes_before(queued: Batch, batch: Batch) -> bool:
    """Whether a batch that waits in the queue was numbered before another one: retries keep that order."""
    return queued.identity.base_sequence >= 0 and _is_later(
        batch.identity.base_sequence, queued.identity.base_sequence
    )


def _is_later(sequence: int, than: int) -> bool:
    """Whether a number comes after another one in the circle of sequence numbers."""
    return than == _NONE or 0 < ((sequence - than) & 0x7FFFFFFF) < _HALF


def _lowered(sequence: int, count: int) -> int:
    return (sequence - count) & 0x7FFFFFFF
