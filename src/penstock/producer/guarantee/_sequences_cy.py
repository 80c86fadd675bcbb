# SPDX-License-Identifier: Apache-2.0
"""The numbers that make a broker recognise a batch: producer id, epoch, and a sequence number per partition.

The drain and the outcomes ask the `Numbering` for every batch. The idempotent and the transactional gate both have one.
It keeps the numbers in a `SequenceBook`. Compiled if possible.

No I/O. It belongs to the I/O thread; a producer with transactions guards it with the transaction lock.

Rules:
1. Sequence numbers are given at the first drain and count records; after 2^31-1 comes 0.
2. A batch is `in flight` here from its first drain until its outcome, also while it waits in the queue to be retried;
   those batches are kept in the order of their sequence numbers.
3. A partition numbers new batches with the producer's current identity only when none of its batches is in flight with
   another one; until then nothing new leaves it.
4. The first batch of a partition under an identity is sent alone, until it is acknowledged. The reason: a broker
   without state of a producer accepts any first number (Kafka 2.5 and later). So it could write a second batch although
   it has refused the first one. The client could then not see the gap, and could not renumber the batches safely.
5. At most five batches are numbered from the oldest one in flight on, whatever became of the others: a broker remembers
   five. Brokers of 0.11 remember only the last one; with them one batch is numbered at a time (`remembered`). When the
   leader of a partition has moved, requests may be under way to two brokers, five to each. If the former leader wrote a
   batch, and it is sent again behind more than four others, the new leader does not know it any more. The batch would
   fail although it was written, or would be written again under a new epoch.
6. When a topic is forgotten, the numbers of its partitions are kept (`away`), because they must go on within one epoch:
   a broker would take a second batch with the number 0 for the first one, and answer that it was written. Under another
   identity every partition begins at 0, so all kept numbers can be dropped. If too many are kept, a new epoch is taken.
7. Renumbering changes the identity of a batch; its bytes are stamped anew at the next drain, when no request has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock._identity import NO_IDENTITY, ProducerIdentity
from penstock.protocol.requests import BATCHES_REMEMBERED
from penstock.producer.guarantee.response_policy import (
    MEANING,
    BatchSituation,
    Decision,
    SequenceSituation,
    decide_numbered,
)

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

if cython.compiled:
    from cython.cimports.penstock.producer.batch._batch_cy import Batch, BatchIdentity, is_later, new_identity
    from cython.cimports.penstock.producer.batch._queue_cy import PartitionQueue
else:
    from penstock.producer.batch._batch_cy import Batch, BatchIdentity, is_later, new_identity
    from penstock.producer.batch._queue_cy import PartitionQueue

# Numbers of partitions without a queue that are kept: a new epoch makes all partitions pause for a moment.
MOST_PUT_AWAY = 1000

# C variables when compiled.
_NONE = cython.declare(cython.int, -1)
_MASK = cython.declare(cython.longlong, 0x7FFFFFFF)


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


def next_sequence(base_sequence: cython.int, count: cython.Py_ssize_t) -> cython.int:
    """The number after `count` records that begin with `base_sequence`; after 2147483647 comes 0."""
    if base_sequence == _NONE:
        return _NONE
    if cython.compiled:
        return cython.cast(cython.int, (cython.cast(cython.longlong, base_sequence) + count) & _MASK)
    return (base_sequence + count) & _MASK


def last_sequence_of(batch: Batch) -> cython.int:
    """The sequence number of a batch's last record."""
    return next_sequence(batch.identity.base_sequence, batch.writer.count - 1)


