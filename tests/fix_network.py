# SPDX-License-Identifier: Apache-2.0
"""The network in memory, in virtual time, of all tests that need no socket.

`MemoryNetwork` stands for the operating system: an agenda of what will happen, and a selector. `MemoryTransport` is the
client's end of a connection. Two networks are made of them:

1. `network.fakes.FakeNetwork`: bytes reach the far end at once, and the test says what else happens.
2. `simulation.wire.World`: frames travel to the fake cluster, and a random number decides when they arrive, and
   whether.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from typing import Any

from penstock.network.transport import NOTHING, READ, WRITE


class VirtualClock:
    """Time that passes only when it is told to.

    Args:
        tick: passes with each look, where no two looks may see the same time.
        wall_offset: what the wall clock shows when this one is at 0, in seconds.
    """

    def __init__(self, start: float = 1000.0, *, tick: float = 0.0, wall_offset: float = 0.0) -> None:
        self.time = start
        self.wall_offset = wall_offset
        self._tick = tick

    def now(self) -> float:
        self.time += self._tick
        return self.time

    def wall_ms(self) -> int:
        return int((self.time + self.wall_offset) * 1000)

    def advance(self, seconds: float) -> None:
        self.time += seconds


class MemoryTransport:
    """The client's end of a connection. A subclass says where bytes go that are written: `send_some`.

    Attributes:
        established: the attempt to connect was answered.
        broken: what reading and writing fail with; what has arrived before can still be read.
        blocked: there is no room to write now.
        inbound: what has arrived and was not read.
        ended: the far end has closed, and all that it said has arrived.
        closed: by the client.
    """

    blocked = False

    def __init__(self, fileno: int) -> None:
        self.established = False
        self.broken: OSError | None = None
        self.inbound = bytearray()
        self.ended = False
        self.closed = False
        self._fileno = fileno

    def finish_connect(self) -> int:
        if self.broken is not None:
            raise self.broken
        return NOTHING if self.established else WRITE

    def recv_some(self, max_bytes: int) -> bytes | None:
        assert not self.closed
        if self.inbound:
            data = bytes(self.inbound[: self.there_of(min(len(self.inbound), max_bytes))])
            del self.inbound[: len(data)]
            self.on_read(len(data))
            return data
        if self.broken is not None:
            raise self.broken
        return b"" if self.ended else None

    def there_of(self, size: int) -> int:
        """How many of the bytes that a read could take it finds."""
        return size

    def on_read(self, size: int) -> None:
        """The client has read so many bytes."""

    def has_pending(self) -> bool:
        return False

    def fileno(self) -> int:
        return self._fileno

    def close(self) -> None:
        self.closed = True

    def readiness(self) -> int:
        if self.broken is not None:
            return READ | WRITE
        if not self.established:
            return NOTHING
        return (READ if self.inbound or self.ended else 0) | (0 if self.blocked else WRITE)


class MemorySelector:
    """Knows which transports are ready for what their owners want. A subclass says how to wait: `poll`."""

    def __init__(self) -> None:
        self._watched: dict[int, tuple[Any, Any, int]] = {}

    def watch(self, transport: Any, owner: Any, interest: int) -> None:
        self._watched[transport.fileno()] = (transport, owner, interest)

    def unwatch(self, transport: Any) -> None:
        self._watched.pop(transport.fileno(), None)

    def ready(self) -> list[tuple[Any, int]]:
        """The owners whose transports can be read or written now, as they want."""
        watched = self._watched.values()
        return [(owner, mask) for each, owner, interest in watched if (mask := each.readiness() & interest)]

    def is_any_ready(self) -> bool:
        return any(each.readiness() & interest for each, _, interest in self._watched.values())


class MemoryNetwork(MemorySelector):
    """A selector with an agenda: what will happen, in virtual time. A subclass makes the connections."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self.clock = clock
        self._agenda: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = itertools.count(1)

    def at(self, moment: float, action: Callable[..., None], *args: Any) -> None:
        """Let something happen at a moment; what is to happen at the same one does so in the order of the calls."""
        heapq.heappush(self._agenda, (moment, next(self._numbers), action, args))

    def after(self, seconds: float, action: Callable[..., None], *args: Any) -> None:
        """Let something happen later."""
        self.at(self.clock.time + seconds, action, *args)

    def next_at(self) -> float:
        """When the next thing happens; infinity when nothing will."""
        return self._agenda[0][0] if self._agenda else math.inf

    def do_next(self) -> None:
        """Let the next thing of the agenda happen now."""
        _, _, action, args = heapq.heappop(self._agenda)
        action(*args)
