# SPDX-License-Identifier: Apache-2.0
"""Waiting as a value: a Ticket, and the Countdown of those that are waited for together.

The core never blocks. What cannot be had now is answered with a Ticket, which the core completes later. Who holds the
Ticket decides how to wait: a thread with a deadline, a coroutine, or the simulator's virtual time.

Rules:
1. A Ticket ends exactly once: granted (`complete`), failed (`fail`), or given up by its holder (`give_up`).
2. `give_up` answers False when the Ticket had been granted already: the holder then owns the result and must use it or
   give it back.
3. Callbacks run once, on the thread that ended the Ticket, never under one of the core's locks.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from penstock._locks import Latch, new_lock

T = TypeVar("T")

_PENDING, _GRANTED, _FAILED, _GIVEN_UP = range(4)


class TicketKind(enum.Enum):
    """What is waited for, for code that treats waits differently. What people read is `Ticket.what`."""

    METADATA = "metadata"
    MEMORY = "memory"
    OTHER = "other"


class Ticket(Generic[T]):
    """A place in a queue for something that will be had later.

    Args:
        what: what is waited for, in words: for error messages and the simulator's trace.
        kind: the same, for code.
    """

    __slots__ = ("_callbacks", "_error", "_lock", "_result", "_state", "kind", "what")

    def __init__(self, what: str, kind: TicketKind = TicketKind.OTHER) -> None:
        self.what = what
        self.kind = kind
        self._lock: Any = new_lock()  # guards the four below
        self._state = _PENDING
        self._result: T | None = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Ticket[T]], None]] = []

    @classmethod
    def granted(cls, what: str, result: T) -> Ticket[T]:
        """Make a Ticket whose result is there already."""
        ticket = cls(what)
        ticket._state = _GRANTED
        ticket._result = result
        return ticket

    @property
    def done(self) -> bool:
        """Whether it has ended: granted, failed or given up."""
        return self._state != _PENDING

    @property
    def result(self) -> T:
        """What was granted. Raises the error of a failed Ticket; RuntimeError when it is not done or was given up."""
        if self._state == _GRANTED:
            return self._result  # type: ignore[return-value]  # T may itself be optional
        if self._state == _FAILED and self._error is not None:
            raise self._error.with_traceback(None)  # it may be raised to several who wait
        raise RuntimeError(f"no result: {self!r}")

    def on_done(self, callback: Callable[[Ticket[T]], None]) -> None:
        """Call `callback(ticket)` when it ends, or at once when it has."""
        with self._lock:
            if self._state == _PENDING:
                self._callbacks.append(callback)
                return
        callback(self)

    def complete(self, result: T) -> bool:
        """Grant it. False when the holder had given up: the result stays with the caller."""
        return self._end(_GRANTED, result, None)

    def fail(self, error: BaseException) -> bool:
        """End it with an error. False when it had ended before."""
        return self._end(_FAILED, None, error)

    def give_up(self) -> bool:
        """Stop waiting. False when it had ended before, and its result is the holder's to use or to give back."""
        return self._end(_GIVEN_UP, None, None)

    def wait(self, timeout: float | None = None) -> bool:
        """Block the calling thread until it ends; whether it did. Ctrl-C interrupts. Not for the I/O thread."""
        if self.done:
            return True
        ended = Latch()
        self.on_done(lambda _: ended.set())
        return ended.wait(timeout)

    def _end(self, state: int, result: T | None, error: BaseException | None) -> bool:
        with self._lock:
            if self._state != _PENDING:
                return False
            self._result = result
            self._error = error
            self._state = state
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)
        return True

    def __repr__(self) -> str:
        return f"<Ticket for {self.what}: {('pending', 'granted', 'failed', 'given up')[self._state]}>"


class Countdown:
    """Calls back after `count` calls of `one_less`, which may come from several threads at once."""

    __slots__ = ("_callback", "_left", "_lock")

    def __init__(self, count: int, callback: Callable[[], object]) -> None:
        self._callback = callback
        self._lock: Any = new_lock()  # guards _left
        self._left = count

    def one_less(self) -> None:
        """Count one; the last one calls back, outside the lock."""
        with self._lock:
            self._left -= 1
            last = self._left == 0
        if last:
            self._callback()