def identity_of(batch: Batch) -> ProducerIdentity:
    """The producer id and epoch that a batch was numbered with."""
    return ProducerIdentity(batch.identity.producer_id, batch.identity.producer_epoch)


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

    def is_next(self, sequence: cython.int) -> cython.bint:
        """Whether a sequence number follows directly on what was acknowledged."""
        if self.last_acked_sequence == _NONE:
            return sequence == 0
        return sequence == next_sequence(self.last_acked_sequence, 1)

    def restart(self, identity: ProducerIdentity, transactional: cython.bint) -> None:
        """Number the batches in flight from 0 again, under another identity or the same one."""
        batch: Batch
        self.identity = identity
        self.last_acked_sequence = _NONE
        self.next = 0
        for batch in self.in_flight:
            batch.identity = new_identity(identity[0], identity[1], self.next, transactional)
            batch.renumbered = True
            self.next = next_sequence(self.next, batch.writer.count)


@cython.cclass
class SequenceBook:
    """The numbering of all partitions of one producer.

    Attributes:
        remembered: how many batches of a partition a broker remembers for each producer (rule 5).
    """

    def __init__(self) -> None:
        self.remembered = BATCHES_REMEMBERED
        self._partitions: dict[PartitionQueue, PartitionNumbers] = {}
        # The numbers of partitions whose queue was forgotten, by place: a broker expects that they go on.
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

    # ---- a batch leaves, and is written

    def may_number(self, queue: PartitionQueue, identity: Any) -> cython.bint:
        """Whether a new batch of the partition may be numbered now, with the producer's identity."""
        if self.unresolved and queue in self.unresolved:
            return False
        numbers: PartitionNumbers = self.of(queue)
        if not numbers.in_flight:
            return True
        oldest: Batch = numbers.in_flight[0]
        if numbers.numbered - oldest.numbered_as >= self.remembered:
            return False  # with one more the broker would forget the oldest, which may have to be sent again
        return numbers.last_acked_sequence != _NONE and bool(numbers.identity == identity)

    def may_resend(self, queue: PartitionQueue, batch: Batch) -> cython.bint:
        """Whether a batch that has its number may go now: retries go one at a time, the oldest first."""
        in_flight = self.of(queue).in_flight
        return not in_flight or in_flight[0] is batch

    def may_resend_broken(self, queue: PartitionQueue, batch: Batch) -> cython.bint:
        """Whether a batch of a partition that may be broken keeps its numbers when it is sent again."""
        missing = self.broken.get(queue)
        return missing is None or (
            batch.identity.base_sequence >= 0 and is_later(missing, batch.identity.base_sequence)
        )

    def number(self, batch: Batch, identity: Any, transactional: cython.bint) -> None:
        """Give a batch its numbers, at its first drain."""
        numbers: PartitionNumbers = self.of(batch.queue)
        if numbers.identity is not identity and numbers.identity != identity:
            numbers.restart(identity, transactional)
        known: tuple = cython.cast(tuple, identity)  # a ProducerIdentity is a tuple
        batch.identity = new_identity(known[0], known[1], numbers.next, transactional)
        batch.numbered_as = numbers.numbered
        numbers.next = next_sequence(numbers.next, batch.writer.count)
        numbers.numbered += 1
        numbers.in_flight.append(batch)

    def acknowledge(self, batch: Batch, base_offset: cython.longlong) -> None:
        """A batch was written. The answer may have come after the batch had failed for its caller."""
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

    # ---- a batch ends otherwise

    def drop(self, batch: Batch) -> None:
        """A batch ended without being acknowledged."""
        numbers: PartitionNumbers = self.of(batch.queue)
        if batch in numbers.in_flight:
            numbers.in_flight.remove(batch)

    def mark_unresolved(self, batch: Batch) -> None:
        """A batch that was sent has expired. The next number depends on whether it was written, which is not known."""
        following: cython.int = next_sequence(last_sequence_of(batch), 1)
        known = self.unresolved.get(batch.queue)
        if known is None or is_later(following, known):
            self.unresolved[batch.queue] = following

    def resolve(self) -> list[PartitionQueue]:
        """Settle the unresolved partitions that have nothing in flight. Returns those where a gap remains."""
        gaps = []
        numbers: PartitionNumbers
        for queue in list(self.unresolved):
            numbers = self.of(queue)
            if numbers.in_flight:
                continue
            if numbers.is_next(numbers.next):
                del self.unresolved[queue]
            else:
                gaps.append(queue)
        return gaps

    def mark_broken(self, queue: PartitionQueue, missing: cython.int) -> None:
        """The broker will never get the batch with the number `missing`: the batches behind it need other numbers."""
        known = self.broken.get(queue)
        if known is None or is_later(known, missing):
            self.broken[queue] = missing

    def restartable(self) -> list[PartitionQueue]:
        """The broken partitions that can be numbered anew.

        A batch in flight before the missing number may have been written without an answer. With other numbers it would
        be written twice. So it is sent again with its own numbers, and its partition waits for it.
        """
        return [queue for queue, missing in self.broken.items() if not self._in_flight_before(queue, missing)]

    def _in_flight_before(self, queue: PartitionQueue, sequence: cython.int) -> bool:
        batch: Batch
        for batch in self.of(queue).in_flight:
            if is_later(sequence, batch.identity.base_sequence):
                return True
        return False

    def restart(self, queue: PartitionQueue, identity: ProducerIdentity, transactional: cython.bint) -> None:
        """Number a partition from 0 again."""
        self.of(queue).restart(identity, transactional)
        self.unresolved.pop(queue, None)
        self.broken.pop(queue, None)

    def give_up(self, queue: PartitionQueue) -> list[Any]:
        """Stop to number a partition. Returns its batches in flight, which still have numbers."""
        numbers: PartitionNumbers | None = self._partitions.pop(queue, None)
        self.away.pop(queue.place, None)
        self.unresolved.pop(queue, None)
        self.broken.pop(queue, None)
        return [] if numbers is None else list(numbers.in_flight)

    def close_gap(self, batch: Batch, count: int | None = None) -> None:
        """Close the gap of records that will never be written: lower the numbers of all batches behind theirs.

        Args:
            batch: it was not written.
            count: how many of its records failed for good; None: all.
        """
        failed: cython.Py_ssize_t = batch.writer.count if count is None else count
        numbers: PartitionNumbers = self.of(batch.queue)
        if numbers.identity != identity_of(batch):
            return
        later: Batch
        for later in numbers.in_flight:
            if is_later(later.identity.base_sequence, batch.identity.base_sequence):
                later.identity = later.identity.with_sequence(_lowered(later.identity.base_sequence, failed))
                later.renumbered = True
        numbers.next = _lowered(numbers.next, failed)

    def replace(self, batch: Batch, pieces: Sequence[Any]) -> None:
        """Replace a split batch by its pieces, numbered from its own first number."""
        in_flight: list = self.of(batch.queue).in_flight
        sequence: cython.int = batch.identity.base_sequence
        piece: Batch
        for piece in pieces:
            piece.numbered_as = batch.numbered_as
            piece.identity = batch.identity.with_sequence(sequence)
            sequence = next_sequence(sequence, piece.writer.count)
        at = in_flight.index(batch) if batch in in_flight else len(in_flight)
        in_flight[at : at + 1] = list(pieces)

    # ---- topics are forgotten, identities change

    def is_settled(self, queue: PartitionQueue) -> bool:
        """Whether nothing of a partition is in flight, and it is known which number comes next."""
        numbers: PartitionNumbers | None = self._partitions.get(queue)
        if numbers is not None and numbers.in_flight:
            return False
        return queue not in self.unresolved and queue not in self.broken

    def put_away(self, queue: PartitionQueue) -> None:
        """A partition's queue was forgotten: remember which number comes next, and no more."""
        numbers: PartitionNumbers | None = self._partitions.pop(queue, None)
        if numbers is not None and numbers.numbered:
            self.away[queue.place] = numbers

    @property
    def wants_new_epoch(self) -> bool:
        """Whether too many numbers are kept: under a new epoch all of them can be dropped."""
        return len(self.away) > MOST_PUT_AWAY

    def drop_away(self) -> None:
        """The producer has a new identity: a partition that comes back begins at 0."""
        self.away.clear()

    def forget_all(self) -> None:
        """Start anew: every partition begins at 0 with whatever identity comes next."""
        self._partitions.clear()
        self.away.clear()
        self.unresolved.clear()
        self.broken.clear()


