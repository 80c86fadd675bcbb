# SPDX-License-Identifier: Apache-2.0
"""The event loops that the package waits in: those of asyncio (uvloop's too), and trio's.

Only what awaits imports this module. A `Loop` stands for the loop that runs on the calling thread. `_waiting_cy` has
those who wait in it, and the rules.
"""

from __future__ import annotations

import asyncio
import math
import sys
import threading
import weakref
from collections.abc import Callable, Generator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from penstock._waiting_cy import Event, Mailbox, Waiter, Waiting

if TYPE_CHECKING:
    from penstock._ticket import Ticket


class AsyncioLoop:
    """A running loop of asyncio.

    Args:
        loop: the loop.

    Attributes:
        loop: refers to it as long as somebody else does.
        mailbox: how other threads reach it.
        events: what is waited for in it, by event.
        takes_waiters: tasks wait for a Waiter, if asyncio takes one for a future; otherwise for its own futures.
    """

    takes_waiters = asyncio.isfuture(Waiter(None))

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = weakref.ref(loop)  # what waits holds the loop; this is kept after it
        self.mailbox = Mailbox(_waker_of(self.loop))
        self.events: dict[Event, Waiting] = {}

    def is_running_here(self) -> bool:
        """Whether it is the loop that runs on the calling thread."""
        return self.loop() is asyncio.get_running_loop()

    def has_ended(self) -> bool:
        """Whether nothing will ever run in it."""
        loop = self.loop()
        return loop is None or loop.is_closed()

    def new_token(self) -> asyncio.Future[None]:
        """For one wait of the running task, if that is not for a Waiter."""
        return asyncio.get_running_loop().create_future()

    def wake(self, token: asyncio.Future[None]) -> None:
        """Let the task of such a token go on, in the next turn."""
        if not token.done():  # it is, if the task was cancelled and has not gone on yet
            token.set_result(None)

    def sleep(self, token: asyncio.Future[None], _: dict[Any, None]) -> Generator[Any, Any, None]:
        """Let the running task wait for such a token."""
        return token.__await__()

    async def wait_for(
        self, ticket: Ticket[Any], seconds: float, on_drop: Callable[[], object] | None = None
    ) -> bool:
        """Wait for a Ticket, at most so long; whether it has ended.

        Args:
            on_drop: called instead, on any thread, if the loop was closed while the task waited.
        """
        if ticket.done or seconds <= 0:
            return ticket.done
        waiting = Waiting(self, on_drop=on_drop)
        token = waiting.enter()  # first: a Ticket that ends when nobody waits tells nobody
        ticket.on_done(waiting.ticket_ended)
        timer = None
        if seconds < math.inf:
            timer = asyncio.get_running_loop().call_later(seconds, waiting.deliver)
        try:
            await _Asleep(waiting, token)
        finally:
            waiting.leave(token)
            if timer is not None:
                timer.cancel()
        return ticket.done

    async def turn(self) -> None:
        """Let other tasks run."""
        await asyncio.sleep(0)

    def shield(self) -> Any:
        """A block that is not cancelled again and again by one who has been cancelled: see `outlast`."""
        anyio = sys.modules.get("anyio")
        return nullcontext() if anyio is None else anyio.CancelScope(shield=True)

    async def outlast(self, ticket: Ticket[Any], seconds: float) -> BaseException | None:
        """Wait for a Ticket as `wait_for` does, also if the task is cancelled; the cancellation that came meanwhile.

        A cancellation of asyncio comes once, so that the caller has to raise it later. Those of anyio come again and
        again, at every wait: it is told to keep them back, else the wait would spin.
        """
        cancelled: BaseException | None = None
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        with self.shield():
            while not ticket.done and loop.time() < until:
                try:
                    await self.wait_for(ticket, until - loop.time())
                except asyncio.CancelledError as error:
                    cancelled = error
        return cancelled


