# SPDX-License-Identifier: Apache-2.0
"""The fields of a batch's outcome, and the ordinary end of it: written, and nobody waits. Compiled if possible.

`delivery.BatchResult` has the rules, and everything that is not ordinary.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.errors import KafkaError
from penstock.types import RecordMetadata

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

NO_ERRORS: Mapping[int, KafkaError] = {}
# The callbacks of every result that has called its own. Nobody may append to it.
NOBODY: list[Any] = []


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


class _Process:
    """The process that this is: asked of the system once, and not for every batch."""

    def __init__(self) -> None:
        self.id = os.getpid()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        self.id = os.getpid()


process = _Process()


@cython.cclass
class ResultFields:
    """What is known of the outcome of one batch.

    Args:
        topic: the batch's topic.
        partition: its partition.
        owner: whose I/O thread settles it.
    """

    def __init__(self, topic: str, partition: cython.int, owner: object = None) -> None:
        self.owner = owner
        self.topic = topic
        self.partition = partition
        self.pid = process.id  # a fork's copy will never be settled
        # Set once by the I/O thread.
        self.base_offset = -1
        self.log_append_time_ms = -1
        self.error: KafkaError | None = None
        self.record_errors: Mapping[int, KafkaError] = NO_ERRORS
        self.settled = False  # values are set; callbacks may still be running
        self.done = False
        self.pieces: Sequence[tuple[int, Any]] = ()  # (first index, result), in order, after a split
        # (delivery, on_delivery): appended under the partition lock while the batch is open, then the I/O thread's.
        self.callbacks: list[tuple[Any, Callable[[RecordMetadata, KafkaError | None], None]]] = []
        # Who follows, and who waits: any thread. Most results are done before anybody does. A program that keeps its
        # Deliveries keeps these, and a list would be looked at by the garbage collector where an empty dict is not.
        self.interested: dict[str, list[Any]] = {}
        # (first index, count) of rows that may be left out if the broker refuses them; set as `callbacks` are.
        self.expendable: list[tuple[int, int]] | None = None
        self.unseen: Any = None  # an UnseenRecords, once the batch has failed

    def settle_unwatched(
        self, base_offset: cython.longlong, log_append_time_ms: cython.longlong
    ) -> cython.bint:
        """End it as written, if nobody has to be told; False: `settle` has to do it. I/O thread only.

        Compiled code only: there nobody comes between the look at who waits and the end.
        """
        if not cython.compiled or self.settled or self.callbacks or self.interested or len(self.pieces):
            return False
        self.base_offset = base_offset
        self.log_append_time_ms = log_append_time_ms
        self.callbacks = NOBODY
        self.settled = True
        self.done = True
        return True
