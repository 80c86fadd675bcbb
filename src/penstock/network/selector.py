# SPDX-License-Identifier: Apache-2.0
"""Waiting for several transports at once, and waking the I/O thread out of that wait.

The client waits in one place only: `Selector.poll`. A simulator has a selector of its own, which moves virtual time
forward instead of waiting.
"""

from __future__ import annotations

import selectors
import socket
from collections.abc import Iterable
from typing import Any, Protocol

from penstock.network._system_calls_cy import can_move, can_wait, receive_at_once, wait_for_owners
from penstock.network.transport import Transport

# A longer wait than this is cut short: the operating system's calls overflow on infinity and on years.
LONGEST_WAIT = 3600.0
_DRAINED = 4096  # bytes of wake-ups taken out in one go


class Selector(Protocol):
    """Waits until a watched transport is ready. All methods but `wakeup` belong to the I/O thread."""

    def watch(self, transport: Transport, owner: Any, interest: int) -> None:
        """Wait for that transport too, or change what is waited for (READ, WRITE or both)."""
        ...

    def unwatch(self, transport: Transport) -> None:
        """Forget a transport, before it is closed."""
        ...

    def poll(self, timeout: float) -> list[tuple[Any, int]]:
        """Wait at most that many seconds; the owners of the ready transports, each with what it is ready for."""
        ...

    def wakeup(self) -> None:
        """End the present wait, or the next one. From any thread."""
        ...

    def close(self) -> None:
        """Release what the selector holds; the transports are not closed."""
        ...


class Wakeup:
    """A socket pair and two flags: wakes the I/O thread out of its selector, from any thread.

    The I/O thread waits in a selector that also watches one end of a socket pair; a byte written to the other end ends
    the wait. A system call for each record would be expensive, so the byte is written only when the I/O thread sleeps.

    Why no wake-up is lost. There are two flags, each written before the other is read:

        waker:       publish work;  wanted = True;    read sleeping;  if set, write the byte
        I/O thread:  sleeping = True;  read wanted;   if set, do not wait, else wait in the selector
        afterwards:  sleeping = False;  wanted = False;  look for work

    Whatever the order, either the waker reads `sleeping` as True and writes the byte, or it read it before the I/O
    thread had set it, and then the I/O thread reads `wanted` as True, because that was written earlier still. The byte
    stays in the socket until it is read, so it also ends a wait that begins after it was written. A waker that sets
    `wanted` just before it is cleared loses nothing: its work was published before, and the I/O thread looks for work
    after clearing.

    The bytes are taken out just before the next wait is announced. Whoever wrote one of them had read `sleeping` as set
    by an earlier wait, so that its work was published before that wait ended, and has been looked for since.

    Two wakers may both write a byte, and a byte may arrive after the wait has ended by itself: the next wait then ends
    at once, for nothing. That is cheap and rare; a lock here would be neither. A waker does not skip the byte because
    another has set `wanted` already: that other one may have been interrupted by Ctrl-C before it wrote its own.
    """

    __slots__ = ("_reader", "_sleeping", "_wanted", "_writer")

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._sleeping = False  # written by the I/O thread, read by all
        self._wanted = False  # set by any thread, cleared by the I/O thread

    def wake(self) -> None:
        """End the present wait, or the next one. From any thread; never blocks."""
        self._wanted = True
        if self._sleeping:
            self._write_byte()

    def before_wait(self) -> bool:
        """Say that the I/O thread is about to wait; False when it must not, as someone wants it awake."""
        self._sleeping = True
        return not self._wanted

    def after_wait(self) -> None:
        """Say that the I/O thread is awake, and is about to look for work."""
        self._sleeping = False
        self._wanted = False

    def drain(self) -> None:
        """Take out the bytes, once the selector has reported them."""
        if can_move():
            # Without giving up the interpreter lock: whoever wrote the byte is likely to hold on to it.
            while len(receive_at_once(self._reader.fileno(), _DRAINED) or b"") == _DRAINED:
                pass
            return
        try:
            while len(self._reader.recv(_DRAINED)) == _DRAINED:
                pass
        except (BlockingIOError, InterruptedError):
            pass

    def fileno(self) -> int:
        """The end to watch for reading."""
        return self._reader.fileno()

    def close(self) -> None:
        """Close both ends; a later `wake` does nothing."""
        # In this order: a byte written to a socket whose other end is closed would be an error of the waker's.
        self._writer.close()
        self._reader.close()

    def _write_byte(self) -> None:
        try:
            self._writer.send(b"\0")
        except (BlockingIOError, InterruptedError):
            pass  # the buffer is full of earlier bytes: the other end is readable as it is
        except OSError:
            if self._writer.fileno() >= 0:
                raise
            # closed: nobody waits any more