class TrioLoop:
    """A run of trio; see AsyncioLoop.

    Args:
        lowlevel: the module trio.lowlevel, which the program has imported.
    """

    takes_waiters = False

    def __init__(self, lowlevel: Any) -> None:
        self._lowlevel = lowlevel
        self._token = weakref.ref(lowlevel.current_trio_token())
        self._ended = False  # set by any thread that finds it so
        self.mailbox = Mailbox(self._wake_up)
        self.events: dict[Event, Waiting] = {}

    def is_running_here(self) -> bool:
        """Whether it is the run of the calling task."""
        return self._lowlevel.current_trio_token() is self._token()

    def has_ended(self) -> bool:
        """Whether nothing will ever run in it, as far as it is known."""
        return self._ended

    def new_token(self) -> Any:
        """For one wait of the running task, which can have one only."""
        return self._lowlevel.current_task()

    def wake(self, token: Any) -> None:
        """Let the task of a token go on."""
        self._lowlevel.reschedule(token)

    def sleep(self, token: Any, tokens: dict[Any, None]) -> Generator[Any, Any, None]:
        """Let the running task wait for its token."""

        def abort(_: object) -> Any:
            # At once: a task that was let go on must not be let go on again.
            tokens.pop(token, None)
            return self._lowlevel.Abort.SUCCEEDED

        return self._lowlevel.wait_task_rescheduled(abort).__await__()  # type: ignore[no-any-return]

    async def wait_for(
        self, ticket: Ticket[Any], seconds: float, on_drop: Callable[[], object] | None = None
    ) -> bool:
        """Wait for a Ticket, at most so long; whether it has ended."""
        if ticket.done or seconds <= 0:
            return ticket.done
        waiting = Waiting(self, on_drop=on_drop)
        ticket.on_done(waiting.happened)
        with sys.modules["trio"].move_on_after(seconds):
            await _Entered(waiting)
        return ticket.done

    async def turn(self) -> None:
        """Let other tasks run."""
        await self._lowlevel.checkpoint()

    def shield(self) -> Any:
        """A block that the loop does not cancel."""
        return sys.modules["trio"].CancelScope(shield=True)

    async def outlast(self, ticket: Ticket[Any], seconds: float) -> BaseException | None:
        """Wait for a Ticket, also if the task is cancelled; None, because trio raises it again at the next wait."""
        with self.shield():
            await self.wait_for(ticket, seconds)
        return None

    def _wake_up(self, look: Callable[[], None]) -> None:
        token = self._token()
        try:
            if token is None:
                self._ended = True
            else:
                token.run_sync_soon(look)
        except sys.modules["trio"].RunFinishedError:
            self._ended = True


Loop = AsyncioLoop | TrioLoop


class _ThreadLoops(threading.local):
    """The loops that were waited in on a thread, and the last one: the same, nearly always."""

    def __init__(self) -> None:
        self.loop: Loop | None = None
        self.loops: weakref.WeakKeyDictionary[Any, Loop] = weakref.WeakKeyDictionary()


_loops_of_thread = _ThreadLoops()


def running_loop() -> Loop:
    """The loop that runs on the calling thread.

    Raises:
        RuntimeError: none does.
    """
    lowlevel: Any = sys.modules.get("trio.lowlevel")
    in_trio = lowlevel is not None and lowlevel.in_trio_task()
    known = _loops_of_thread.loop
    if known is not None and isinstance(known, TrioLoop) is in_trio and known.is_running_here():
        return known
    key: Any
    if lowlevel is not None and in_trio:
        key = lowlevel.current_trio_token()
    else:
        key = asyncio.get_running_loop()
    found = _loops_of_thread.loops.get(key)
    if found is None:
        found = _loops_of_thread.loops[key] = TrioLoop(lowlevel) if in_trio else AsyncioLoop(key)
    _loops_of_thread.loop = found
    return found


def joined(event: Event) -> Waiting:
    """Those who wait for an event in the running loop, which the event is to tell.

    Raises:
        RuntimeError: no loop runs on the calling thread.
    """
    loop = running_loop()
    waiting = loop.events.get(event)
    if waiting is None:
        waiting = loop.events[event] = Waiting(loop, event)
        try:
            event.join(waiting)
        except BaseException:
            del loop.events[event]
            raise
    return waiting


def until(event: Event) -> Generator[Any, Any, None]:
    """Let a coroutine wait for an event."""
    waiting = joined(event)
    token = waiting.enter()
    try:
        yield from waiting.sleep(token)
    finally:
        waiting.leave(token)


class _Entered:
    __slots__ = ("_waiting",)

    def __init__(self, waiting: Waiting) -> None:
        self._waiting = waiting

    def __await__(self) -> Generator[Any, Any, None]:
        token = self._waiting.enter()
        try:
            yield from self._waiting.sleep(token)
        finally:
            self._waiting.leave(token)


class _Asleep:
    __slots__ = ("_token", "_waiting")

    def __init__(self, waiting: Waiting, token: Any) -> None:
        self._waiting = waiting
        self._token = token

    def __await__(self) -> Generator[Any, Any, None]:
        return self._waiting.sleep(self._token)


def _waker_of(loop: weakref.ref[asyncio.AbstractEventLoop]) -> Callable[[Callable[[], None]], None]:
    def wake(look: Callable[[], None]) -> None:
        found = loop()
        try:
            if found is not None:
                found.call_soon_threadsafe(look)
        except RuntimeError:
            if found is not None and not found.is_closed():
                raise

    return wake
