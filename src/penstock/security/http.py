# SPDX-License-Identifier: Apache-2.0
"""One request to a server that issues credentials, and its answer.

Rules:
1. All of it has one limit of time: a server or a proxy that sends a byte now and then, or one interim answer after the
   other, does not get more of it than one that is silent; nor does a name with many addresses. Only the name lookup is
   the system's.
2. Of the body no more is read than is wanted.
3. A redirect is an answer like any other: what is sent is secret, and goes to the place that was named and to no other.
"""

from __future__ import annotations

import http.client
import io
import socket
import time
import urllib.request
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    import ssl


_SHORTEST: Final = 0.001


class Answer(NamedTuple):
    """What a server said.

    Attributes:
        status: the HTTP status.
        body: at most one byte more than was wanted.
    """

    status: int
    body: bytes


def exchange(
    request: urllib.request.Request,
    *,
    seconds: float,
    most: int,
    context: ssl.SSLContext | None = None,
    direct: bool = False,
) -> Answer:
    """Send a request, and read the answer.

    Args:
        request: to an http or https URL.
        seconds: the limit for all of it.
        most: bytes of the body that are wanted; one more is read where there are more.
        context: checks the certificate of the server, where it has one; None trusts the system's roots.
        direct: past the proxies that the environment names.

    Raises:
        OSError: the server cannot be reached, or the time is up.
        http.client.HTTPException: it does not answer in HTTP.
        ValueError: the URL or an answer cannot be made sense of.
    """
    deadline = time.monotonic() + seconds
    handlers: list[urllib.request.BaseHandler] = [_AnyStatus(), _Http(deadline), _Https(deadline, context)]
    if direct:
        handlers.append(urllib.request.ProxyHandler({}))
    opener = urllib.request.build_opener(*handlers)
    with opener.open(request, timeout=seconds) as answer:
        return Answer(answer.status, answer.read(most + 1))


class _AnyStatus(urllib.request.HTTPErrorProcessor):
    """Every status is an answer; nothing is done about it."""

    def http_response(self, request: Any, response: Any) -> Any:
        return response

    https_response = http_response


class _Http(urllib.request.HTTPHandler):
    def __init__(self, deadline: float) -> None:
        super().__init__()
        self._deadline = deadline

    def http_open(self, request: urllib.request.Request) -> Any:
        return self.do_open(partial(_Connection, deadline=self._deadline), request)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, deadline: float, context: ssl.SSLContext | None) -> None:
        super().__init__()
        self._deadline = deadline
        self._checked_by = context

    def https_open(self, request: urllib.request.Request) -> Any:
        connection = partial(_TlsConnection, deadline=self._deadline, context=self._checked_by)
        return self.do_open(connection, request)


class _Connection(http.client.HTTPConnection):
    def __init__(self, host: str, *, deadline: float, **options: Any) -> None:
        super().__init__(host, **options)
        self._create_connection = partial(_connected, deadline)


class _TlsConnection(http.client.HTTPSConnection):
    def __init__(self, host: str, *, deadline: float, **options: Any) -> None:
        super().__init__(host, **options)
        self._deadline = deadline
        self._create_connection = partial(_connected, deadline)

    def connect(self) -> None:
        """Connect, through the proxy where there is one, then put TLS over the socket, which is a plain one again."""
        super().connect()
        self.sock: Any = _TimedTls(self.sock, self._deadline)


def _connected(deadline: float, address: tuple[str, int], *_: Any) -> _TimedSocket:
    """A connection to the first address of a host that takes one. Each has its share of the time that is left."""
    failed: OSError | None = None
    found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
    for at, (family, kind, protocol, _name, place) in enumerate(found):
        sock = _TimedSocket(family, kind, protocol)
        sock.deadline = deadline
        try:
            _set_time_left(sock, deadline, shares=len(found) - at)
            sock.connect(place)
        except OSError as error:
            sock.close()
            failed = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failed or OSError(f"{address[0]} has no address")


class _TimedSocket(socket.socket):
    """A socket whose every call ends at a deadline, as far as http.client makes calls."""

    deadline: float

    def sendall(self, data: Any, flags: int = 0) -> None:
        _set_time_left(self, self.deadline)
        super().sendall(data, flags)

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """The one that a file over a socket calls."""
        _set_time_left(self, self.deadline)
        return super().recv_into(buffer, nbytes, flags)

    def gettimeout(self) -> float:
        """What TLS takes over for its handshake. An error would leave it with a socket that two own."""
        return max(self.deadline - time.monotonic(), _SHORTEST)


class _TimedTls:
    """A socket with TLS, as far as http.client needs one, whose every call ends at a deadline."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock = sock
        self._deadline = deadline

    def sendall(self, data: Any) -> None:
        _set_time_left(self._sock, self._deadline)
        self._sock.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        del mode  # http.client only ever reads
        return io.BufferedReader(_TimedReader(self._sock, self._deadline))

    def close(self) -> None:
        self._sock.close()


class _TimedReader(io.RawIOBase):
    """What comes in on a socket, up to a deadline. Keeps the socket open until it is closed itself."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock = sock
        self._deadline = deadline
        self._raw = sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        _set_time_left(self._sock, self._deadline)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


def _set_time_left(sock: socket.socket, deadline: float, shares: int = 1) -> None:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    sock.settimeout(left / shares)
