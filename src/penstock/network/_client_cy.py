# SPDX-License-Identifier: Apache-2.0
"""The network client: requests in, responses out, over connections that it makes and watches by itself.

One turn of the I/O thread is: ask which nodes are ready, `send` to them, `poll`. A request is written by `send` itself,
as far as the socket takes it; the rest follows in `poll`. `wakeup` ends the wait from another thread. Each request ends
exactly once, and then its `on_response` is called with the InFlightRequest, at the end of a poll (or in `close`), never
within `send`.

Only `wakeup` may be called from another thread; everything else belongs to the I/O thread. Compiled if possible.
"""

from __future__ import annotations

import logging
import random
from typing import Any

from penstock._events import Event, tell_error
from penstock._time import Clock
from penstock.errors import BootstrapError, IllegalStateError, KafkaError, UnsupportedVersionError
from penstock.network.backend import MetadataUpdater, NetworkBackend
from penstock.network.failures import FailureReporter, PastError, describe
from penstock.network.handshake import HandshakeFactory
from penstock.network.metadata_fetch import MetadataFetcher, least_loaded
from penstock.network.resolver import DeferredBootstrap, as_bootstrap_nodes
from penstock.network.settings import NetworkSettings
from penstock.network.states import PREPARING, ConnectionStates, NodeView
from penstock.network.transport import WRITE
from penstock.protocol.requests import NodeApiVersions
from penstock.types import Node

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

if cython.compiled:
    from cython.cimports.penstock._stats_cy import OTHER, READING, WAITING, WRITING, TimeBudget
    from cython.cimports.penstock.network._connection_cy import (
        ClientRequest,
        Connection,
        InFlightRequest,
        NetworkMetrics,
    )
    from cython.cimports.penstock.network._pool_cy import ConnectionPool
    from cython.cimports.penstock._quiet_cy import QuietTime
else:
    from penstock._stats_cy import OTHER, READING, WAITING, WRITING, TimeBudget
    from penstock.network._connection_cy import (
        ClientRequest,
        Connection,
        InFlightRequest,
        NetworkMetrics,
    )
    from penstock.network._pool_cy import ConnectionPool
    from penstock._quiet_cy import QuietTime

logger = logging.getLogger("penstock.network")

_NANOSECONDS = cython.declare(cython.double, 1e9)
_PARTS = cython.declare(cython.int, 16)  # of a request that are written in one poll, at most
_WRITE = cython.declare(cython.int, WRITE)


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


