# SPDX-License-Identifier: Apache-2.0
"""What the batches of a request add up to, and their memory, once they have their outcome. Compiled if possible.

I/O thread only.
"""

from __future__ import annotations

from typing import Any

from penstock.producer.batch.batch_states import TRANSITIONS

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

if cython.compiled:
    from cython.cimports.penstock.producer.batch._flight_cy import BatchFields
else:
    from penstock.producer.batch._flight_cy import BatchFields


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


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
        batch: BatchFields
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


def take_memory(batches: Any, given_up: set) -> tuple[list[bytearray], int]:  # type: ignore[type-arg]
    """Take the memory of those batches that have their outcome and are held by no request: buffers, and counted bytes.

    Args:
        given_up: batches that have their outcome while a request still holds them; left by those that are freed.
    """
    buffers: list = []
    counted: cython.Py_ssize_t = 0
    batch: BatchFields
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
