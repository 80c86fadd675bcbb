# SPDX-License-Identifier: Apache-2.0
"""The network client: requests in, responses out, over connections that it makes and watches by itself.

One turn of the I/O thread is: ask which nodes are ready, `send` to them, `poll`. A request is written by `send` itself,
as far as the socket takes it; the rest follows in `poll`. `wakeup` ends the wait from another thread. Each request ends
exactly once, and then its `on_response` is called with the InFlightRequest, at the end of a poll (or in `close`), never
within `send`.

Only `wakeup` may be called from another thread; everything else belongs to the I/O thread.
"""

from __future__ import annotations

import logging
import random

from penstock._time import Clock
from penstock.errors import BootstrapError, IllegalStateError, KafkaError
from penstock.network._client_cy import ClientFields
from penstock.network._connection_cy import InFlightRequest
from penstock.network._metrics_cy import NetworkMetrics
from penstock.network._pool_cy import ConnectionPool
from penstock.network.backend import NetworkBackend
from penstock.network.bootstrap import DeferredBootstrap
from penstock.network.failures import FailureReporter, describe
from penstock.network.handshake import HandshakeFactory
from penstock.network.least_loaded import least_loaded
from penstock.network.metadata_fetch import MetadataFetcher
from penstock.network.resolver import as_bootstrap_nodes
from penstock.network.settings import NetworkSettings
from penstock.network.states import ConnectionStates
from penstock.network.updater import MetadataUpdater
from penstock.protocol.api_versions import NodeApiVersions
from penstock.types import Node

logger = logging.getLogger("penstock.network")


class NetworkClient(ClientFields):
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

    _pool: ConnectionPool
    _fetcher: MetadataFetcher

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
        counters = NetworkMetrics() if metrics is None else metrics
        self._updater = updater
        self._rng = rng
        self._reporter = FailureReporter(updater.on_connection_failed)
        states = ConnectionStates(settings, rng)
        handshakes = HandshakeFactory(settings, updater.cluster_id)
        pool = ConnectionPool(settings, backend, states, self._reporter, counters, handshakes)
        fetcher = MetadataFetcher(settings, pool, updater, rng)
        super().__init__(pool, fetcher, backend.selector, clock, counters, bootstrap)

    # ---- which node

    def ready(self, node: Node, now: float) -> bool:
        """Whether a request can be sent to the node now; if not, a connection is begun where that may be done."""
        if self.is_ready(node, now):
            return True
        if self._pool.get(node.id) is None and self._pool.states.can_connect(node, now):
            self._connect(node, now)
        return False

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

    # ---- waking, taking down

    def wakeup(self) -> None:
        """End the present poll, or the next one, at once. From any thread."""
        self._selector.wakeup()

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
        self._selector.close()
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

    def _tell_fatal_error(self) -> None:
        error, self._pool.fatal_error = self._pool.fatal_error, None
        if error is not None:
            self._updater.on_fatal(error)

    def _deliver(self) -> list[InFlightRequest]:
        ended: list[InFlightRequest] = self._pool.take_ended()
        for response in ended:
            try:
                response.on_response(response)
            except Exception:
                logger.exception("Handling %r failed", response)
        return ended

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self.metrics.connections_open} connections"
        return f"<NetworkClient: {state}, {self.in_flight_count()} in flight>"