@cython.final
@cython.cclass
class NetworkClient:
    """Sends requests to the nodes of one cluster.

    Args:
        settings: time-outs, backoffs, limits.
        backend: sockets, or what a simulator has instead.
        updater: keeps the cluster's metadata; the client fetches it.
        clock: read once after each wait.
        rng: jitter, and the choice between nodes that are equally good.
        metrics: counters to use; new ones when None.
        bootstrap: finds the servers to start from, when the updater was made without them.
    """

    def __init__(
        self,
        settings: NetworkSettings,
        backend: NetworkBackend,
        updater: MetadataUpdater,
        clock: Clock,
        rng: random.Random,
        metrics: NetworkMetrics | None = None,
        bootstrap: DeferredBootstrap | None = None,
    ) -> None:
        self.metrics = NetworkMetrics() if metrics is None else metrics
        self._updater = updater
        self._quiet: QuietTime = updater.quiet
        self._rng = rng
        self._now = clock.now
        self._backend = backend
        self._selector = backend.selector
        self._reporter = FailureReporter(updater.on_connection_failed)
        states = ConnectionStates(settings, rng)
        handshakes = HandshakeFactory(settings, updater.cluster_id)
        self._pool = ConnectionPool(settings, backend, states, self._reporter, self.metrics, handshakes)
        self._fetcher = MetadataFetcher(settings, self._pool, updater, rng, self._reporter)
        self._bootstrap = bootstrap  # until the servers are known
        self._closed = False

    # ---- which node

    def is_ready(self, node: Any, now: cython.double) -> cython.bint:
        """Whether a request can be sent to the node now. Metadata goes first: with an update due, no node is ready."""
        if self._pool.sendable(node.id, now) is None:
            return False
        return now < self._quiet.until or not self._fetcher.is_due(now)

    def ready(self, node: Any, now: cython.double) -> cython.bint:
        """Whether a request can be sent to the node now; if not, a connection is begun where that may be done."""
        if self.is_ready(node, now):
            return True
        if self._pool.get(node.id) is None and self._pool.states.can_connect(node, now):
            self._connect(node, now)
        return False

    def connection_delay(self, node: Any, now: cython.double) -> cython.double:
        """Seconds until it is worth asking again; infinity when an event (connected, answered) ends the poll."""
        if self.is_ready(node, now):
            return 0.0
        delay: cython.double = self._fetcher.connection_delay(node, now)
        return delay

    def shortest_delay(self, now: cython.double) -> float:
        """Seconds until it is worth asking again for the least loaded node; infinity when an event ends the poll."""
        delay: float = self._fetcher.shortest_wait(now)
        return delay

    def connection_error(self, node_id: int) -> KafkaError | None:
        """Why there is no connection to the node; None when there is one, or when none was tried. From any thread."""
        return self._reporter.last_error(node_id)

    def past_error(self, node_id: int) -> PastError | None:
        """The last error of the node, also of one that is connected since. From any thread."""
        return self._reporter.past_error(node_id)

    def refusal(self) -> KafkaError | None:
        """The latest refused authentication, if no known node can be used; None while another node may accept it."""
        refused: KafkaError | None = self._reporter.refusal
        return refused if refused is not None and self._is_final(self._now()) else None

    def was_ready(self, node_id: int) -> bool:
        """Whether there ever was a connection to the node at its present address."""
        known = self._pool.states.get(node_id)
        return known is not None and known.ever_ready

    def least_loaded_node(self, now: float) -> Node | None:
        """The node to ask when any would do; None when none can be used now."""
        return least_loaded(self._updater.nodes(), self._pool, now, self._rng).node

    def api_versions(self, node_id: Any) -> NodeApiVersions | None:
        """What the node can do; None while there is no connection to it."""
        connection: Connection | None = self._pool.get(node_id)
        return None if connection is None else connection.api_versions

    def in_flight_count(self, node_id: int | None = None) -> int:
        """Requests without an answer, of one node or of all."""
        return self._pool.in_flight_count(node_id)

    def look_at(self, node_id: int) -> NodeView | None:
        """How the connection to a node stands; None when it was never tried, or is forgotten. From any thread."""
        known = self._pool.states.get(node_id)
        if known is None:
            return None
        state, waits_since, in_flight = known.state, None, 0
        connection = self._pool.get(node_id)
        if connection is not None:
            in_flight = len(connection.in_flight)
            try:
                oldest = connection.in_flight.oldest()
            except IndexError:  # in plain Python: it was answered between two steps
                oldest = None
            waits_since = None if oldest is None else oldest.sent_at
        if state in PREPARING:
            waits_since = known.last_attempt_at
        lost_at = known.last_attempt_at
        retry_at = lost_at + known.reconnect_backoff
        tries = known.failed_attempts
        return NodeView(state, in_flight, waits_since, tries, lost_at, retry_at, known.throttled_until)

    def tried_nodes(self) -> list[Node]:
        """All nodes to which a connection was tried, but for those that are forgotten. From any thread."""
        return self._pool.states.nodes()

    # ---- sending, waiting

    def send(self, asked: ClientRequest, now: cython.double) -> Any:
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

    def poll(self, timeout: cython.double, now: cython.double) -> list:  # type: ignore[type-arg]
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
        if now < self._quiet.until:
            limit = self._quiet.until - now
        else:
            limit = self._fetcher.maybe_fetch(now)
        wait = min(wait, limit)
        pool.handle_failed_writes(now)
        wait = min(wait, pool.next_sweep_at - now)
        now = self._move_bytes(0.0 if pool.ended or wait < 0 else wait, now)
        if pool.finished:
            pool.take_finished(now)
        if now >= pool.next_sweep_at:
            pool.sweep(now)
        if now >= self._quiet.until and self._bootstrap is None:
            self._fetcher.maybe_rebootstrap(now)
        if pool.fatal_error is not None:
            self._report_fatal_error(now)
        limit = self._now()
        self.metrics.io_ns += cython.cast(cython.longlong, (limit - now) * _NANOSECONDS)
        self.metrics.time.enter(OTHER, limit)
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
        budget: TimeBudget = self.metrics.time
        for _ in range(_PARTS):
            before = self._now()
            if budget.activity == READING:
                budget.relabel(WRITING)  # the look before this one was at writing alone
            budget.enter(WAITING, before)
            events: Any = self._selector.poll(wait)
            now = self._now()
            budget.enter(READING, now)
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

    def wakeup(self) -> None:
        """End the present poll, or the next one, at once. From any thread."""
        self._selector.wakeup()

    def close(self) -> None:
        """Close everything; requests without an answer end with NetworkError. Twice is harmless."""
        if self._closed:
            return
        self._closed = True
        if self._bootstrap is not None:
            self._bootstrap.close()
        self._pool.close_all(self._now(), "the client is being closed")
        self._backend.close()
        self._deliver()

    # ---- inside

    def _connect(self, node: Node, now: float) -> None:
        if self._closed:
            raise IllegalStateError(f"cannot connect to {describe(node)}: the client is closed")
        self._pool.connect(node, now)

    def _advance_bootstrap(self, bootstrap: DeferredBootstrap, now: float) -> float:
        """See how far the look-up of the bootstrap servers is; seconds until it is worth looking again."""
        told = bootstrap.last_error
        found = bootstrap.advance(now)
        if isinstance(found, BootstrapError):
            self._updater.on_fatal(found)
        elif found is not None:
            self._bootstrap = None
            self._updater.on_bootstrap(as_bootstrap_nodes(found, self._rng))
        elif bootstrap.last_error is not None and bootstrap.last_error is not told:
            self._updater.on_bootstrap_delayed(bootstrap.last_error)
        return bootstrap.seconds_to_advance(now)

    def _report_fatal_error(self, now: float) -> None:
        """Tell a refusal, unless another node may let us in: then it is kept until that one has been tried."""
        if self._is_final(now):
            error, self._pool.fatal_error = self._pool.fatal_error, None
            self._updater.on_fatal(error)

    def _is_final(self, now: float) -> bool:
        """Whether a refusal is not made up for by another node: all have been tried, or it takes too long."""
        shut: bool = self._pool.states.all_shut(self._updater.nodes()) or self._fetcher.is_shut_out(now)
        return shut

    def _deliver(self) -> list:  # type: ignore[type-arg]
        """Call the `on_response` of the requests that have ended."""
        ended = self._pool.take_ended()
        for response in ended:
            try:
                response.on_response(response)
            except Exception as error:  # noqa: BLE001 - it is logged
                tell_error(
                    logger, Event.IO_THREAD_ERROR, "Handling %r failed", response,
                    node=response.node, error=error,
                )  # fmt: skip
        return ended

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self.metrics.connections_open} connections"
        return f"<NetworkClient: {state}, {self.in_flight_count()} in flight>"
