# SPDX-License-Identifier: Apache-2.0
"""The queues that have batches, as the I/O thread looks at them in every turn. Compiled if possible."""

from __future__ import annotations

from operator import attrgetter

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

# In this order the type checker sees the Python class.
if not cython.compiled:
    from penstock.producer._queue_cy import PartitionQueue
else:
    from cython.cimports.penstock.producer._queue_cy import PartitionQueue

_BY_PLACE = attrgetter("place")
# Up to so many, putting each where it belongs is quicker than a sort that asks for keys and compares tuples.
_FEW = cython.declare(cython.Py_ssize_t, 24)


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


def in_order(active: set) -> list[PartitionQueue]:  # type: ignore[type-arg]
    """These queues, by topic and partition. Other threads may add to the set meanwhile: its copy is atomic."""
    queues: list = list(active)
    count: cython.Py_ssize_t = len(queues)
    if not cython.compiled or count > _FEW:
        queues.sort(key=_BY_PLACE)
        return queues
    queue: PartitionQueue
    at: cython.Py_ssize_t
    place: cython.Py_ssize_t
    for at in range(1, count):
        queue = queues[at]
        place = at
        while place > 0 and _comes_before(queue, queues[place - 1]):
            queues[place] = queues[place - 1]
            place -= 1
        queues[place] = queue
    return queues


@cython.cfunc
def _comes_before(queue: PartitionQueue, other: PartitionQueue) -> cython.bint:
    # Queues of one topic nearly always share the very string.
    if queue.topic is other.topic or queue.topic == other.topic:
        return queue.partition < other.partition
    return queue.topic < other.topic
