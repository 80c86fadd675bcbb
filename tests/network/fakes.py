# SPDX-License-Identifier: Apache-2.0
"""A network in memory on which the test says what happens, and the far ends that it has.

`FakeNetwork` resolves names, makes connections and waits; waiting moves the clock to the next thing that happens.
`Peer` is the other end of a connection, `FakeBroker` a peer factory that cuts the bytes into requests and answers them.
`FakeUpdater` stands for the layer above the network.

Nothing here knows the client; whatever is written against `NetworkBackend` can run on it.
"""

from __future__ import annotations

import errno
import math
import socket
import struct
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fix_network import MemoryNetwork, MemoryTransport, VirtualClock

from penstock._quiet_cy import QuietTime
from penstock.errors import BootstrapError, KafkaError
from penstock.network.backend import NetworkBackend
from penstock.network.transport import Address, Endpoint
from penstock.protocol.codec import decode_request_body, encode_response_body
from penstock.protocol.messages import (
    API_BY_KEY,
    API_VERSIONS,
    GET_TELEMETRY_SUBSCRIPTIONS,
    METADATA,
    PUSH_TELEMETRY,
)
from penstock.protocol.requests import Request, SchemaRequest
from penstock.protocol.schema import ApiSchema
from penstock.types import Node


class Peer:
    """The far end of a connection, as the test or a fake broker sees it."""

    def __init__(self, transport: FakeTransport) -> None:
        self._transport = transport
        self.received = bytearray()
        self.on_data: Callable[[Peer], None] | None = None
        self.closed_by_client = False

    def send(self, data: bytes) -> None:
        self._transport.inbound += data

    def close(self) -> None:
        """End the stream, after what was sent."""
        self._transport.ended = True

    def reset(self) -> None:
        """Break the connection: reading and writing fail at the client."""
        self._transport.broken = ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")

    def limit_writes(self, room: int | None) -> None:
        """How many more bytes the client can write until there is room again; None is no limit."""
        self._transport.room = room

    def _take(self, data: bytes) -> None:
        self.received += data
        if self.on_data is not None:
            self.on_data(self)


class FakeTransport(MemoryTransport):
    """The client's end of a connection whose far end is a Peer."""

    def __init__(self, address: Address, fileno: int) -> None:
        super().__init__(fileno)
        self.address = address
        self.peer = Peer(self)
        self.room: int | None = None
        self.writes: list[int] = []

    @property
    def blocked(self) -> bool:  # type: ignore[override]
        return self.room is not None and self.room <= 0

    def send_some(self, buffers: Sequence[bytes | bytearray | memoryview]) -> int:
        assert not self.closed
        if self.broken is not None:
            raise self.broken
        data = b"".join(buffers)
        if self.room is not None:
            data = data[: self.room]
            self.room -= len(data)
        if data:
            self.writes.append(len(data))
            self.peer._take(data)
        return len(data)

    def close(self) -> None:
        super().close()
        self.peer.closed_by_client = True


