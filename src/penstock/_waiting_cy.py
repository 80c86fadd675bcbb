# SPDX-License-Identifier: Apache-2.0
"""Those who wait in an event loop, and the mailbox by which other threads wake them. Compiled if possible.

A task that waits has a token: a `Waiter` in asyncio, or a task of trio. `_loops` has the loops themselves.

Rules:
1. Other threads only put messages into a loop's `Mailbox`. All else belongs to the loop's own thread.
2. A loop is woken once for all messages that come before it looks.
3. A loop that has ended is forgotten in silence: messages to it are dropped.
4. A token that is abandoned is forgotten at once, and with the last one the Waiting itself.
5. A task of asyncio goes on while its loop looks into the mailbox, not in a turn of the loop of its own. A future would
   cost a record that turn, and most of what asyncio takes for it; with 100 tasks a fifth more processor time.
6. A Waiter knows whether its task still waits; another token waits while it is among `tokens`.
7. `asyncio.isfuture` documents what a class needs to be taken for a future. Should that change, the tokens are futures
   of the loop.
"""

from __future__ import annotations

import sys
from asyncio import CancelledError, Future, InvalidStateError
from asyncio.events import _get_running_loop
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Protocol

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

if cython.compiled:
    from cython.cimports.penstock._waiting_cy import PyContext_Enter, PyContext_Exit

# C variables when compiled.
_PENDING = cython.declare(cython.int, 0)
_WOKEN = cython.declare(cython.int, 1)
_CANCELLED = cython.declare(cython.int, 2)
_MODULES = cython.declare(dict, sys.modules)


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


class _NoLoop:
    """In place of the loop of a future that nobody waits for."""

    def get_debug(self) -> bool:
        return False


# What a task is told that goes on. It asks for the result, and knows how to do so without a call for futures of asyncio
# only: a Waiter in its place would cost a tenth of the whole way of a record.
_DONE: Any = Future(loop=_NoLoop())  # type: ignore[arg-type]
_DONE.set_result(None)


class Message(Protocol):
    """What another thread tells a loop."""

    def deliver(self) -> None:
        """Do what the message is for. The loop calls it."""
        ...

    def drop(self) -> None:
        """Called instead, on any thread, if the loop has ended."""
        ...


class Event(Protocol):
    """What many may wait for. It can be hashed, and is equal to itself only."""

    def join(self, waiting: Waiting) -> None:
        """Let those who wait in one loop be told when it comes; at once if it has."""
        ...

    def quit(self, waiting: Waiting) -> None:
        """Remove those who wait: they are not told any more."""
        ...


@cython.final
@cython.cclass
class Mailbox:
    """Messages to one loop.

    Args:
        wake: lets the loop call a function soon, from any thread; does nothing if the loop has ended.
    """

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
        # A loop that has ended forgets it, and so does one that ends before it looks.
        self._wake(_MailboxCheck(self, False))

    def ring_again(self) -> None:
        """The loop has dropped the call that woke it: wake it once more, if it has not ended. Any thread."""
        self._rung = True
        self._wake(_MailboxCheck(self, True))

    def look(self) -> None:
        """Deliver what has come. In the loop."""
        self._rung = False
        messages = self._messages
        message: Any = None
        try:
            while messages:
                # Ctrl-C comes after calls: with `popleft` alone the message would be lost.
                message = messages[0]
                messages.popleft()
                message.deliver()
                message = None
        finally:
            # If Ctrl-C came in the middle: a callback is called once at most, but those who wait can be told again.
            if isinstance(message, Waiting):
                messages.append(message)
            if messages:
                self.ring()

    def drop_all(self) -> None:
        """Drop all messages, because the loop has ended. Any thread."""
        self._rung = False
        while True:
            try:
                message = self._messages.popleft()
            except IndexError:
                return
            message.drop()