class SocketSelector:
    """The operating system's best selector, and a wake-up."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._wakeup = Wakeup()
        # Of an epoll that can be asked without giving up the interpreter lock; -1: of none.
        self._epoll_fd = self._selector.fileno() if can_wait() and _is_epoll(self._selector) else -1
        key = self._selector.register(self._wakeup, selectors.EVENT_READ, None)
        # What the selector has too, but at hand: by file number, the owner and what it waits for.
        self._watched: dict[int, tuple[Any, int]] = {key.fd: (None, selectors.EVENT_READ)}
        # The bytes of a wake-up are taken out before the next wait: what it was for is more urgent.
        self._woken = False

    def watch(self, transport: Transport, owner: Any, interest: int) -> None:
        """See Selector."""
        try:
            key = self._selector.modify(transport, interest, owner)
        except KeyError:
            key = self._selector.register(transport, interest, owner)
        self._watched[key.fd] = (owner, interest)

    def unwatch(self, transport: Transport) -> None:
        """See Selector."""
        try:
            fd = self._selector.unregister(transport).fd
        except KeyError:
            fd = transport.fileno()  # never watched, or forgotten when a change failed
        self._watched.pop(fd, None)

    def poll(self, timeout: float) -> list[tuple[Any, int]]:
        """See Selector."""
        if self._woken:
            self._woken = False
            self._wakeup.drain()
        if self._epoll_fd >= 0:
            return self._poll_at_once(timeout)
        may_wait = self._wakeup.before_wait()
        try:
            events = self._selector.select(min(timeout, LONGEST_WAIT) if may_wait else 0)
        finally:
            self._wakeup.after_wait()
        return self._owners(events)

    def _poll_at_once(self, timeout: float) -> list[tuple[Any, int]]:
        """Look first: that is one short system call, where a wait would give up the interpreter lock."""
        ready: list[tuple[Any, int]] = []
        try:
            self._woken = wait_for_owners(self._epoll_fd, 0, self._watched, ready)
            if not ready and timeout > 0 and not self._woken and self._wakeup.before_wait():
                self._woken = wait_for_owners(
                    self._epoll_fd, min(timeout, LONGEST_WAIT), self._watched, ready
                )
        finally:
            # Work that was published before this is looked for next, also where nobody has waited.
            self._wakeup.after_wait()
        return ready

    def _owners(self, events: Iterable[tuple[selectors.SelectorKey, int]]) -> list[tuple[Any, int]]:
        ready = []
        for key, mask in events:
            if key.data is None:
                self._woken = True
            else:
                ready.append((key.data, mask))
        return ready

    def wakeup(self) -> None:
        """See Selector."""
        self._wakeup.wake()

    def close(self) -> None:
        """See Selector."""
        self._epoll_fd = -1
        self._selector.close()
        self._wakeup.close()


def _is_epoll(selector: selectors.BaseSelector) -> bool:
    epoll = getattr(selectors, "EpollSelector", None)
    return epoll is not None and isinstance(selector, epoll)
