# SPDX-License-Identifier: Apache-2.0
"""One batch of records on its way to one partition: its states, its memory, its outcome.

The states and what may follow each (`TRANSITIONS` is the same as data):

    QUEUED -----> IN_FLIGHT -----> SUCCEEDED
      ^  |            | | |
      |  |   retry    | | `------> SPLIT       its pieces are batches of their own
      |  +------------' |
      |  `--------------+--------> FAILED      expired, refused, retries used up
      `-----------------+--------> ABORTED     the producer was closed by force

Rules:
1. A final state is reached once. An answer that comes for a batch that has FAILED or was ABORTED meanwhile (it expired
   in flight) is logged and changes nothing.
2. Memory is freed when the batch has its outcome *and* no request holds its bytes, whichever comes last.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import IllegalStateError, KafkaError
from penstock.producer.delivery import BatchResult
from penstock.types import TopicPartition

if TYPE_CHECKING:
    from penstock.producer._queue_cy import PartitionQueue
    from penstock.records._batch_cy import BatchWriter

log = logging.getLogger("penstock.producer")


class BatchIdentity(NamedTuple):
    """The fields of a batch header that make it recognisable to the broker; -1 where it has none."""

    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    transactional: bool = False


ANONYMOUS = BatchIdentity()


class BatchState(enum.Enum):
    """Where a batch is."""

    # Each member is one object. Enum's own hash is a Python function, and states are looked up for every batch.
    __hash__ = object.__hash__

    QUEUED = "queued"
    IN_FLIGHT = "in flight"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    ABORTED = "aborted"
    SPLIT = "split"


TRANSITIONS: dict[BatchState, frozenset[BatchState]] = {
    BatchState.QUEUED: frozenset({BatchState.IN_FLIGHT, BatchState.FAILED, BatchState.ABORTED}),
    BatchState.IN_FLIGHT: frozenset(
        {BatchState.QUEUED, BatchState.SUCCEEDED, BatchState.FAILED, BatchState.ABORTED, BatchState.SPLIT}
    ),
    BatchState.SUCCEEDED: frozenset(),
    BatchState.FAILED: frozenset(),
    BatchState.ABORTED: frozenset(),
    BatchState.SPLIT: frozenset(),
}


class Batch:
    """A batch of one partition. After it left its queue it belongs to the I/O thread.

    Args:
        queue: where it waits.
        writer: its records.
        created: when, in monotonic seconds; the delivery time-out counts from here.
        buffers: its memory, from the pool; empty for a piece of a split batch, which lives outside the pool.
    """

    __slots__ = (
        "attempts",
        "buffers",
        "counted",
        "created",
        "drained_at",
        "identity",
        "in_doubt",
        "is_piece",
        "leader_epoch",
        "queue",
        "queued_as",
        "renumbered",
        "request_pending",
        "result",
        "retry_at",
        "stamped",
        "state",
        "wire",
        "writer",
    )

    def __init__(
        self, queue: PartitionQueue, writer: BatchWriter, created: float, buffers: list[bytearray]
    ) -> None:
        self.queue = queue
        self.writer = writer
        self.created = created
        self.buffers = buffers
        self.queued_as = 0  # the how-manieth of its queue it was, when it was opened there
        self.counted = 0  # bytes charged to the pool beyond `buffers`
        self.result = BatchResult(queue.topic, queue.partition, queue.active)
        self.state = BatchState.QUEUED
        self.attempts = 0  # times it was queued again after a request
        self.retry_at = 0.0  # not before this moment, unless the leader has changed
        self.leader_epoch = -1  # of the partition when it was last drained
        self.drained_at = created
        self.request_pending = False  # a request holds its bytes
        self.identity = ANONYMOUS  # what its header is to say
        self.stamped = ANONYMOUS  # what the header of `wire` says
        self.renumbered = False  # its numbers changed since it was sent last
        self.in_doubt = False  # a request for it ended without word of whether it was written
        self.is_piece = False  # made by a split
        self.wire: memoryview | None = None  # the sealed bytes

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
        return len(self.wire) if self.wire is not None else int(self.writer.estimated_size())

    @property
    def done(self) -> bool:
        """Whether it has its outcome."""
        return not TRANSITIONS[self.state]

    def move_to(self, state: BatchState) -> None:
        """Change the state.

        Raises:
            IllegalStateError: the table does not allow it.
        """
        if state not in TRANSITIONS[self.state]:
            raise IllegalStateError(
                f"a batch of {self.topic_partition} that {_has(self.state)} cannot become {state.value}"
            )
        self.state = state

    def age(self, now: float) -> float:
        """Seconds since it was created; a clock that went backwards counts as no time."""
        return max(0.0, now - self.created)

    def reached_timeout(self, now: float, timeout: float) -> bool:
        """Whether its delivery time-out is over."""
        # The same sum as the moment for which the sender waits: a difference could be rounded to a little less.
        return now >= self.created + timeout

    def backing_off(self, now: float, leader_epoch: int) -> bool:
        """Whether it must wait before it is tried again; a new leader is worth trying at once."""
        if self.attempts == 0 or now >= self.retry_at:
            return False
        return leader_epoch <= self.leader_epoch

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
        self.result.settle(error=error, record_errors=record_errors)
        return True

    def abort(self, error: KafkaError) -> None:
        """End it because the producer is closed by force."""
        self.move_to(BatchState.ABORTED)
        self.result.settle(error=error)

    def split_into(self, pieces: Sequence[Batch]) -> None:
        """Let pieces take its place; its result forwards to theirs."""
        self.move_to(BatchState.SPLIT)
        first = 0
        ranges = []
        for piece in pieces:
            ranges.append((first, piece.result))
            first += piece.record_count
        self.result.forward(ranges)

    def _too_late(self, what: str) -> bool:
        if self.state not in (BatchState.FAILED, BatchState.ABORTED):
            return False
        log.debug("a batch of %s %s after it had %s", self.topic_partition, what, self.state.value)
        return True

    def __repr__(self) -> str:
        state = f"{self.record_count} records, {self.state.value}, attempt {self.attempts}"
        return f"<Batch {self.topic_partition}: {state}>"


def _has(state: BatchState) -> str:
    return {BatchState.QUEUED: "is queued", BatchState.IN_FLIGHT: "is in flight"}.get(
        state, f"has {state.value}"
    )
