# SPDX-License-Identifier: Apache-2.0
"""The narrow border to the operating system: one non-blocking stream of bytes.

A Transport moves bytes and knows nothing of Kafka. TCP is in `_sockets_cy`; TLS fits behind the same methods: its
handshake is a part of `finish_connect`, which says what it waits for until it is done, and what TLS holds back in its
own buffers is told by `has_pending`. The simulator has transports in memory.

Errors leave a transport as OSError; the layer above turns them into errors of this package. A RefusedError becomes an
AuthenticationError there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

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
    """The peer, or a proxy before it, refuses the client's identity, or has not the right one: a retry does not help.

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
