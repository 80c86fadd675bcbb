# SPDX-License-Identifier: Apache-2.0
"""The network client: requests in, responses out, over connections that it makes and watches by itself.

One turn of the I/O thread is: ask which nodes are ready, `send` to them, `poll`. A request is written by `send` itself,
as far as the socket takes it; the rest follows in `poll`. `wakeup` ends the wait from another thread. Each request ends
exactly once, with a ClientResponse given to its `on_response` at the end of a poll (or in `close`), never within
`send`.

Only `wakeup` may be called from another thread; everything else belongs to the I/O thread.
"""

from __future__ import annotations

import logging
import random
from typing import Any

from penstock._time import Clock
from penstock.errors import BootstrapError, IllegalStateError, KafkaError, UnsupportedVersionError
from penstock.network.backend import NetworkBackend
from penstock.network.bootstrap import DeferredBootstrap
from penstock.network.connection import Connection
from penstock.network.exchange import ClientRequest, ClientResponse
from penstock.network.failures import FailureReporter, describe
from penstock.network.handshake import Introducer
from penstock.network.in_flight import Exchange
from penstock.network.least_loaded import least_loaded
from penstock.network.metadata_fetch import MetadataFetcher
from penstock.network.metrics import NetworkMetrics
from penstock.network.pool import ConnectionPool
from penstock.network.resolver import as_bootstrap_nodes
from penstock.network.settings import NetworkSettings
from penstock.network.states import ConnectionStates
from penstock.network.transport import WRITE
from penstock.network.updater import MetadataUpdater
from penstock.protocol.api_versions import NodeApiVersions
from penstock.types import Node

logger = logging.getLogger("penstock.network")

