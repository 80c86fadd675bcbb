# SPDX-License-Identifier: Apache-2.0
"""The event loops that the package waits in: those of asyncio (uvloop's too), and trio's.

Only what awaits imports this module. A `Loop` stands for the loop that runs on the calling thread. Whoever waits has a
token there: a future of asyncio, or a task of trio.

Rules:
1. Other threads only put messages into a loop's `Mailbox`. All else belongs to the loop's own thread.
2. A loop is woken once for all messages that come before it looks.
3. A loop that has ended is forgotten in silence: messages to it are dropped.
4. A token that is abandoned is forgotten at once, and with the last one the Waiting itself.
"""

from __future__ import annotations

import asyncio
import math
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator, Hashable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from penstock._ticket import Ticket


class Message(Protocol):
    """What another thread tells a loop."""

    def deliver(self) -> None:
        """Called in the loop."""
        ...

    def drop(self) -> None:
        """Called instead, on any thread, if the loop has ended."""
        ...


class Mailbox:
    """Messages to one loop.

    Args:
        wake: lets the loop call a function soon, from any thread; does nothing if the loop has ended.
    """

    __slots__ = ("__weakref__", "_messages", "_rung", "_wake")

    def __init__(self, wake: Callable[[Callable[[], None]], None]) -> None:
        self._wake = wake
        self._messages: deque[Message] = deque()  # appending and popping are atomic
        self._rung = False  # the loop was woken and has not looked yet

    def put(self, message: Message) -> None:
        """Leave a message. Any thread; `ring` follows."""
        self._messages.append(message)

    def ring(self) -> None:
        """Wake the loop, unless it was. Any thread.

        Either this sees that the loop was not woken since it began to look, or the loop sees the message.
        """
        if self._rung:
            return
        self._rung = True
        self._wake(
            _Errand(self)
        )  # a loop that has ended forgets it, and so does one that ends before it looks

    def look(self) -> None:
        """Deliver what has come. In the loop."""
        self._rung = False
        messages = self._messages
        try:
            while messages:
                messages.popleft().deliver()
        finally:
            if messages:  # Ctrl-C came in the middle
                self.ring()

    def drop_all(self) -> None:
        """The loop has ended. Any thread."""
        self._rung = False
        while True:
            try:
                message = self._messages.popleft()
            except IndexError:
                return
            message.drop()


class _Errand:
    """The look of a loop into its mailbox. If the loop throws it away, it has ended, and nobody will ever look."""

    __slots__ = ("_done", "_mailbox")

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._done = False

    def __call__(self) -> None:
        self._done = True
        self._mailbox.look()

    def __del__(self) -> None:
        if not self._done:
            self._mailbox.drop_all()


class Waiting:
    """Those who wait in one loop for the same event.

    Args:
        loop: the loop.
        event: what they wait for, if others may join them.
        on_drop: called if the loop has ended before they could go on.
    """

    __slots__ = ("_event", "_loop", "_on_drop", "follower", "mailbox", "tokens")

    def __init__(
        self,
        loop: AsyncioLoop | TrioLoop,
        event: Hashable = None,
        on_drop: Callable[[], object] | None = None,
    ) -> None:
        self._loop = loop
        self._event = event
        self._on_drop = on_drop
        self.mailbox = loop.mailbox
        self.tokens: dict[Any, None] = {}
        self.follower: Any = None  # the caller's, by which it is told

    def happened(self, _: object = None) -> None:
        """The event has come. Any thread."""
        self.mailbox.put(self)
        self.mailbox.ring()

    def ticket_ended(self, _: object) -> None:
        """A Ticket has ended: granted, or given up by the one who waited for it, and nobody is to be told."""
        if self.tokens:
            self.happened()

    def deliver(self) -> None:
        """Let all of them go on."""
        if self._event is not None:
            self._loop.events.pop(self._event, None)
        tokens, self.tokens = self.tokens, {}
        for token in tokens:
            self._loop.wake(token)

    def drop(self) -> None:
        """Nobody can go on any more."""
        if self._on_drop is not None and self.tokens:
            self._on_drop()

    def enter(self) -> Any:
        """The running task begins to wait: its token."""
        token = self._loop.new_token()
        self.tokens[token] = None
        return token

    def sleep(self, token: Any) -> Generator[Any, Any, None]:
        """Let the running task wait for the event; `leave` follows."""
        return self._loop.sleep(token, self.tokens)

    def leave(self, token: Any) -> bool:
        """A task goes on, or was cancelled; whether it was the last, and the event did not come: that is forgotten."""
        self.tokens.pop(token, None)
        if self.tokens or self._event is None or self._loop.events.get(self._event) is not self:
            return False
        del self._loop.events[self._event]
        return True


