# SPDX-License-Identifier: Apache-2.0
"""The operating system's sockets: TCP, waiting for several at once, and waking the I/O thread. Compiled if possible.

The client waits in one place only: `Selector.poll`. A simulator has a selector of its own, which moves virtual time
forward instead of waiting.
"""

from __future__ import annotations

import os
import selectors
import socket
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from penstock.network._system_calls_cy import can_move, can_wait
from penstock.network.settings import NetworkSettings
from penstock.network.transport import NOTHING, WRITE, Address, Transport

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

if cython.compiled:
    from cython.cimports.penstock.network._system_calls_cy import (
        receive_at_once,
        send_at_once,
        wait_for_owners,
    )
else:
    from penstock.network._system_calls_cy import receive_at_once, send_at_once, wait_for_owners

# A longer wait than this is cut short: the operating system's calls overflow on infinity and on years.
LONGEST_WAIT = 3600.0
_LONGEST_WAIT = cython.declare(cython.double, LONGEST_WAIT)
_DRAINED = cython.declare(cython.Py_ssize_t, 4096)  # bytes of wake-ups taken out in one go
_BYTE = (b"\0",)


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


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


@cython.cclass
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

    The bytes are taken out just before the next wait is announced. The thread that wrote one of them had read
    `sleeping` as set by an earlier wait. So its work was published before that wait ended, and has been seen since.

    Two wakers may both write a byte, and a byte may arrive after the wait has ended by itself: the next wait then ends
    at once, for nothing. That is cheap and rare; a lock here would be neither. A waker does not skip the byte because
    another has set `wanted` already: that other one may have been interrupted by Ctrl-C before it wrote its own.
    """

    _at_once: cython.bint
    _reader = cython.declare(object)
    _writer = cython.declare(object)
    _reader_fd: cython.int
    _writer_fd: cython.int
    _sleeping = cython.declare(cython.bint, visibility="public")
    _wanted = cython.declare(cython.bint, visibility="public")

    def __init__(self) -> None:
        self._at_once = can_move()
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        # At hand; -1 once they are closed. No other thread runs between a look at one and the call that uses it.
        self._reader_fd = self._reader.fileno()
        self._writer_fd = self._writer.fileno()
        self._sleeping = False  # written by the I/O thread, read by all
        self._wanted = False  # set by any thread, cleared by the I/O thread

    @cython.ccall
    def wake(self) -> Any:
        """End the present wait, or the next one. From any thread; never blocks."""
        self._wanted = True
        if self._sleeping:
            self._write_byte()

    @cython.ccall
    def before_wait(self) -> cython.bint:
        """Say that the I/O thread is about to wait; False when it must not, as someone wants it awake."""
        self._sleeping = True
        return not self._wanted

    @cython.ccall
    def after_wait(self) -> Any:
        """Say that the I/O thread is awake, and is about to look for work."""
        self._sleeping = False
        self._wanted = False

    @cython.ccall
    def drain(self) -> Any:
        """Take out the bytes, once the selector has reported them."""
        if self._at_once:
            # Without giving up the interpreter lock: the thread that wrote the byte would probably keep it.
            while len(receive_at_once(self._reader_fd, _DRAINED) or b"") == _DRAINED:
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
        self._writer_fd = self._reader_fd = -1
        # In this order: a byte written to a socket whose other end is closed would be an error of the waker's.
        self._writer.close()
        self._reader.close()

    @cython.ccall
    def _write_byte(self) -> Any:
        try:
            if self._at_once:
                # The thread that is woken needs some time before it wants the interpreter lock. One that gives the lock
                # up here might wait for it longer than that, beside others that compute.
                send_at_once(self._writer_fd, _BYTE)
            else:
                self._writer.send(b"\0")
        except (BlockingIOError, InterruptedError):
            pass  # the buffer is full of earlier bytes: the other end is readable as it is
        except OSError:
            if self._writer_fd >= 0:
                raise
            # closed: nobody waits any more


@cython.final
@cython.cclass
class SocketSelector:
    """The operating system's best selector, and a wake-up."""

    _selector = cython.declare(object, visibility="readonly")
    _wakeup = cython.declare(Wakeup, visibility="readonly")
    _epoll_fd: cython.int
    _watched: dict  # type: ignore[type-arg]
    _woken: cython.bint

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

    @cython.ccall
    def poll(self, timeout: cython.double) -> list:  # type: ignore[type-arg]
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

    @cython.cfunc
    def _poll_at_once(self, timeout: cython.double) -> list:  # type: ignore[type-arg]
        """Look first: that is one short system call, where a wait would give up the interpreter lock."""
        ready: list = []  # type: ignore[type-arg]
        try:
            self._woken = wait_for_owners(self._epoll_fd, 0, self._watched, ready)
            if not ready and timeout > 0 and not self._woken and self._wakeup.before_wait():
                self._woken = wait_for_owners(
                    self._epoll_fd, min(timeout, _LONGEST_WAIT), self._watched, ready
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


# ---- TCP


def _iov_limit() -> int:
    try:
        limit = os.sysconf("SC_IOV_MAX")
    except (AttributeError, ValueError, OSError):
        return 16  # what POSIX promises everywhere
    return limit if limit > 0 else 1024


# Whether small writes and reads need not give up the interpreter lock.
_AT_ONCE = can_move()

# sendmsg refuses longer lists. A produce request has about three buffers for each partition.
IOV_LIMIT = _iov_limit()


@cython.final
@cython.cclass
class TcpTransport:
    """A TCP connection."""

    _at_once: cython.bint
    _socket = cython.declare(object, visibility="readonly")
    _fd: cython.int
    _connected: cython.bint

    def __init__(self, connected_or_connecting: socket.socket) -> None:
        self._at_once = _AT_ONCE
        self._socket = connected_or_connecting
        self._fd = connected_or_connecting.fileno()  # at hand; -1 once it is closed
        self._connected = False

    @staticmethod
    def connect(address: Address, settings: NetworkSettings) -> TcpTransport:
        """Start connecting.

        Raises:
            OSError: the attempt failed at once (no route, refused on the loopback interface, no file descriptor).
        """
        sock = socket.socket(address.family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # Before connect: the window scale is agreed upon with the first packet.
            if settings.send_buffer_bytes >= 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, settings.send_buffer_bytes)
            if settings.receive_buffer_bytes >= 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, settings.receive_buffer_bytes)
            try:
                sock.connect(address.sockaddr)
            except (BlockingIOError, InterruptedError):
                pass  # under way; the selector tells when it has ended
        except BaseException:
            sock.close()
            raise
        return TcpTransport(sock)

    def finish_connect(self) -> int:
        """See Transport."""
        if self._connected:
            return NOTHING
        code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        try:
            self._socket.getpeername()
        except OSError:
            return WRITE  # no error, no peer: still under way
        self._connected = True
        return NOTHING

    def send_some(self, buffers: Sequence[Any]) -> int:
        """See Transport."""
        sent: cython.Py_ssize_t
        if self._at_once:
            sent = send_at_once(self._fd, buffers)
            if sent >= 0:
                return sent
        try:
            return self._socket.sendmsg(buffers if len(buffers) <= IOV_LIMIT else buffers[:IOV_LIMIT])
        except (BlockingIOError, InterruptedError):
            return 0

    def recv_some(self, max_bytes: cython.Py_ssize_t) -> bytes | None:
        """See Transport."""
        if self._at_once:
            return receive_at_once(self._fd, max_bytes)
        try:
            return self._socket.recv(max_bytes)
        except (BlockingIOError, InterruptedError):
            return None

    def has_pending(self) -> bool:
        """Never: the kernel's buffer is the only one."""
        return False

    def fileno(self) -> int:
        """See Transport."""
        return self._socket.fileno()

    def close(self) -> None:
        """See Transport."""
        self._fd = -1
        self._socket.close()

    def __repr__(self) -> str:
        return f"<TcpTransport fd {self._socket.fileno()}{'' if self._connected else ' connecting'}>"
