# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import random
import socket
from collections.abc import Iterator

import pytest

from penstock.devbroker.machine import free_ports, is_free


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
