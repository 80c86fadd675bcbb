# SPDX-License-Identifier: Apache-2.0
"""One request has one limit of time, whatever is on the way to the server."""

from __future__ import annotations

import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest
from security.tls.certificates import client_context, server_context, the_ca

from penstock.security.http import Answer, exchange

LIMIT = 0.2
# Far more than the limit, far less than what each of these servers would take.
SOON = 30.0
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@contextmanager
def serving(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server for one connection, which ends with the block; its port."""
    accepted: list[socket.socket] = []

    def run() -> None:
        try:
            connection, _ = server.accept()
            with connection:
                accepted.append(connection)
                serve(connection)
        except OSError:
            pass  # the client has gone

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        for connection in (server, *accepted):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
    thread.join(60)


def slowly(connection: socket.socket, data: bytes) -> None:
    for byte in data:
        connection.sendall(bytes([byte]))
        time.sleep(0.05)


def whole_request(connection: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"secret"):
        piece = connection.recv(65536)
        assert piece, "the client has gone"
        data += piece
    return data


def ask(url: str, seconds: float = LIMIT, **more: Any) -> Answer:
    request = urllib.request.Request(url, b"secret", method="POST")
    return exchange(request, seconds=seconds, most=100, **more)


def times_out(url: str, **more: Any) -> None:
    began = time.monotonic()
    with pytest.raises(OSError, match="timed out"):
        ask(url, **more)
    assert time.monotonic() - began < SOON


def test_a_server_that_answers_slowly():
    def serve(connection: socket.socket) -> None:
        connection.recv(65536)
        slowly(connection, b"HTTP/1.1 200 OK\r\nX: " + b"a" * 2000)

    with serving(serve) as port:
        times_out(f"http://127.0.0.1:{port}/")


def test_a_proxy_that_answers_slowly(monkeypatch: pytest.MonkeyPatch):
    def serve(connection: socket.socket) -> None:
        connection.recv(65536)
        slowly(connection, b"HTTP/1.1 200 OK\r\nX: " + b"a" * 2000)

    context = client_context(the_ca())  # reading the system's roots takes as long as the limit
    with serving(serve) as port:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{port}")
        times_out("https://idp.example/token", context=context)


def test_a_server_that_is_slow_with_tls(monkeypatch: pytest.MonkeyPatch):
    """Behind a proxy that takes its time as well: TLS gets what that has left."""

    def serve(connection: socket.socket) -> None:
        connection.recv(65536)
        time.sleep(LIMIT / 2)
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        connection.recv(65536)
        slowly(connection, b"\x16\x03\x03\x40\x00" + b"\x02" * 2000)

    context = client_context(the_ca())  # reading the system's roots takes as long as the limit
    with serving(serve) as port:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{port}")
        times_out("https://idp.example/token", context=context)


def test_an_answer_through_a_proxy(monkeypatch: pytest.MonkeyPatch):
    asked = []

    def serve(connection: socket.socket) -> None:
        asked.append(connection.recv(65536))
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        with server_context().wrap_socket(connection, server_side=True) as tls:
            asked.append(whole_request(tls))
            tls.sendall(ANSWER)

    with serving(serve) as port:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{port}")
        answer = ask("https://broker.example/token", 60, context=client_context(the_ca()))
    assert answer == Answer(200, b"hello")
    assert asked[0].startswith(b"CONNECT broker.example:443 HTTP/1.")
    assert b"secret" not in asked[0]
    assert asked[1].startswith(b"POST /token HTTP/1.1")


def test_the_certificate_behind_a_proxy_is_checked(monkeypatch: pytest.MonkeyPatch):
    def serve(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        with server_context().wrap_socket(connection, server_side=True) as tls:
            tls.recv(65536)

    with serving(serve) as port:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{port}")
        with pytest.raises(OSError, match="certificate") as caught:
            ask("https://idp.example/token", 60, context=client_context(the_ca()))
    assert isinstance(caught.value.__cause__ or caught.value.__context__, ssl.SSLError)


@contextmanager
def full() -> Iterator[int]:
    """A port at which nobody answers: no further connection is taken."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        yield server.getsockname()[1]


def addresses(monkeypatch: pytest.MonkeyPatch, *ports: int) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)) for port in ports]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)


def test_many_addresses_that_do_not_answer_share_the_time(monkeypatch: pytest.MonkeyPatch):
    with full() as silent:
        addresses(monkeypatch, *[silent] * 300)  # if each had the limit for itself, that were a minute
        times_out("http://idp.example/")


def test_an_address_that_does_not_answer_leaves_time_for_the_next(monkeypatch: pytest.MonkeyPatch):
    def serve(connection: socket.socket) -> None:
        whole_request(connection)
        connection.sendall(ANSWER)

    def answer(seconds: float) -> Answer | None:
        with full() as silent, serving(serve) as port:
            addresses(monkeypatch, silent, port)
            try:
                return ask("http://idp.example/", seconds)
            except OSError:
                return None

    # A second is enough, unless the machine is busy with other things.
    assert any(answer(seconds) == Answer(200, b"hello") for seconds in (1.0, 10.0, 60.0))
