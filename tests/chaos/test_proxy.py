# SPDX-License-Identifier: Apache-2.0
"""The proxy between clients and brokers: it passes everything on, knows what is in flight, and breaks when told to."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest
from security.tls.certificates import client_context, server_context

from chaos.proxy import END_TXN, PRODUCE, FrameTap, Passing, Proxy, ProxyLoop, ProxyTls, _request_head_size

SECONDS = 60.0


def request(api_key: int, correlation_id: int, client_id: str = "c", body: bytes = b"body") -> bytes:
    raw = client_id.encode()
    frame = struct.pack(">hhih", api_key, 9, correlation_id, len(raw)) + raw + body
    return struct.pack(">i", len(frame)) + frame


def answer(correlation_id: int, body: bytes = b"done") -> bytes:
    return struct.pack(">ii", 4 + len(body), correlation_id) + body


class Ends:
    """A client's socket, the proxy, and the broker's end of the connection."""

    def __init__(self, *, secured: bool = False) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(SECONDS)
        self.loop = ProxyLoop()
        tls = ProxyTls(server_context(), client_context()) if secured else None
        self.proxy = Proxy(self.loop, self.listener.getsockname()[1], tls)
        self.client = socket.create_connection(("127.0.0.1", self.proxy.port), SECONDS)
        if tls is not None:
            self.client = tls.client.wrap_socket(self.client, server_hostname="127.0.0.1")
        self.broker, _ = self.listener.accept()
        self.broker.settimeout(SECONDS)
        if tls is not None:
            self.broker = tls.server.wrap_socket(self.broker, server_side=True)

    def ask(self, data: bytes) -> None:
        self.client.sendall(data)
        assert receive(self.broker, len(data)) == data

    def reply(self, data: bytes) -> None:
        self.broker.sendall(data)
        assert receive(self.client, len(data)) == data

    def close(self) -> None:
        self.client.close()
        self.broker.close()
        self.proxy.close()
        self.loop.close()
        self.listener.close()


def receive(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (piece := sock.recv(count - len(data))):
        data += piece
    return data


@pytest.fixture(params=["in the clear", "by TLS"])
def ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    made = Ends(secured=request.param == "by TLS")
    yield made
    made.close()


def test_bytes_pass_both_ways_and_what_waits_is_known(ends: Ends) -> None:
    ends.ask(request(PRODUCE, 1, "a") + request(PRODUCE, 2, "b", b"x" * 100_000) + request(END_TXN, 3, "a"))
    assert ends.proxy.in_flight() == 2
    assert ends.proxy.in_flight(client_id="a") == 1
    assert ends.proxy.in_flight(api_keys=(END_TXN,)) == 1
    ends.reply(answer(1, b"y" * 70_000) + answer(2))
    assert ends.proxy.in_flight() == 0
    assert ends.proxy.in_flight(api_keys=(END_TXN,)) == 1


@pytest.mark.parametrize("size", [1, 2, 3, 5, 13, 1000])
def test_frames_are_found_in_any_pieces(size: int) -> None:
    data = request(PRODUCE, 1, "one") + request(END_TXN, 2, "", b"") + request(PRODUCE, 3, "three")
    tap = FrameTap(_request_head_size)
    heads = [head for at in range(0, len(data), size) for head in tap.feed(data[at : at + size])]
    assert [struct.unpack_from(">ihhi", head)[1::2] for head in heads] == [(0, 1), (26, 2), (0, 3)]


def test_an_armed_action_strikes_when_the_request_has_passed(ends: Ends) -> None:
    seen: list[int] = []
    wanted = Passing(PRODUCE, "a")
    applied = ends.proxy.arm(lambda passing: passing == wanted, lambda: seen.append(1))
    ends.ask(request(PRODUCE, 1, "b") + request(END_TXN, 2, "a"))
    assert not seen
    ends.ask(request(PRODUCE, 3, "a"))
    applied.result(SECONDS)
    ends.ask(request(PRODUCE, 4, "a"))
    assert seen == [1]


# What is left of a connection that was ended in one direction cannot be used by OpenSSL.
only_plain = pytest.mark.parametrize("ends", ["in the clear"], indirect=True)


@only_plain
def test_a_cut_resets_both_sides(ends: Ends) -> None:
    ends.ask(request(PRODUCE, 1))
    ends.proxy.call_on_loop(ends.proxy.cut_on_loop)
    for side in (ends.client, ends.broker):
        with pytest.raises(ConnectionResetError):
            side.recv(1)
    assert ends.proxy.in_flight() == 0


@only_plain
def test_a_half_close_to_the_client_drops_answers(ends: Ends) -> None:
    ends.ask(request(PRODUCE, 1))
    ends.proxy.call_on_loop(ends.proxy.half_close_to_client_on_loop)
    ends.broker.sendall(answer(1))
    assert ends.client.recv(100) == b""
    ends.ask(request(PRODUCE, 2))  # still reaches the broker


@only_plain
def test_a_half_close_to_the_broker_lets_answers_through(ends: Ends) -> None:
    ends.ask(request(PRODUCE, 1))
    ends.proxy.call_on_loop(ends.proxy.half_close_to_broker_on_loop)
    assert ends.broker.recv(100) == b""
    ends.client.sendall(request(PRODUCE, 2))  # goes nowhere
    ends.reply(answer(1))


def test_a_stall_holds_answers_back_until_it_ends(ends: Ends) -> None:
    ends.ask(request(PRODUCE, 1))
    ends.proxy.call_on_loop(ends.proxy.stall_on_loop)
    ends.broker.sendall(answer(1))
    ends.ask(request(PRODUCE, 2))
    assert ends.proxy.in_flight() == 2
    ends.proxy.heal()
    assert receive(ends.client, len(answer(1))) == answer(1)
