# SPDX-License-Identifier: Apache-2.0
"""A lock that is held for less than a microsecond and is nearly always free. Compiled if possible.

Compiled code keeps the interpreter lock, so that nobody comes between a look at a field and a change of it: to take a
free lock is to set a few fields, where a lock of the operating system costs two calls for every record. A thread
that finds it taken waits at a real lock, which the holder opens when it leaves.

While a thread holds a lock, a finalizer or a signal handler may run on it and call the producer again. So a lock knows
its owner, and does not wait for the very thread that asks for it. All locks that are held at a moment are chained, for
`holds_any`; nearly always there are none.

Without an interpreter lock this would be no lock at all: there the compiled modules are not loaded, see `_compiled`.
Plain Python uses another class for the same purpose: `_locks` has it, and chooses.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from penstock.errors import ReentrantCallError

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

if cython.compiled:
    from cython.cimports.penstock._short_lock_cy import PyThread_get_thread_ident
else:
    from threading import get_ident as PyThread_get_thread_ident


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


# It refers to no lock but one that is held, and those do not refer to it.
@cython.no_gc
@cython.final
@cython.cclass
class ShortLock:
    """Compiled code takes it with `take` or `acquire`, and lets it go with `let_go` or `release` in a `finally`.

    Args:
        nests: its holder may take it again, and lets it go as often.
    """

    def __init__(self, nests: bool = False) -> None:
        self._held = False
        self._nests = nests
        self._owner = 0
        self._below = None
        self._depth = 0
        self._waiting = 0  # threads
        # A lock that they wait for. It is free only between two holders; a thread that gets it checks again.
        self._door: Any = None

    def acquire(self) -> None:
        """Take the lock, as soon as it is free. Ctrl-C can end the wait, and then it is not taken.

        Raises:
            ReentrantCallError: the calling thread holds it.
        """
        if self._held:
            self._wait()
        else:
            _chain(self)

    def release(self) -> None:
        """Let it go; one of those who wait has a look."""
        self.let_go()

    def take(self) -> cython.bint:
        """The same as `acquire`; False, instead of waiting, when the calling thread holds this or another lock."""
        if not self._held:
            _chain(self)
            return True
        if holds_any():
            return False
        self._wait()
        return True

    def let_go(self) -> cython.bint:
        """The same as `release`."""
        global _newest
        if self._depth:
            self._depth -= 1
            return True
        self._held = False
        if _newest is self:
            _newest = self._below
            self._below = None
        else:
            self._unchain()
        if self._waiting and self._door.locked():
            self._door.release()
        return True

    def _wait(self) -> None:
        if self._owner == PyThread_get_thread_ident():
            if not self._nests:
                raise ReentrantCallError(REENTERED)
            self._depth += 1
            return
        if self._door is None:
            door = threading.Lock()
            door.acquire()
            if self._door is None:  # nobody else came here meanwhile
                self._door = door
        self._waiting += 1
        try:
            while self._held:
                self._door.acquire()
            _chain(self)
        finally:
            self._waiting -= 1

    def _unchain(self) -> None:
        """Leave the chain, where locks were not let go in the order in which they were taken."""
        above: ShortLock | None = _newest
        while above is not None:
            if above._below is self:
                above._below = self._below
                break
            above = above._below
        self._below = None

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.let_go()


REENTERED = (
    "the producer was called by a finalizer or a signal handler that interrupted another call of it on the same thread "
    "at a point where this cannot be done. Make the call later, or from another thread."
)

# Of the locks that are held now, the one that was taken last.
_newest = cython.declare(ShortLock, None)


@cython.cfunc
@cython.inline
@cython.exceptval(-1)
def _chain(lock: ShortLock) -> cython.int:
    """Note who holds a lock that was free."""
    global _newest
    lock._held = True
    lock._owner = PyThread_get_thread_ident()
    lock._below = _newest
    _newest = lock
    return 0


def holds_any() -> cython.bint:
    """Whether the calling thread holds any of these locks."""
    if _newest is None:
        return False
    lock: ShortLock | None = _newest
    me: cython.ulong = PyThread_get_thread_ident()
    while lock is not None:
        if lock._owner == me:
            return True
        lock = lock._below
    return False


def _after_fork_in_child() -> None:
    """Forget the locks of threads that the child does not have: another thread may get the number of one of them."""
    global _newest
    _newest = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
