# SPDX-License-Identifier: Apache-2.0
"""Waiting for several transports at once.

The client waits in one place only: `Selector.poll`. A simulator has a selector of its own, which moves virtual time
forward instead of waiting.
"""

from __future__ import annotations

import selectors
from collections.abc import Iterable
from typing import Any, Protocol

from penstock.network._system_calls_cy import can_look, wait_for_owners
from penstock.network.transport import Transport
from penstock.network.wakeup import Wakeup

# A longer wait than this is cut short: the operating system's calls overflow on infinity and on years.
LONGEST_WAIT = 3600.0


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


class SocketSelector:
    """The operating system's best selector, and a wake-up."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._wakeup = Wakeup()
        # Of an epoll that can be asked without giving up the interpreter lock; -1: of none.
        self._epoll_fd = self._selector.fileno() if can_look() and _is_epoll(self._selector) else -1
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
