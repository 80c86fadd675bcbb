# SPDX-License-Identifier: Apache-2.0
"""What happens to producers at the edges of a process: fork, exit, and being forgotten without close().

The registry of living producers is kept for the whole process, because fork and exit are events of the process; it
decides nothing while a program runs.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Protocol

from penstock.producer.batch.unseen import tell_at_exit

log = logging.getLogger("penstock.producer")

# Long enough for a healthy cluster, short enough that a program with a dead one still ends.
EXIT_FLUSH_SECONDS = 10.0


class Mortal(Protocol):
    """What a producer must be able to do at the edges."""

    def _after_fork_in_child(self) -> None:
        """Take note that this is a copy in a child process: no locks, no sockets, no threads."""
        ...

    def _begin_exit(self) -> None:
        """Accept nothing more; deliver what was accepted."""
        ...

    def _end_exit(self, seconds: float) -> None:
        """Wait that long for the deliveries, and warn about what is left."""
        ...


_living: weakref.WeakSet[Mortal] = weakref.WeakSet()
# I/O threads that finish the work of a producer nobody holds any more; each with what counts the records left.
_orphans: dict[threading.Thread, Callable[[], int]] = {}


def register(producer: Mortal) -> None:
    """Watch over a producer until it is closed."""
    _living.add(producer)


def unregister(producer: Mortal) -> None:
    """A producer was closed: nothing is left to be done."""
    _living.discard(producer)


def adopt(io_thread: threading.Thread, records_left: Callable[[], int]) -> None:
    """Wait at exit for the I/O thread of a producer that was forgotten without close().

    Args:
        io_thread: the thread.
        records_left: how many records have no outcome yet.
    """
    for orphan in [orphan for orphan in list(_orphans) if not orphan.is_alive()]:
        _orphans.pop(orphan, None)
    _orphans[io_thread] = records_left


def _after_fork_in_child() -> None:
    _orphans.clear()
    for producer in list(_living):
        producer._after_fork_in_child()
    _living.clear()


def _at_exit() -> None:
    # All of them at once, and one time for all: a program with many producers ends as soon as one with a single one.
    deadline = time.monotonic() + EXIT_FLUSH_SECONDS
    living = list(_living)
    for ends in (False, True):
        for producer in living:
            try:
                if ends:
                    producer._end_exit(max(0.0, deadline - time.monotonic()))
                else:
                    producer._begin_exit()
            except Exception:
                log.exception("a producer could not be closed at exit")
    for orphan, records_left in list(_orphans.items()):
        orphan.join(max(0.0, deadline - time.monotonic()))
        if orphan.is_alive():
            log.warning(
                "%s was given up with %d records that were not delivered: its producer was forgotten without close()",
                orphan.name, records_left(),
            )  # fmt: skip
    tell_at_exit()


def held_at(thread: threading.Thread) -> str:
    """Where a thread is just now, for a warning: the function, the file and the line; "" when nobody can tell.

    It is the innermost place outside the standard library: whose code waits there, not how it waits.
    """
    frames = []
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        frames.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    library = os.path.dirname(os.__file__) + os.sep
    own = [
        (code, line)
        for code, line in frames
        if not code.co_filename.startswith(library) or "-packages" in code.co_filename
    ]
    for code, line in own or frames:
        return f"{code.co_qualname} ({code.co_filename}:{line})"
    return ""


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_at_exit)