_NANOSECONDS = 1_000_000_000
_PARTS = 16  # of a request that are written in one poll, at most


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
        self._backend = backend
        self._updater = updater
        self._clock = clock
        self._rng = rng
        self._bootstrap = bootstrap  # until the servers are known
        self._reporter = FailureReporter(updater.on_connection_failed)
        states = ConnectionStates(settings, rng)
        introducer = Introducer(settings, updater.cluster_id)
        self._pool = ConnectionPool(settings, backend, states, self._reporter, self.metrics, introducer)
        self._fetcher = MetadataFetcher(settings, self._pool, updater, rng)
        self._ended: list[ClientResponse] = []  # whose on_response is still to be called
        self._closed = False

    # ---- which node

    def ready(self, node: Node, now: float) -> bool:
        """Whether a request can be sent to the node now; if not, a connection is begun where that may be done."""
        if self.is_ready(node, now):
            return True
        if self._pool.get(node.id) is None and self._pool.states.can_connect(node, now):
            self._connect(node, now)
        return False

    def is_ready(self, node: Node, now: float) -> bool:
        """Whether a request can be sent to the node now. Metadata goes first: with an update due, no node is ready."""
        return self._pool.sendable(node.id, now) is not None and not self._fetcher.is_due(now)

    def connection_delay(self, node: Node, now: float) -> float:
        """Seconds until it is worth asking again; infinity when an event (connected, answered) ends the poll."""
        if self.is_ready(node, now):
            return 0.0
        return self._fetcher.connection_delay(node, now)

    def connection_error(self, node_id: int) -> KafkaError | None:
        """Why there is no connection to the node; None when there is one, or when none was tried."""
        return self._reporter.last_error(node_id)

    def was_ready(self, node_id: int) -> bool:
        """Whether there ever was a connection to the node at its present address."""
        known = self._pool.states.get(node_id)
        return known is not None and known.ever_ready

    def least_loaded_node(self, now: float) -> Node | None:
        """The node to ask when any would do; None when none can be used now."""
        return least_loaded(self._updater.nodes(), self._pool, now, self._rng).node

    def api_versions(self, node_id: int) -> NodeApiVersions | None:
        """What the node can do; None while there is no connection to it."""
        connection = self._pool.get(node_id)
        return None if connection is None else connection.api_versions

    def in_flight_count(self, node_id: int | None = None) -> int:
        """Requests without an answer, of one node or of all."""
        return self._pool.in_flight_count(node_id)

    # ---- sending and waiting

    def send(self, asked: ClientRequest, now: float) -> None:
        """Send a request to a ready node.

        A request for which there is no common version ends with UnsupportedVersionError in the next poll; nothing is
        sent.

        Raises:
            IllegalStateError: the node is not ready, or the client is closed.
        """
        connection = None if self._closed else self._pool.sendable(asked.node.id, now)
        if connection is None:
            raise IllegalStateError(f"cannot send now: {describe(asked.node)} is not ready")
        request = asked.request
        try:
            version = connection.pick_version(request)
            response = ClientResponse(asked, version, now)
            self._pool.start_request(
                connection, request, version, asked.timeout, self._on_done, now, response
            )
        except UnsupportedVersionError as error:
            refused = ClientResponse(asked, -1, now)
            refused.error = error
            self._ended.append(refused)

    def poll(self, timeout: float, now: float) -> list[ClientResponse]:
        """Wait for at most `timeout` seconds, and handle what has happened.

        Returns:
            The requests that ended; the `on_response` of each was called. What it raises is logged, no more.
        """
        pool = self._pool
        if self._bootstrap is not None:
            timeout = min(timeout, self._advance_bootstrap(self._bootstrap, now))
        wait = min(timeout, self._fetcher.maybe_fetch(now))
        pool.meet_failed_writes(now)
        wait = min(wait, pool.next_sweep_at - now)
        now = self._move_bytes(0.0 if self._ended or wait < 0 else wait, now)
        if now >= pool.next_sweep_at:
            pool.sweep(now)
        if self._bootstrap is None:
            self._fetcher.maybe_rebootstrap(now)
        if pool.fatal_error is not None:
            self._tell_fatal_error()
        self.metrics.io_ns += int((self._clock.now() - now) * _NANOSECONDS)
        return self._deliver()

    def wakeup(self) -> None:
        """End the present poll, or the next one, at once. From any thread."""
        self._backend.selector.wakeup()

    # ---- taking down

    def disconnect(self, node_id: int, now: float) -> None:
        """Close the connection to a node; its requests end with NetworkError in the next poll."""
        self._pool.close_connection(node_id, now, "the client wanted it")

    def close(self) -> None:
        """Close everything; requests without an answer end with NetworkError. Twice is harmless."""
        if self._closed:
            return
        self._closed = True
        if self._bootstrap is not None:
            self._bootstrap.close()
        self._pool.close_all(self._clock.now(), "the client is being closed")
        self._backend.selector.close()
        self._deliver()

    # ---- inside

    def _on_done(self, exchange: Exchange, body: Any, error: KafkaError | None, ended_at: float) -> None:
        response: ClientResponse = exchange.about
        response.body = body
        response.error = error
        response.received_at = ended_at
        self._ended.append(response)

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

    def _move_bytes(self, wait: float, now: float) -> float:
        """Wait until something has happened, and handle it; the time afterwards.

        That a part of a large request could be written is not worth a turn of the whole loop while there is room for
        more of it. But only the first look waits: a wake-up that comes with one of the others must not be slept on.
        """
        metrics = self.metrics
        clock = self._clock
        for _ in range(_PARTS):
            before = clock.now()
            events = self._backend.selector.poll(wait)
            now = clock.now()
            metrics.select_count += 1
            metrics.io_wait_ns += int((now - before) * _NANOSECONDS)
            if not events:
                break
            self._pool.on_events(events, now)
            if not all(map(_wrote_a_part, events)):
                break
            wait = 0.0
        return now

    def _tell_fatal_error(self) -> None:
        error, self._pool.fatal_error = self._pool.fatal_error, None
        if error is not None:
            self._updater.on_fatal(error)

    def _deliver(self) -> list[ClientResponse]:
        if not self._ended:
            return []
        ended, self._ended = self._ended, []
        for response in ended:
            try:
                response.on_response(response)
            except Exception:
                logger.exception("Handling %r failed", response)
        return ended

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self.metrics.connections_open} connections"
        return f"<NetworkClient: {state}, {self.in_flight_count()} in flight>"


def _wrote_a_part(event: tuple[Connection, int]) -> bool:
    connection, mask = event
    return mask == WRITE and not connection.fully_written and not connection.closed
