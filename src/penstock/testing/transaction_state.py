# SPDX-License-Identifier: Apache-2.0
"""One transactional id as its coordinator knows it, and the table of its states.

    Empty           nothing written since the producer was initialised
    Ongoing         partitions were added
    PrepareCommit   the decision is made; markers are being written
    PrepareAbort
    CompleteCommit  every marker is written
    CompleteAbort

Rules of the epoch:
1. InitProducerId raises it by one. It never hands out 32767: an id whose epoch is exhausted is replaced by a new one,
   with epoch 0.
2. A fence (another InitProducerId, or the time-out) raises it by one before the abort, so that the old producer's epoch
   is stale everywhere, and the new one gets the next.
3. Under the second protocol every end of a transaction raises it by one; the markers carry the raised epoch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from penstock._identity import ProducerIdentity
from penstock.types import TopicPartition

NO_ID: Final = -1
NO_EPOCH: Final = -1
LAST_EPOCH: Final = 32766  # 32767 is left for the fence


class TxnState(StrEnum):
    """Kafka's names, as DescribeTransactions tells them."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"


_ENDED: Final = (TxnState.EMPTY, TxnState.COMPLETE_COMMIT, TxnState.COMPLETE_ABORT)

# From which states each may be entered.
TRANSITIONS: Final[dict[TxnState, tuple[TxnState, ...]]] = {
    TxnState.EMPTY: _ENDED,
    TxnState.ONGOING: (*_ENDED, TxnState.ONGOING),
    TxnState.PREPARE_COMMIT: (TxnState.ONGOING,),
    # Under the second protocol an abort may follow nothing at all: it raises the epoch.
    TxnState.PREPARE_ABORT: (*_ENDED, TxnState.ONGOING),
    TxnState.COMPLETE_COMMIT: (TxnState.PREPARE_COMMIT,),
    TxnState.COMPLETE_ABORT: (TxnState.PREPARE_ABORT,),
}


@dataclass(slots=True)
class Transaction:
    """One transactional id.

    Attributes:
        previous_producer_id: the one before the last change of id, so that a repeated EndTxn is recognised.
        next_producer_id: the one that replaces an exhausted id when the markers are written.
        last_epoch: the epoch before the last raise that the producer itself asked for.
        partitions: in the transaction; while it is being ended, those without a marker.
        started_at: monotonic seconds; started_ms: milliseconds since the epoch, -1 while nothing is open.
        markers_due_at: when the markers are written; never, unless the transaction is being ended.
    """

    transactional_id: str
    producer_id: int
    epoch: int = NO_EPOCH
    timeout_ms: int = 0
    state: TxnState = TxnState.EMPTY
    previous_producer_id: int = NO_ID
    next_producer_id: int = NO_ID
    last_epoch: int = NO_EPOCH
    partitions: set[TopicPartition] = field(default_factory=set)
    started_at: float = 0.0
    started_ms: int = -1
    markers_due_at: float = math.inf

    @property
    def identity(self) -> ProducerIdentity:
        """The producer that has the id now."""
        return ProducerIdentity(self.producer_id, self.epoch)

    @property
    def is_exhausted(self) -> bool:
        """Whether the producer id has no epoch left to give out."""
        return self.epoch >= LAST_EPOCH

    @property
    def is_ending(self) -> bool:
        """Whether markers are being written."""
        return self.state in (TxnState.PREPARE_COMMIT, TxnState.PREPARE_ABORT)

    def enter(self, state: TxnState) -> None:
        """Change the state.

        Raises:
            RuntimeError: the table does not allow it; a mistake in this package.
        """
        if self.state not in TRANSITIONS[state]:
            raise RuntimeError(f"{self.transactional_id}: no way from {self.state} to {state}")
        self.state = state

    def add(self, partitions: set[TopicPartition], now: float, now_ms: int) -> None:
        """Begin the transaction if need be, and make partitions part of it."""
        if self.state is not TxnState.ONGOING:
            self.started_at, self.started_ms = now, now_ms
        self.enter(TxnState.ONGOING)
        self.partitions |= partitions

    def initialise(self, timeout_ms: int, *, keep_last_epoch: bool) -> None:
        """Give the producer its next epoch."""
        self.last_epoch = self.epoch if keep_last_epoch else NO_EPOCH
        self.epoch += 1
        self._empty(timeout_ms)

    def rotate(self, producer_id: int, timeout_ms: int, *, keep_last_epoch: bool) -> None:
        """Give the producer a new id, because the epochs of the old one are used up."""
        self.last_epoch = self.epoch if keep_last_epoch else NO_EPOCH
        self.previous_producer_id, self.producer_id, self.epoch = self.producer_id, producer_id, 0
        self._empty(timeout_ms)

    def _empty(self, timeout_ms: int) -> None:
        self.enter(TxnState.EMPTY)
        self.timeout_ms = timeout_ms
        self.started_ms = -1

    def complete(self) -> None:
        """All markers are written."""
        committed = self.state is TxnState.PREPARE_COMMIT
        self.enter(TxnState.COMPLETE_COMMIT if committed else TxnState.COMPLETE_ABORT)
        self.markers_due_at = math.inf
        if self.next_producer_id != NO_ID:
            self.last_epoch = self.epoch
            self.previous_producer_id, self.producer_id, self.epoch = (
                self.producer_id,
                self.next_producer_id,
                0,
            )
            self.next_producer_id = NO_ID
