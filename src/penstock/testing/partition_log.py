# SPDX-License-Identifier: Apache-2.0
"""The log of one partition: batches, what is replicated, and which transactions are open, committed or aborted.

There is one log for all replicas. A follower is either in step or, while replication is held, stuck at the high
watermark; so losing a leader means losing what is above it, and nothing else has to be kept per replica.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from penstock.records.format import MAGIC, Buffer
from penstock.records.reader import Record, RecordBatch, read_batches
from penstock.testing.batches import control_batch, is_commit, stamp
from penstock.testing.producer_state import ProducerStates

Isolation = Literal["read_committed", "read_uncommitted"]


class FinishedTransaction(NamedTuple):
    """A transaction that a marker ended in this partition."""

    producer_id: int
    first_offset: int
    marker_offset: int
    committed: bool


class Appended(NamedTuple):
    """The offsets and the time that a batch was given."""

    base_offset: int
    next_offset: int
    append_time_ms: int


class PartitionLog:
    """Appends, truncates, deletes and reads.

    Attributes:
        formats: the magic in which a broker would have stored each batch, by its base offset. Here all are kept in
            magic 2, without what the other formats cannot say.
    """

    def __init__(self) -> None:
        self.batches: list[RecordBatch] = []
        self.log_start_offset = 0
        self.high_watermark = 0
        self.replicating = True
        self.producers = ProducerStates()
        self.finished: list[FinishedTransaction] = []
        self.formats: dict[int, int] = {}  # the magic of each batch, by its base offset
        self._bytes: dict[int, bytes] = {}  # by base offset, as stored
        self._end = 0

    # ------------------------------------------------------------------------------------------ writing

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record gets."""
        return self._end

    def append(
        self,
        data: Buffer,
        leader_epoch: int,
        append_time_ms: int | None = None,
        magic: int = MAGIC,
    ) -> Appended:
        """Write a batch that has been checked.

        Args:
            data: the batch.
            leader_epoch: of the partition.
            append_time_ms: the broker's time, where the topic wants it in place of the producer's.
            magic: the format in which a broker would store it.
        """
        stored = stamp(data, self._end, leader_epoch, append_time_ms)
        (batch,) = read_batches(stored)
        self.formats[batch.base_offset] = magic
        self._keep(batch, stored)
        self._maybe_replicate()
        return Appended(batch.base_offset, self._end, -1 if append_time_ms is None else append_time_ms)

    def append_marker(
        self,
        producer: tuple[int, int],
        *,
        commit: bool,
        coordinator_epoch: int,
        leader_epoch: int,
        now_ms: int,
    ) -> None:
        """End the transaction of a (producer id, epoch)."""
        data = control_batch(*producer, commit=commit, coordinator_epoch=coordinator_epoch, now_ms=now_ms)
        self.append(data, leader_epoch)

    def _keep(self, batch: RecordBatch, stored: bytes) -> None:
        self.batches.append(batch)
        self._bytes[batch.base_offset] = stored
        self._end = batch.last_offset + 1
        if batch.producer_id < 0:
            return
        if not batch.is_control:
            self.producers.note_data(batch)
            return
        start = self.producers.note_marker(batch.producer_id, batch.producer_epoch)
        if start is not None:
            ended = FinishedTransaction(batch.producer_id, start, batch.base_offset, is_commit(batch))
            self.finished.append(ended)

    # ------------------------------------------------------------------------------------------ replication

    def hold_replication(self) -> None:
        """Let the followers fall behind: the high watermark stays where it is."""
        self.replicating = False

    def resume_replication(self) -> None:
        """Let the followers catch up."""
        self.replicating = True
        self._maybe_replicate()

    def _maybe_replicate(self) -> None:
        if self.replicating:
            self.high_watermark = self._end

    def truncate_to_high_watermark(self) -> None:
        """Lose what no follower had; what the partition knows of its producers is read from the rest again."""
        kept = [
            (batch, self._bytes[batch.base_offset])
            for batch in self.batches
            if batch.last_offset < self.high_watermark
        ]
        self.batches, self._bytes, self.finished = [], {}, []
        self.producers = ProducerStates()
        self._end = self.log_start_offset
        for batch, stored in kept:
            self._keep(batch, stored)
        self.formats = {offset: magic for offset, magic in self.formats.items() if offset < self._end}
        self.high_watermark = self._end

    # ------------------------------------------------------------------------------------------ retention

    def delete_before(self, offset: int, *, forget_producers: bool = False) -> None:
        """Move the log's start, and drop the batches that are wholly before it.

        Args:
            forget_producers: also drop the state of all producers without an open transaction.
        """
        self.log_start_offset = max(self.log_start_offset, min(offset, self.high_watermark))
        gone = [batch for batch in self.batches if batch.last_offset < self.log_start_offset]
        for batch in gone:
            del self._bytes[batch.base_offset], self.formats[batch.base_offset]
        self.batches = self.batches[len(gone) :]
        if forget_producers:
            self.producers.forget_idle()

    # ------------------------------------------------------------------------------------------ reading

    @property
    def last_stable_offset(self) -> int:
        """Up to here every transaction has ended, in a way that no loss of a leader can undo."""
        unstable = [each.first_offset for each in self.finished if each.marker_offset >= self.high_watermark]
        open_from = self.producers.first_open_offset()
        if open_from is not None:
            unstable.append(open_from)
        return min([*unstable, self.high_watermark])

    def visible_end(self, isolation: Isolation) -> int:
        """The offset before which a reader may read."""
        return self.last_stable_offset if isolation == "read_committed" else self.high_watermark

    def aborted_between(self, first: int, end: int) -> list[FinishedTransaction]:
        """The aborted transactions with records in a range of offsets, oldest first."""
        found = [
            each
            for each in self.finished
            if not each.committed and each.first_offset < end and each.marker_offset >= first
        ]
        return sorted(found, key=lambda each: each.first_offset)

    def read(self, offset: int, max_bytes: int, end: int) -> tuple[bytes, int]:
        """Stored batches from the one that holds `offset`, and where they end; one batch at least, if there is one."""
        pieces: list[bytes] = []
        size, next_offset = 0, offset
        for batch in self.batches:
            if batch.last_offset < offset:
                continue
            if batch.last_offset >= end or (pieces and size + batch.size > max_bytes):
                break
            pieces.append(self._bytes[batch.base_offset])
            size += batch.size
            next_offset = batch.last_offset + 1
        return b"".join(pieces), next_offset

    def records(self, isolation: Isolation) -> list[Record]:
        """The data records that a reader with this isolation gets; control records are never among them."""
        end = self.visible_end(isolation)
        skipped = self.aborted_between(0, end) if isolation == "read_committed" else []
        found: list[Record] = []
        for batch in self.batches:
            if batch.is_control or batch.last_offset >= end:
                continue
            if batch.is_transactional and any(_covers(each, batch) for each in skipped):
                continue
            found += [record for record in batch.records() if record.offset >= self.log_start_offset]
        return found

    def first_at_or_after(self, timestamp_ms: int, end: int) -> Record | None:
        """The first record, by offset, that is not older than a timestamp."""
        for batch in self.batches:
            if batch.max_timestamp < timestamp_ms or batch.is_control or batch.last_offset >= end:
                continue
            for record in batch.records():
                if record.timestamp >= timestamp_ms and record.offset >= self.log_start_offset:
                    return record
        return None


def _covers(ended: FinishedTransaction, batch: RecordBatch) -> bool:
    return (
        batch.producer_id == ended.producer_id
        and ended.first_offset <= batch.base_offset < ended.marker_offset
    )
