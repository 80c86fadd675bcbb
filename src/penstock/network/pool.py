# SPDX-License-Identifier: Apache-2.0
"""All connections of one client: making them, moving bytes, watching the time, and taking them down.

A request that was started ends exactly once: answered, written (when it has no answer), or failed together with its
connection. Requests of the network layer itself (handshake, metadata) are told at once. All others wait in `ended`
until the client calls their `on_response`, at the end of a poll: nothing of the layers above runs in here.

Owned by the I/O thread.
"""

from __future__ import annotations

import logging
import math
from functools import partial

from penstock.errors import (
    AuthenticationError,
    IllegalStateError,
    KafkaError,
    NetworkError,
    RequestTimedOutError,
)
from penstock.network import failures
from penstock.network._connection_cy import ClientRequest, Connection, InFlightRequest
from penstock.network._metrics_cy import NetworkMetrics
from penstock.network._pool_cy import PoolFields
from penstock.network.backend import NetworkBackend
from penstock.network.failures import FailureReporter, describe
from penstock.network.handshake import ApiVersionsHandshake, HandshakeStep, Introducer
from penstock.network.settings import NetworkSettings
from penstock.network.states import AUTHENTICATING, CONNECTING, READY, ConnectionStates
from penstock.network.transport import NOTHING, READ, WRITE
from penstock.types import Node

logger = logging.getLogger("penstock.network")


