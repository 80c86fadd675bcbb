# SPDX-License-Identifier: Apache-2.0
"""Sends the Metadata requests to the least loaded node, or starts again from the bootstrap servers.

The client does this by itself, within its poll, before anything else is sent: a node does not count as ready while an
update is due.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Sequence
from typing import NamedTuple

from penstock.errors import KafkaError, ProtocolError, UnsupportedVersionError
from penstock.network._connection_cy import ClientRequest, Connection, InFlightRequest
from penstock.network._pool_cy import ConnectionPool
from penstock.network.backend import MetadataUpdater
from penstock.network.settings import NetworkSettings
from penstock.types import Node

logger = logging.getLogger("penstock.network")


class LeastLoaded(NamedTuple):
    """The node found, and whether any connection is ready, be it too busy or throttled just now."""

    node: Node | None
    any_ready: bool


def least_loaded(nodes: Sequence[Node], pool: ConnectionPool, now: float, rng: random.Random) -> LeastLoaded:
    """Choose the node to ask when any would do.

    In this order: a ready node with nothing in flight; the ready node with the fewest requests in flight; a node to
    which a connection is being made; a node that may be connected to, the one whose last attempt is the longest ago.
    The search starts at a random node, so that many clients spread their questions.
    """
    any_ready = False
    ready: Node | None = None
    fewest = 0
    preparing: Node | None = None
    connectable: Node | None = None
    start = rng.randrange(len(nodes)) if nodes else 0
    for node in (*nodes[start:], *nodes[:start]):
        any_ready = any_ready or pool.is_connected(node.id)
        connection = pool.sendable(node.id, now)
        if connection is not None:
            in_flight = len(connection.in_flight)
            if not in_flight:
                return LeastLoaded(node, any_ready=True)
            if ready is None or in_flight < fewest:
                ready, fewest = node, in_flight
        elif pool.states.is_preparing(node.id):
            preparing = preparing or node
        elif pool.states.can_connect(node, now) and (
            connectable is None
            or pool.states.last_attempt_at(node.id) < pool.states.last_attempt_at(connectable.id)
        ):
            connectable = node
    return LeastLoaded(ready or preparing or connectable, any_ready)


class MetadataFetcher:
    """One Metadata request at a time. Owned by the I/O thread."""

    def __init__(
        self, settings: NetworkSettings, pool: ConnectionPool, updater: MetadataUpdater, rng: random.Random
    ) -> None:
        self._settings = settings
        self._pool = pool
        self._updater = updater
        self._rng = rng
        self._in_progress = False

    def is_due(self, now: float) -> bool:
        """Whether an update should be on its way and is not."""
        return not self._in_progress and self._updater.seconds_to_update(now) <= 0

    def maybe_fetch(self, now: float) -> float:
        """Take the next step towards an update that is due; seconds until it is worth trying again."""
        if self._in_progress:
            return math.inf
        wait = self._updater.seconds_to_update(now)
        if wait > 0:
            return wait
        nodes = self._updater.nodes()
        node, any_ready = least_loaded(nodes, self._pool, now, self._rng)
        # Whoever is at the bootstrap servers already has nowhere to go back to.
        if node is None and not any_ready and any(known.id >= 0 for known in nodes):
            self._rebootstrap(now)
            nodes = self._updater.nodes()
            node, _ = least_loaded(nodes, self._pool, now, self._rng)
        if node is None:
            return self._shortest_wait(now)
        connection = self._pool.sendable(node.id, now)
        if connection is not None:
            return math.inf if self._fetch_from(connection, now) else self._updater.seconds_to_update(now)
        # A connection that is being made is waited for: opening one to each node in turn would help nobody.
        if not any(self._pool.states.is_preparing(known.id) for known in nodes):
            self._pool.connect(node, now)
            if self._pool.get(node.id) is None:
                return 0.0  # failed at once; another node may be tried at once
        return math.inf

    def maybe_rebootstrap(self, now: float) -> None:
        """Start again from the bootstrap servers when the metadata keeper wants that."""
        if self._updater.rebootstrap_due(now):
            self._rebootstrap(now)

    def _rebootstrap(self, now: float) -> None:
        # The requests in flight fail before the brokers they went to are forgotten.
        self._pool.close_all(now, "the client starts again from its bootstrap servers")
        self._updater.rebootstrap(now)

    def _shortest_wait(self, now: float) -> float:
        return min((self.connection_delay(node, now) for node in self._updater.nodes()), default=math.inf)

    def connection_delay(self, node: Node, now: float) -> float:
        """Seconds until it is worth asking for that node again; infinity when an event will tell."""
        known = self._pool.states.get(node.id)
        if known is None:
            return 0.0
        if self._pool.get(node.id) is None:
            return self._pool.states.backoff_left(node, now)
        if known.throttled_until > now:
            return known.throttled_until - now
        return math.inf

    def _fetch_from(self, connection: Connection, now: float) -> bool:
        """Ask over a connection; whether the question is on its way."""
        request = self._updater.build_request(now)
        try:
            version = connection.pick_version(request)
        except UnsupportedVersionError as error:
            self._updater.on_failure(error, now)
            self._updater.on_fatal(error)
            return False
        logger.debug("Asking %s for metadata", connection.known.node)
        timeout = self._settings.request_timeout_ms / 1000
        asked = ClientRequest(connection.known.node, request, timeout, self._on_response)
        try:
            self._pool.start_request(connection, asked, version, now, internal=True)
        except Exception as unexpected:
            # No answer will come: the update must not stay in progress for ever.
            logger.exception("The request for metadata could not be made")
            failure = KafkaError(f"the request for metadata could not be made: {unexpected!r}")
            self._updater.on_failure(failure, now)
            return False
        self._in_progress = True
        return True

    def _on_response(self, response: InFlightRequest) -> None:
        self._in_progress = False
        now = response.received_at
        if response.error is not None:
            self._updater.on_failure(response.error, now)
            return
        try:
            self._updater.on_response(response.request, response.body, response.version, now)
        except Exception as unexpected:
            # The answers behind this one must still be handled, and the update must not stay in progress for ever.
            logger.exception("The metadata of %s could not be used", response)
            failure = ProtocolError(f"the metadata could not be used: {unexpected}")
            self._updater.on_failure(failure, now)
