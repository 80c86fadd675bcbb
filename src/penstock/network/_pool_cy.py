# SPDX-License-Identifier: Apache-2.0
"""What every request goes through in the pool of connections: on its way out, and back. Compiled if possible.

Only the ordinary is here; `pool.ConnectionPool` has the connections themselves, and what is done when something is not
ordinary. Owned by the I/O thread.
"""

from __future__ import annotations

import math
from typing import Any

from penstock.errors import KafkaError
from penstock.network.states import CONNECTING
from penstock.network.throttling import throttle_seconds
from penstock.protocol.framing import next_correlation_id

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

if cython.compiled:
    from cython.cimports.penstock.network._connection_cy import ClientRequest, Connection, InFlightRequest
    from cython.cimports.penstock.protocol._frames_cy import frame_request
else:
    from penstock.network._connection_cy import ClientRequest, Connection, InFlightRequest
    from penstock.protocol._frames_cy import frame_request

# As in `transport`.
_READ = cython.declare(cython.int, 1)
_WRITE = cython.declare(cython.int, 2)


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


@cython.cclass
class PoolFields:
    """The connections by node, and the way of a request through them.

    Args:
        client_id: how this client calls itself.
        max_in_flight: how many requests a connection may have without an answer.
    """

    def __init__(self, client_id: Any, max_in_flight: cython.Py_ssize_t) -> None:
        self.next_sweep_at = math.inf
        self.fatal_error: KafkaError | None = None
        self._client_id = client_id
        self._max_in_flight = max_in_flight
        self._live: dict[int, Any] = {}
        self._failed_writes: list[tuple[Any, Exception]] = []
        self._correlation_id = -1
        self.ended: list[InFlightRequest] = []

    def sendable(self, node_id: Any, now: cython.double) -> Any:
        """The connection, when it takes another request now: ready, not throttled, and not too busy; else None."""
        connection: Connection = self._live.get(node_id)
        if connection is None or not connection.can_send(now, self._max_in_flight):
            return None
        return connection

    def start_request(
        self,
        connection: Connection,
        asked: ClientRequest,
        version: cython.int,
        now: cython.double,
        internal: cython.bint,
    ) -> None:
        """Frame a request and write as much of it as fits; the rest follows when the selector says so.

        A connection that proves broken is only noted: the caller may be in the middle of something, and what follows
        from the failure waits for `meet_failed_writes`.

        Args:
            connection: where to write it; it is `sendable`.
            asked: the request.
            version: as picked for this connection.
            now: the time.
            internal: whether the network layer asks for itself, see InFlightRequest.

        Raises:
            ValueError: the request cannot be encoded in that version; nothing was sent.
        """
        request: Any = asked.request
        body: Any = request.encode(version)
        correlation_id: cython.int = next_correlation_id(self._correlation_id)
        buffers: list = frame_request(request.api, version, correlation_id, self._client_id, body)  # type: ignore[type-arg]
        self._correlation_id = correlation_id
        started: InFlightRequest = InFlightRequest(asked, version, correlation_id, now, internal)
        connection.start_request(started, buffers, now)
        # From here on the request belongs to the connection, and ends with it: whatever goes wrong must not be raised,
        # since the caller would take the request for one that was never begun, and use its memory again.
        if started.deadline < self.next_sweep_at:
            self.next_sweep_at = started.deadline
        try:
            ended: InFlightRequest = connection.write()
            # Else the selector watches what it has to watch already.
            if (connection.unsent_bytes == 0) == connection.write_watched:
                self._watch_writes(connection)
        except Exception as error:  # noqa: BLE001 - also where memory is short
            self._failed_writes.append((connection, error))
            return
        if ended is not None:
            self.end_request(ended, None, None, now)

    def end_request(
        self, request: InFlightRequest, body: Any, error: KafkaError | None, now: cython.double
    ) -> Any:
        """Keep the outcome of a request, and tell it: at once if the request is internal, else after the poll."""
        request.end(body, error, now)
        if request.internal:
            request.on_response(request)
        else:
            self.ended.append(request)

    def take_ended(self) -> list:  # type: ignore[type-arg]
        """The requests that have ended; their `on_response` is the caller's to call."""
        ended = self.ended
        self.ended = []
        return ended

    def on_events(self, events: Any, now: cython.double) -> None:
        """Handle what the selector has found."""
        connection: Connection
        ready_for: cython.int
        for connection, mask in events:
            if connection.closed:
                continue  # by an earlier event of the same round
            if connection.known.state is CONNECTING:
                self._go_on_connecting(connection, now)
                continue
            ready_for = mask
            if ready_for & _READ:
                self._read(connection, now)
            if ready_for & _WRITE and not connection.closed:
                self._write(connection, now)

    def _read(self, connection: Connection, now: cython.double) -> None:
        for request, raw in connection.read(now):
            self._take_answer(connection, request, raw, now)
        if not connection.closed and (connection.read_error is not None or connection.peer_closed):
            self._on_last_answer(connection, now)

    def _take_answer(
        self, connection: Connection, answered: InFlightRequest, raw: Any, now: cython.double
    ) -> Any:
        request: Any = answered.request
        try:
            body: Any = request.decode_response(answered.version, raw)
        except Exception as error:  # noqa: BLE001 - whatever it is, the request must end
            self._on_unintelligible(connection, answered, error, now)
            return
        seconds: cython.double = throttle_seconds(request.api.key, answered.version, body)
        if seconds > 0:
            known: Any = connection.known
            known.throttled_until = max(known.throttled_until, now + seconds)
            connection.in_flight.extend_deadlines(seconds)
        self.end_request(answered, body, None, now)
