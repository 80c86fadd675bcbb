# SPDX-License-Identifier: Apache-2.0
"""One batch of records on its way to one partition: its states, its memory, its outcome. Compiled if possible.

A batch belongs to the thread that makes it until it is queued, then to the lock of its queue, then to the I/O thread.

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
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from penstock._events import Event, tell
from penstock.errors import IllegalStateError, KafkaError
from penstock.records.format import Buffer
from penstock.types import TopicPartition

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

# In this order the type checker sees the Python classes.
if not cython.compiled:
    from penstock.producer.batch._delivery_cy import BatchResult, Delivery
    from penstock.records._batch_cy import NEEDS_SEGMENT, BatchWriter

    new_delivery = Delivery

    if TYPE_CHECKING:  # a queue and its batches know each other
        from penstock.producer.batch._queue_cy import PartitionQueue
else:
    from cython.cimports.penstock.producer.batch._delivery_cy import (  # type: ignore[no-redef]
        BatchResult,
        Delivery,
        new_delivery,
    )
    from cython.cimports.penstock.producer.batch._queue_cy import PartitionQueue  # type: ignore[no-redef]
    from cython.cimports.penstock.records._batch_cy import (  # type: ignore[no-redef]
        NEEDS_SEGMENT,
        BatchWriter,
    )

if not cython.compiled:
    # Why a batch left its queue; compiled code has them in the .pxd.
    STILL_HERE = -1
    FULL = 0  # it has no room for more, or was closed because the next record did not fit
    LINGER = 1  # linger.ms is over
    FLUSH = 2
    MEMORY = 3  # somebody waits for memory
    CLOSE = 4
    TRANSACTION_END = 5
    ALONG = 6  # a request left for its broker because of another batch

log = logging.getLogger("penstock.producer")

# C variables when compiled.
_NONE = cython.declare(cython.int, -1)
_MASK = cython.declare(cython.longlong, 0x7FFFFFFF)
_HALF = cython.declare(cython.longlong, 1 << 30)


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


# -------------------------------------------------------------------------------------------------- states


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


# The simulator puts a table of its own here, which counts the rows that are used.
TRANSITIONS: Mapping[BatchState, frozenset[BatchState]] = {
    BatchState.QUEUED: frozenset({BatchState.IN_FLIGHT, BatchState.FAILED, BatchState.ABORTED}),
    BatchState.IN_FLIGHT: frozenset(
        {BatchState.QUEUED, BatchState.SUCCEEDED, BatchState.FAILED, BatchState.ABORTED, BatchState.SPLIT}
    ),
    BatchState.SUCCEEDED: frozenset(),
    BatchState.FAILED: frozenset(),
    BatchState.ABORTED: frozenset(),
    BatchState.SPLIT: frozenset(),
}
_QUEUED = BatchState.QUEUED


# ------------------------------------------------------------------------------------------------ identity


@cython.final
@cython.cclass
class BatchIdentity:
    """The fields of a batch header that make it recognisable to the broker; -1 where there is nothing to say.

    It is a value: nobody changes one.
    """

    def __init__(
        self,
        producer_id: cython.longlong = -1,
        producer_epoch: cython.int = -1,
        base_sequence: cython.int = -1,
        transactional: cython.bint = False,
    ) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence
        self.transactional = transactional

    def with_sequence(self, base_sequence: cython.int) -> BatchIdentity:
        """The same with another sequence number."""
        return new_identity(self.producer_id, self.producer_epoch, base_sequence, self.transactional)

    def is_of(self, producer: Any) -> cython.bint:
        """Whether the producer with this ProducerIdentity has given it."""
        known: tuple = cython.cast(tuple, producer)  # which it is, by another name
        producer_id: cython.longlong = known[0]
        producer_epoch: cython.int = known[1]
        return self.producer_id == producer_id and self.producer_epoch == producer_epoch

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BatchIdentity):
            return NotImplemented
        that: BatchIdentity = other
        return (
            self.producer_id == that.producer_id
            and self.producer_epoch == that.producer_epoch
            and self.base_sequence == that.base_sequence
            and self.transactional == that.transactional
        )

    def __repr__(self) -> str:
        kind = ", transactional" if self.transactional else ""
        return f"<BatchIdentity {self.producer_id}, {self.producer_epoch}, {self.base_sequence}{kind}>"


ANONYMOUS = BatchIdentity()


@cython.cfunc
def new_identity(
    producer_id: cython.longlong,
    producer_epoch: cython.int,
    base_sequence: cython.int,
    transactional: cython.bint,
) -> BatchIdentity:
    """An identity; in compiled code without a call of its constructor."""
    identity: BatchIdentity
    if not cython.compiled:
        return BatchIdentity(producer_id, producer_epoch, base_sequence, transactional)
    identity = BatchIdentity.__new__(BatchIdentity)
    identity.producer_id = producer_id
    identity.producer_epoch = producer_epoch
    identity.base_sequence = base_sequence
    identity.transactional = transactional
    return identity


def is_later(sequence: cython.int, than: cython.int) -> cython.bint:
    """Whether a number comes after another one in the circle of sequence numbers."""
    if than == _NONE:
        return True
    ahead: cython.longlong = (cython.cast(cython.longlong, sequence) - than) & _MASK
    return 0 < ahead < _HALF


# --------------------------------------------------------------------------------------------------- batch


@cython.final
@cython.cclass
class Batch:
    """A batch of one partition. After it left its queue it belongs to the I/O thread.

    Args:
        queue: where it waits.
        writer: its records.
        created: when, in monotonic seconds; the delivery time-out counts from here.
        buffers: its memory, from the pool; empty for a piece of a split batch, which lives outside the pool.
    """

    def __init__(
        self,
        queue: PartitionQueue,
        writer: BatchWriter,
        created: cython.double,
        buffers: list,  # type: ignore[type-arg]
    ) -> None:
        self.queue = queue
        self.writer = writer
        self.created = created
        self.buffers = buffers
        self.queued_as = 0  # position in its queue when opened (1 = first); 0 before that
        self.opening = (
            0  # number of its opening in its queue, which is the order of its records; pieces have it too
        )
        self.appended = 0  # what the writer has said to the last record: its bytes, or why it was not taken
        self.result = BatchResult(queue.topic, queue.partition, queue.owner)
        self.state: BatchState = _QUEUED
        self.attempts = 0  # times it was queued again after a request
        self.retry_at = 0.0  # not before this moment, unless the leader has changed
        self.leader_epoch = -1  # of the partition when it was last drained
        self.drained_at = created
        self.retried_for = 0.0  # seconds from its first request to its last
        self.left_by = STILL_HERE  # why it was sent, the first time
        self.request_pending = False  # a request holds its bytes
        self.identity: BatchIdentity = ANONYMOUS  # what its header is to say
        self.numbered_as = 0  # how many batches of its partition were numbered before it
        self.stamped: BatchIdentity | None = (
            ANONYMOUS  # what the header of `wire` says; None: it is not known
        )
        self.renumbered = False  # its numbers changed since it was sent last
        self.last_error: Any = None  # why it was queued again, the last time
        self.in_doubt = False  # a request for it ended, and it is not known whether it was written
        self.is_piece = False  # made by a split
        self.wire: memoryview | list[memoryview] | None = None  # the sealed bytes, perhaps in several pieces
        # For a leader that is too old for them: (magic, the same records as a message set).
        self.legacy: tuple[int, Buffer] | None = None

    @property
    def topic_partition(self) -> TopicPartition:
        """Where it goes."""
        place: TopicPartition = self.queue.place
        return place

    @property
    def record_count(self) -> int:
        return self.writer.count

    @property
    def size(self) -> int:
        """Bytes on the wire: known once sealed, estimated before."""
        return self.wire_size()

    @property
    def done(self) -> bool:
        return not TRANSITIONS[self.state]

    # ---- while it is open, under the lock of its queue

    def append(
        self,
        timestamp: cython.longlong,
        key: bytes | None,
        value: bytes | None,
        headers: Any,
        on_delivery: Any,
    ) -> Delivery | None:
        """Append a record; its Delivery, or None: the batch has no room for it, as `appended` says."""
        index: cython.Py_ssize_t = self.writer.count
        appended: cython.Py_ssize_t = self.writer.append(timestamp, key, value, headers)
        self.appended = appended
        if appended < 0:
            return None
        key_size: cython.Py_ssize_t = -1 if key is None else len(key)
        value_size: cython.Py_ssize_t = -1 if value is None else len(value)
        delivery = new_delivery(self.result, index, timestamp, key_size, value_size)
        if on_delivery is not None:
            self.result.add_callback(delivery, on_delivery)
        return delivery

    def append_rows(
        self,
        window: Any,
        first: cython.Py_ssize_t,
        last: cython.Py_ssize_t,
        budget: cython.Py_ssize_t,
        spares: list | None,  # type: ignore[type-arg]
    ) -> cython.Py_ssize_t:
        """Append rows of a window, growing where there is no room for the first of them; how many.

        The arguments are those of `PartitionQueue.append_rows`; `budget` is how many bytes the rows may have.
        """
        taken: cython.Py_ssize_t = window.append_to(self.writer, first, last, budget)
        if taken == 0 and spares and window.refusal == NEEDS_SEGMENT:
            self.writer.grow(spares.pop())
            taken = window.append_to(self.writer, first, last, budget)
        return taken

    def tell_of_rows(
        self,
        window: Any,
        first: cython.Py_ssize_t,
        count: cython.Py_ssize_t,
        accepted: list,  # type: ignore[type-arg]
    ) -> None:
        """Let the call that sent the rows appended last know where they are, once the batch is queued."""
        index: cython.Py_ssize_t = self.writer.count - count
        accepted.append((self.result, index, count, window.payload, window.span(first, count)))
        if window.expendable:
            self.result.add_expendable(index, count)

    # ---- on its way

    def wire_size(self) -> cython.Py_ssize_t:
        """The same as `size`, for compiled code."""
        if self.legacy is not None:
            return len(self.legacy[1])
        if self.wire is None:
            return self.writer.estimated_size()
        if not isinstance(self.wire, list):
            return len(self.wire)
        size: cython.Py_ssize_t = 0
        for piece in self.wire:
            size += len(piece)
        return size

    def sealed_bytes(self) -> Buffer:
        """The sealed bytes in one piece.

        Raises:
            ValueError: it is not sealed.
        """
        if self.wire is None:
            raise ValueError(f"{self!r} was never sent")
        return b"".join(self.wire) if isinstance(self.wire, list) else self.wire

    def age(self, now: cython.double) -> float:
        """Seconds since it was created; a clock that went backwards counts as no time."""
        return max(0.0, now - self.created)

    def reached_timeout(self, now: cython.double, timeout: cython.double) -> bool:
        """Whether its delivery time-out is over."""
        # The same sum as the moment for which the sender waits: a difference could be rounded to a little less.
        return now >= self.created + timeout

    def backing_off(self, now: cython.double, leader_epoch: cython.int) -> cython.bint:
        """Whether it must wait before it is tried again; a new leader is worth trying at once."""
        if self.attempts == 0 or now >= self.retry_at:
            return False
        return leader_epoch <= self.leader_epoch

    def move_to(self, state: BatchState) -> None:
        """Change the state.

        Raises:
            IllegalStateError: the table does not allow it.
        """
        if state not in TRANSITIONS[self.state]:
            raise IllegalStateError(
                f"a batch of {self.queue.place} that {_has(self.state)} cannot become {state.value}"
            )
        self.state = state

    def succeed(self, base_offset: cython.longlong, log_append_time_ms: cython.longlong) -> bool:
        """Acknowledge it; False when it had failed before and nothing changes."""
        if self._too_late("was acknowledged"):
            return False
        self.move_to(BatchState.SUCCEEDED)
        self.result.settle(base_offset, log_append_time_ms)
        return True

    def fail(self, error: KafkaError, record_errors: Mapping[int, KafkaError] | None = None) -> bool:
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
        tell(
            log, logging.DEBUG, Event.LATE_ANSWER,
            "a batch of %s %s after it had %s", self.topic_partition, what, self.state.value,
            place=self.topic_partition,
        )  # fmt: skip
        return True

    def __repr__(self) -> str:
        state = f"{self.record_count} records, {self.state.value}, attempt {self.attempts}"
        return f"<Batch {self.topic_partition}: {state}>"


def take_memory(batches: list, given_up: set, buffers: list) -> None:  # type: ignore[type-arg]
    """Take the memory of those batches that have their outcome and are held by no request.

    Args:
        given_up: batches that have their outcome while a request still holds them; left by those that are freed.
        buffers: gets the buffers.
    """
    batch: Batch
    for batch in batches:
        if batch.request_pending or TRANSITIONS[batch.state]:
            continue
        given_up.discard(batch)
        buffers += batch.buffers
        del batch.buffers[:]  # the writer's segments are the same list
        batch.wire = None
        batch.legacy = None


def comes_before(queued: Batch, batch: Batch) -> bool:
    """Whether a batch that waits in the queue was numbered before another one: retries keep that order."""
    return queued.identity.base_sequence >= 0 and is_later(
        batch.identity.base_sequence, queued.identity.base_sequence
    )


def by_topic(batches: list[Batch]) -> list[Batch]:
    """The same, topic by topic: in this order brokers answer."""
    found: dict[str, list[Batch]] = {}
    for batch in batches:
        found.setdefault(batch.queue.topic, []).append(batch)
    return list(chain.from_iterable(found.values()))


def _has(state: BatchState) -> str:
    return {BatchState.QUEUED: "is queued", BatchState.IN_FLIGHT: "is in flight"}.get(
        state, f"has {state.value}"
    )


def _fail_one(result: BatchResult, error: KafkaError, on_failed: Callable[[BatchResult], None]) -> None:
    result.settle(error=error, count=1)
    on_failed(result)


def how_far(batch: Batch) -> str:
    """What became of a batch whose time is over, and what the last broker that answered said."""
    if not batch.attempts:
        if batch.request_pending:
            return "It was sent, and no answer has come."
        return "It was never sent."
    sent = batch.attempts + batch.request_pending
    times = "once" if sent == 1 else f"{sent} times"
    last = "the last request has no answer, the one before" if batch.request_pending else "the last attempt"
    return f"It was sent {times}; {last} ended with: {batch.last_error}."
