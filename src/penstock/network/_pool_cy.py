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

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

if cython.compiled:
    from cython.cimports.penstock.network._exchange_cy import Exchange
    from cython.cimports.penstock.network._wire_cy import Wire
    from cython.cimports.penstock.protocol._framing_cy import frame_request, next_correlation_id
else:
    from penstock.network._exchange_cy import Exchange
    from penstock.network._wire_cy import Wire
    from penstock.protocol._framing_cy import frame_request, next_correlation_id

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

    def sendable(self, node_id: Any, now: cython.double) -> Any:
        """The connection, when it takes another request now: ready, not throttled, and not too busy; else None."""
        connection: Wire = self._live.get(node_id)
        if connection is None or not connection._takes_more(now, self._max_in_flight):
            return None
        return connection

    def start_request(
        self,
        connection: Wire,
        request: Any,
        version: cython.int,
        timeout: cython.double,
        on_done: Any,
        now: cython.double,
        about: Any = None,
    ) -> None:
        """Frame a request and write as much of it as fits; the rest follows when the selector says so.

        A connection that proves broken is only noted: the caller may be in the middle of something, and what follows
        from the failure waits for `meet_failed_writes`. `about` is for `on_done`, which finds it in the exchange.

        Raises:
            ValueError: the request cannot be encoded in that version; nothing was sent.
        """
        body: Any = request.encode(version)
        correlation_id: cython.int = next_correlation_id(self._correlation_id)
        buffers: list = frame_request(request.api, version, correlation_id, self._client_id, body)  # type: ignore[type-arg]
        self._correlation_id = correlation_id
        exchange: Exchange = Exchange(request, version, correlation_id, now, timeout, on_done, about)
        connection._start_request(exchange, buffers, now)
        # From here on the request belongs to the connection, and ends with it: whatever goes wrong must not be raised,
        # since the caller would take the request for one that was never begun, and use its memory again.
        if exchange.deadline < self.next_sweep_at:
            self.next_sweep_at = exchange.deadline
        try:
            ended: Any = connection._write_some()
            # Else the selector watches what it has to watch already.
            if (connection.unsent_bytes == 0) == connection.write_watched:
                self._watch_writes(connection)
        except Exception as error:  # noqa: BLE001 - also where memory is short
            self._failed_writes.append((connection, error))
            return
        if ended is not None:
            ended.on_done(ended, None, None, now)

    def on_events(self, events: Any, now: cython.double) -> None:
        """Handle what the selector has found."""
        connection: Wire
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

    def _read(self, connection: Wire, now: cython.double) -> None:
        for exchange, raw in connection._read_answers(now):
            self._take_answer(connection, exchange, raw, now)
        if not connection.closed and (connection.trouble is not None or connection.peer_closed):
            self._on_last_answer(connection, now)

    def _take_answer(self, connection: Wire, exchange: Exchange, raw: Any, now: cython.double) -> Any:
        request: Any = exchange.request
        try:
            body: Any = request.decode_response(exchange.version, raw)
        except Exception as error:  # noqa: BLE001 - whatever it is, the request must end
            self._on_unintelligible(connection, exchange, error, now)
            return
        seconds: cython.double = throttle_seconds(request.api.key, exchange.version, body)
        if seconds > 0:
            known: Any = connection.known
            known.throttled_until = max(known.throttled_until, now + seconds)
            connection.in_flight.extend_deadlines(seconds)
        exchange.on_done(exchange, body, None, now)
