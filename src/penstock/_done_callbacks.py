# SPDX-License-Identifier: Apache-2.0
"""Done callbacks of Deliveries, and where they run: in the event loop in which they were added, if there was one.

So a Delivery can be given to `asyncio.wait`, and a callback may touch what the tasks of its loop use. Without a loop a
callback runs on the thread that completes the Delivery.

Rules:
1. A callback of a loop runs in a later turn of the loop, also if the Delivery was done when it was added; it has the
   context variables of the task that added it.
2. The application learns of an outcome when the callback runs: one whose loop has ended first is no look at it.
3. An entry is taken once, by who calls it or by who removes it. Single operations on lists are atomic, so no lock.
"""

from __future__ import annotations

import contextvars
import logging
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock._arguments import check_callable
from penstock._events import Event, tell_error

if TYPE_CHECKING:
    from penstock._loops import Loop


class DoneCallback:
    """A function to be called with a future when that is done. Calling it does that, or lets the loop do it.

    Args:
        fn: the user's function.
        look: called with the future right before: the application is told of the outcome.
        log: gets what the function raises in a loop.
        post: leaves a message in a loop's mailbox, as `Owner.post` does; None: the loop is woken for this one.

    Raises:
        TypeError: it cannot be called.
    """

    __slots__ = ("_context", "_log", "_look", "_loop", "_post", "fn")

    def __init__(
        self,
        fn: Callable[[Any], object],
        look: Callable[[Any], object],
        log: logging.Logger,
        post: Callable[[Any, Any], None] | None = None,
    ) -> None:
        check_callable(fn, "fn")
        self.fn = fn
        self._look = look
        self._log = log
        self._post = post
        self._loop = _try_running_loop()
        self._context = None if self._loop is None else contextvars.copy_context()

    def __call__(self, future: Any) -> None:
        """The future is done. On any thread."""
        loop = self._loop
        if loop is None:
            self._look(future)
            self.fn(future)
        elif not loop.has_ended():
            message = _DoneMessage(self, future)
            if self._post is not None:
                self._post(loop.mailbox, message)
            else:
                loop.mailbox.put(message)
                loop.mailbox.ring()

    def run_in_loop(self, future: Any) -> None:
        """Call the function where its loop runs."""
        self._look(future)
        try:
            if self._context is not None:
                self._context.run(self.fn, future)
        except Exception as error:  # noqa: BLE001 - it is logged
            tell_error(self._log, Event.CALLBACK_FAILED, "a done callback of %r raised", future, error=error)


class DoneCallbacks:
    """The done callbacks of one future, until it is done."""

    __slots__ = ("_entries", "_released")

    def __init__(self) -> None:
        self._entries: list[DoneCallback] = []
        self._released = False

    def add(self, entry: DoneCallback, call: Callable[[DoneCallback], None]) -> None:
        """Keep it; where the future was found to be done, `call` it now."""
        # Whichever comes second, this or `release`, sees the other.
        self._entries.append(entry)
        if self._released and self._take(entry):
            call(entry)

    def remove(self, fn: object) -> int:
        """Forget those with this function; how many."""
        return sum(entry.fn == fn and self._take(entry) for entry in list(self._entries))

    def release(self, call: Callable[[DoneCallback], None]) -> None:
        """The future is done: call them in order. More than once is harmless."""
        self._released = True
        while self._entries:
            try:
                entry = self._entries.pop(0)
            except IndexError:
                return
            call(entry)

    def _take(self, entry: DoneCallback) -> bool:
        try:
            self._entries.remove(entry)
        except ValueError:
            return False
        return True


class _DoneMessage:
    """A message to the loop; see `Mailbox`."""

    __slots__ = ("_callback", "_future")

    def __init__(self, callback: DoneCallback, future: Any) -> None:
        self._callback = callback
        self._future = future

    def deliver(self) -> None:
        self._callback.run_in_loop(self._future)

    def drop(self) -> None:
        """Do nothing: the loop has ended, so that no callback of it can run."""


def _try_running_loop() -> Loop | None:
    """The loop that runs on the calling thread. A thread without a loop may have imported neither of these modules."""
    trio, asyncio = sys.modules.get("trio.lowlevel"), sys.modules.get("asyncio.events")
    if trio is None or not trio.in_trio_task():
        if asyncio is None:
            return None
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return None
    from penstock._loops import running_loop

    return running_loop()
