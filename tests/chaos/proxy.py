# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy in front of one broker that cuts, delays, stalls and half-closes connections when told to.

It reads just enough of the bytes that pass to know which requests wait for an answer, and whose they are: so a fault
can be made to strike while records are in flight, and it is known whether it did. With `ProxyTls` it ends the clients'
TLS and begins TLS of its own with the broker; SASL passes through it untouched.

All proxies of a run share one event loop in a thread (`ProxyLoop`). Methods that end in `_on_loop` run there, which is
where armed actions run too; all others may be called from any other thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any, NamedTuple

HOST = "127.0.0.1"
PRODUCE = 0
# Requests that tell a coordinator how a transaction ends.
ADD_PARTITIONS_TO_TXN, END_TXN = 24, 26
_CHUNK = 65_536
# Size, API key, version, correlation id and the length of the client id.
_REQUEST_HEAD = struct.Struct(">ihhih")
_RESPONSE_HEAD = struct.Struct(">ii")
_RESET = struct.pack("ii", 1, 0)


class Passing(NamedTuple):
    """A request on its way."""

    api_key: int
    client_id: str


class ProxyTls(NamedTuple):
    """Both sides of TLS: towards clients, and towards the broker.

    Attributes:
        server: has a certificate for 127.0.0.1.
        client: trusts the broker's.
    """

    server: ssl.SSLContext
    client: ssl.SSLContext


