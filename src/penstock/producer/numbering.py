# SPDX-License-Identifier: Apache-2.0
"""What the idempotent and the transactional gate have in common: batches leave with a number, in order.

I/O thread only.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.producer._queue_cy import PartitionQueue
from penstock.producer.batch import Batch, BatchIdentity
from penstock.producer.response_policy import (
    MEANING,
    NONE,
    BatchSituation,
    Decision,
    SequenceSituation,
    decide_numbered,
)
from penstock.producer.sequences import NO_IDENTITY, ProducerIdentity, SequenceBook


class Numbering:
    """Numbers batches, and judges answers by their numbers.

    Args:
        retries: how often a batch may be queued again.
        transactional: whether batches belong to transactions.
    """

    def __init__(self, retries: int, transactional: bool) -> None:
        self.retries = retries
        self.transactional = transactional
        self.identity: ProducerIdentity = NO_IDENTITY
        self.book = SequenceBook()

    def may_drain(self, queue: PartitionQueue, batch: Batch) -> bool:
        """Whether a batch can have its number now, or has it and is the oldest of its partition in flight."""
        if not self.identity.valid:
            return False
        if batch.identity.base_sequence < 0:
            return self.book.may_number(queue, self.identity)
        return self.book.may_resend(queue, batch)

    def assign(self, batch: Batch) -> BatchIdentity:
        """Number a batch at its first drain."""
        if batch.identity.base_sequence < 0:
            self.book.number(batch, self.identity, self.transactional)
        batch.renumbered = False  # from here on the broker sees the numbers that it has now
        return batch.identity

    def decide(self, code: int, log_start_offset: int, batch: Batch, situation: BatchSituation) -> Decision:
        """What to do with a batch whose request ended with that code."""
        if code == NONE:
            return MEANING[NONE]  # for nearly every batch; numbers do not matter then
        numbers = self.book.of(batch.queue)
        base = batch.identity.base_sequence
        behind_unresolved = self.book.unresolved.get(batch.queue)
        return decide_numbered(
            code,
            situation,
            SequenceSituation(
                unresolved=behind_unresolved is not None,
                renumbered=batch.renumbered,
                is_next=numbers.is_next(base),
                follows_unresolved=behind_unresolved == base,
                log_start_offset=log_start_offset,
                last_acked_offset=numbers.last_acked_offset,
                transactional=self.transactional,
            ),
            self.retries,
        )

    def on_success(self, batch: Batch, base_offset: int) -> None:
        """A batch was written."""
        self.book.acknowledge(batch, base_offset)

    def on_expired(self, batch: Batch) -> None:
        """A batch's time is over; if it was ever sent, whether it was written is not known."""
        if batch.identity.base_sequence < 0:
            return
        self.book.drop(batch)
        self.book.mark_unresolved(batch)

    def on_split(self, batch: Batch, pieces: Sequence[Batch]) -> None:
        """The pieces share the numbers of the batch."""
        if batch.identity.base_sequence >= 0:
            self.book.replace(batch, pieces)
