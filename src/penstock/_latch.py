# SPDX-License-Identifier: Apache-2.0
"""A latch: closed until it is opened, once and for all.

`threading.Event` takes a lock of its own in `set` and `wait`. A finalizer or a signal handler that runs on a thread
inside one of them, and comes to the same event, waits for that lock for ever. A latch has none: each who waits has a
lock that nobody else waits at, and single operations of a list are atomic.
"""

from __future__ import annotations

import threading


class Latch:
    """What threads wait at until somebody opens it."""

    __slots__ = ("_open", "_waiting")

    def __init__(self) -> None:
        self._open = False
        self._waiting: list[threading.Lock] = []

    def is_set(self) -> bool:
        """Whether it is open."""
        return self._open

    def set(self) -> None:
        """Open it: everybody who waits, or comes later, goes on."""
        self._open = True
        while self._waiting:
            try:
                waiting = self._waiting.pop()
            except IndexError:
                return  # another thread opens it, too, or the one who waited has gone
            waiting.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Block the calling thread until it is open; whether it is. Ctrl-C interrupts."""
        if self._open:
            return True
        if timeout is not None and timeout <= 0:
            return False
        opened = threading.Lock()
        opened.acquire()
        self._waiting.append(opened)
        try:
            # Either this sees that it is open, or who opens it sees the entry.
            if not self._open:
                opened.acquire(timeout=-1 if timeout is None else min(timeout, threading.TIMEOUT_MAX))
        finally:
            try:
                self._waiting.remove(opened)
            except ValueError:
                pass  # it was let go
        return self._open
