# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import random
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from penstock.devbroker.machine import broker_answers, free_ports, is_free


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def test_a_port_in_use_is_not_free(server: socket.socket) -> None:
    port = server.getsockname()[1]
    assert not is_free(port)
    server.close()
    assert is_free(port)


def test_free_ports_differ_and_avoid_what_they_are_told() -> None:
    first = free_ports(8, rng=random.Random(7))
    assert len(set(first)) == 8
    # The same draw again, with the first result forbidden.
    assert not set(first) & set(free_ports(8, avoid=first, rng=random.Random(7)))


def test_ports_are_below_those_of_outgoing_connections() -> None:
    assert all(port < 32768 for port in free_ports(20))


@pytest.mark.parametrize(("error_code", "expected"), [(0, True), (35, False)])
def test_a_broker_answers_when_its_reply_matches(
    server: socket.socket, error_code: int, expected: bool
) -> None:
    requests: list[bytes] = []

    def serve() -> None:
        connection, _ = server.accept()
        with connection:
            requests.append(connection.recv(64))
            correlation = requests[0][8:12]
            body = correlation + struct.pack(">hi", error_code, 0)
            connection.sendall(struct.pack(">i", len(body)) + body)

    thread = threading.Thread(target=serve)
    thread.start()
    assert broker_answers(server.getsockname()[1], timeout=5) is expected
    thread.join()
    size, api_key, version = struct.unpack_from(">ihh", requests[0])
    assert (size, api_key, version) == (len(requests[0]) - 4, 18, 0)


def test_a_closed_port_does_not_answer(server: socket.socket) -> None:
    port = server.getsockname()[1]
    server.close()
    assert not broker_answers(port)


def test_a_silent_server_does_not_answer(server: socket.socket) -> None:
    assert not broker_answers(server.getsockname()[1], timeout=0.05)
