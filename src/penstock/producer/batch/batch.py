# SPDX-License-Identifier: Apache-2.0
"""One batch of records on its way to one partition: its states, its memory, its outcome.

Rules:
1. A final state is reached once. An answer that comes for a batch that has FAILED or was ABORTED meanwhile (it expired
   in flight) is logged and changes nothing.
2. Memory is freed when the batch has its outcome *and* no request holds its bytes, whichever comes last.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from penstock.errors import KafkaError
from penstock.producer.batch._delivery_cy import BatchResult
from penstock.producer.batch._flight_cy import BatchFields, is_later
from penstock.producer.batch.batch_states import TRANSITIONS, BatchState
from penstock.producer.batch.identity import ANONYMOUS, BatchIdentity
from penstock.types import TopicPartition

__all__ = ["ANONYMOUS", "TRANSITIONS", "Batch", "BatchIdentity", "BatchState", "comes_before"]

log = logging.getLogger("penstock.producer")


class Batch(BatchFields):
    """A batch of one partition. After it left its queue it belongs to the I/O thread.

    Args: as for `BatchFields`, which has what is asked of every batch.
    """

    __slots__ = ()

    @property
    def topic_partition(self) -> TopicPartition:
        """Where it goes."""
        place: TopicPartition = self.queue.place
        return place

    @property
    def record_count(self) -> int:
        """How many records it has."""
        return int(self.writer.count)

    @property
    def size(self) -> int:
        """Bytes on the wire: known once sealed, estimated before."""
        return int(self.wire_size())

    @property
    def done(self) -> bool:
        """Whether it has its outcome."""
        return not TRANSITIONS[self.state]

    def age(self, now: float) -> float:
        """Seconds since it was created; a clock that went backwards counts as no time."""
        return max(0.0, now - float(self.created))

    def reached_timeout(self, now: float, timeout: float) -> bool:
        """Whether its delivery time-out is over."""
        # The same sum as the moment for which the sender waits: a difference could be rounded to a little less.
        return now >= float(self.created) + timeout

    def succeed(self, base_offset: int, log_append_time_ms: int) -> bool:
        """Acknowledge it; False when it had failed before and nothing changes."""
        if self._too_late("was acknowledged"):
            return False
        self.move_to(BatchState.SUCCEEDED)
        self.result.settle(base_offset, log_append_time_ms)
        return True

    def fail(self, error: KafkaError, record_errors: dict[int, KafkaError] | None = None) -> bool:
        """End it with an error, for some records perhaps a different one; False when it had failed before."""
        if self._too_late("failed again"):
            return False
        self.move_to(BatchState.FAILED)
        self.result.settle(error=error, record_errors=record_errors, count=self.record_count)
        return True

    def abort(self, error: KafkaError) -> None:
        """End it because the producer is closed by force, which tells how many records that concerns."""
        self.move_to(BatchState.ABORTED)
        self.result.settle(error=error)

    def split_into(self, pieces: Sequence[Batch]) -> None:
        """Let pieces take its place; its result forwards to theirs."""
        self.move_to(BatchState.SPLIT)
        first = 0
        ranges = []
        for piece in pieces:
            ranges.append((first, piece.result))
            piece.result.take_expendable(self.result, first)
            first += piece.record_count
        self.result.forward(ranges)

    def leave_out(
        self,
        refused: Mapping[int, KafkaError],
        pieces: Sequence[tuple[int, Batch]],
        on_failed: Callable[[BatchResult], None],
    ) -> None:
        """Let records that the broker refused fail, and pieces take the place of the others.

        A refused record is told when those before it are: callbacks come in the order of the records.

        Args:
            refused: by index, why.
            pieces: the others, each with the index of its first record.
            on_failed: given the result of each refused record, once it is told.
        """
        self.move_to(BatchState.SPLIT)
        results = {first: piece.result for first, piece in pieces}
        for first, result in results.items():
            result.take_expendable(self.result, first)
        failed = {index: BatchResult(*self.topic_partition, self.result.owner) for index in refused}
        self.result.forward(sorted((results | failed).items()))
        before: BatchResult | None = None
        for index, result in self.result.pieces:
            if index not in failed:
                before = result
                continue
            tell = partial(_fail_one, result, refused[index], on_failed)
            if before is None:
                tell()
            else:
                before.when_settled(tell)

    def _too_late(self, what: str) -> bool:
        if self.state not in (BatchState.FAILED, BatchState.ABORTED):
            return False
        log.debug("a batch of %s %s after it had %s", self.topic_partition, what, self.state.value)
        return True

    def __repr__(self) -> str:
        state = f"{self.record_count} records, {self.state.value}, attempt {self.attempts}"
        return f"<Batch {self.topic_partition}: {state}>"


def comes_before(queued: Batch, batch: Batch) -> bool:
    """Whether a batch that waits in the queue was numbered before another one: retries keep that order."""
    return queued.identity.base_sequence >= 0 and is_later(
        batch.identity.base_sequence, queued.identity.base_sequence
    )


def _fail_one(result: BatchResult, error: KafkaError, on_failed: Callable[[BatchResult], None]) -> None:
    result.settle(error=error, count=1)
    on_failed(result)
