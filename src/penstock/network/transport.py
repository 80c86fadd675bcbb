# SPDX-License-Identifier: Apache-2.0
"""The narrow border to the operating system: one non-blocking stream of bytes.

A Transport moves bytes and knows nothing of Kafka. TCP is here; TLS fits behind the same methods: its handshake is a
part of `finish_connect`, which says what it waits for until it is done, and what TLS holds back in its own buffers is
told by `has_pending`. The simulator has transports in memory.

Errors leave a transport as OSError; the layer above turns them into errors of this package. A RefusedError becomes an
AuthenticationError there.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from penstock.network._system_calls_cy import can_move, receive_at_once, send_at_once
from penstock.network.settings import NetworkSettings
from penstock.protocol.schema import Buffer

# What to wait for at a transport; the values are those of the `selectors` module.
NOTHING = 0
READ = 1
WRITE = 2


class Endpoint(NamedTuple):
    """Host and port by name, as configured or as a broker told them."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Address(NamedTuple):
    """A resolved address: the family, and what socket.connect takes for it."""

    family: int
    sockaddr: tuple[str, int] | tuple[str, int, int, int]

    @property
    def ip(self) -> str:
        """The numeric address."""
        return self.sockaddr[0]

    def __str__(self) -> str:
        host, port = self.sockaddr[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class RefusedError(OSError):
    """The peer, or a proxy on the way to it, refuses who we are, or is not who it must be: trying again will not help.

    Args:
        message: what was refused, by whom.
        advice: what the user can do about it; empty when there is nothing to say.
    """

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(message)
        self.advice = advice


class Transport(Protocol):
    """A stream of bytes that never blocks. Owned by the I/O thread."""

    def finish_connect(self) -> int:
        """Go on with what it takes to be connected.

        Returns:
            NOTHING when bytes can be exchanged; otherwise READ or WRITE: call again when the transport is ready for it.
        """
        ...

    def send_some(self, buffers: Sequence[Buffer]) -> int:
        """Write as much as fits, from the buffers as they are; how many bytes that was (0 when none fits now)."""
        ...

    def recv_some(self, max_bytes: int) -> bytes | None:
        """What has arrived, at most that much; b"" when the peer has closed, None when there is nothing now."""
        ...

    def has_pending(self) -> bool:
        """Whether bytes wait inside the transport, where the selector cannot see them."""
        ...

    def fileno(self) -> int:
        """What a selector waits for."""
        ...

    def close(self) -> None:
        """Close it; twice is harmless."""
        ...


# Starts a connection to an address and returns at once; raises OSError. The endpoint is what the node is called: TLS
# checks its name, and a proxy is told of it.
TransportFactory = Callable[[Address, Endpoint], Transport]


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


class TcpTransport:
    """A TCP connection."""

    __slots__ = ("_connected", "_socket")

    def __init__(self, connected_or_connecting: socket.socket) -> None:
        self._socket = connected_or_connecting
        self._connected = False

    @classmethod
    def connect(cls, address: Address, settings: NetworkSettings) -> TcpTransport:
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
        return cls(sock)

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

    def send_some(self, buffers: Sequence[Buffer]) -> int:
        """See Transport."""
        if _AT_ONCE and len(buffers) <= IOV_LIMIT:
            sent: int = send_at_once(self._socket.fileno(), buffers)
            if sent >= 0:
                return sent
        try:
            return self._socket.sendmsg(buffers if len(buffers) <= IOV_LIMIT else buffers[:IOV_LIMIT])
        except (BlockingIOError, InterruptedError):
            return 0

    def recv_some(self, max_bytes: int) -> bytes | None:
        """See Transport."""
        if _AT_ONCE:
            return receive_at_once(self._socket.fileno(), max_bytes)
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
        self._socket.close()

    def __repr__(self) -> str:
        return f"<TcpTransport fd {self._socket.fileno()}{'' if self._connected else ' connecting'}>"