class _MailboxCheck:
    """A call in a loop that looks into its mailbox.

    A loop drops it without a call in two cases: the loop has ended, so that nobody will ever look; or Ctrl-C came
    just before the call. A second one tells which: a loop that has ended drops that as well. The second one is made
    when the program drops the exception, whose traceback refers to the first one.

    Args:
        mailbox: to look into.
        is_second: whether the loop has dropped one already.
    """

    __slots__ = ("_done", "_is_second", "_mailbox")

    def __init__(self, mailbox: Mailbox, is_second: bool) -> None:
        self._mailbox = mailbox
        self._is_second = is_second
        self._done = False

    def __call__(self) -> None:
        self._is_second = False  # it is called, so the loop goes on: what it wakes may interrupt the look
        self._mailbox.look()
        self._done = True

    def __del__(self) -> None:
        if self._done:
            return
        if self._is_second:
            self._mailbox.drop_all()
        else:
            self._mailbox.ring_again()


@cython.final
@cython.freelist(256)
@cython.cclass
class Waiter:
    """The token of a task of asyncio: as much of a future as a task needs to wait for it.

    A task knows it by `_asyncio_future_blocking`, as it knows every class that stands for a future. What a future does
    in a later turn of the loop, `wake` does at once: it lets the task go on. The loop's own thread only.

    Args:
        loop: the loop that runs.
    """

    def __init__(self, loop: Any) -> None:
        self._asyncio_future_blocking = True
        self._loop = loop
        self._state = _PENDING
        self._callback: Callable[[Any], object] | None = None
        self._context: Any = None
        self._message: Any = None

    def get_loop(self) -> Any:
        """The loop in which it is waited for."""
        return self._loop

    def done(self) -> bool:
        """Whether the task goes on, or will soon."""
        return bool(self._state != _PENDING)

    def cancelled(self) -> bool:
        """Whether that is because it was cancelled."""
        return bool(self._state == _CANCELLED)

    def add_done_callback(self, fn: Callable[[Any], object], *, context: Any = None) -> None:
        """Let a task go on by this function; there is one only."""
        if self._callback is not None:
            raise RuntimeError(f"{self!r} is waited for already")
        self._callback = fn
        self._context = context
        if self._state != _PENDING:
            self._go_on_soon()

    def cancel(self, msg: Any = None) -> bool:
        """Let the task go on with a CancelledError, in the next turn of the loop; False if it goes on already."""
        if self._state != _PENDING:
            return False
        self._state = _CANCELLED
        self._message = msg
        if self._callback is not None:
            self._go_on_soon()
        return True

    def result(self) -> None:
        """None, or the cancellation: the task asks for it when it goes on."""
        if self._state == _CANCELLED:
            raise CancelledError() if self._message is None else CancelledError(self._message)
        if self._state == _PENDING:
            raise InvalidStateError(f"{self!r} is not done")

    def wake(self) -> None:
        """Let the task go on now. From a callback of the loop, so that no other task is in the middle of a step."""
        if self._state != _PENDING:
            return
        self._state = _WOKEN
        callback = self._callback
        if callback is not None:
            self._callback = None  # it leads to the task, whose frames may lead here
            context = self._context
            if context is None:
                self._loop.call_soon(callback, self)
            elif cython.compiled:  # as Context.run does it
                PyContext_Enter(context)
                try:
                    callback(_DONE)
                finally:
                    PyContext_Exit(context)
            else:
                context.run(callback, _DONE)

    def give_up(self) -> None:
        """The task was made to go on by somebody else, or has ended: `wake` does nothing any more."""
        if self._state == _PENDING:
            self._state = _CANCELLED
            self._callback = None

    def _go_on_soon(self) -> None:
        callback = self._callback
        self._callback = None
        self._loop.call_soon(callback, self, context=self._context)

    def __repr__(self) -> str:
        return f"<Waiter {('pending', 'woken', 'cancelled')[self._state]}>"


if not cython.compiled:
    # asyncio looks for it at the class.
    Waiter._asyncio_future_blocking = False  # type: ignore[misc]