class FakeNetwork(MemoryNetwork):
    """Names, listeners, connections, and a selector that moves virtual time. Everything listens at 127.0.0.1 names."""

    def __init__(self) -> None:
        super().__init__(VirtualClock())
        self.names: dict[str, list[str]] = {}
        self.listeners: dict[tuple[str, int], Callable[[Peer], None]] = {}
        self.silent: set[tuple[str, int]] = set()  # where attempts to connect get no answer
        self.attempts: list[str] = []  # ip:port of each
        self.endpoints: list[str] = []  # host:port of each
        self.lookups: list[str] = []
        self.refusal: OSError | None = None  # with which every attempt to connect ends
        self.aside_delay = 0.0  # how long what runs aside takes, in virtual time; infinity is for ever
        self.transports: list[FakeTransport] = []
        self.woken = False
        self.closed = False

    def backend(self) -> NetworkBackend:
        return NetworkBackend(self, self.connect, self.resolve, run_aside=self.run_aside)

    def listen(
        self, host: str, port: int, on_connect: Callable[[Peer], None], ips: Sequence[str] = ()
    ) -> None:
        self.names.setdefault(host, list(ips) or [f"10.0.0.{len(self.names) + 1}"])
        for ip in self.names[host]:
            self.listeners[ip, port] = on_connect

    # ---- what the backend gives

    def resolve(self, host: str, port: int) -> list[Address]:
        self.lookups.append(host)
        if host not in self.names:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [Address(_family(ip), (ip, port)) for ip in self.names[host]]

    def connect(self, address: Address, endpoint: Endpoint) -> FakeTransport:
        self.attempts.append(str(address))
        self.endpoints.append(str(endpoint))
        transport = FakeTransport(address, next(self._numbers))
        self.transports.append(transport)
        where = (address.ip, address.sockaddr[1])
        if self.refusal is not None:
            transport.broken = self.refusal
        elif where in self.listeners and where not in self.silent:
            transport.established = True
            self.listeners[where](transport.peer)
        elif where not in self.silent:
            transport.broken = ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        return transport

    def run_aside(self, work: Callable[[], None]) -> None:
        if self.aside_delay < math.inf:
            self.after(self.aside_delay, work)

    # ---- the selector

    def poll(self, timeout: float) -> list[tuple[Any, int]]:
        until = self.clock.now() + timeout
        while True:
            ready = self.ready()
            woken, self.woken = self.woken, False
            if ready or woken:
                return ready
            at = self.next_at()
            if at <= until and at < math.inf:
                self.clock.time = max(self.clock.time, at)
                self.do_next()
                continue
            if until == math.inf:
                raise AssertionError("the client waits for ever, and nothing is going to happen")
            self.clock.time = max(self.clock.time, until)
            return []

    def wakeup(self) -> None:
        self.woken = True

    def close(self) -> None:
        self.closed = True


def _family(ip: str) -> int:
    return socket.AF_INET6 if ":" in ip else socket.AF_INET


class Received(NamedTuple):
    """A request as the broker read it."""

    peer: Peer
    api: ApiSchema
    version: int
    correlation_id: int
    client_id: str | None
    raw_body: bytes

    @property
    def body(self) -> dict[str, Any]:
        return decode_request_body(self.api, self.version, self.raw_body)


Answer = Callable[[Received], dict[str, Any] | bytes | None]


class FakeBroker:
    """Cuts bytes into requests; answers those it has a rule for, keeps the others in `waiting`.

    A rule gives the answer's body as a dict, or the bytes of a body, or None for no answer.
    """

    def __init__(self, network: FakeNetwork, node: Node, ips: Sequence[str] = ()) -> None:
        self.network = network
        self.node = node
        self.peers: list[Peer] = []
        self.waiting: list[Received] = []
        self.seen: list[Received] = []
        self.latency = 0.0
        self.rules: dict[int, Answer] = {API_VERSIONS.key: lambda _: api_versions_body()}
        network.listen(node.host, node.port, self._accept, ips)

    def answer(self, request: Received, body: dict[str, Any] | bytes) -> None:
        """Answer a request that waits; dicts are encoded in the request's version."""
        if request in self.waiting:
            self.waiting.remove(request)
        request.peer.send(response_frame(request, body))

    def _accept(self, peer: Peer) -> None:
        self.peers.append(peer)
        peer.on_data = self._on_data

    def _on_data(self, peer: Peer) -> None:
        for request in take_requests(peer):
            self.seen.append(request)
            rule = self.rules.get(request.api.key)
            if rule is None:
                self.waiting.append(request)
            elif (body := rule(request)) is not None:
                frame = response_frame(request, body)
                if self.latency:
                    self.network.after(self.latency, lambda frame=frame: peer.send(frame))
                else:
                    peer.send(frame)


def take_requests(peer: Peer) -> list[Received]:
    """Cut complete requests off what a peer has received."""
    requests = []
    while len(peer.received) >= 4:
        (size,) = struct.unpack_from(">i", peer.received)
        if len(peer.received) < 4 + size:
            break
        frame = bytes(peer.received[4 : 4 + size])
        del peer.received[: 4 + size]
        requests.append(parse_request(peer, frame))
    return requests


def parse_request(peer: Peer, frame: bytes) -> Received:
    key, version, correlation_id, length = struct.unpack_from(">hhih", frame)
    at = 10 + max(0, length)
    client_id = None if length < 0 else frame[10:at].decode()
    api = API_BY_KEY[key]
    if api.request_header_version(version) >= 2:
        assert frame[at] == 0
        at += 1
    return Received(peer, api, version, correlation_id, client_id, frame[at:])


