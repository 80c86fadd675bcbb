# SPDX-License-Identifier: Apache-2.0
"""Locks that do not wait for their own holder, and a latch that has no lock.

While a thread holds a lock, the garbage collector may run a finalizer on it, and the interpreter a signal handler.
Either may call the package again, for instance through a logging handler that sends records. A plain lock would then
wait for ever for the thread that waits. These locks know their owner and raise ReentrantCallError.

`threading.Event` takes a lock of its own in `set` and `wait`. A finalizer or a signal handler that runs on a thread
inside one of them, and comes to the same event, waits for that lock for ever. A `Latch` has none: each who waits has a
lock that nobody else waits at, and single operations of a list are atomic.

Rules:
1. Every lock of the package is made here, so that `inside` knows of it.
2. A public call that takes locks, or waits, begins with `forbid_reentry`, unless it finds another way. So no call that
   interrupts another one waits for a lock, also not for one that another thread holds: that thread may in turn wait for
   a lock that this one holds.
3. A thread that others count on while it holds no lock, such as one that is idle and will be given work, says so
   (`serving`): a finalizer that runs on it must not wait for those others.
"""

from __future__ import annotations

import threading
import weakref
from _thread import RLock
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from penstock import _short_lock_cy
from penstock._short_lock_cy import REENTERED, ShortLock
from penstock.errors import ReentrantCallError

_COMPILED = _short_lock_cy.is_compiled()
# Locks that are remembered before those that were let go are forgotten. Every record asks all of them.
_FEW = 4


class NestingLock(RLock):  # type: ignore[misc]  # it can be subclassed, whatever the stubs say
    """For plain Python: a lock that its holder can take again, and knows to be his."""

    def is_mine(self) -> bool:
        """Whether the calling thread holds it."""
        return bool(self._is_owned())  # type: ignore[attr-defined]  # as threading.Condition asks


class OwnedLock(NestingLock):  # type: ignore[misc]  # likewise
    """For plain Python: a lock whose holder is refused when he comes again.

    Only `__enter__` is a function of ours. Ctrl-C may come after any call in it, and is answered there; `__exit__` is
    the interpreter's own, which Ctrl-C cannot interrupt.
    """

    def __enter__(self) -> bool:  # type: ignore[override]
        # Not `is_mine`: every record comes here, and a call of a Python function takes its time.
        if self._is_owned():  # type: ignore[attr-defined]
            raise ReentrantCallError(REENTERED)
        if len(_taken.locks) >= _FEW:
            # A copy: see `inside`.
            _taken.locks = {lock for lock in _taken.locks.copy() if lock.is_mine()}
        # Asked for anew: a signal handler that came in between may have put another set in its place.
        _taken.locks.add(self)
        try:
            return self.acquire()
        except BaseException:
            if self.is_mine():
                self.release()
            raise


class _Taken(threading.local):
    """The locks that a thread has taken not long ago, among them those that it holds; and as what it serves others."""

    def __init__(self) -> None:
        self.locks: set[OwnedLock] = set()
        self.serves = ""  # what it is, for the error; "" while nobody counts on it


_taken = _Taken()
# One for each producer with transactions. No WeakSet: another thread may add one while this looks through them.
_nesting: set[weakref.ref[NestingLock]] = set()


def new_lock() -> Any:
    """A lock for `with`; to take it again while it is held by the same thread raises ReentrantCallError."""
    return ShortLock() if _COMPILED else OwnedLock()


def new_nesting_lock() -> Any:
    """A lock for `with` that its holder can take again."""
    if _COMPILED:
        return ShortLock(nests=True)
    lock = NestingLock()
    _nesting.add(weakref.ref(lock, _nesting.discard))
    return lock


def inside() -> bool:
    """Whether the calling thread holds a lock of the package: it was interrupted by a finalizer or a signal handler."""
    if _COMPILED:
        return bool(_short_lock_cy.holds_any())
    # Each allocation may start the garbage collector, and what it runs takes locks and lets locks go. `copy` allocates
    # before it reads the set; `tuple` and comprehensions allocate while they read it.
    for lock in _taken.locks.copy():
        # Not by `is_mine`, for the reason given in `OwnedLock.__enter__`.
        if lock._is_owned():  # type: ignore[attr-defined]  # noqa: SLF001
            return True
    for known in _nesting.copy() if _nesting else ():
        nesting = known()
        if nesting is not None and nesting.is_mine():
            return True
    return False


def mark_serving_thread(what: str) -> None:
    """Say that others wait for what the calling thread does: it must not wait for them, see `forbid_reentry`.

    Args:
        what: the thread, in words for the error.
    """
    _taken.serves = what


@contextmanager
def serving(what: str) -> Iterator[None]:
    """The same as `mark_serving_thread`, for a while."""
    before, _taken.serves = _taken.serves, what
    try:
        yield
    finally:
        _taken.serves = before


def forbid_reentry(call: str) -> None:
    """Refuse a call that would have to wait for a lock which the calling thread may hold.

    Raises:
        ReentrantCallError: a finalizer or a signal handler makes the call in the middle of another one.
    """
    if _taken.serves:
        raise ReentrantCallError(
            f"{call} was called by a finalizer that runs on {_taken.serves}: it would wait for that very thread. Hand "
            "the work to another thread."
        )
    if inside():
        raise ReentrantCallError(
            f"{call} was called by a finalizer or a signal handler that interrupted another call of the producer on "
            "the same thread: it would wait for that call, which cannot go on. Make the call later (a signal handler "
            "can set a flag for the main loop), or from another thread."
        )


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