@cython.cfunc
def _new_waiter(loop: Any) -> Waiter:
    """A Waiter; in compiled code without a call of its constructor."""
    waiter: Waiter
    if not cython.compiled:
        return Waiter(loop)
    waiter = Waiter.__new__(Waiter)
    waiter._asyncio_future_blocking = True
    waiter._loop = loop
    return waiter


def _yielded(token: Any) -> Generator[Any, Any, None]:
    yield token


@cython.final
@cython.cclass
class Waiting:
    """Those who wait in one loop for the same event.

    Args:
        loop: the loop, as `_loops` has it.
        event: what they wait for, if others may join them.
        on_drop: called if the loop has ended before they could go on.

    Attributes:
        takes_waiters: a task waits by giving a Waiter to its loop; otherwise `sleep` knows how.
    """

    def __init__(
        self,
        loop: Any,
        event: Event | None = None,
        on_drop: Callable[[], object] | None = None,
    ) -> None:
        self._loop = loop
        self._event = event
        self._on_drop = on_drop
        self.takes_waiters = loop.takes_waiters
        self.mailbox = loop.mailbox
        self.tokens: dict[Any, None] = {}
        self.follower: Any = None  # the event's, by which it wakes them

    def happened(self, _: object = None) -> None:
        """Wake all who wait, because the event has come. Any thread."""
        self.mailbox.put(self)
        self.mailbox.ring()

    def ticket_ended(self, _: object) -> None:
        """A Ticket has ended: granted, or given up by the one who waited for it, and nobody is to be told."""
        if self.tokens:
            self.happened()

    def deliver(self) -> None:
        """Let all of them go on. May be called again, if Ctrl-C came in the middle."""
        if self._event is not None:
            self._loop.events.pop(self._event, None)
        if self.takes_waiters:
            self._wake_all()
            return
        tokens = self.tokens
        for token in list(tokens):
            if token in tokens:  # else one who went on has ended the wait of this one
                self._loop.wake(token)
                tokens.pop(token, None)  # not before: see `_wake_all`. No Ctrl-C comes here in trio

    def _wake_all(self) -> None:
        waiter: Waiter
        for token in list(self.tokens):
            waiter = token
            waiter.wake()
        self.tokens.clear()  # not before: after Ctrl-C those who have not gone on are woken again

    def drop(self) -> None:
        """Report that the loop has ended, if somebody waits in it."""
        if self._on_drop is not None and self.tokens:
            self._on_drop()

    def enter(self) -> Any:
        """The running task begins to wait: its token."""
        token: Any = _new_waiter(_get_running_loop()) if self.takes_waiters else self._loop.new_token()
        self.tokens[token] = None
        return token

    def try_enter(self) -> Any:
        """The same, if the task runs in this very loop, and that is one of asyncio; otherwise None. From any loop."""
        if not self.takes_waiters:
            return None
        loop = _get_running_loop()
        if loop is None or self._loop.loop() is not loop:
            return None
        lowlevel = _MODULES.get("trio.lowlevel")
        if lowlevel is not None and lowlevel.in_trio_task():  # as a guest of this loop
            return None
        token = _new_waiter(loop)
        self.tokens[token] = None
        return token

    def sleep(self, token: Any) -> Generator[Any, Any, None]:
        """Let the running task wait for the event; `leave` follows."""
        return _yielded(token) if type(token) is Waiter else self._loop.sleep(token, self.tokens)

    def leave(self, token: Any) -> bool:
        """A task goes on, or was cancelled; whether it was the last, and the event did not come: that is forgotten."""
        waiter: Waiter
        self.tokens.pop(token, None)
        if type(token) is Waiter:
            waiter = token
            waiter.give_up()
        if self.tokens or self._event is None or self._loop.events.get(self._event) is not self:
            return False
        del self._loop.events[self._event]
        self._event.quit(self)
        return True
