# SPDX-License-Identifier: Apache-2.0
"""Which process and which I/O thread a call runs in, and so what it may wait for.

A producer's records get their outcome on its I/O thread, in the process that sent them. A call that waits for an
outcome must run on another thread, and in that process.
"""

from __future__ import annotations

import os
import threading

from penstock._locks import forbid_reentry
from penstock.errors import IllegalStateError

_thread = threading.local()


class Owner:
    """Stands for one producer: its I/O thread, its queues and the results of its batches refer to the same object."""

    __slots__ = ()


_EVERYBODY = Owner()


class _Process:
    """This process. Its id is asked of the system once, and not for every batch."""

    def __init__(self) -> None:
        self.id = os.getpid()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        self.id = os.getpid()


process = _Process()


def mark_io_thread(owner: Owner | None = None) -> None:
    """Say that the calling thread is the I/O thread of `owner`; without one, of every producer."""
    _thread.works_for = _EVERYBODY if owner is None else owner


def on_io_thread(owner: Owner | None = None) -> bool:
    """Whether the calling thread is the I/O thread of `owner`; without one, of any producer."""
    works_for = getattr(_thread, "works_for", None)
    return works_for is not None and (owner is None or works_for is owner or works_for is _EVERYBODY)


def check_may_wait(call: str, owner: Owner | None = None) -> None:
    """Raise where a blocking call would wait for its own thread.

    Raises:
        IllegalStateError: on that I/O thread: in a delivery callback, or in a finalizer that runs there.
        ReentrantCallError: in a finalizer or a signal handler that interrupted a call of this thread under a lock.
    """
    if on_io_thread(owner):
        raise IllegalStateError(
            f"{call} was called from a delivery callback, or from a finalizer that runs on the I/O thread: it would "
            "wait for the very thread it runs on. Hand the work to another thread."
        )
    forbid_reentry(call)