class AsyncioLoop:
    """A running loop of asyncio.

    Args:
        loop: the loop.

    Attributes:
        mailbox: how other threads reach it.
        events: what is waited for in it, by event.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)  # what waits holds the loop; this is kept after it
        self.mailbox = Mailbox(_waker_of(self._loop))
        self.events: dict[Hashable, Waiting] = {}

    def is_running_here(self) -> bool:
        """Whether it is the loop that runs on the calling thread."""
        return self._loop() is asyncio.get_running_loop()

    def has_ended(self) -> bool:
        """Whether nothing will ever run in it."""
        loop = self._loop()
        return loop is None or loop.is_closed()

    def new_token(self) -> Any:
        """For one wait of the running task."""
        return asyncio.get_running_loop().create_future()

    def wake(self, token: Any) -> None:
        """Let the task of a token go on."""
        if not token.done():
            token.set_result(None)

    def sleep(self, token: Any, tokens: dict[Any, None]) -> Generator[Any, Any, None]:
        """Let the running task wait for its token."""
        return token.__await__()  # type: ignore[no-any-return]

    async def wait_for(
        self, ticket: Ticket[Any], seconds: float, on_drop: Callable[[], object] | None = None
    ) -> bool:
        """Wait for a Ticket, at most so long; whether it has ended.

        Args:
            on_drop: called instead, on any thread, if the loop was closed while the task waited.
        """
        if ticket.done or seconds <= 0:
            return ticket.done
        loop = asyncio.get_running_loop()
        waiting = Waiting(self, on_drop=on_drop)
        token = loop.create_future()
        waiting.tokens[token] = None
        ticket.on_done(waiting.ticket_ended)
        timer = loop.call_later(seconds, self.wake, token) if seconds < math.inf else None
        try:
            await token
        finally:
            waiting.tokens.clear()
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
        """Wait for a Ticket as `wait_for` does, whoever cancels the task; the cancellation that came meanwhile.

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

    def __init__(self, lowlevel: Any) -> None:
        self._lowlevel = lowlevel
        self._token = weakref.ref(lowlevel.current_trio_token())
        self._ended = False  # set by any thread that finds it so
        self.mailbox = Mailbox(self._wake_up)
        self.events: dict[Hashable, Waiting] = {}

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
        """A block that cannot be cancelled."""
        return sys.modules["trio"].CancelScope(shield=True)

    async def outlast(self, ticket: Ticket[Any], seconds: float) -> BaseException | None:
        """Wait for a Ticket, whoever cancels the task; None, because trio raises a cancellation at the next wait."""
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


class _Here(threading.local):
    """The loops that were waited in on a thread, and the last one: the same, nearly always."""

    def __init__(self) -> None:
        self.loop: Loop | None = None
        self.loops: weakref.WeakKeyDictionary[Any, Loop] = weakref.WeakKeyDictionary()


_here = _Here()


def running_loop() -> Loop:
    """The loop that runs on the calling thread.

    Raises:
        RuntimeError: none does.
    """
    lowlevel: Any = sys.modules.get("trio.lowlevel")
    in_trio = lowlevel is not None and lowlevel.in_trio_task()
    known = _here.loop
    if known is not None and isinstance(known, TrioLoop) is in_trio and known.is_running_here():
        return known
    key: Any
    if lowlevel is not None and in_trio:
        key = lowlevel.current_trio_token()
    else:
        key = asyncio.get_running_loop()
    found = _here.loops.get(key)
    if found is None:
        found = _here.loops[key] = TrioLoop(lowlevel) if in_trio else AsyncioLoop(key)
    _here.loop = found
    return found


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
