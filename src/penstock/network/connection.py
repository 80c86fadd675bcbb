# SPDX-License-Identifier: Apache-2.0
"""One connection to one node: bytes out, frames in, and which request each frame answers.

Rules:
1. At most one request is partly written at any time: a connection takes the next one when the last byte of the previous
   one is with the operating system. That keeps latency honest and memory bounded.
2. The buffers of a request are written from where they are; what is left after a partial write is a view, not a copy.
3. An answer that was read counts, whatever follows it: trouble met while reading is put aside in `trouble` until the
   answers before it have been handed over. What to do about it is decided by the pool that owns the connection.

Owned by the I/O thread.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import IllegalStateError, KafkaError, ProtocolError
from penstock.network.handshake import Handshake
from penstock.network.in_flight import Exchange, InFlightRequests
from penstock.network.metrics import NetworkMetrics
from penstock.network.states import NodeState
from penstock.network.transport import Address, Transport
from penstock.protocol.api_versions import NodeApiVersions
from penstock.protocol.framing import FrameReader, frame_size, parse_response_header
from penstock.protocol.requests import Request
from penstock.protocol.schema import Buffer

# One read takes at most this much. Answers to produce requests are small; a large Metadata answer takes a few reads.
READ_SIZE = 65_536


class Connection:
    """A transport, the request being written, and the requests that wait for an answer.

    Attributes:
        address: which of the node's addresses this is.
        established: it got as far as exchanging bytes.
        known: what is remembered of the node; its state is the state of this connection.
        in_flight: requests without an answer, the one being written included.
        handshake: what is being agreed with the broker, None when READY.
        api_versions: what the broker can do, None until it has told.
        last_used_at: when bytes last moved.
        peer_closed: the peer will send nothing more.
        trouble: why nothing more can be read: OSError, or KafkaError when the peer sends nonsense.
        closed: this end is closed.
        write_watched: the selector waits for room to write.
    """

    __slots__ = (
        "_metrics",
        "_node_metrics",
        "_reader",
        "_unsent",
        "_unsent_bytes",
        "_unsent_has_answer",
        "address",
        "api_versions",
        "closed",
        "established",
        "handshake",
        "in_flight",
        "known",
        "last_used_at",
        "peer_closed",
        "transport",
        "trouble",
        "write_watched",
    )

    def __init__(
        self,
        known: NodeState,
        transport: Transport,
        address: Address,
        max_response_bytes: int,
        metrics: NetworkMetrics,
    ) -> None:
        self.known = known
        self.transport = transport
        self.address = address
        self.established = False
        self.in_flight = InFlightRequests()
        self.handshake: Handshake | None = None
        self.api_versions: NodeApiVersions | None = None
        self.last_used_at = known.last_attempt_at
        self.peer_closed = False
        self.trouble: OSError | KafkaError | None = None
        self.closed = False
        self.write_watched = False
        self._reader = FrameReader(max_response_bytes)
        self._unsent: Sequence[Buffer] = ()
        self._unsent_bytes = 0
        self._unsent_has_answer = True
        self._metrics = metrics
        self._node_metrics = metrics.node(known.node.id)

    @property
    def fully_written(self) -> bool:
        """Whether the last byte of the previous request is with the operating system."""
        return not self._unsent_bytes

    def pick_version(self, request: Request) -> int:
        """The version in which the request is sent over this connection.

        Raises:
            UnsupportedVersionError: the broker knows none of those in which it can be said.
            IllegalStateError: the broker has not told yet what it knows.
        """
        if self.api_versions is None:
            raise IllegalStateError(f"the broker's versions are not known yet: {self!r}")
        return self.api_versions.pick(request.api, request.min_version, request.max_version)

    def start_request(self, exchange: Exchange, buffers: Sequence[Buffer], now: float) -> None:
        """Take a framed request; `write_some` sends it."""
        size = frame_size(buffers)
        self.in_flight.add(exchange)
        self._unsent = buffers
        self._unsent_bytes = size
        self._unsent_has_answer = exchange.request.expects_response
        self.last_used_at = now
        self._metrics.requests += 1
        self._node_metrics.requests += 1
        if size > self._node_metrics.request_max:
            self._node_metrics.request_max = size
            self._metrics.request_max = max(self._metrics.request_max, size)

    def write_some(self) -> Exchange | None:
        """Write what the transport takes now.

        Returns:
            The exchange that has thereby ended: a request without an answer, with its last byte written.

        Raises:
            OSError: the connection is broken.
        """
        while self._unsent_bytes:
            sent = self.transport.send_some(self._unsent)
            if not sent:
                return None
            self._metrics.bytes_out += sent
            self._node_metrics.bytes_out += sent
            self._unsent_bytes -= sent
            # Releases the buffers when all is written: they are the producer's to reuse once the answer is there.
            self._unsent = _after(self._unsent, sent) if self._unsent_bytes else ()
        if self._unsent_has_answer:
            return None
        self._unsent_has_answer = True
        return self.in_flight.take_last()

    def read_answers(self, now: float) -> list[tuple[Exchange, memoryview]]:
        """Read what is there; the requests it answers, oldest first, each with the body of its answer.

        Sets `peer_closed` or `trouble` when that was the last of it.
        """
        answers: list[tuple[Exchange, memoryview]] = []
        try:
            for frame in self._read_frames():
                expected = self.in_flight.oldest()
                if expected is None:
                    raise ProtocolError("an answer came although no request waits for one")
                correlation_id, body = parse_response_header(expected.request.api, expected.version, frame)
                answers.append((self.in_flight.take_answered(correlation_id), body))
                self._node_metrics.record_latency(now - expected.sent_at)
        except KafkaError as error:
            self.trouble = error
        if answers:
            self.last_used_at = now
            self._metrics.responses += len(answers)
            self._node_metrics.responses += len(answers)
        return answers

    def _read_frames(self) -> list[Buffer]:
        frames: list[Buffer] = []
        try:
            while True:
                data = self.transport.recv_some(READ_SIZE)
                if data is None:
                    break
                if not data:
                    self.peer_closed = True
                    break
                self._metrics.bytes_in += len(data)
                self._node_metrics.bytes_in += len(data)
                frames += self._reader.feed(data)
                if self._reader.trouble is not None:
                    raise self._reader.trouble  # nothing that follows can be read
                # Less than asked for: the kernel has no more, and asking again would only cost a system call.
                if len(data) < READ_SIZE and not self.transport.has_pending():
                    break
        except (OSError, KafkaError) as error:
            self.trouble = error
        return frames

    def close(self) -> list[Exchange]:
        """Close this end; the exchanges that will get no answer, oldest first."""
        self.closed = True
        self._unsent = ()
        self._unsent_bytes = 0
        self.transport.close()
        return self.in_flight.take_all()

    def __repr__(self) -> str:
        unsent = f", {self._unsent_bytes} bytes to write" if self._unsent_bytes else ""
        return f"<Connection to {self.known.node}: {self.known.state.value}, {len(self.in_flight)} in flight{unsent}>"


def _size(buffer: Buffer) -> int:
    return buffer.nbytes if isinstance(buffer, memoryview) else len(buffer)


def _after(buffers: Sequence[Buffer], sent: int) -> list[Buffer]:
    """What is left of the buffers after so many bytes, as views."""
    rest: list[Buffer] = []
    for buffer in buffers:
        if not sent:
            rest.append(buffer)
            continue
        size = _size(buffer)
        if sent < size:
            rest.append(memoryview(buffer).cast("B")[sent:])
            sent = 0
        else:
            sent -= size
    return rest