class FrameTap:
    """Watches one direction of a connection: the first bytes of each frame, the rest only counted."""

    def __init__(self, head_size: Callable[[bytearray], int]) -> None:
        self._head_size = head_size
        self._head = bytearray()
        self._left = 0  # bytes of the present frame that are still to pass

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The heads of the frames that begin in, or become known by, these bytes."""
        at = 0
        while at < len(data):
            if self._left:
                step = min(self._left, len(data) - at)
                self._left -= step
                at += step
                continue
            wanted = self._head_size(self._head)
            step = min(wanted - len(self._head), len(data) - at)
            self._head += data[at : at + step]
            at += step
            if len(self._head) >= self._head_size(self._head):
                (size,) = struct.unpack_from(">i", self._head)
                self._left = max(0, 4 + size - len(self._head))
                yield bytes(self._head)
                self._head.clear()


def _request_head_size(head: bytearray) -> int:
    if len(head) < _REQUEST_HEAD.size:
        return _REQUEST_HEAD.size
    return _REQUEST_HEAD.size + max(0, _REQUEST_HEAD.unpack_from(head)[4])


def _response_head_size(head: bytearray) -> int:
    return _RESPONSE_HEAD.size


class _Link:
    """One client connection and the one behind it. Owned by the loop."""

    def __init__(self, client: asyncio.StreamWriter, broker: asyncio.StreamWriter) -> None:
        self.client = client
        self.broker = broker
        self.waiting: dict[int, Passing] = {}
        self.swallow_answers = False
        self.requests_ended = False

    def end_requests(self) -> None:
        self.requests_ended = True
        _end_stream(self.broker)

    def reset(self) -> None:
        for writer in (self.client, self.broker):
            sock = writer.get_extra_info("socket")
            if sock is not None:
                with contextlib.suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()


def _end_stream(writer: asyncio.StreamWriter) -> None:
    """End one direction of a connection."""
    with contextlib.suppress(OSError, RuntimeError):
        if writer.can_write_eof():
            writer.write_eof()
            return
        # TLS knows no such thing, but a network does it to TLS.
        sock = writer.get_extra_info("socket")
        if sock is not None:  # of a connection that is gone there is none
            sock.shutdown(socket.SHUT_WR)


class ProxyLoop:
    """The event loop of all proxies, in a daemon thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="chaos-proxies", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Any], timeout: float = 10.0) -> Any:
        """Run a coroutine on the loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout)

    def call(self, action: Callable[..., Any], *args: Any) -> Any:
        """Call a function on the loop and wait for its result."""
        called: Future[Any] = Future()

        def work() -> None:
            try:
                called.set_result(action(*args))
            except BaseException as error:
                called.set_exception(error)

        self.loop.call_soon_threadsafe(work)
        return called.result(60)

    def close(self) -> None:
        """End every task and the thread."""

        async def cancel_all() -> None:
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            # Aborted transports close their sockets in a later turn of the loop.
            for _ in range(10):
                await asyncio.sleep(0)

        self.run(cancel_all())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(60)
        self.loop.close()


class Proxy:
    """Listens at `port`, and passes on to the broker at `target_port`, both on 127.0.0.1; with `tls` on both sides."""

    def __init__(self, loop: ProxyLoop, target_port: int, tls: ProxyTls | None = None) -> None:
        self.target_port = target_port
        self._tls = tls
        self._loop = loop
        # Owned by the loop.
        self._links: set[_Link] = set()
        self._delay = 0.0
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._armed: list[tuple[Callable[[Passing], bool], Callable[[], None], Future[None]]] = []
        self._server: asyncio.Server = loop.run(
            asyncio.start_server(self._serve, HOST, 0, ssl=None if tls is None else tls.server)
        )
        self.port: int = self._server.sockets[0].getsockname()[1]

    # ---- what is in flight

    def in_flight(self, *, client_id: str | None = None, api_keys: tuple[int, ...] = (PRODUCE,)) -> int:
        """Requests of these kinds that were passed on and have no answer yet."""

        def count() -> int:
            return sum(
                passing.api_key in api_keys and client_id in (None, passing.client_id)
                for link in self._links
                for passing in link.waiting.values()
            )

        return int(self._loop.call(count))

    def arm(self, wanted: Callable[[Passing], bool], action: Callable[[], None]) -> Future[None]:
        """Call `action` on the loop, once, right after such a request was passed on to the broker."""
        applied: Future[None] = Future()
        self._loop.call(self._armed.append, (wanted, action, applied))
        return applied

    def disarm(self, applied: Future[None]) -> None:
        """Forget an action that was armed; one that has been called already stays called."""

        def forget() -> None:
            self._armed = [armed for armed in self._armed if armed[2] is not applied]

        self._loop.call(forget)

    def call_on_loop(self, action: Callable[[], object]) -> None:
        """Call `action` where armed actions are called, and wait for it."""
        self._loop.call(action)

    # ---- faults

    def cut_on_loop(self) -> None:
        """Reset every connection, on both sides."""
        links, self._links = self._links, set()
        for link in links:
            link.reset()

    def half_close_to_client_on_loop(self) -> None:
        """End the stream towards the clients; what they sent still reaches the broker, its answers are dropped."""
        for link in self._links:
            link.swallow_answers = True
            _end_stream(link.client)

    def half_close_to_broker_on_loop(self) -> None:
        """End the stream towards the broker; answers that are on their way still reach the clients."""
        for link in self._links:
            link.end_requests()

    def set_delay_on_loop(self, seconds: float) -> None:
        """Let every piece of an answer take that much longer."""
        self._delay = seconds

    def stall_on_loop(self) -> None:
        """Hold back all answers; requests still reach the broker and take effect."""
        self._flowing.clear()

    def heal(self) -> None:
        """End delays and stalls."""

        def heal() -> None:
            self._delay = 0.0
            self._flowing.set()

        self._loop.call(heal)

    def close(self) -> None:
        """Stop listening and reset what is open."""
        self._loop.call(self._server.close)
        self._loop.call(self.cut_on_loop)

    # ---- passing on

    async def _serve(self, client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter) -> None:
        try:
            broker_in, broker_out = await asyncio.open_connection(
                HOST, self.target_port, ssl=None if self._tls is None else self._tls.client
            )
        except OSError:
            client_out.transport.abort()  # the broker is down
            return
        except asyncio.CancelledError:
            client_out.transport.abort()
            raise
        link = _Link(client_out, broker_out)
        self._links.add(link)
        pumps = [
            asyncio.ensure_future(self._pass_requests(client_in, link)),
            asyncio.ensure_future(self._pass_answers(broker_in, link)),
        ]
        try:
            await asyncio.gather(*pumps)
        except OSError:
            pass  # one side is gone: so is the other
        finally:
            for pump in pumps:
                pump.cancel()
            self._links.discard(link)
            link.reset()

    async def _pass_requests(self, source: asyncio.StreamReader, link: _Link) -> None:
        tap = FrameTap(_request_head_size)
        while data := await source.read(_CHUNK):
            if link.requests_ended:
                continue  # nobody listens any more
            begun = [self._note_request(head, link) for head in tap.feed(data)]
            link.broker.write(data)
            for passing in begun:
                self._strike(passing)
            await link.broker.drain()
        link.end_requests()

    async def _pass_answers(self, source: asyncio.StreamReader, link: _Link) -> None:
        tap = FrameTap(_response_head_size)
        while data := await source.read(_CHUNK):
            if self._delay:
                await asyncio.sleep(self._delay)
            await self._flowing.wait()
            if link.swallow_answers:
                continue
            for head in tap.feed(data):
                link.waiting.pop(_RESPONSE_HEAD.unpack(head)[1], None)
            link.client.write(data)
            await link.client.drain()
        # The broker is done with this connection; nothing that the client still sends can be answered.
        raise ConnectionResetError

    def _note_request(self, head: bytes, link: _Link) -> Passing:
        _, api_key, _, correlation_id, _ = _REQUEST_HEAD.unpack_from(head)
        passing = Passing(api_key, head[_REQUEST_HEAD.size :].decode("utf-8", "replace"))
        link.waiting[correlation_id] = passing
        return passing

    def _strike(self, passing: Passing) -> None:
        for armed in [armed for armed in self._armed if armed[0](passing)]:
            self._armed.remove(armed)
            _, action, applied = armed
            try:
                action()
            except Exception as error:
                applied.set_exception(error)
            else:
                applied.set_result(None)
