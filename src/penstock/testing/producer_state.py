# SPDX-License-Identifier: Apache-2.0
"""What a partition remembers of each producer, and what follows from it for the next batch.

Rules:
1. The last five batches of a producer's current epoch are remembered (before Kafka 1.0, the last one). A batch with
   exactly their sequences and epoch is a duplicate: it is answered with the first one's offset and not written again.
2. An older epoch than the remembered one is INVALID_PRODUCER_EPOCH. A newer one starts at sequence 0.
3. In the same epoch sequences follow without a gap; after 2147483647 comes 0. Else OUT_OF_ORDER_SEQUENCE_NUMBER.
4. A producer without state may start anywhere (its records may have been deleted), except under the second transaction
   protocol, and before Kafka 2.5, which answered UNKNOWN_PRODUCER_ID.
5. Inside a transaction of a producer, its batches without the transactional bit are INVALID_TXN_STATE.
6. A marker ends the producer's transaction; with a new epoch it also forgets the batches of the old one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from penstock.error_codes import ErrorCode
from penstock.records.format import NO_PRODUCER_EPOCH, NO_SEQUENCE
from penstock.records.reader import RecordBatch
from penstock.testing.refused import Refused

BATCHES_KEPT: Final = 5
_LARGEST_SEQUENCE: Final = 2**31 - 1


class KeptBatch(NamedTuple):
    """A batch as it is remembered."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    timestamp_ms: int  # the largest of its records; what a duplicate is told as the time of the append


class SequenceRules(NamedTuple):
    """What differs between releases and protocols.

    Attributes:
        unknown_must_start_at_zero: the error for a producer without state that starts elsewhere; None accepts it.
        tells_old_duplicates: see ClusterSettings.
        batches_kept: so many batches are remembered.
    """

    unknown_must_start_at_zero: ErrorCode | None = None
    tells_old_duplicates: bool = False
    batches_kept: int = BATCHES_KEPT


@dataclass(slots=True)
class ProducerEntry:
    """One producer id in one partition."""

    epoch: int = NO_PRODUCER_EPOCH
    coordinator_epoch: int = -1
    transaction_start: int | None = None
    batches: deque[KeptBatch] = field(default_factory=lambda: deque(maxlen=BATCHES_KEPT))

    def enter_epoch(self, epoch: int) -> None:
        """Forget the batches of another epoch."""
        if self.epoch != epoch:
            self.batches.clear()
            self.epoch = epoch

    @property
    def last_sequence(self) -> int:
        """Of the newest batch; -1 when none is remembered."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE


class ProducerStates:
    """All producers of one partition."""

    def __init__(self) -> None:
        self.entries: dict[int, ProducerEntry] = {}

    def find_duplicate(self, batch: RecordBatch, rules: SequenceRules) -> KeptBatch | None:
        """The remembered batch that this one repeats (rule 1)."""
        entry = self.entries.get(batch.producer_id)
        if entry is None or entry.epoch != batch.producer_epoch:
            return None
        wanted = (batch.base_sequence, batch.last_sequence)
        for kept in list(entry.batches)[-rules.batches_kept :]:
            if (kept.first_sequence, kept.last_sequence) == wanted:
                return kept
        return None

    def check(self, batch: RecordBatch, rules: SequenceRules) -> None:
        """Whether a batch that is no duplicate may be appended (rules 2 to 5).

        Raises:
            Refused: it may not.
        """
        entry = self.entries.get(batch.producer_id)
        if entry is None:
            code = rules.unknown_must_start_at_zero
            if code is not None and batch.base_sequence != 0:
                raise Refused(code, f"No state of producer id {batch.producer_id}")
            return
        if batch.producer_epoch < entry.epoch:
            raise Refused(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"Epoch {batch.producer_epoch} is smaller than the last seen epoch {entry.epoch}",
            )
        expected = 0 if batch.producer_epoch > entry.epoch else _after(entry.last_sequence)
        if batch.base_sequence != expected:
            old = rules.tells_old_duplicates and batch.last_sequence <= entry.last_sequence
            raise Refused(
                ErrorCode.DUPLICATE_SEQUENCE_NUMBER if old else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"Sequence {batch.base_sequence} where {expected} is next for producer id {batch.producer_id}",
            )
        if entry.transaction_start is not None and not batch.is_transactional:
            raise Refused(ErrorCode.INVALID_TXN_STATE, "Expected a transactional write")

    def note_data(self, batch: RecordBatch) -> None:
        """Remember a batch of the log, with its offset."""
        entry = self.entries.setdefault(batch.producer_id, ProducerEntry())
        entry.enter_epoch(batch.producer_epoch)
        entry.batches.append(
            KeptBatch(batch.base_sequence, batch.last_sequence, batch.base_offset, batch.max_timestamp)
        )
        if batch.is_transactional and entry.transaction_start is None:
            entry.transaction_start = batch.base_offset

    def note_marker(self, producer_id: int, epoch: int) -> int | None:
        """End the producer's transaction; where it began, None when it wrote nothing here (rule 6)."""
        entry = self.entries.setdefault(producer_id, ProducerEntry())
        entry.enter_epoch(epoch)
        start, entry.transaction_start = entry.transaction_start, None
        return start

    def in_transaction(self, producer_id: int, epoch: int) -> bool:
        """Whether the producer has written to this partition in its present transaction."""
        entry = self.entries.get(producer_id)
        return entry is not None and entry.transaction_start is not None and entry.epoch == epoch

    def first_open_offset(self) -> int | None:
        """Where the oldest open transaction begins."""
        starts = [entry.transaction_start for entry in self.entries.values()]
        return min((start for start in starts if start is not None), default=None)

    def forget_idle(self) -> None:
        """Drop all producers that are in no transaction, as expiry does."""
        self.entries = {
            key: entry for key, entry in self.entries.items() if entry.transaction_start is not None
        }


def _after(sequence: int) -> int:
    return 0 if sequence == _LARGEST_SEQUENCE else sequence + 1
