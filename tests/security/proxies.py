# SPDX-License-Identifier: Apache-2.0
"""A small proxy of each kind on a real port, and a TLS server that answers in capitals."""

from __future__ import annotations

import base64
import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def listening(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """A port at which each connection is served by a thread."""
    listener = socket.create_server(("127.0.0.1", 0))

    def one(connection: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError), connection:
            connection.settimeout(10)
            serve(connection)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=one, args=(listener.accept()[0],), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(60)


def exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise EOFError
        data += more
    return data


def until(connection: socket.socket, mark: bytes) -> bytes:
    data = b""
    while not data.endswith(mark):
        data += exactly(connection, 1)
    return data


def shouting(context: ssl.SSLContext) -> Callable[[socket.socket], None]:
    """A TLS server that answers what it receives in capitals."""

    def serve(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as tls:
            while data := tls.recv(65536):
                tls.sendall(data.upper())

    return serve


def forward(one: socket.socket, other: socket.socket) -> None:
    def move(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    there = threading.Thread(target=move, args=(one, other), daemon=True)
    there.start()
    move(other, one)
    there.join(60)


def socks5(
    names: dict[str, int], user: str | None = None, password: str | None = None
) -> Callable[[socket.socket], None]:
    """A SOCKS5 proxy that knows some names, as ports of this machine; with a user, for that one alone."""

    def serve(connection: socket.socket) -> None:
        version, count = exactly(connection, 2)
        assert version == 5
        methods = exactly(connection, count)
        wanted = 2 if user else 0
        if wanted not in methods:
            connection.sendall(b"\x05\xff")
            return
        connection.sendall(bytes([5, wanted]))
        if user:
            exactly(connection, 1)
            given = exactly(connection, exactly(connection, 1)[0])
            secret = exactly(connection, exactly(connection, 1)[0])
            good = (given, secret) == (user.encode(), (password or "").encode())
            connection.sendall(b"\x01\x00" if good else b"\x01\x01")
            if not good:
                return
        assert exactly(connection, 3) == b"\x05\x01\x00"
        kind = exactly(connection, 1)[0]
        if kind == 3:
            name = exactly(connection, exactly(connection, 1)[0]).decode()
        else:
            name = socket.inet_ntop(
                socket.AF_INET if kind == 1 else socket.AF_INET6, exactly(connection, 4 if kind == 1 else 16)
            )
        exactly(connection, 2)
        if name not in names:
            connection.sendall(b"\x05\x04\x00\x01" + bytes(6))
            return
        with socket.create_connection(("127.0.0.1", names[name]), 10) as target:
            connection.sendall(b"\x05\x00\x00\x03\x05proxy\x04\x38")
            forward(connection, target)

    return serve


def http(
    names: dict[str, int], user: str | None = None, password: str | None = None
) -> Callable[[socket.socket], None]:
    """An HTTP proxy for CONNECT, with the same arguments."""

    def serve(connection: socket.socket) -> None:
        head = until(connection, b"\r\n\r\n").decode()
        lines = head.split("\r\n")
        method, target, _ = lines[0].split(" ")
        assert method == "CONNECT"
        wanted = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
        if user and f"Proxy-Authorization: {wanted}" not in lines:
            connection.sendall(
                b"HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic\r\n\r\n"
            )
            return
        name = target.rpartition(":")[0].strip("[]")
        if name not in names:
            connection.sendall(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 4\r\n\r\nsad.")
            return
        with socket.create_connection(("127.0.0.1", names[name]), 10) as other:
            connection.sendall(b"HTTP/1.1 200 Connection established\r\nX-Proxy: small\r\n\r\n")
            forward(connection, other)

    return serve
