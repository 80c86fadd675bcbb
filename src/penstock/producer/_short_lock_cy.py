# SPDX-License-Identifier: Apache-2.0
"""A lock that is held for less than a microsecond and is nearly always free. Compiled if possible.

Compiled code keeps the interpreter lock, so that nobody comes between a look at a field and a change of it: to take a
free lock is to set a field, where a lock of the operating system costs two calls for every record. Who finds it taken
waits at a real lock, which the holder opens when he leaves.

Without an interpreter lock this would be no lock at all: there the compiled modules are not loaded, see `_compiled`.
Plain Python uses `threading.Lock`: there Ctrl-C may come between any two steps, but not while `with` takes a lock of
Python's own.
"""

from __future__ import annotations

import threading
from typing import Any

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


@cython.final
@cython.cclass
class ShortLock:
    """Compiled code takes it with `acquire`, and lets it go with `release` in a `finally`."""

    def __init__(self) -> None:
        self._held = False
        self._waiting = 0  # threads
        # Where they wait. Closed but for the moment between two holders; who comes through it looks again.
        self._door: Any = threading.Lock()
        self._door.acquire()

    def acquire(self) -> None:
        """Take the lock, as soon as it is free. Ctrl-C can end the wait, and then it is not taken."""
        if self._held:
            self._wait()
        else:
            self._held = True

    def release(self) -> None:
        """Let it go; one of those who wait has a look."""
        self._held = False
        if self._waiting and self._door.locked():
            self._door.release()

    def _wait(self) -> None:
        self._waiting += 1
        try:
            while self._held:
                self._door.acquire()
            self._held = True
        finally:
            self._waiting -= 1

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()
