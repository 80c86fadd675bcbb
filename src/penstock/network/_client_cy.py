# SPDX-License-Identifier: Apache-2.0
"""What every turn of the I/O thread and every request asks of the network client. Compiled if possible.

`client.NetworkClient` has the rest, and says who may call what. Owned by the I/O thread.
"""

from __future__ import annotations

from typing import Any

from penstock.errors import IllegalStateError, UnsupportedVersionError
from penstock.network.failures import describe

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

if cython.compiled:
    from cython.cimports.penstock.network._connection_cy import ClientRequest, Connection, InFlightRequest
    from cython.cimports.penstock.network._metrics_cy import NetworkMetrics
    from cython.cimports.penstock.network._pool_cy import ConnectionPool
else:
    from penstock.network._connection_cy import ClientRequest, Connection, InFlightRequest
    from penstock.network._metrics_cy import NetworkMetrics
    from penstock.network._pool_cy import ConnectionPool

_NANOSECONDS = cython.declare(cython.double, 1e9)
_PARTS = cython.declare(cython.int, 16)  # of a request that are written in one poll, at most
_WRITE = cython.declare(cython.int, 2)  # as in `transport`


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


@cython.cclass
class ClientFields:
    """Requests in, responses out.

    Args:
        pool: the connections.
        fetcher: sends the Metadata requests.
        selector: where to wait.
        clock: read once after each wait.
        metrics: counters.
        bootstrap: finds the servers to start from; None when they are known.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        fetcher: Any,
        selector: Any,
        clock: Any,
        metrics: NetworkMetrics,
        bootstrap: Any,
    ) -> None:
        self.metrics = metrics
        self._pool = pool
        self._fetcher = fetcher
        self._selector = selector
        self._clock = clock
        self._bootstrap = bootstrap  # until the servers are known
        self._closed = False

    def is_ready(self, node: Any, now: cython.double) -> bool:
        """Whether a request can be sent to the node now. Metadata goes first: with an update due, no node is ready."""
        return self._pool.sendable(node.id, now) is not None and not self._fetcher.is_due(now)

    def send(self, asked: ClientRequest, now: cython.double) -> None:
        """Send a request to a ready node.

        A request for which there is no common version ends with UnsupportedVersionError in the next poll; nothing is
        sent.

        Raises:
            IllegalStateError: the node is not ready, or the client is closed.
        """
        connection: Connection | None = None if self._closed else self._pool.sendable(asked.node.id, now)
        if connection is None:
            raise IllegalStateError(f"cannot send now: {describe(asked.node)} is not ready")
        try:
            version: cython.int = connection.pick_version(asked.request)
        except UnsupportedVersionError as error:
            self._pool.ended.append(InFlightRequest.never_sent(asked, error, now))
            return
        self._pool.start_request(connection, asked, version, now, False)

    def poll(self, timeout: cython.double, now: cython.double) -> list[InFlightRequest]:
        """Wait for at most `timeout` seconds, and handle what has happened.

        Returns:
            The requests that ended; the `on_response` of each was called. What it raises is logged, no more.
        """
        pool: ConnectionPool = self._pool
        wait: cython.double = timeout
        limit: cython.double
        if self._bootstrap is not None:
            limit = self._advance_bootstrap(self._bootstrap, now)
            wait = min(wait, limit)
        limit = self._fetcher.maybe_fetch(now)
        wait = min(wait, limit)
        pool.handle_failed_writes(now)
        wait = min(wait, pool.next_sweep_at - now)
        now = self._move_bytes(0.0 if pool.ended or wait < 0 else wait, now)
        if now >= pool.next_sweep_at:
            pool.sweep(now)
        if self._bootstrap is None:
            self._fetcher.maybe_rebootstrap(now)
        if pool.fatal_error is not None:
            self._tell_fatal_error()
        limit = self._clock.now()
        self.metrics.io_ns += cython.cast(cython.longlong, (limit - now) * _NANOSECONDS)
        if not pool.ended:
            return []
        return self._deliver()

    def _move_bytes(self, wait: cython.double, now: cython.double) -> cython.double:
        """Wait until something has happened, and handle it; the time afterwards.

        That a part of a large request could be written is not worth a turn of the whole loop while there is room for
        more of it. But only the first look waits: a wake-up that comes with one of the others must not be slept on.
        """
        before: cython.double
        connection: Connection
        for _ in range(_PARTS):
            before = self._clock.now()
            events: Any = self._selector.poll(wait)
            now = self._clock.now()
            self.metrics.select_count += 1
            self.metrics.io_wait_ns += cython.cast(cython.longlong, (now - before) * _NANOSECONDS)
            if not events:
                break
            self._pool.on_events(events, now)
            for connection, mask in events:
                if mask != _WRITE or not connection.unsent_bytes or connection.closed:
                    return now
            wait = 0.0
        return now
