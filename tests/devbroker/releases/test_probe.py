# SPDX-License-Identifier: Apache-2.0
"""Raw questions to a broker; the answers are written here by hand."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator

import pytest
from fix_patience import closed_port

from penstock.devbroker.releases.probe import broker_answers, is_served, try_view


class Answering:
    """A server that answers every request with the same body."""

    def __init__(self, body: bytes) -> None:
        self.requests: list[bytes] = []
        self._body = body
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        connection, _ = self._listening.accept()
        with connection:
            request = connection.recv(256)
            self.requests.append(request)
            body = request[8:12] + self._body
            connection.sendall(struct.pack(">i", len(body)) + body)

    def close(self) -> None:
        self._thread.join(60)
        self._listening.close()


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def metadata(brokers: int = 1) -> bytes:
    known = b"".join(
        struct.pack(">i", n) + string("host") + struct.pack(">i", 9000 + n) for n in range(brokers)
    )
    # Partition 0 is led by broker 1; partition 1 has no leader now (error 5).
    led = struct.pack(">hiiiiiii", 0, 0, 1, 2, 1, 2, 1, 1)  # two replicas, one of them in sync
    unled = struct.pack(">hiiiii", 5, 1, -1, 1, 1, 0)
    topic = struct.pack(">h", 0) + string("orders") + struct.pack(">i", 2) + led + unled
    return struct.pack(">i", brokers) + known + struct.pack(">i", 1) + topic


def test_a_view_has_brokers_and_leaders() -> None:
    server = Answering(metadata(2))
    view = try_view(server.port, "orders", timeout=60)
    server.close()
    assert view is not None
    assert view.ports == {0: 9000, 1: 9001}
    assert view.leaders == {("orders", 0): 1}
    assert view.in_sync == {("orders", 0): 1, ("orders", 1): 0}
    size, api_key, version = struct.unpack_from(">ihh", server.requests[0])
    assert (size, api_key, version) == (len(server.requests[0]) - 4, 3, 0)
    assert server.requests[0].endswith(struct.pack(">i", 1) + string("orders"))


@pytest.mark.parametrize(("brokers", "expected"), [(1, True), (0, False)])
def test_a_broker_answers_when_it_knows_itself(brokers: int, expected: bool) -> None:
    server = Answering(metadata(brokers))
    assert broker_answers(server.port, timeout=60) is expected
    server.close()


def test_something_else_that_answers_is_no_broker() -> None:
    server = Answering(b"\xff\xff")
    assert not broker_answers(server.port, timeout=60)
    server.close()


@pytest.mark.parametrize(("error_code", "expected"), [(0, True), (3, False), (6, False)])
def test_a_partition_is_served_when_its_leader_tells_its_end(error_code: int, expected: bool) -> None:
    answer = struct.pack(">i", 1) + string("orders") + struct.pack(">iihiq", 1, 7, error_code, 1, 42)
    server = Answering(answer)
    assert is_served(server.port, "orders", 7, timeout=60) is expected
    server.close()
    assert struct.unpack_from(">hh", server.requests[0], 4) == (2, 0)


def test_a_closed_port_does_not_answer() -> None:
    with closed_port() as port:
        assert not broker_answers(port)
        assert not is_served(port, "orders", 0)


def test_a_silent_server_does_not_answer(listening: socket.socket) -> None:
    assert not broker_answers(listening.getsockname()[1], timeout=0.05)
