# SPDX-License-Identifier: Apache-2.0
"""Wires in memory for tests of transports: as much room as the test says, and a TLS server at the other end."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator, Sequence

from penstock.network.transport import NOTHING, READ, WRITE


class Wire:
    """A transport whose other end is in the hands of the test.

    Attributes:
        sent: what was written and not taken yet.
        arrived: what the peer has written and was not read yet.
        room: gives how many bytes the next write takes.
        portion: gives how many bytes the next read gives.
    """

    def __init__(self) -> None:
        self.sent = bytearray()
        self.arrived = bytearray()
        self.room: Callable[[], int] = lambda: 1 << 30
        self.portion: Callable[[], int] = lambda: 1 << 30
        self.peer_closed = False
        self.write_error: OSError | None = None
        self.read_error: OSError | None = None
        self.connect_answers: list[int] = []
        self.closed = 0
        self.writes = 0
        self.reads = 0

    def finish_connect(self) -> int:
        return self.connect_answers.pop(0) if self.connect_answers else NOTHING

    def send_some(self, buffers: Sequence[bytes | bytearray | memoryview]) -> int:
        self.writes += 1
        if self.write_error is not None:
            raise self.write_error
        data = b"".join(buffers)[: self.room()]
        self.sent += data
        return len(data)

    def recv_some(self, max_bytes: int) -> bytes | None:
        self.reads += 1
        data = bytes(self.arrived[: min(max_bytes, self.portion())])
        del self.arrived[: len(data)]
        if data:
            return data
        if self.arrived:
            return None
        if self.read_error is not None:
            raise self.read_error
        return b"" if self.peer_closed else None

    def has_pending(self) -> bool:
        return False

    def fileno(self) -> int:
        return 7

    def close(self) -> None:
        self.closed += 1


class TlsPeer:
    """A TLS server at the other end of a wire.

    Attributes:
        received: what the client has sent, decrypted.
        refused: the error that ended TLS on this side.
    """

    def __init__(self, wire: Wire, context: ssl.SSLContext) -> None:
        self._wire = wire
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.shaken = False
        self.received = bytearray()
        self.refused: ssl.SSLError | None = None
        self.told_to_close = False

    def turn(self) -> None:
        """Take what the client has written, and answer it."""
        if self._wire.sent:
            self._incoming.write(bytes(self._wire.sent))
            self._wire.sent.clear()
        if self.refused is None:
            try:
                if not self.shaken:
                    self.tls.do_handshake()
                    self.shaken = True
                while True:
                    data = self.tls.read(1 << 20)
                    self.received += data
                    if not data:
                        self.told_to_close = True
                        break
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLZeroReturnError:
                self.told_to_close = True
            except ssl.SSLError as error:
                self.refused = error
        self._pass_on()
        if self.refused is not None:
            self._wire.peer_closed = True

    def say(self, data: bytes) -> None:
        self.tls.write(data)
        self._pass_on()

    def say_goodbye(self) -> None:
        try:
            self.tls.unwrap()
        except ssl.SSLError:
            pass
        self._pass_on()

    def _pass_on(self) -> None:
        self._wire.arrived += self._outgoing.read()


def shake(transport: object, peer: TlsPeer, turns: int = 20_000) -> list[int]:
    """Let both sides work until the client is connected; what it waited for."""
    waits = []
    for _ in range(turns):
        wait = transport.finish_connect()  # type: ignore[attr-defined]
        if wait == NOTHING:
            return waits
        assert wait in (READ, WRITE)
        waits.append(wait)
        peer.turn()
    raise AssertionError("the handshake does not end")


def cycle(numbers: Sequence[int]) -> Callable[[], int]:
    """A source of amounts that repeats itself."""

    def forever() -> Iterator[int]:
        while True:
            yield from numbers

    source = forever()
    return lambda: next(source)