def response_frame(request: Received, body: dict[str, Any] | bytes) -> bytes:
    """A whole answer, with its size."""
    if isinstance(body, dict):
        body = b"".join(encode_response_body(request.api, request.version, body))
    tags = b"\0" if request.api.response_header_version(request.version) >= 1 else b""
    frame = struct.pack(">i", request.correlation_id) + tags + body
    return struct.pack(">i", len(frame)) + frame


def api_versions_body(**ranges: tuple[int, int]) -> dict[str, Any]:
    """An ApiVersions answer: all that this client knows, but for the APIs given by name, for example Produce=(0, 2).

    Telemetry is left out, unless it is given: brokers offer it only where they have a receiver for it.
    """
    rows = []
    telemetry = (GET_TELEMETRY_SUBSCRIPTIONS, PUSH_TELEMETRY)
    for api in API_BY_KEY.values():
        if api in telemetry and api.name not in ranges:
            continue
        low, high = ranges.get(api.name, (api.min_version, api.max_version))
        rows.append({"api_key": api.key, "min_version": low, "max_version": high})
    return {"error_code": 0, "api_keys": rows}


def metadata_body(*nodes: Node, error_code: int = 0) -> dict[str, Any]:
    brokers = [{"node_id": node.id, "host": node.host, "port": node.port} for node in nodes]
    body: dict[str, Any] = {"brokers": brokers, "topics": []}
    return body | {"error_code": error_code} if error_code else body


@dataclass
class FakeUpdater:
    """A keeper of metadata that asks when the test says so, and notes what it is told."""

    known: list[Node]
    bootstrap: list[Node] = field(default_factory=list)
    due_at: float = math.inf
    in_progress: bool = False
    rebootstrap_wanted: bool = False
    answers: list[tuple[dict[str, Any], int]] = field(default_factory=list)
    failures: list[KafkaError] = field(default_factory=list)
    fatal: list[KafkaError] = field(default_factory=list)
    connection_failures: list[tuple[Node, KafkaError]] = field(default_factory=list)
    rebootstraps: int = 0
    cluster: str | None = None
    delays: list[BootstrapError] = field(default_factory=list)
    kept: Container[int] = ()
    quiet: QuietTime = field(default_factory=QuietTime)

    def nodes(self) -> Sequence[Node]:
        return self.known

    def cluster_id(self) -> str | None:
        return self.cluster

    def on_bootstrap(self, nodes: Sequence[Node]) -> None:
        self.known = list(nodes)

    def on_bootstrap_delayed(self, error: BootstrapError) -> None:
        self.delays.append(error)

    def seconds_to_update(self, now: float) -> float:
        return math.inf if self.in_progress else max(0.0, self.due_at - now)

    def build_request(self, now: float) -> Request:
        self.in_progress = True
        return SchemaRequest.of(METADATA, {"topics": [], "allow_auto_topic_creation": True})

    def on_response(self, request: Request, body: dict[str, Any], version: int, now: float) -> None:
        self.in_progress = False
        self.due_at = math.inf
        self.answers.append((body, version))
        self.known = [Node(row["node_id"], row["host"], row["port"]) for row in body["brokers"]] or self.known
        if body.get("error_code") == 129:
            self.rebootstrap_wanted = True

    def on_failure(self, error: KafkaError, now: float) -> None:
        self.in_progress = False
        self.failures.append(error)

    def on_fatal(self, error: KafkaError) -> None:
        self.fatal.append(error)

    def on_connection_failed(self, node: Node, error: KafkaError, now: float) -> None:
        self.connection_failures.append((node, error))
        if getattr(error, "code", None) == 129:
            self.rebootstrap_wanted = True

    def keep_nodes(self, kept: Container[int]) -> None:
        self.kept = kept

    def rebootstrap_due(self, now: float) -> bool:
        return self.rebootstrap_wanted

    def rebootstrap(self, now: float) -> None:
        self.rebootstrap_wanted = False
        self.rebootstraps += 1
        self.known = list(self.bootstrap)
