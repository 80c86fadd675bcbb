# SPDX-License-Identifier: Apache-2.0
"""Takes the memory of batches that have their outcome. I/O thread only. Compiled if possible."""

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
