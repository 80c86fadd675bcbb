# SPDX-License-Identifier: Apache-2.0
"""A small web server for one page: GET and nothing else, and it sleeps until somebody asks.

One thread waits for connections, and each connection has a thread; all are daemons. There are few connections at a
time and requests are short. A connection whose request is not complete in time is closed, and, where there are too
many, the one that has waited longest for a request.
"""

from __future__ import annotations

import contextlib
import json
import logging
import operator
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from importlib import resources
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from penstock._escaping import escaped
from penstock._events import ClientEvents, Event, tell_error
from penstock._locks import new_lock
from penstock.watching.glass_box import address as rules
from penstock.watching.glass_box.address import Address, BadAddress

log = logging.getLogger("penstock.watching")

_MOST_CONNECTIONS: Final = 32
_IDLE_SECONDS: Final = 15.0  # from a connection, or a response, to the end of the head of the next request
_END_SECONDS: Final = 5.0  # for the thread that listens, which has only to wake up
_PAUSE_SECONDS: Final = 1.0  # after a connection that could not be taken
_FILES: Final = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}

# Answers a path below /api/ with something for JSON; KeyError: there is no such thing; ValueError: it makes no sense.
Answer = Callable[[str, Mapping[str, str]], Any]


class PageServer:
    """Serves one page until it is closed.

    Args:
        address: where to listen.
        token: what viewers of data must know; None: nothing.
        answer: gives the data.

    Raises:
        BadAddress: nobody can listen there.
    """

    def __init__(self, address: Address, token: str | None, answer: Answer) -> None:
        self.token = token
        self.answer = answer
        self._events = ClientEvents("")  # of the page, which is of no client
        self._listener = _listen(address)
        bound = self._listener.getsockname()
        self.address = Address(address.host, bound[1])
        self.url = f"http://{Address(bound[0], bound[1])}/"
        self._wake, self._woken = socket.socketpair()
        # Of `_locks`: the I/O thread of the last producer closes the page.
        self._lock: Any = new_lock()
        # Guarded by the lock. Since when each waits for a request; None while it is answered.
        self._connections: dict[socket.socket, float | None] = {}
        self._closed = False  # written under the lock
        self._thread = threading.Thread(target=self._serve, name="penstock-glass-box", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Serve no more; afterwards the port is free. Twice is harmless."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            connections = list(self._connections)
        with contextlib.suppress(OSError):
            self._wake.send(b"x")
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self.join(_END_SECONDS)

    def join(self, timeout: float) -> None:
        """Wait until the server's thread has ended."""
        self._thread.join(timeout)

    def abandon(self) -> None:
        """Give up the copies of the sockets that the child of a fork has; the parent goes on with its own."""
        for one in (self._listener, self._wake, self._woken, *self._connections):
            with contextlib.suppress(OSError):
                one.close()

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while not self._closed:
                selector.select(self._close_late(time.monotonic()))
                try:
                    connection, peer = self._listener.accept()
                except (BlockingIOError, ConnectionError):
                    continue  # the peer went away again, or the server is closed
                except OSError:
                    # The process has no descriptor left. The peer stays in line, so that select would return at once.
                    self._pause()
                    continue
                self._take(connection, peer)
        for one in (self._listener, self._wake, self._woken):
            one.close()

    def _pause(self) -> None:
        """Wait for a moment, or until the server is closed."""
        with contextlib.suppress(OSError):
            self._woken.settimeout(_PAUSE_SECONDS)
            self._woken.recv(1)

    def note(self, connection: socket.socket, since: float | None) -> None:
        """Note since when a connection waits for a request; None: it has one. A new one has waited since it came."""
        with self._lock:
            if connection in self._connections and (since is None or self._connections[connection] is None):
                self._connections[connection] = since

    def _close_late(self, now: float) -> float | None:
        """Close the connections whose request is late; seconds until others may be, or None without any."""
        with self._lock:
            for since, connection in self._waiting_locked():
                if now - since >= _IDLE_SECONDS:
                    self._shut_locked(connection)
            starts = [now if since is None else since for since in self._connections.values()]
        return min(starts) + _IDLE_SECONDS - now if starts else None

    def _waiting_locked(self) -> list[tuple[float, socket.socket]]:
        return [(since, each) for each, since in self._connections.items() if since is not None]

    def _shut_locked(self, connection: socket.socket) -> None:
        """Make a connection's thread end."""
        del self._connections[connection]
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    def _take(self, connection: socket.socket, peer: Any) -> None:
        with self._lock:
            if len(self._connections) >= _MOST_CONNECTIONS and (waiting := self._waiting_locked()):
                self._shut_locked(min(waiting, key=operator.itemgetter(0))[1])
            is_taken = not self._closed and len(self._connections) < _MOST_CONNECTIONS
            if is_taken:
                self._connections[connection] = time.monotonic()
        if not is_taken:
            connection.close()
            return
        connection.settimeout(_IDLE_SECONDS)
        thread = threading.Thread(
            target=self._talk, args=(connection, peer), name="penstock-glass-box-viewer", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # the program ends
            self._drop(connection)

    def _talk(self, connection: socket.socket, peer: Any) -> None:
        try:
            _Request(connection, peer, self)
        except OSError:
            pass  # the viewer has gone
        except Exception as error:  # noqa: BLE001 - it is logged
            tell_error(
                log, Event.PAGE_REQUEST_FAILED, "a request to the live page could not be answered",
                of=self._events, error=error,
            )  # fmt: skip
        finally:
            self._drop(connection)

    def _drop(self, connection: socket.socket) -> None:
        with self._lock:
            self._connections.pop(connection, None)
        connection.close()


class _Request(BaseHTTPRequestHandler):
    """One connection, and the requests that come on it."""

    protocol_version = "HTTP/1.1"
    timeout = _IDLE_SECONDS
    server: PageServer  # type: ignore[assignment]  # what is used of it is the same

    def __init__(self, connection: socket.socket, peer: Any, server: PageServer) -> None:
        super().__init__(connection, peer, server)  # type: ignore[arg-type]

    def handle_one_request(self) -> None:
        """Wait for a request, and answer it."""
        self.server.note(self.connection, time.monotonic())
        super().handle_one_request()

    def do_GET(self) -> None:
        self.server.note(self.connection, None)
        host = self.headers.get("Host")
        if len(self.headers.get_all("Host", [])) != 1 or not rules.is_own_host(host, self.server.address):
            self._refuse(
                HTTPStatus.MISDIRECTED_REQUEST,
                "this page has another Host; a tunnel needs the same port at both ends",
            )
            return
        if self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers:
            self.close_connection = True  # what follows is no request
        try:
            split = urlsplit(self.path)
        except ValueError:
            self._refuse(HTTPStatus.BAD_REQUEST, "this is no address of a page")
            return
        if split.path in _FILES:
            name, kind = _FILES[split.path]
            self._send(HTTPStatus.OK, kind, _file(name))
        elif not split.path.startswith("/api/"):
            self._refuse(HTTPStatus.NOT_FOUND, "there is no such page")
        elif self._may_ask(host):
            self._answer(split.path.removeprefix("/api/"), split.query)

    def _may_ask(self, host: str | None) -> bool:
        site, origin = self.headers.get("Sec-Fetch-Site"), self.headers.get("Origin")
        if rules.VIEWER_HEADER not in self.headers or rules.is_from_elsewhere(site, origin, host):
            self._refuse(
                HTTPStatus.FORBIDDEN, f"only the page itself may ask, with the header {rules.VIEWER_HEADER}"
            )
            return False
        if not rules.is_let_in(self.server.token, self.headers.get("Authorization")):
            self._refuse(HTTPStatus.UNAUTHORIZED, "the token is missing or wrong")
            return False
        return True

    def _answer(self, path: str, query: str) -> None:
        try:
            given = {name: values[-1] for name, values in parse_qs(query, max_num_fields=10).items()}
            body = json.dumps(_visible(self.server.answer(path, given)), separators=(",", ":"))
        except KeyError:
            self._refuse(HTTPStatus.NOT_FOUND, "there is no such thing")
        except ValueError as error:
            self._refuse(HTTPStatus.BAD_REQUEST, escaped(str(error)))
        else:
            self._send(HTTPStatus.OK, "application/json", body.encode())

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self.close_connection = True
        self._send(status, "text/plain; charset=utf-8", f"{why}\n".encode())

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def version_string(self) -> str:
        """What the header Server says."""
        return "penstock"

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse what is no GET, or no HTTP, in the same way as everything else."""
        del explain
        self.request_version = self.protocol_version  # else an answer has no headers
        self._refuse(HTTPStatus(code), message or "it is not understood")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - so it is called there
        """Nothing: a viewer asks twice a second."""


def _listen(address: Address) -> socket.socket:
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise BadAddress(f"{address}: {_why(error)}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen(_MOST_CONNECTIONS)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise BadAddress(f"{address}: {_why(error)}") from error
    return listener


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _visible(value: Any) -> Any:
    """The same with texts that cannot turn the direction of others, nor hide a part of themselves."""
    if isinstance(value, str):
        return escaped(value)
    if isinstance(value, Mapping):
        return {name: _visible(each) for name, each in value.items()}
    return [_visible(each) for each in value] if isinstance(value, list | tuple) else value


def _file(name: str) -> bytes:
    return resources.files("penstock.watching.glass_box").joinpath("page", name).read_bytes()
