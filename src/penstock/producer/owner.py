# SPDX-License-Identifier: Apache-2.0
"""Which process and which I/O thread a call runs in, and so what it may wait for.

A producer's records get their outcome on its I/O thread, in the process that sent them. A call that waits for an
outcome must run on another thread, and in that process.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from typing import Any

from penstock._events import current, work_for
from penstock._locks import forbid_reentry
from penstock.errors import IllegalStateError

_thread = threading.local()


class Owner:
    """Stands for one producer: its I/O thread, its queues and the results of its batches refer to the same object.

    It also has what the I/O thread tells event loops: once for each answer of a broker, and not for each record.
    """

    __slots__ = ("_holds", "_to_ring", "_warned", "events")

    def __init__(self) -> None:
        self._holds = False  # of the I/O thread, as the next
        self._to_ring: dict[Any, None] = {}
        self._warned = False  # of a call that blocks a loop
        self.events = current()  # those of the client; made while that is put together

    def post(self, mailbox: Any, message: Any) -> None:
        """Tell an event loop something, through its `Mailbox`."""
        mailbox.put(message)
        if self._holds and on_io_thread(self):
            self._to_ring[mailbox] = None
        else:
            mailbox.ring()

    def hold(self) -> None:
        """From now on wake no loop. I/O thread only; `release` follows."""
        self._holds = True

    def release(self) -> None:
        """Wake the loops that were told something since `hold`."""
        self._holds = False
        if self._to_ring:
            to_ring, self._to_ring = self._to_ring, {}
            for mailbox in to_ring:
                mailbox.ring()

    def warn_in_loop(self, call: str) -> None:
        """Warn, once for each producer, of a call that is about to block the event loop of its thread."""
        if not self._warned and _loop_runs_here():
            self._warned = True
            warnings.warn(
                f"{call} blocks the event loop that runs on this thread: no other task goes on meanwhile. Use "
                "penstock.AsyncProducer, whose calls are awaited, and await a Delivery instead of asking for its "
                "result().",
                RuntimeWarning,
                stacklevel=_calls_of_the_package() + 1,
            )


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
    work_for(None if owner is None else owner.events)


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


def _loop_runs_here() -> bool:
    """Whether an event loop runs on the calling thread. Who has none has not imported asyncio."""
    asyncio, trio = sys.modules.get("asyncio.events"), sys.modules.get("trio.lowlevel")
    if trio is not None and trio.in_trio_run():
        return True
    if asyncio is None:
        return False
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _calls_of_the_package() -> int:
    """How many calls of the package are between the user's and this function's caller, which is counted, too."""
    import inspect  # rarely needed

    count = 0
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "penstock":
        frame = frame.f_back
        count += 1
    return count - 1  # compiled code has no frames
