# SPDX-License-Identifier: Apache-2.0
"""The client over real sockets on the loopback interface."""

from __future__ import annotations

import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from fix_patience import closed_port
from network.fakes import FakeUpdater, Received, api_versions_body, parse_request, response_frame
from network.harness import ANSWER, batch, network_settings, produce, question

from penstock._time import SystemClock
from penstock.errors import NetworkError, NotKafkaError
from penstock.network import ClientRequest, InFlightRequest, NetworkBackend, NetworkClient
from penstock.network._sockets_cy import IOV_LIMIT, TcpTransport
from penstock.network.transport import READ, WRITE, Address
from penstock.protocol.messages import API_VERSIONS
from penstock.types import Node

Serve = Callable[[socket.socket], None]


@contextmanager
def server(serve: Serve, receive_buffer: int | None = None) -> Iterator[Node]:
    """Accept one connection and serve it in a thread."""
    listener = socket.create_server(("127.0.0.1", 0))
    if receive_buffer is not None:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    listener.settimeout(60)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(60)
                serve(connection)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield Node(1, "127.0.0.1", listener.getsockname()[1])
    finally:
        thread.join()
        listener.close()
    assert not failures


def read_exactly(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        piece = connection.recv(min(65536, count - len(data)))
        assert piece, "the client closed the connection"
        data += piece
    return bytes(data)


def read_request(connection: socket.socket) -> Received:
    (size,) = struct.unpack(">i", read_exactly(connection, 4))
    return parse_request(None, read_exactly(connection, size))  # type: ignore[arg-type]


def greet(connection: socket.socket) -> None:
    asked = read_request(connection)
    assert asked.api is API_VERSIONS
    connection.sendall(response_frame(asked, api_versions_body()))


class Caller:
    """A client on real sockets."""

    def __init__(self, node: Node, **settings: int) -> None:
        self.node = node
        self.clock = SystemClock()
        self.updater = FakeUpdater([node])
        configured = network_settings(**settings)
        backend = NetworkBackend.tcp(configured)
        self.client = NetworkClient(configured, backend, self.updater, self.clock, random.Random(1))
        self.ended: list[InFlightRequest] = []

    def poll_until(self, condition: Callable[[], object]) -> None:
        deadline = self.clock.now() + 60
        while not condition():
            assert self.clock.now() < deadline
            self.client.poll(1.0, self.clock.now())

    def connect(self) -> None:
        self.client.ready(self.node, self.clock.now())
        self.poll_until(lambda: self.client.is_ready(self.node, self.clock.now()))

    def send(self, request=None) -> None:
        asked = ClientRequest(self.node, request or question(), 60.0, self.ended.append)
        self.client.send(asked, self.clock.now())


@contextmanager
def calling(node: Node, **settings: int) -> Iterator[Caller]:
    caller = Caller(node, **settings)
    try:
        yield caller
    finally:
        caller.client.close()


def test_a_request_and_its_answer():
    def serve(connection: socket.socket) -> None:
        greet(connection)
        connection.sendall(response_frame(read_request(connection), ANSWER))
        assert connection.recv(1) == b""  # the client closes in the end

    with server(serve) as node, calling(node) as caller:
        caller.connect()
        caller.send()
        caller.poll_until(lambda: caller.ended)
        assert caller.ended[0].body["host"] == "h"
        caller.client.close()


def test_large_requests_are_written_in_parts_without_loss():
    """More than the socket's buffers hold, in more pieces than one system call takes."""
    batches = [batch(100 + index % 7) for index in range(IOV_LIMIT + 10)] + [batch(3_000_000)]
    expected = [bytes(one) for one in batches]
    got: list[bytes] = []

    def serve(connection: socket.socket) -> None:
        greet(connection)
        asked = read_request(connection)
        rows = asked.body["topic_data"][0]["partition_data"]
        got.extend(bytes(row["records"]) for row in rows)
        connection.sendall(response_frame(asked, {"responses": []}))

    with server(serve, receive_buffer=8192) as node, calling(node, send_buffer_bytes=8192) as caller:
        caller.connect()
        caller.send(produce(-1, *batches))
        now = caller.clock.now()
        caller.client.poll(0, now)
        assert not caller.client.is_ready(node, now)  # it cannot have been written at once
        caller.poll_until(lambda: caller.ended)
        assert caller.ended[0].error is None
    assert got == expected


@pytest.mark.parametrize("cut", [1, 3, 4, 7, 11, 40])
def test_answers_arrive_in_any_pieces(cut):
    """Several frames in one read, and a frame over several reads."""

    def serve(connection: socket.socket) -> None:
        greet(connection)
        answers = b"".join(
            response_frame(read_request(connection), ANSWER | {"port": number}) for number in range(3)
        )
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(answers[:cut])
        connection.sendall(answers[cut:])
        assert connection.recv(1) == b""

    with server(serve) as node, calling(node) as caller:
        caller.connect()
        for _ in range(3):
            caller.poll_until(lambda: caller.client.is_ready(node, caller.clock.now()))
            caller.send()
        caller.poll_until(lambda: len(caller.ended) == 3)
        assert [response.body["port"] for response in caller.ended] == [0, 1, 2]
        caller.client.close()


def test_the_peer_closes():
    def serve(connection: socket.socket) -> None:
        greet(connection)
        read_request(connection)

    with server(serve) as node, calling(node) as caller:
        caller.connect()
        caller.send()
        caller.poll_until(lambda: caller.ended)
        assert isinstance(caller.ended[0].error, NetworkError)
        assert f"127.0.0.1:{node.port}" in str(caller.ended[0].error)
        assert caller.client.metrics.connections_open == 0


def test_an_http_server_as_peer():
    def serve(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")

    with server(serve) as node, calling(node) as caller:
        caller.client.ready(node, caller.clock.now())
        caller.poll_until(lambda: caller.updater.connection_failures)
        error = caller.client.connection_error(node.id)
        assert isinstance(error, NotKafkaError)
        assert f"127.0.0.1:{node.port}" in str(error)


def test_a_closed_port():
    with closed_port() as port, calling(node := Node(1, "127.0.0.1", port)) as caller:
        caller.client.ready(node, caller.clock.now())
        caller.poll_until(lambda: caller.updater.connection_failures)
        error = caller.client.connection_error(node.id)
        assert isinstance(error, NetworkError)
        assert isinstance(error.__cause__, ConnectionRefusedError)
        assert f"127.0.0.1:{node.port}: connection refused" in str(error)


def test_a_poll_ends_when_another_thread_wakes_it():
    node = Node(1, "127.0.0.1", 1)
    with calling(node) as caller:
        waker = threading.Thread(target=caller.client.wakeup)
        started = time.monotonic()
        waker.start()
        caller.client.poll(60, caller.clock.now())
        waker.join()
        assert time.monotonic() - started < 30


def test_socket_options():
    def serve(connection: socket.socket) -> None:
        connection.recv(1)

    settings = network_settings(send_buffer_bytes=50_000, receive_buffer_bytes=40_000)
    with server(serve) as node:
        transport = TcpTransport.connect(Address(socket.AF_INET, (node.host, node.port)), settings)
        sock = transport._socket
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) >= 50_000
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) >= 40_000
        assert not sock.getblocking()
        transport.close()
        transport.close()


def test_transport_says_what_it_waits_for():
    listener = socket.create_server(("127.0.0.1", 0))
    address = Address(socket.AF_INET, listener.getsockname())
    transport = TcpTransport.connect(address, network_settings())
    while (interest := transport.finish_connect()) == WRITE:
        pass
    assert interest == 0
    accepted, _ = listener.accept()
    assert transport.recv_some(10) is None
    accepted.sendall(b"hello")
    backend = NetworkBackend.tcp(network_settings())
    backend.selector.watch(transport, "owner", READ)
    assert backend.selector.poll(20) == [("owner", READ)]
    assert transport.recv_some(10) == b"hello"
    accepted.close()
    assert backend.selector.poll(20) == [("owner", READ)]
    assert transport.recv_some(10) == b""
    assert not transport.has_pending()
    backend.selector.unwatch(transport)
    backend.selector.unwatch(transport)
    assert backend.selector.poll(0) == []
    transport.close()
    backend.selector.close()
    listener.close()