def _lowered(sequence: cython.longlong, count: cython.longlong) -> int:
    return (sequence - count) & _MASK


@cython.cclass
class Numbering:
    """Gives batches their numbers, keeps their order, and decides about answers by the numbers.

    Args:
        retries: how often a batch may be queued again.
        transactional: whether batches belong to transactions.

    Attributes:
        halted: the producer cannot go on. The gate sets it, and tells the error.
    """

    def __init__(self, retries: cython.Py_ssize_t, transactional: cython.bint) -> None:
        self.halted = False
        self.retries = retries
        self.transactional = transactional
        self.book = SequenceBook()
        self._identity: ProducerIdentity = NO_IDENTITY
        self.has_identity = False

    @property
    def identity(self) -> ProducerIdentity:
        """Producer id and epoch."""
        return self._identity

    @identity.setter
    def identity(self, identity: ProducerIdentity) -> None:
        self._identity = identity
        self.has_identity = identity.valid

    @property
    def at_rest(self) -> bool:
        """Whether there is nothing to settle and nothing to request, so that a turn need not ask the gate."""
        book: SequenceBook = self.book
        settled: cython.bint = not (book.unresolved or book.broken or book.away)
        return settled and self.has_identity and not (self.halted or self.transactional)

    # ---- asked for every batch

    def may_drain(self, queue: PartitionQueue, batch: Batch) -> cython.bint:
        """Whether a batch can have its number now, or has it and is the oldest of its partition in flight."""
        if not self.has_identity:
            return False
        if self.book.broken and not self.book.may_resend_broken(queue, batch):
            return False
        if batch.identity.base_sequence < 0:
            return self.book.may_number(queue, self._identity)
        return self.book.may_resend(queue, batch)

    def assign(self, batch: Batch) -> BatchIdentity:
        """Number a batch at its first drain."""
        if batch.identity.base_sequence < 0:
            self.book.number(batch, self._identity, self.transactional)
        batch.renumbered = False  # from here on the broker sees the numbers that it has now
        return batch.identity

    def on_success(self, batch: Batch, base_offset: cython.longlong) -> None:
        """A batch was written."""
        self.book.acknowledge(batch, base_offset)

    # ---- asked where a batch was not simply written

    def decide(self, code: int, log_start_offset: int, batch: Batch, situation: BatchSituation) -> Decision:
        """What to do with a batch whose request ended with that code."""
        if not code:
            return MEANING[code]  # for nearly every batch; numbers do not matter then
        numbers: PartitionNumbers = self.book.of(batch.queue)
        base: cython.int = batch.identity.base_sequence
        behind_unresolved = self.book.unresolved.get(batch.queue)
        return decide_numbered(
            code,
            situation,
            SequenceSituation(
                unresolved=behind_unresolved is not None,
                renumbered=bool(batch.renumbered),
                is_next=bool(numbers.is_next(base)),
                follows_unresolved=behind_unresolved == base,
                log_start_offset=log_start_offset,
                last_acked_offset=numbers.last_acked_offset,
                transactional=bool(self.transactional),
            ),
            self.retries,
        )

    def on_expired(self, batch: Batch) -> None:
        """A batch's delivery time-out is over. If the batch was sent, it is not known whether it was written."""
        if batch.identity.base_sequence < 0:
            return
        self.book.drop(batch)
        self.book.mark_unresolved(batch)

    def on_split(self, batch: Batch, pieces: Sequence[Any]) -> None:
        """The pieces share the numbers of the batch. In a transaction, close the gap of records that were left out."""
        if batch.identity.base_sequence < 0:
            return
        piece: Batch
        left_out: cython.Py_ssize_t = batch.writer.count
        for piece in pieces:
            left_out -= piece.writer.count
        if left_out and self.transactional:
            self.book.close_gap(batch, left_out)
        self.book.replace(batch, pieces)
