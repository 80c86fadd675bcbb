# SPDX-License-Identifier: Apache-2.0
"""What the idempotent and the transactional gate have in common: batches leave with a number, in order.

I/O thread only.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.producer.batch._batch_cy import Batch
from penstock.producer.batch._flight_cy import NumberedLeave
from penstock.producer.guarantee.response_policy import (
    MEANING,
    BatchSituation,
    Decision,
    SequenceSituation,
    decide_numbered,
)
from penstock.producer.guarantee.sequences import SequenceBook


class Numbering(NumberedLeave):
    """Numbers batches, and judges answers by their numbers.

    Args:
        retries: how often a batch may be queued again.
        transactional: whether batches belong to transactions.
    """

    book: SequenceBook

    def __init__(self, retries: int, transactional: bool) -> None:
        super().__init__(retries, transactional, SequenceBook())

    def decide(self, code: int, log_start_offset: int, batch: Batch, situation: BatchSituation) -> Decision:
        """What to do with a batch whose request ended with that code."""
        if not code:
            return MEANING[code]  # for nearly every batch; numbers do not matter then
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

    def on_expired(self, batch: Batch) -> None:
        """A batch's time is over; if it was ever sent, whether it was written is not known."""
        if batch.identity.base_sequence < 0:
            return
        self.book.drop(batch)
        self.book.mark_unresolved(batch)

    def on_split(self, batch: Batch, pieces: Sequence[Batch]) -> None:
        """The pieces share the numbers of the batch; without transactions, what was left out costs a new epoch."""
        if batch.identity.base_sequence < 0:
            return
        left_out = batch.record_count - sum(piece.record_count for piece in pieces)
        if left_out and self.transactional:
            self.book.close_gap(batch, left_out)
        self.book.replace(batch, pieces)
