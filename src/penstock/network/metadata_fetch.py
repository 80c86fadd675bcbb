# SPDX-License-Identifier: Apache-2.0
"""Sends the Metadata requests to the least loaded node, or starts again from the bootstrap servers.

The client does this by itself, within its poll, before anything else is sent: a node does not count as ready while an
update is due.

Rules, while there is no connection to ask on:
1. One connection is made at a time, since a single one is enough. The next node is tried when an attempt
   has failed, or has taken three seconds; then a few attempts run at the same time. Otherwise a silent node would cost
   all the time that a connection may take, which is more than a command waits.
2. Once a node has refused the authentication, and until another one accepts it, the next node is tried much sooner.
3. Such a refusal is reported when no node has accepted the client a second later, also if some nodes have not
   answered. Otherwise a silent node would keep the user waiting for as long as a connection may take.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from penstock._events import Event, tell, tell_error
from penstock.errors import KafkaError, ProtocolError, UnsupportedVersionError
from penstock.network._connection_cy import ClientRequest, Connection, InFlightRequest
from penstock.network._pool_cy import ConnectionPool
from penstock.network.backend import MetadataUpdater
from penstock.network.failures import FailureReporter, malformed_error
from penstock.network.settings import NetworkSettings
from penstock.types import Node

logger = logging.getLogger("penstock.network")

# Rules 1 and 2: seconds after the latest attempt began, and how many at a time.
SILENT_AFTER = 3.0
NEXT_AFTER = 0.25
MOST_AT_A_TIME = 5
# Rule 3: seconds.
TOLD_AFTER = 1.0


class LeastLoaded(NamedTuple):
    """What was found.

    Attributes:
        node: the one to ask.
        any_ready: whether any connection is ready, even if it is too busy or throttled now.
        connectable: a node that may be connected to, where no connection can be used.
    """

    node: Node | None
    any_ready: bool
    connectable: Node | None = None


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
    return LeastLoaded(ready or preparing or connectable, any_ready, connectable)


class _Answer(NamedTuple):
    """An answer that is being taken, and the connection that it came over."""

    response: InFlightRequest
    connection: Connection | None
    pieces: Iterator[None]


class MetadataFetcher:
    """One Metadata request at a time. Owned by the I/O thread."""

    def __init__(
        self,
        settings: NetworkSettings,
        pool: ConnectionPool,
        updater: MetadataUpdater,
        rng: random.Random,
        reporter: FailureReporter,
    ) -> None:
        self._settings = settings
        self._pool = pool
        self._updater = updater
        self._rng = rng
        self._reporter = reporter
        self._in_progress = False  # until the answer was taken
        self._answer: _Answer | None = None  # of which a piece is to be taken in the next poll
        self._hopeful_at = -math.inf  # the last time that there was a connection, or no refusal
        self._told_at = math.inf  # rule 3; infinity unless all is as it says

    def is_due(self, now: float) -> bool:
        """Whether an update should be on its way and is not."""
        return not self._in_progress and self._updater.seconds_to_update(now) <= 0

    def maybe_fetch(self, now: float) -> float:
        """Take the next step towards an update that is due; seconds until it is worth trying again."""
        if self._answer is not None:
            self._take_piece(self._answer, now)
            return 0.0
        if self._in_progress:
            return math.inf
        wait = self._updater.seconds_to_update(now)
        if wait > 0:
            return wait
        nodes = self._updater.nodes()
        node, any_ready, connectable = least_loaded(nodes, self._pool, now, self._rng)
        self._note_refusal(any_ready, now)
        # If the bootstrap servers are all that is known, there is nothing to go back to.
        if node is None and not any_ready and any(known.id >= 0 for known in nodes):
            self._rebootstrap(now)
            nodes = self._updater.nodes()
            node, _, connectable = least_loaded(nodes, self._pool, now, self._rng)
        if node is None:
            return min(self.shortest_wait(now), self._seconds_to_tell(now))
        connection = self._pool.sendable(node.id, now)
        if connection is not None:
            return math.inf if self._fetch_from(connection, now) else self._updater.seconds_to_update(now)
        wait = self._seconds_to_connect(nodes, now)
        if wait > 0 or connectable is None:
            return min(wait or math.inf, self._seconds_to_tell(now))
        self._pool.connect(connectable, now)
        if self._pool.get(connectable.id) is None:
            return 0.0  # failed at once; another node may be tried at once
        return min(self._seconds_to_connect(nodes, now), self._seconds_to_tell(now))

    def is_shut_out(self, now: float) -> bool:
        """Whether a refusal is to be reported, although some nodes have not answered (rule 3)."""
        if now < self._told_at:
            return False
        nodes = self._updater.nodes()
        return bool(nodes) and not any(self._pool.is_connected(node.id) for node in nodes)

    def maybe_rebootstrap(self, now: float) -> None:
        """Start again from the bootstrap servers when the metadata keeper wants that."""
        if self._answer is None and self._updater.rebootstrap_due(now):
            self._rebootstrap(now)

    def _note_refusal(self, any_ready: bool, now: float) -> None:
        if any_ready or self._reporter.refusal is None:
            self._hopeful_at, self._told_at = now, math.inf
        elif self._told_at == math.inf and self._reporter.refused_at >= self._hopeful_at:
            # An earlier refusal, by a node that differs from the others, says nothing about the others.
            self._told_at = now + TOLD_AFTER

    def _seconds_to_connect(self, nodes: Sequence[Node], now: float) -> float:
        """Seconds until the next node may be tried; infinity when an event will tell."""
        states = self._pool.states
        begun = [states.last_attempt_at(node.id) for node in nodes if states.is_preparing(node.id)]
        if not begun:
            return 0.0
        if len(begun) >= MOST_AT_A_TIME:
            return math.inf
        patience = SILENT_AFTER if self._told_at == math.inf else NEXT_AFTER
        return max(0.0, max(begun) + patience - now, self.shortest_wait(now))

    def _seconds_to_tell(self, now: float) -> float:
        return self._told_at - now if now < self._told_at else math.inf

    def _rebootstrap(self, now: float) -> None:
        # The requests in flight fail before the brokers they went to are forgotten.
        self._pool.close_all(now, "the client starts again from its bootstrap servers")
        self._updater.rebootstrap(now)

    def shortest_wait(self, now: float) -> float:
        """Seconds until it is worth asking for any of the nodes again; infinity when an event will tell."""
        return min((self.connection_delay(node, now) for node in self._updater.nodes()), default=math.inf)

    def connection_delay(self, node: Node, now: float) -> float:
        """Seconds until it is worth asking for that node again; infinity when an event will tell.

        This holds for any use of the node, not only for metadata: the I/O thread waits no longer than this.
        """
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
        self._maybe_forget_nodes(now)
        request = self._updater.build_request(now)
        try:
            version = connection.pick_version(request)
        except UnsupportedVersionError as error:
            self._updater.on_failure(error, now)
            self._updater.on_fatal(error)
            return False
        node = connection.known.node
        tell(logger, logging.DEBUG, Event.METADATA_REQUESTED, "Asking %s for metadata", node, node=node)
        timeout = self._settings.request_timeout_ms / 1000
        asked = ClientRequest(connection.known.node, request, timeout, self._on_response)
        try:
            self._pool.start_request(connection, asked, version, now, internal=True)
        except Exception as unexpected:  # noqa: BLE001 - it is logged
            # No answer will come: the update must not stay in progress for ever.
            tell_error(
                logger, Event.METADATA_ERROR, "The request for metadata could not be made",
                node=node, error=unexpected,
            )  # fmt: skip
            failure = KafkaError(f"the request for metadata could not be made: {unexpected!r}")
            self._updater.on_failure(failure, now)
            return False
        self._in_progress = True
        return True

    def _maybe_forget_nodes(self, now: float) -> None:
        # Only answers bring new nodes. This runs before a request, not after its answer: other answers may wait then.
        in_use = {node.id for node in self._updater.nodes()}
        if self._pool.maybe_forget_nodes(in_use, now):
            self._updater.keep_nodes(self._pool.states)

    def _on_response(self, response: InFlightRequest) -> None:
        now = response.received_at
        if response.error is not None:
            self._in_progress = False
            self._updater.on_failure(response.error, now)
            return
        self._answer = _Answer(response, self._pool.get(response.node.id), self._pieces(response))
        self._take_piece(self._answer, now)

    def _pieces(self, response: InFlightRequest) -> Iterator[None]:
        yield from (
            self._updater.on_response(response.request, response.body, response.version, response.received_at)
            or ()
        )

    def _take_piece(self, answer: _Answer, now: float) -> None:
        response, connection, pieces = answer
        try:
            for _ in pieces:
                return  # there is more
        except ProtocolError as error:
            malformed = malformed_error(response.node, error)
            self._updater.on_failure(malformed, now)
            if connection is not None and not connection.closed:
                self._pool.fail(connection, malformed, now)
        except Exception as unexpected:  # noqa: BLE001 - it is logged
            # The answers behind this one must still be handled, and the update must not stay in progress for ever.
            tell_error(
                logger, Event.METADATA_ERROR, "The metadata of %s could not be used", response,
                node=response.node, error=unexpected,
            )  # fmt: skip
            failure = ProtocolError(f"the metadata could not be used: {unexpected}")
            self._updater.on_failure(failure, now)
        self._in_progress = False
        self._answer = None
