# SPDX-License-Identifier: Apache-2.0
"""What the I/O thread does with all batches of a request, when it leaves and when it is answered. Compiled if possible.

Only loops are here, for `sender`, `sender_metrics`, `outcomes` and `accumulator`, which say what they are for and do
what is not ordinary. I/O thread only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.producer.batch._batch_cy import TRANSITIONS, BatchState

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

if cython.compiled:
    from cython.cimports.penstock.producer.batch._batch_cy import Batch
    from cython.cimports.penstock.producer.batch._queue_cy import PartitionQueue
    from cython.cimports.penstock.producer.batch._delivery_cy import BatchResult
    from cython.cimports.penstock.protocol._produce_cy import PartitionBatch, PartitionResponse
else:
    from penstock.producer.batch._batch_cy import Batch
    from penstock.producer.batch._queue_cy import PartitionQueue
    from penstock.producer.batch._delivery_cy import BatchResult
    from penstock.protocol._produce_cy import PartitionBatch, PartitionResponse

_IN_FLIGHT, _SUCCEEDED = BatchState.IN_FLIGHT, BatchState.SUCCEEDED


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


# ----------------------------------------------------------------------------------------- a request leaves


def enter_flight(batches: list, in_flight: dict, mute: cython.bint) -> cython.double:  # type: ignore[type-arg]
    """Note that a request is about to hold these batches; when the oldest of them was created.

    Args:
        in_flight: gets them.
        mute: whether nothing of their partitions may overtake them.
    """
    oldest: cython.double = float("inf")
    batch: Batch
    for batch in batches:
        batch.request_pending = True
        in_flight[batch] = None
        if mute:
            batch.queue.muted = True
        if batch.created < oldest:
            oldest = batch.created
    return oldest


def leave_flight(batches: list, in_flight: dict) -> None:  # type: ignore[type-arg]
    """The request holds them no longer."""
    batch: Batch
    for batch in batches:
        batch.request_pending = False
        in_flight.pop(batch, None)


def addressed(batches: list, topic_id: Callable[[str], bytes]) -> list[PartitionBatch]:  # type: ignore[type-arg]
    """What a request says of each batch: where it goes, and its bytes."""
    found: list = []
    batch: Batch
    queue: PartitionQueue
    topic: str | None = None
    known: Any = None
    for batch in batches:
        queue = batch.queue
        if queue.topic is not topic:
            topic = queue.topic
            known = topic_id(topic)
        if batch.wire is not None:
            found.append(PartitionBatch(queue.topic, known, queue.partition, batch.wire))
    return found


@cython.final
@cython.cclass
class RequestSums:
    """What the batches of a request, or those of one topic in it, add up to.

    Attributes:
        size: bytes on the wire, and `largest`, those of the largest.
        ratios: of compression, one for each.
        waited_ms: time in the queue, and `longest_ms`, that of the one that waited longest.
        record_sizes: of the largest record of each, and `largest_record`, of all.
        topic: of all of them; None when they have several.
    """

    def __init__(self, batches: list) -> None:  # type: ignore[type-arg]
        self.count = len(batches)
        self.size = 0
        self.largest = 0
        self.records = 0
        self.ratios = 0.0
        self.waited_ms = 0.0
        self.longest_ms = 0.0
        self.record_sizes = 0
        self.largest_record = 0
        self.topic: str | None = None
        batch: Batch
        size: cython.Py_ssize_t
        waited: cython.double
        several: cython.bint = False
        for batch in batches:
            size = batch.wire_size()
            self.size += size
            self.largest = max(self.largest, size)
            self.records += batch.writer.count
            self.ratios += cython.cast(cython.double, size) / batch.writer.raw_size
            waited = (batch.drained_at - batch.created) * 1000
            self.waited_ms += waited
            self.longest_ms = max(self.longest_ms, waited)
            self.record_sizes += batch.writer.max_record_size
            self.largest_record = max(self.largest_record, batch.writer.max_record_size)
            if batch is batches[0]:
                self.topic = batch.queue.topic
            elif batch.queue.topic != self.topic:
                several = True
        if several:
            self.topic = None


# ---------------------------------------------------------------------------------------- it is answered


def tell_apart(batches: list, answers: list) -> tuple[list[Any], list[Any]]:  # type: ignore[type-arg]
    """Those that were simply written, and the others; each with its answer, or None.

    Args:
        answers: PartitionResponses.
    """
    written: list = []
    others: list = []
    batch: Batch
    answer: PartitionResponse | None
    at: cython.Py_ssize_t
    by_place: dict | None = None  # type: ignore[type-arg]
    if not _in_order(batches, answers):
        by_place = {(answer.topic, answer.partition): answer for answer in answers}
    for at in range(len(batches)):
        batch = batches[at]
        answer = answers[at] if by_place is None else by_place.get(batch.queue.place)
        if answer is not None and answer.error_code == 0 and batch.state is _IN_FLIGHT:
            written.append((batch, answer))
        else:
            others.append((batch, answer))
    return written, others


@cython.cfunc
def _in_order(batches: list, answers: list) -> cython.bint:  # type: ignore[type-arg]
    """Whether each answer is for the batch at its place, as a broker answers that takes a request as it is."""
    at: cython.Py_ssize_t
    batch: Batch
    answer: PartitionResponse
    if len(answers) != len(batches):
        return False
    for at in range(len(batches)):
        batch = batches[at]
        answer = answers[at]
        if answer.partition != batch.queue.partition:
            return False
        if answer.topic is not batch.queue.topic and answer.topic != batch.queue.topic:
            return False
    return True


def note_written(written: list, numbering: Any) -> tuple[list[Any], list[Any]]:  # type: ignore[type-arg]
    """Tell the numbering of batches that were written; those that are done, and (batch, error) where that failed."""
    done: list = []
    failed: list = []
    batch: Batch
    answer: PartitionResponse
    for pair in written:
        batch = pair[0]
        answer = pair[1]
        try:
            numbering.on_success(batch, answer.base_offset)
            batch.move_to(_SUCCEEDED)
        except Exception as error:  # noqa: BLE001 - told by the caller, and the others get their turn
            failed.append((batch, error))
        else:
            done.append(pair)
    return done, failed


def tell_written(done: list, on_trouble: Callable[[Any, Exception], None]) -> None:  # type: ignore[type-arg]
    """Settle the results of batches that were written; `on_trouble(batch, error)` where that fails."""
    batch: Batch
    answer: PartitionResponse
    result: BatchResult
    for pair in done:
        batch = pair[0]
        answer = pair[1]
        result = batch.result
        try:
            if not result.settle_unwatched(answer.base_offset, answer.log_append_time_ms):
                batch.result.settle(answer.base_offset, answer.log_append_time_ms)
        except Exception as error:  # noqa: BLE001 - likewise
            on_trouble(batch, error)


def take_memory(batches: Any, given_up: set) -> tuple[list[bytearray], int]:  # type: ignore[type-arg]
    """Take the memory of those batches that have their outcome and are held by no request: buffers, and counted bytes.

    Args:
        given_up: batches that have their outcome while a request still holds them; left by those that are freed.
    """
    buffers: list = []
    counted: cython.Py_ssize_t = 0
    batch: Batch
    for batch in batches:
        if batch.request_pending or TRANSITIONS[batch.state]:
            continue
        given_up.discard(batch)
        buffers += batch.buffers
        counted += batch.counted
        batch.buffers = []
        batch.counted = 0
        batch.wire = None
    return buffers, counted
