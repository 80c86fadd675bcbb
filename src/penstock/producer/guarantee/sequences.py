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
5. From the oldest batch in flight on at most five are numbered, whatever became of the others: as many as a broker
   remembers. When the leader of a partition has moved, requests may be under way to two brokers, five to each. Behind
   more than four others a batch that was written at the former leader would be taken for a gap when it is sent again:
   it would fail although it is there, or be written once more under a new epoch.
6. When a topic is forgotten, the numbers of its partitions are put away, for within one epoch they must go on: a broker
   would take a second batch with the number 0 for the first one, and say that it was written. Under another identity
   every partition begins at 0, so that a new epoch allows to drop them all; one is taken when there are too many.
7. Renumbering changes the identity of a batch; its bytes are stamped anew at the next drain, when no request has them.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock._identity import ProducerIdentity
from penstock.producer.batch._batch_cy import Batch, is_later
from penstock.producer.batch._flight_cy import (
    NumberedBook,
    PartitionNumbers,
    last_sequence_of,
    next_sequence,
)
from penstock.producer.batch._queue_cy import PartitionQueue

__all__ = [
    "PartitionNumbers",
    "SequenceBook",
    "identity_of",
    "last_sequence_of",
]


# Numbers of partitions without a queue that are kept: a new epoch makes all partitions pause for a moment.
MOST_PUT_AWAY = 1000


def identity_of(batch: Batch) -> ProducerIdentity:
    """The producer id and epoch that a batch was numbered with."""
    return ProducerIdentity(batch.identity.producer_id, batch.identity.producer_epoch)


class SequenceBook(NumberedBook):
    """The numbering of all partitions of one producer."""

    def drop(self, batch: Batch) -> None:
        """A batch ended without being acknowledged."""
        numbers = self.of(batch.queue)
        if batch in numbers.in_flight:
            numbers.in_flight.remove(batch)

    def mark_unresolved(self, batch: Batch) -> None:
        """A batch that was sent has expired: whether it was written decides what the next number must be."""
        following = next_sequence(last_sequence_of(batch), 1)
        known = self.unresolved.get(batch.queue)
        if known is None or is_later(following, known):
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
        if known is None or is_later(known, missing):
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
        return missing is None or (base >= 0 and is_later(missing, base))

    def _in_flight_before(self, queue: PartitionQueue, sequence: int) -> bool:
        return any(is_later(sequence, batch.identity.base_sequence) for batch in self.of(queue).in_flight)

    def restart(self, queue: PartitionQueue, identity: ProducerIdentity, transactional: bool) -> None:
        """Number a partition from 0 again."""
        self.of(queue).restart(identity, transactional)
        self.unresolved.pop(queue, None)
        self.broken.pop(queue, None)

    def close_gap(self, batch: Batch, count: int | None = None) -> None:
        """A batch was not written, and some of its records never will be: move the numbers behind it down by them.

        Args:
            count: how many of its records failed for good; None: all.
        """
        failed = batch.record_count if count is None else count
        numbers = self.of(batch.queue)
        if numbers.identity != identity_of(batch):
            return
        for later in numbers.in_flight:
            if is_later(later.identity.base_sequence, batch.identity.base_sequence):
                base = _lowered(later.identity.base_sequence, failed)
                later.identity = later.identity.with_sequence(base)
                later.renumbered = True
        numbers.next = _lowered(numbers.next, failed)

    def replace(self, batch: Batch, pieces: Sequence[Batch]) -> None:
        """Let the pieces of a split batch take its place, numbered from its own first number."""
        numbers = self.of(batch.queue)
        sequence = batch.identity.base_sequence
        for piece in pieces:
            piece.numbered_as = batch.numbered_as
            piece.identity = batch.identity.with_sequence(sequence)
            sequence = next_sequence(sequence, piece.record_count)
        at = numbers.in_flight.index(batch) if batch in numbers.in_flight else len(numbers.in_flight)
        numbers.in_flight[at : at + 1] = list(pieces)

    def is_settled(self, queue: PartitionQueue) -> bool:
        """Whether nothing of a partition is in flight, and it is known which number comes next."""
        numbers = self._partitions.get(queue)
        in_flight = numbers is not None and numbers.in_flight
        return not in_flight and queue not in self.unresolved and queue not in self.broken

    def put_away(self, queue: PartitionQueue) -> None:
        """A partition's queue was forgotten: remember which number comes next, and no more."""
        numbers = self._partitions.pop(queue, None)
        if numbers is not None and numbers.numbered:
            self.away[queue.place] = numbers

    @property
    def wants_new_epoch(self) -> bool:
        """Whether so much is put away that a new epoch, under which all of it can be dropped, is worth its while."""
        return len(self.away) > MOST_PUT_AWAY

    def drop_away(self) -> None:
        """The producer has a new identity: whoever comes back begins at 0."""
        self.away.clear()

    def forget_all(self) -> None:
        """Start anew: every partition begins at 0 with whatever identity comes next."""
        self._partitions.clear()
        self.away.clear()
        self.unresolved.clear()
        self.broken.clear()


def _lowered(sequence: int, count: int) -> int:
    return (sequence - count) & 0x7FFFFFFF