class ConnectionPool(PoolFields):
    """At most one connection for each node.

    Attributes:
        states: where each node stands.
        next_sweep_at: nothing can be due before that time; `sweep` finds out what is.
        fatal_error: set when a broker refuses this client's identity; whoever tells the senders clears it.
        ended: requests that have ended, and whose `on_response` has not been called yet.
    """

    def __init__(
        self,
        settings: NetworkSettings,
        backend: NetworkBackend,
        states: ConnectionStates,
        reporter: FailureReporter,
        metrics: NetworkMetrics,
        introducer: Introducer,
    ) -> None:
        super().__init__(settings.client_id, settings.max_in_flight)
        self.states = states
        self._settings = settings
        self._backend = backend
        self._reporter = reporter
        self._metrics = metrics
        self._introducer = introducer

    # ---- questions

    def get(self, node_id: int) -> Connection | None:
        """The connection to a node, in whatever state; None when there is none."""
        return self._live.get(node_id)

    def is_connected(self, node_id: int) -> bool:
        """Whether the connection is READY, however busy or throttled."""
        connection = self._live.get(node_id)
        return connection is not None and connection.known.state is READY

    def in_flight_count(self, node_id: int | None = None) -> int:
        """Requests without an answer, of one node or of all."""
        if node_id is None:
            # A copy, made in one step: metrics are read from any thread while connections come and go.
            return sum(len(connection.in_flight) for connection in list(self._live.values()))
        connection = self._live.get(node_id)
        return 0 if connection is None else len(connection.in_flight)

    # ---- making connections

    def connect(self, node: Node, now: float) -> None:
        """Start an attempt; whether it may be made is the caller's to ask. Blocks while a name is resolved."""
        known = self.states.connecting(node, now)
        try:
            address = known.addresses.take_next(self._backend.resolve)
        except Exception as error:  # noqa: BLE001 - else the attempt would never end, and no other would be made
            self._attempt_failed_early(node, failures.resolve_error(node, error), now)
            return
        logger.debug("Connecting to %s, address %s", describe(node), address)
        transport = None
        try:
            transport = self._backend.connect(address)
            connection = Connection(
                known, transport, address, self._settings.max_response_bytes, self._metrics
            )
            self._backend.selector.watch(transport, connection, WRITE)
        except Exception as error:  # noqa: BLE001 - likewise
            if transport is not None:
                transport.close()
            self._attempt_failed_early(node, failures.connect_error(node, address, error), now)
            return
        self._live[node.id] = connection
        self._note_deadline(known.setup_deadline)

    def _attempt_failed_early(self, node: Node, error: KafkaError, now: float) -> None:
        known = self.states.get(node.id)
        if known is not None:
            self.states.disconnected(known, now)
            self._metrics.connections_failed += 1
            self._reporter.attempt_failed(node, error, now, ever_ready=known.ever_ready)

    def _go_on_connecting(self, connection: Connection, now: float) -> None:
        node = connection.known.node
        try:
            interest = connection.transport.finish_connect()
            self._backend.selector.watch(
                connection.transport, connection, READ if interest == NOTHING else interest
            )
        except Exception as error:  # noqa: BLE001 - likewise
            self._fail(connection, failures.connect_error(node, connection.address, error), now)
            return
        if interest != NOTHING:
            return
        self._metrics.connections_created += 1
        connection.established = True
        self.states.connected(connection.known)
        try:
            connection.handshake = self._introducer.begin(node)
            self._shake_hands(connection, connection.handshake.start(), now)
        except Exception as error:
            # Nothing would be waited for, so that this connection would neither be used nor closed.
            logger.exception("The first request to %s could not be made", describe(node))
            self._fail(connection, failures.unexpected_error(node, error), now)

    def _shake_hands(self, connection: Connection, step: HandshakeStep, now: float) -> None:
        on_response = partial(self._on_handshake_response, connection)
        timeout = self._settings.request_timeout_ms / 1000
        asked = ClientRequest(connection.known.node, step.request, timeout, on_response)
        self.start_request(connection, asked, step.version, now, internal=True)

    def _on_handshake_response(self, connection: Connection, response: InFlightRequest) -> None:
        if response.error is not None:
            return  # the connection has failed, and everyone was told
        node, handshake, now = connection.known.node, connection.handshake, response.received_at
        if handshake is None:
            raise IllegalStateError(f"an answer to a handshake that nobody began: {connection!r}")
        try:
            step = handshake.on_answer(response.version, response.body)
            if step is None and isinstance(handshake, ApiVersionsHandshake):
                connection.api_versions = handshake.result
                step = self._start_authentication(connection)
            if step is not None:
                self._shake_hands(connection, step, now)
                return
        except KafkaError as error:
            self._fail(connection, failures.refused_error(node, error), now)
        except Exception as error:
            logger.exception("The handshake with %s could not go on", describe(node))
            self._fail(connection, failures.unexpected_error(node, error), now)
        else:
            connection.handshake = None
            connection.allow_full_answers()
            self.states.ready(connection.known)
            self._reporter.connected(node.id)
            self._note_idle_deadline(connection)
            logger.debug("Connected to %s", describe(node))

    def _start_authentication(self, connection: Connection) -> HandshakeStep | None:
        if self._backend.authenticate is None or connection.api_versions is None:
            return None
        connection.known.move_to(AUTHENTICATING)
        handshake = self._backend.authenticate(connection.known.node, connection.api_versions)
        connection.handshake = handshake
        return handshake.start()

    # ---- moving bytes

    def meet_failed_writes(self, now: float) -> None:
        """Deal with the connections that `start_request` found broken."""
        while self._failed_writes:
            connection, error = self._failed_writes.pop()
            if not connection.closed:
                self._write_failed(connection, error, now)

    def _write(self, connection: Connection, now: float) -> None:
        try:
            ended = connection.write()
            if (connection.unsent_bytes == 0) == connection.write_watched:
                self._watch_writes(connection)
        except Exception as error:  # noqa: BLE001 - how much was written is not known any more
            self._write_failed(connection, error, now)
            return
        if ended is not None:
            self.end_request(ended, None, None, now)

    def _watch_writes(self, connection: Connection) -> None:
        """Have the selector wait for room to write, or no longer."""
        connection.write_watched = not connection.write_watched
        interest = READ | WRITE if connection.write_watched else READ
        self._backend.selector.watch(connection.transport, connection, interest)

    def _write_failed(self, connection: Connection, error: Exception, now: float) -> None:
        # Answers to earlier requests may lie in the receive buffer; taken for lost, they would be sent again.
        self._read(connection, now)
        if not connection.closed:
            self._fail(connection, failures.broken_error(connection.known.node, error), now)

    def _on_last_answer(self, connection: Connection, now: float) -> None:
        """Nothing more can be read."""
        node = connection.known.node
        error = connection.read_error
        if isinstance(error, KafkaError):
            self._fail(connection, failures.nonsense_error(node, error), now)
        elif error is not None:
            self._fail(connection, failures.broken_error(node, error), now)
        else:
            self._fail(connection, failures.closed_by_peer_error(node, connection.handshake is not None), now)

    def _on_unintelligible(
        self, connection: Connection, request: InFlightRequest, error: Exception, now: float
    ) -> None:
        unintelligible = failures.nonsense_error(connection.known.node, error)
        self.end_request(request, None, unintelligible, now)
        if not connection.closed:
            self._fail(connection, unintelligible, now)

    # ---- watching the time

    def sweep(self, now: float) -> None:
        """Fail what has taken too long and close what is unused; find out when to look again."""
        self.next_sweep_at = math.inf
        for connection in list(self._live.values()):
            known = connection.known
            if known.state is CONNECTING:
                if now >= known.setup_deadline:
                    self._fail(connection, failures.setup_timeout_error(known.node, known.setup_timeout), now)
                else:
                    self._note_deadline(known.setup_deadline)
                continue
            late = connection.in_flight.first_expired(now)
            if late is not None:
                self._fail(connection, _timed_out(known.node, late, now), now)
            elif not connection.in_flight and known.state is READY and now >= self._idle_deadline(connection):
                logger.debug("Closing the unused connection to %s", describe(known.node))
                self.close_connection(known.node.id, now, "it was not used")
            else:
                self._note_deadline(connection.in_flight.next_deadline())
                self._note_idle_deadline(connection)

    def _idle_deadline(self, connection: Connection) -> float:
        idle_ms = self._settings.connections_max_idle_ms
        return math.inf if idle_ms < 0 else connection.last_used_at + idle_ms / 1000

    def _note_idle_deadline(self, connection: Connection) -> None:
        # With requests in flight their deadlines are what is watched; being answered makes the connection used.
        if not connection.in_flight:
            self._note_deadline(self._idle_deadline(connection))

    def _note_deadline(self, deadline: float) -> None:
        self.next_sweep_at = min(self.next_sweep_at, deadline)

    # ---- taking connections down

    def close_connection(self, node_id: int, now: float, reason: str) -> None:
        """Close one connection by our own will; its requests fail, oldest first."""
        connection = self._live.get(node_id)
        if connection is None:
            return
        error = NetworkError(f"the connection to {describe(connection.known.node)} was closed: {reason}")
        pending = self._take_down(connection, now)
        self._fail_requests(pending, error, now)

    def close_all(self, now: float, reason: str) -> None:
        """Close every connection by our own will."""
        for node_id in list(self._live):
            self.close_connection(node_id, now, reason)

    def _fail(self, connection: Connection, error: KafkaError, now: float) -> None:
        """Take down a connection that is broken, and tell everyone concerned."""
        known = connection.known
        was_ready = known.state is READY
        refused = isinstance(error, AuthenticationError)
        if not connection.established:
            self._metrics.connections_failed += 1
        pending = self._take_down(connection, now, refused=refused)
        if refused:
            self._metrics.authentications_failed += 1
            self.fatal_error = error
        if was_ready:
            self._reporter.connection_lost(known.node, error, now)
        else:
            self._reporter.attempt_failed(known.node, error, now, ever_ready=known.ever_ready)
        self._fail_requests(pending, error, now)

    def _take_down(
        self, connection: Connection, now: float, *, refused: bool = False
    ) -> list[InFlightRequest]:
        known = connection.known
        del self._live[known.node.id]
        try:
            self._backend.selector.unwatch(connection.transport)
        except Exception:  # its requests must end, and the node be tried again
            logger.exception("The connection to %s could not be forgotten", describe(known.node))
        pending = connection.close()
        if connection.established:
            self._metrics.connections_closed += 1
        if refused:
            self.states.authentication_failed(known, now)
        else:
            self.states.disconnected(known, now)
        return pending

    def _fail_requests(self, pending: list[InFlightRequest], error: KafkaError, now: float) -> None:
        """End the requests of a connection, oldest first, each with the error that fits it.

        The connection's own error is that of a request only where it says what became of the request: it was lost with
        the connection, or refused, or is itself the one that took too long. To all others the connection was merely
        lost.
        """
        lost: KafkaError = error
        if not isinstance(error, NetworkError | AuthenticationError):
            lost = NetworkError(f"the connection was closed before the answer came: {error}")
            lost.__cause__ = error
        for request in pending:
            late = isinstance(error, RequestTimedOutError) and request.deadline <= now
            self.end_request(request, None, error if late else lost, now)


def _timed_out(node: Node, late: InFlightRequest, now: float) -> KafkaError:
    waited_ms = (now - late.sent_at) * 1000
    return RequestTimedOutError(
        f"no answer from {describe(node)} to a {late.request.api.name} request within {waited_ms:.0f} ms; "
        "the connection was closed"
    )
