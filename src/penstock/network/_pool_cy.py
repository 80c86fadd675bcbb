# SPDX-License-Identifier: Apache-2.0
"""All connections of one client: making them, moving bytes, watching the time, tearing them down. Compiled if possible.

A request that was started ends exactly once: answered, written (when it has no answer), or failed together with its
connection. Requests of the network layer itself (handshake, metadata) are told at once. All others wait in `ended`
until the client calls their `on_response`, at the end of a poll: nothing of the layers above runs in here.

Owned by the I/O thread.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Container
from typing import Any

from penstock._events import Event, tell, tell_error
from penstock.errors import (
    AuthenticationError,
    KafkaError,
    NetworkError,
    RequestTimedOutError,
)
from penstock.network import failures
from penstock.network.backend import NetworkBackend
from penstock.network.dialogue import Dialogues
from penstock.network.failures import FailureReporter, describe
from penstock.network.handshake import HandshakeFactory
from penstock.network.settings import NetworkSettings
from penstock.network.states import (
    CONNECTING,
    MADE,
    READY,
    REAUTHENTICATING,
    ConnectionStates,
    NodeState,
    same_address,
)
from penstock.network.transport import NOTHING, READ, WRITE, Endpoint
from penstock.protocol.schema import ApiSchema
from penstock.types import Node

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

if cython.compiled:
    from cython.cimports.penstock.network._connection_cy import (
        ClientRequest,
        Connection,
        InFlightRequest,
        NetworkMetrics,
    )
    from cython.cimports.penstock.protocol._framing_cy import frame_request, next_correlation_id
    from cython.cimports.penstock.protocol._produce_cy import ProduceRequest
else:
    from penstock.network._connection_cy import (
        ClientRequest,
        Connection,
        InFlightRequest,
        NetworkMetrics,
    )
    from penstock.protocol._framing_cy import frame_request, next_correlation_id
    from penstock.protocol._produce_cy import ProduceRequest

logger = logging.getLogger("penstock.network")

_READ = cython.declare(cython.int, READ)
_WRITE = cython.declare(cython.int, WRITE)


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


@cython.final
@cython.cclass
class ConnectionPool:
    """At most one connection for each node.

    Args:
        settings: time-outs and limits.
        backend: sockets, or what a simulator has instead.
        states: where each node stands.
        reporter: is told of connections that were made, failed or lost.
        metrics: counters.
        handshakes: makes the first handshake of each connection.

    Attributes:
        next_sweep_at: nothing can be due before that time; `sweep` finds out what is.
        fatal_error: set when a broker refuses this client's identity; the code that tells the senders clears it, and
            so does a broker that accepts the client.
        ended: requests that have ended, and whose `on_response` has not been called yet.
        finished: work aside that has ended, and that `take_finished` goes on with; others append to it.
    """

    def __init__(
        self,
        settings: NetworkSettings,
        backend: NetworkBackend,
        states: ConnectionStates,
        reporter: FailureReporter,
        metrics: NetworkMetrics,
        handshakes: HandshakeFactory,
    ) -> None:
        self.states = states
        self.next_sweep_at = math.inf
        self.fatal_error: KafkaError | None = None
        self.ended: list[InFlightRequest] = []
        self._connections: dict[int, Connection] = {}  # by node id
        self._failed_writes: list[tuple[Connection, Exception]] = []
        self._correlation_id = -1  # of the last request
        self._settings = settings
        self._client_id = settings.client_id
        self._max_in_flight = settings.max_in_flight
        self._backend = backend
        self._reporter = reporter
        self._metrics = metrics
        self._dialogues = Dialogues(settings, backend, handshakes, self)
        self.finished = self._dialogues.finished

    # ---- questions

    def get(self, node_id: Any) -> Connection | None:
        """The connection to a node, in whatever state; None when there is none."""
        return self._connections.get(node_id)

    def sendable(self, node_id: Any, now: cython.double) -> Connection | None:
        """The connection, when it takes another request now: ready, not throttled, and not too busy; else None."""
        connection: Connection | None = self._connections.get(node_id)
        if connection is None or not connection.can_send(now, self._max_in_flight):
            return None
        return connection

    def is_connected(self, node_id: int) -> bool:
        """Whether the connection was made, however busy or throttled it is."""
        connection = self._connections.get(node_id)
        return connection is not None and connection.known.state in MADE

    def in_flight_count(self, node_id: int | None = None) -> int:
        """Requests without an answer, of one node or of all."""
        if node_id is None:
            # A copy, made in one step: metrics are read from any thread while connections come and go.
            return sum(len(connection.in_flight) for connection in list(self._connections.values()))
        connection = self._connections.get(node_id)
        return 0 if connection is None else len(connection.in_flight)

    # ---- making connections

    def connect(self, node: Node, now: float) -> None:
        """Start an attempt; whether it may be made is the caller's to ask. Blocks while a name is resolved."""
        known = self.states.connecting(node, now)
        try:
            address = known.addresses.take_next(self._backend.resolve)
        except Exception as error:  # noqa: BLE001 - else the attempt would never end, and no other would be made
            self._connect_failed(node, failures.resolve_error(node, error), now)
            return
        transport = None
        try:
            text = "Connecting to %s, address %s"
            tell(logger, logging.DEBUG, Event.CONNECTING, text, describe(node), address, node=node)
            transport = self._backend.connect(address, Endpoint(node.host, node.port))
            connection = Connection(
                known, transport, address, self._settings.max_response_bytes, self._metrics
            )
            self._backend.selector.watch(transport, connection, WRITE)
        except Exception as error:  # noqa: BLE001 - likewise
            if transport is not None:
                transport.close()
            self._connect_failed(node, failures.connect_error(node, address, error), now)
            return
        self._connections[node.id] = connection
        self.watch_setup(connection, known.setup_deadline)

    def _connect_failed(self, node: Node, error: KafkaError, now: float) -> None:
        """There is not even a connection that could fail."""
        known = self.states.get(node.id)
        if known is not None:
            self._metrics.connections_failed += 1
            if isinstance(error, AuthenticationError):
                self._refused(known, error, now)
            else:
                self.states.disconnected(known, now)
            self._reporter.attempt_failed(node, error, now, ever_ready=known.ever_ready)

    def _finish_connecting(self, connection: Connection, now: float) -> None:
        node = connection.known.node
        try:
            interest = connection.transport.finish_connect()
            self._backend.selector.watch(
                connection.transport, connection, READ if interest == NOTHING else interest
            )
        except Exception as error:  # noqa: BLE001 - likewise
            self.fail(connection, failures.connect_error(node, connection.address, error), now)
            return
        if interest != NOTHING:
            return
        self._metrics.connections_created += 1
        connection.established = True
        self.states.connected(connection.known)
        self._dialogues.begin(connection, now)

    def maybe_forget_nodes(self, in_use: Container[int], now: float) -> bool:
        """Forget all that is kept of nodes that are not needed any more, from time to time; whether it was time.

        A node with a connection stays, so that nothing is in flight to one that is forgotten.
        """
        if not self.states.maybe_forget(in_use, now):
            return False
        self._metrics.keep_nodes(self.states)
        self._reporter.keep_nodes(self.states)
        self._dialogues.keep_nodes(self.states.nodes())
        return True

    # ---- handshakes: what `Dialogues` asks for

    def agreed(self, connection: Connection, now: float) -> None:
        """A handshake is over: the connection can be used, or used again."""
        known, handshake = connection.known, connection.handshake
        renewed = known.state is REAUTHENTICATING
        connection.handshake = None
        connection.setup_deadline = math.inf
        connection.renew_at = now + self.states.renewal_delay(getattr(handshake, "session_lifetime_ms", 0))
        if renewed:
            self._metrics.reauthentications += 1
            connection.last_used_at = connection.used_before_renewal
        else:
            self._metrics.authentications += self._dialogues.authenticates
            connection.allow_full_answers()
            self._reporter.connected(known.node.id, lasting=not known.unanswered)
        self.states.ready(known)
        self.fatal_error = None
        self._look_again(now)  # what was watched for the handshake is not due any more
        # At the end: an error in between would leave a connection that is neither used nor given up.
        if renewed:
            _note(Event.REAUTHENTICATED, "Authenticated anew with %s", known.node)
        else:
            _note(Event.CONNECTED, "Connected to %s", known.node)

    def watch_setup(self, connection: Connection, deadline: float) -> None:
        """Let the handshake do something, or fail the connection, when it is not ready by then."""
        connection.setup_deadline = deadline
        self._note_deadline(deadline)

    def take_finished(self, now: cython.double) -> Any:
        """Go on with handshakes whose work aside has ended."""
        self._dialogues.take_finished(now)

    def _renew(self, connection: Connection, now: float) -> None:
        """Authenticate anew: behind what is in flight, and before anything else."""
        connection.known.move_to(REAUTHENTICATING)
        # An idle connection stays idle: else one that is never used would never be closed.
        connection.used_before_renewal = connection.last_used_at
        self._dialogues.renew(connection, now)

    # ---- requests

    def start_request(
        self,
        connection: Connection,
        asked: ClientRequest,
        version: cython.int,
        now: cython.double,
        internal: cython.bint,
    ) -> Any:
        """Frame a request and write as much of it as fits; the rest follows when the selector says so.

        A connection that proves broken is only noted: the caller may be in the middle of something, and what follows
        from the failure waits for `handle_failed_writes`.

        Args:
            connection: where to write it; it is `sendable`.
            asked: the request.
            version: as picked for this connection; -1 for a request without header, which gives its whole frame.
            now: the time.
            internal: whether the network layer asks for itself, see InFlightRequest.

        Raises:
            ValueError: the request cannot be encoded in that version; nothing was sent.
        """
        request: Any = asked.request
        # Nearly always it is of this kind, which compiled code calls without the interpreter.
        produce: ProduceRequest | None = request if isinstance(request, ProduceRequest) else None
        body: Any = request.encode(version) if produce is None else produce.encode(version)
        correlation_id: cython.int = -1
        buffers: list
        if version >= 0:
            correlation_id = next_correlation_id(self._correlation_id)
            buffers = frame_request(request.api, version, correlation_id, self._client_id, body)
            self._correlation_id = correlation_id
        else:
            buffers = body  # a frame of its own kind
            connection.allow_bare_answers()
        started: InFlightRequest = InFlightRequest(asked, version, correlation_id, now, internal)
        connection.start_request(started, buffers, now)
        # From here on the request belongs to the connection, and ends with it: whatever goes wrong must not be raised,
        # since the caller would take the request for one that was never begun, and use its memory again.
        if started.deadline < self.next_sweep_at:
            self.next_sweep_at = started.deadline
        try:
            ended: InFlightRequest | None = connection.write()
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

    def take_ended(self) -> list:
        """The requests that have ended; their `on_response` is the caller's to call."""
        ended = self.ended
        self.ended = []
        return ended

    # ---- moving bytes

    def on_events(self, events: Any, now: cython.double) -> Any:
        """Handle what the selector has found."""
        connection: Connection
        ready_for: cython.int
        for connection, mask in events:
            if connection.closed:
                continue  # by an earlier event of the same round
            if connection.known.state is CONNECTING:
                self._finish_connecting(connection, now)
                continue
            ready_for = mask
            if ready_for & _READ:
                self._read(connection, now)
            if ready_for & _WRITE and not connection.closed:
                self._write(connection, now)

    def handle_failed_writes(self, now: cython.double) -> Any:
        """Close the connections that `start_request` found broken."""
        while self._failed_writes:
            connection, error = self._failed_writes.pop()
            if not connection.closed:
                self._write_failed(connection, error, now)

    def _read(self, connection: Connection, now: cython.double) -> Any:
        for request, raw in connection.read(now):
            self._on_answer(connection, request, raw, now)
        if not connection.closed and (connection.read_error is not None or connection.peer_closed):
            self.fail(connection, self._why_unreadable(connection), now)

    def _why_unreadable(self, connection: Connection) -> KafkaError:
        """Why nothing more can be read from the connection."""
        known, error = connection.known, connection.read_error
        if isinstance(error, KafkaError):
            return failures.malformed_error(known.node, error)
        if error is not None:
            return failures.broken_error(known.node, error, known.state)
        if known.state is not READY:
            return failures.closed_in_handshake_error(known.node, known.state, connection.handshake)
        if connection.in_flight and not connection.answered and not self._dialogues.authenticates:
            known.unanswered += 1
            answered_before = self._address_has_answered(known.node)
            return failures.unanswered_error(known.node, known.unanswered, answered_before=answered_before)
        return failures.closed_by_peer_error(known.node)

    def _address_has_answered(self, node: Node) -> bool:
        """Whether a broker at this address has answered a request of this client, under whatever id."""
        if self.states.has_answered(node):
            return True
        return any(
            each.answered and same_address(each.known.node, node) for each in self._connections.values()
        )

    def _on_answer(
        self, connection: Connection, answered: InFlightRequest, raw: Any, now: cython.double
    ) -> Any:
        request: Any = answered.request
        try:
            body: Any = request.decode_response(answered.version, raw)
            seconds: cython.double = throttle_seconds(request.api, answered.version, body)
        except Exception as error:  # noqa: BLE001 - whatever it is, the request must end
            malformed = failures.malformed_error(connection.known.node, error)
            self.end_request(answered, None, malformed, now)
            if not connection.closed:
                self.fail(connection, malformed, now)
            return
        if seconds > 0:
            known: Any = connection.known
            known.throttled_until = max(known.throttled_until, now + seconds)
            connection.in_flight.extend_deadlines(seconds)
        self.end_request(answered, body, None, now)

    def _write(self, connection: Connection, now: cython.double) -> Any:
        try:
            ended: InFlightRequest | None = connection.write()
            self._watch_writes(connection)
        except Exception as error:  # noqa: BLE001 - how much was written is not known any more
            self._write_failed(connection, error, now)
            return
        if now >= connection.renew_at and not connection.unsent_bytes:
            self.next_sweep_at = now  # which could not be done while a request was partly written
        if ended is not None:
            self.end_request(ended, None, None, now)

    def _watch_writes(self, connection: Connection) -> Any:
        """Have the selector wait for room to write while something is left to write, and no longer."""
        wanted: cython.bint = connection.unsent_bytes != 0
        if wanted == connection.write_watched:
            return
        connection.write_watched = wanted
        interest = READ | WRITE if wanted else READ
        self._backend.selector.watch(connection.transport, connection, interest)

    def _write_failed(self, connection: Connection, error: Exception, now: cython.double) -> None:
        # Answers to earlier requests may lie in the receive buffer; taken for lost, they would be sent again.
        self._read(connection, now)
        if not connection.closed:
            known = connection.known
            self.fail(connection, failures.broken_error(known.node, error, known.state), now)

    # ---- watching the time

    def sweep(self, now: float) -> None:
        """Fail what has taken too long and close what is unused; find out when to look again."""
        self.next_sweep_at = math.inf
        for connection in list(self._connections.values()):
            known = connection.known
            late = connection.in_flight.first_expired(now)
            if late is not None:
                self.fail(connection, _timed_out(known.node, late, now), now)
            elif now >= connection.setup_deadline and not self._dialogues.prompt(connection, now):
                why = self._dialogues.late_error(connection, now)
                if why is None:
                    why = failures.setup_timeout_error(known, now, connection.transport)
                self.fail(connection, why, now)
            elif now >= _renewal_due(connection) and known.state is READY and not connection.unsent_bytes:
                self._renew(connection, now)
                self._note_deadlines(connection, now)
            elif not connection.in_flight and known.state is READY and now >= self._idle_deadline(connection):
                _note(Event.CONNECTION_IDLE, "Closing the unused connection to %s", known.node)
                self.close_connection(known.node.id, now, "it was not used")
            else:
                self._note_deadlines(connection, now)

    def _look_again(self, now: float) -> None:
        self.next_sweep_at = math.inf
        for connection in self._connections.values():
            self._note_deadlines(connection, now)

    def _note_deadlines(self, connection: Connection, now: float) -> None:
        if connection.closed:
            return
        self._note_deadline(connection.in_flight.next_deadline())
        self._note_deadline(connection.setup_deadline)
        if connection.known.state is not READY:
            return
        due = _renewal_due(connection)
        if due > now or not connection.unsent_bytes:
            self._note_deadline(due)
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

    # ---- tearing connections down

    def close_connection(self, node_id: int, now: float, reason: str) -> None:
        """Close one connection by our own will; its requests fail, oldest first."""
        connection = self._connections.get(node_id)
        if connection is None:
            return
        error = NetworkError(f"the connection to {describe(connection.known.node)} was closed: {reason}")
        pending = self._tear_down(connection)
        self.states.disconnected(connection.known, now)
        self._fail_requests(pending, error, now)

    def close_all(self, now: float, reason: str) -> None:
        """Close every connection by our own will."""
        for node_id in list(self._connections):
            self.close_connection(node_id, now, reason)

    def fail(self, connection: Connection, error: KafkaError, now: float) -> None:
        """Tear down a connection that is broken, and tell everyone concerned."""
        known = connection.known
        was_made = known.state in MADE
        self._dialogues.lost(connection, now)
        if connection.answered:
            known.unanswered = 0
        if known.state is REAUTHENTICATING:
            self._metrics.reauthentications_failed += 1
            if isinstance(error, AuthenticationError):
                # Perhaps only this session cannot go on, as with another principal: a new connection will tell.
                error = failures.renewal_error(known.node, error)
        refused = isinstance(error, AuthenticationError)
        if not connection.established:
            self._metrics.connections_failed += 1
        pending = self._tear_down(connection)
        try:
            if refused:
                self._refused(known, error, now)
            else:
                self.states.disconnected(known, now)
            if was_made and not known.unanswered:
                self._reporter.connection_lost(known.node, error, now)
            else:
                self._reporter.attempt_failed(known.node, error, now, ever_ready=known.ever_ready)
        finally:
            # Whatever goes wrong in telling: nobody else knows of these requests any more.
            self._fail_requests(pending, error, now)

    def _refused(self, known: NodeState, error: KafkaError, now: float) -> None:
        self.states.authentication_failed(known, now)
        self._metrics.authentications_failed += 1
        self.fatal_error = error

    def _tear_down(self, connection: Connection) -> list[InFlightRequest]:
        known = connection.known
        known.ever_answered = known.ever_answered or connection.answered
        del self._connections[known.node.id]
        try:
            self._backend.selector.unwatch(connection.transport)
        except Exception as error:  # noqa: BLE001 - its requests must end, and the node be tried again
            tell_error(
                logger, Event.CONNECTION_ERROR, "The connection to %s could not be forgotten",
                describe(known.node),
                node=known.node, error=error,
            )  # fmt: skip
        pending = connection.close()
        if connection.established:
            self._metrics.connections_closed += 1
        return pending

    def _fail_requests(self, pending: list[InFlightRequest], error: KafkaError, now: float) -> None:
        """End the requests of a connection, oldest first, each with the error that fits it.

        A request gets the connection's own error only where this error says what became of the request: the request was
        lost with the connection, or is itself the one that took too long. For all other requests the connection was
        only lost, also when a broker refused the authentication: the cause may be fixed, and the request sent again.
        """
        lost: KafkaError = error
        if not isinstance(error, NetworkError):
            lost = NetworkError(f"the connection was closed before the answer came: {error}")
            lost.__cause__ = error
        for request in pending:
            late = isinstance(error, RequestTimedOutError) and request.deadline <= now
            self.end_request(request, None, error if late else lost, now)


def throttle_seconds(api: ApiSchema, version: int, body: Any) -> float:
    """How long this client must not send to the node that gave that answer."""
    # Answers to Produce and to the Metadata request of a producer are objects; all others are dicts.
    told_ms = body.get("throttle_time_ms", 0) if isinstance(body, dict) else getattr(body, "throttle_ms", 0)
    return float(told_ms) / 1000 if told_ms and api.client_throttles(version) else 0.0


def _renewal_due(connection: Connection) -> float:
    """When to authenticate anew: not while the broker throttles, which takes it even when the session is over."""
    return max(connection.renew_at, connection.known.throttled_until)


def _timed_out(node: Node, late: InFlightRequest, now: float) -> KafkaError:
    waited_ms = (now - late.sent_at) * 1000
    return RequestTimedOutError(
        f"no answer from {describe(node)} to a {late.request.api.name} request within {waited_ms:.0f} ms; "
        "the connection was closed"
    )


def _note(event: Event, text: str, node: Node) -> None:
    tell(logger, logging.DEBUG, event, text, describe(node), node=node)
