# SPDX-License-Identifier: Apache-2.0
"""One connection to one node: bytes out, frames in, and which request each frame answers. Compiled if possible.

What is counted on all connections is here, too: `NodeMetrics` and `NetworkMetrics`.

Rules:
1. At most one request is partly written at any time: a connection takes the next one when the last byte of the previous
   one is with the operating system. That keeps latency honest and memory bounded.
2. The buffers of a request are written from where they are; what is left after a partial write is a view, not a copy.
3. A broker answers the requests of one connection in order, so the oldest one is always the next to be answered; the
   correlation id only confirms that.
4. An answer that was read counts, whatever follows it: an error met while reading is kept in `read_error` until the
   answers before it have been handed over. What to do about it is decided by the pool that owns the connection.

Owned by the I/O thread.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Container
from typing import Any

from penstock._events import Event, tell
from penstock.errors import IllegalStateError, KafkaError, ProtocolError
from penstock.network.states import READY
from penstock.protocol.messages import API_VERSIONS, PRODUCE
from penstock.protocol.requests import NodeApiVersions

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

if cython.compiled:
    from cython.cimports.penstock._stats_cy import TimeBudget
    from cython.cimports.penstock.protocol._framing_cy import FrameReader, frame_size, parse_response_header
    from cython.cimports.penstock.protocol._produce_cy import ProduceRequest
else:
    from penstock._stats_cy import TimeBudget
    from penstock.protocol._framing_cy import FrameReader, frame_size, parse_response_header
    from penstock.protocol._produce_cy import ProduceRequest

_logger = logging.getLogger(__name__)

# One read takes at most this much. Answers to produce requests are small; a large Metadata answer takes a few reads.
# More needs a larger PENSTOCK_MOST_RECEIVED in _system_calls_cy.pxd, too: one system call takes no more than that.
READ_SIZE = 65_536
# The largest answer in a handshake: what a broker can do takes less than a kibibyte, a token a few.
HANDSHAKE_BYTES = 1024 * 1024
_READ_SIZE = cython.declare(cython.Py_ssize_t, READ_SIZE)


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


# ------------------------------------------------------------------------------------------ counters
#
# Plain numbers. Only the I/O thread changes them; a registry reads them from any thread when it is asked. A reader may
# see one counter a little ahead of another, never a torn one.


@cython.final
@cython.cclass
class NodeMetrics:
    """Counters of one node, over all its connections. Latencies are in seconds."""

    def __init__(self) -> None:
        self.requests = 0
        self.responses = 0
        self.bytes_out = 0
        self.bytes_in = 0
        self.request_max = 0  # bytes of the largest request
        self.latency_sum = 0.0  # from a request to its answer, over all answers
        self.latency_max = 0.0


@cython.final
@cython.cclass
class NetworkMetrics:
    """Counters of one client, over all nodes.

    Attributes:
        nodes: the counters of each node, by its id.
        time: what the I/O thread does; those above the network tell their part of it.
    """

    def __init__(self) -> None:
        self.requests = 0
        self.responses = 0
        self.bytes_out = 0
        self.bytes_in = 0
        self.request_max = 0  # bytes of the largest request
        self.connections_created = 0
        self.connections_closed = 0
        self.connections_failed = 0  # attempts that did not get as far as a connection
        self.authentications = 0  # connections on which a broker has accepted the authentication
        self.authentications_failed = 0
        self.reauthentications = 0  # sessions that were renewed
        self.reauthentications_failed = 0
        self.select_count = 0
        self.io_wait_ns = 0
        self.io_ns = 0
        self.nodes: dict[int, NodeMetrics] = {}
        self.time = TimeBudget()

    @property
    def connections_open(self) -> int:
        """Connections that exist now."""
        return self.connections_created - self.connections_closed

    def node(self, node_id: int) -> NodeMetrics:
        """The counters of a node, made when first asked for."""
        found = self.nodes.get(node_id)
        if found is None:
            found = self.nodes[node_id] = NodeMetrics()
        return found

    def keep_nodes(self, kept: Container[int]) -> None:
        """Forget the counters of all other nodes; of one that comes back they begin anew."""
        for node_id in [node_id for node_id in self.nodes if node_id not in kept]:
            del self.nodes[node_id]


# ------------------------------------------------------------------------------------------ requests


@cython.final
@cython.cclass
class ClientRequest:
    """A request for one node, as it is given to the client.

    The buffers that `request.encode` returned must stay unchanged until `on_response` was called: they are written to
    the socket from where they are.

    Args:
        node: where it goes; the node must be ready.
        request: what is sent.
        timeout: seconds from sending to the answer, throttle time not counted.
        on_response: called once with the InFlightRequest when it has ended, on the I/O thread, at the end of a poll.
    """

    def __init__(
        self, node: Any, request: Any, timeout: cython.double, on_response: Callable[[InFlightRequest], None]
    ) -> None:
        self.node = node
        self.request = request
        self.timeout = timeout
        self.on_response = on_response

    def __repr__(self) -> str:
        return f"<ClientRequest {self.request.api.name} to {self.node}>"


@cython.final
@cython.cclass
class InFlightRequest:
    """A request from when it is sent until it has ended, and then its outcome: an answer, or why there is none.

    Args:
        asked: what the caller gave.
        version: its version on the wire; -1 when nothing was sent.
        correlation_id: what its answer must carry.
        sent_at: when it was given to the connection.
        internal: the network layer asks for itself: `on_response` is called at once, not at the end of the poll.

    Attributes:
        node: where it went.
        request: the request as it was given.
        on_response: called once, with this.
        deadline: when it has waited too long; it moves when the broker throttles.
        received_at: when it ended.
        body: the decoded answer; None on failure, and for a request that has no answer.
        error: NetworkError (disconnected), RequestTimedOutError, UnsupportedVersionError (nothing was sent),
            ProtocolError; None on success.
    """

    def __init__(
        self,
        asked: ClientRequest,
        version: cython.int,
        correlation_id: cython.int,
        sent_at: cython.double,
        internal: cython.bint = False,
    ) -> None:
        self.node = asked.node
        self.request = asked.request
        self.on_response = asked.on_response
        self.version = version
        self.correlation_id = correlation_id
        self.internal = internal
        self.sent_at = sent_at
        self.deadline = sent_at + asked.timeout
        self.received_at = sent_at
        self.body: Any = None
        self.error: KafkaError | None = None

    @staticmethod
    def never_sent(asked: ClientRequest, error: KafkaError, now: cython.double) -> InFlightRequest:
        """A request that failed before anything was sent."""
        failed = InFlightRequest(asked, -1, -1, now)
        failed.end(None, error, now)
        return failed

    def end(self, body: Any, error: KafkaError | None, now: cython.double) -> Any:
        """Keep the outcome: the decoded answer, or the error, or neither where there is no answer."""
        self.body = body
        self.error = error
        self.received_at = now

    @property
    def latency(self) -> float:
        """Seconds from sending to the end."""
        return self.received_at - self.sent_at

    def __repr__(self) -> str:
        answered = "no answer" if self.body is None else "answered"
        outcome = answered if self.error is None else type(self.error).__name__
        name = f"{self.request.api.name} v{self.version} #{self.correlation_id}"
        return f"<InFlightRequest {name} to {self.node}: {outcome}>"


@cython.final
@cython.cclass
class InFlightRequests:
    """The requests of one connection that wait for their answer, oldest first."""

    def __init__(self) -> None:
        self._queue: list[InFlightRequest] = []  # a few at most

    def add(self, request: InFlightRequest) -> Any:
        """A request was handed to the connection."""
        self._queue.append(request)

    def oldest(self) -> InFlightRequest | None:
        """The one that must be answered next; None when there is none."""
        return self._queue[0] if self._queue else None

    def take_answered(self, correlation_id: cython.int) -> InFlightRequest:
        """Remove the oldest, which the peer has answered.

        Raises:
            ProtocolError: the peer answered something else.
        """
        expected: InFlightRequest = self._queue[0]
        if expected.correlation_id != correlation_id:
            self._forget_dropped(correlation_id)
            expected = self._queue[0]
        del self._queue[0]
        return expected

    def _forget_dropped(self, correlation_id: cython.int) -> None:
        """Remove the ApiVersions requests before the one that was answered: brokers before 0.10 drop them.

        They end without a word: the handshake sees which answer came instead.
        """
        request: InFlightRequest
        for place, request in enumerate(self._queue):
            if request.correlation_id == correlation_id:
                del self._queue[:place]
                return
            if request.request.api is not API_VERSIONS:
                break
        expected: InFlightRequest = self._queue[0]
        raise ProtocolError(
            f"the answer carries correlation id {correlation_id}, but {expected.correlation_id} "
            f"({expected.request.api.name} v{expected.version}) is the oldest request without an answer"
        )

    def take_last(self) -> InFlightRequest:
        """Remove the youngest: a request that has no answer, once it is written."""
        return self._queue.pop()

    def take_all(self) -> list[InFlightRequest]:
        """Empty the queue; oldest first."""
        everything = self._queue
        self._queue = []
        return everything

    def extend_deadlines(self, seconds: cython.double) -> None:
        """Time during which the broker throttles this client does not count."""
        request: InFlightRequest
        for request in self._queue:
            request.deadline += seconds

    def first_expired(self, now: cython.double) -> InFlightRequest | None:
        """The oldest one that has waited too long."""
        request: InFlightRequest
        for request in self._queue:
            if request.deadline <= now:
                return request
        return None

    def next_deadline(self) -> float:
        """The earliest deadline, infinity when nothing waits. Requests may have time-outs of their own."""
        earliest: cython.double = math.inf
        request: InFlightRequest
        for request in self._queue:
            earliest = min(earliest, request.deadline)
        return earliest

    def __len__(self) -> int:
        return len(self._queue)

    def __repr__(self) -> str:
        return f"<InFlightRequests {self._queue}>"


# ------------------------------------------------------------------------------------------ the connection


@cython.final
@cython.cclass
class Connection:
    """A transport, the request being written, and the requests that wait for an answer.

    Args:
        known: what is remembered of the node; its state is the state of this connection.
        transport: moves the bytes.
        address: which of the node's addresses this is.
        max_response_bytes: no answer is longer; before `allow_full_answers` none is longer than HANDSHAKE_BYTES either.
        metrics: counters of the client.

    Attributes:
        in_flight: requests without an answer, the one being written included.
        unsent_bytes: what is left of the request being written; 0 when all is with the operating system.
        established: it got as far as exchanging bytes.
        handshake: what is being agreed with the broker, None when READY.
        api_versions: what the broker can do, None until it has told.
        last_used_at: when bytes last moved.
        peer_closed: the peer will send nothing more.
        read_error: why nothing more can be read: KafkaError when the peer breaks the protocol, else mostly OSError.
        closed: this end is closed.
        write_watched: the selector waits for room to write.
        setup_deadline: when a handshake has taken too long; infinity when there is none, or its requests tell.
        renew_at: from then on nothing is sent but a handshake that authenticates anew; infinity without such an end.
        used_before_renewal: `last_used_at` without such handshakes.
    """

    def __init__(
        self,
        known: Any,
        transport: Any,
        address: Any,
        max_response_bytes: cython.Py_ssize_t,
        metrics: NetworkMetrics,
    ) -> None:
        self.known = known
        self.transport = transport
        self.address = address
        self.in_flight = InFlightRequests()
        self.established = False
        self.handshake: Any = None
        self.api_versions: NodeApiVersions | None = None
        self.last_used_at = known.last_attempt_at
        self.peer_closed = False
        self.read_error: Exception | None = None
        self.closed = False
        self.write_watched = False
        self.setup_deadline = math.inf
        self.renew_at = math.inf
        self.used_before_renewal = self.last_used_at
        self._responses_before = -1
        self._picked = -1
        self._picked_from: NodeApiVersions | None = None
        self._picked_api: Any = None
        self._picked_lowest = 0
        self._picked_highest = 0
        self._max_response_bytes = max_response_bytes
        # Who is at the other end is not known yet: a length that was made up must not cost more than this.
        self._reader = FrameReader(min(max_response_bytes, HANDSHAKE_BYTES))
        self._unsent: Any = ()
        self.unsent_bytes = 0
        self._unsent_has_answer = True
        self._metrics = metrics
        self._node_metrics: NodeMetrics = metrics.node(known.node.id)

    def allow_full_answers(self) -> None:
        """The handshake is over: take answers of any size that the settings allow."""
        self._reader.allow(self._max_response_bytes)
        self._responses_before = self._node_metrics.responses

    def allow_bare_answers(self) -> None:
        """A token is sent without a header: its answer has none either, and may be empty."""
        self._reader.allow_bare()

    @property
    def answered(self) -> bool:
        """Whether the broker has answered anything since the handshake was over."""
        return self._node_metrics.responses > self._responses_before >= 0

    def can_send(self, now: cython.double, max_in_flight: cython.Py_ssize_t) -> cython.bint:
        """Whether another request can be sent now: ready, not throttled, not too busy, and in a session that lasts."""
        known: Any = self.known
        return (
            self.unsent_bytes == 0
            and known.state is READY
            and known.throttled_until <= now
            and len(self.in_flight) < max_in_flight
            and now < self.renew_at
        )

    def pick_version(self, request: Any) -> cython.int:
        """The version in which the request is sent over this connection.

        Raises:
            UnsupportedVersionError: the broker knows none of those in which the request can be encoded.
            IllegalStateError: the broker has not told yet what it knows.
        """
        api: Any
        lowest: cython.int
        highest: cython.int
        if isinstance(request, ProduceRequest):
            # Nearly always it is one of these, which compiled code asks without the interpreter.
            produce: ProduceRequest = request
            api, lowest, highest = PRODUCE, produce.min_version, produce.max_version
        else:
            api, lowest, highest = request.api, request.min_version, request.max_version
        versions: Any = self.api_versions
        if versions is None:
            raise IllegalStateError(f"the broker's versions are not known yet: {self!r}")
        # Nearly always it is that of the request before.
        if (
            versions is not self._picked_from
            or api is not self._picked_api
            or lowest != self._picked_lowest
            or highest != self._picked_highest
        ):
            self._picked = versions.pick(api, lowest, highest)
            self._picked_from = versions
            self._picked_api = api
            self._picked_lowest = lowest
            self._picked_highest = highest
        return self._picked

    # ---- writing

    def start_request(self, request: InFlightRequest, buffers: list, now: cython.double) -> Any:
        """Take a framed request; `write` sends it, behind what is left of the one before."""
        size: cython.longlong = frame_size(buffers)
        has_answer: cython.bint = request.request.expects_response
        self.in_flight.add(request)  # the last that can fail: nothing is queued for writing before
        # `can_send` lets no other request come here before all is written. A handshake goes on when an answer comes,
        # also while what it asked besides is partly written.
        self._unsent = [*self._unsent, *buffers] if self.unsent_bytes else buffers
        self.unsent_bytes += size
        self._unsent_has_answer = has_answer
        self.last_used_at = now
        self._metrics.requests += 1
        self._node_metrics.requests += 1
        if size > self._node_metrics.request_max:
            self._node_metrics.request_max = size
            self._metrics.request_max = max(self._metrics.request_max, size)

    def write(self) -> InFlightRequest | None:
        """Write what the transport takes now.

        Returns:
            The request that has thereby ended: one without an answer, with its last byte written; else None.

        Raises:
            OSError: the connection is broken.
        """
        sent: cython.longlong
        while self.unsent_bytes:
            sent = self.transport.send_some(self._unsent)
            if not sent:
                return None
            self._metrics.bytes_out += sent
            self._node_metrics.bytes_out += sent
            self.unsent_bytes -= sent
            # Releases the buffers when all is written: they are the producer's to reuse once the answer is there.
            self._unsent = _after(self._unsent, sent) if self.unsent_bytes else ()
        if self._unsent_has_answer:
            return None
        self._unsent_has_answer = True
        return self.in_flight.take_last()

    # ---- reading

    def read(self, now: cython.double) -> list:
        """Read what is there; the requests it answers, oldest first, each with the undecoded body of its answer.

        Sets `peer_closed` or `read_error` when nothing more can be read.
        """
        answers: list = []
        expected: InFlightRequest | None
        latency: cython.double
        try:
            for frame in self._read_frames():
                expected = self.in_flight.oldest()
                if expected is None:
                    raise ProtocolError("an answer came although no request waits for one")
                if expected.version >= 0:
                    api: Any = expected.request.api
                    split: Any = parse_response_header(api, expected.version, frame)
                    answers.append((self.in_flight.take_answered(split[0]), split[1]))
                else:  # a token without header
                    answers.append((self.in_flight.take_answered(expected.correlation_id), frame))
                latency = now - expected.sent_at
                self._node_metrics.latency_sum += latency
                self._node_metrics.latency_max = max(self._node_metrics.latency_max, latency)
        except Exception as error:  # noqa: BLE001 - answers that were taken before count, and nothing can follow them
            self.read_error = error
        if answers:
            self.last_used_at = now
            self._metrics.responses += len(answers)
            self._node_metrics.responses += len(answers)
        return answers

    def _read_frames(self) -> list:
        frames: list = []
        size: cython.Py_ssize_t
        try:
            while True:
                data: Any = self.transport.recv_some(READ_SIZE)
                if data is None:
                    break
                size = len(data)
                if not size:
                    self.peer_closed = True
                    break
                self._metrics.bytes_in += size
                self._node_metrics.bytes_in += size
                frames += self._reader.feed(data)
                if self._reader.trouble is not None:
                    raise self._reader.trouble  # nothing that follows can be read
                # Less than asked for: the kernel has no more, and asking again would only cost a system call.
                if size < _READ_SIZE and not self.transport.has_pending():
                    break
        except Exception as error:  # noqa: BLE001 - also where memory is short: what was read is not whole any more
            self.read_error = error
        return frames

    # ---- the end

    def close(self) -> list[InFlightRequest]:
        """Close this end; the requests that will get no answer, oldest first."""
        self.closed = True
        self._unsent = ()
        self.unsent_bytes = 0
        pending: list = self.in_flight.take_all()
        try:
            self.transport.close()
        except Exception as error:  # noqa: BLE001 - it is of no use any more, and those who wait must be told
            tell(
                _logger, logging.WARNING, Event.CONNECTION_ERROR, "a connection could not be closed",
                exc_info=True, each=(), node=self.known.node, error=error,
            )  # fmt: skip
        return pending

    def __repr__(self) -> str:
        unsent = f", {self.unsent_bytes} bytes to write" if self.unsent_bytes else ""
        return f"<Connection to {self.known.node}: {self.known.state.value}, {len(self.in_flight)} in flight{unsent}>"


@cython.cfunc
def _after(buffers: Any, sent: cython.longlong) -> list:
    """What is left of the buffers after so many bytes, as views."""
    rest: list = []
    size: cython.longlong
    for buffer in buffers:
        if not sent:
            rest.append(buffer)
            continue
        size = buffer.nbytes if isinstance(buffer, memoryview) else len(buffer)
        if sent < size:
            rest.append(memoryview(buffer).cast("B")[sent:])
            sent = 0
        else:
            sent -= size
    return rest
