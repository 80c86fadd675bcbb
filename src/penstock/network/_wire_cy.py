# SPDX-License-Identifier: Apache-2.0
"""What every request goes through on a connection: written, waited for, and its answer read. Compiled if possible.

`connection` has the rules, and what is not for every request. The private methods are for `_pool_cy`. Owned by the I/O
thread.
"""

from __future__ import annotations

from typing import Any

from penstock.errors import IllegalStateError, ProtocolError
from penstock.network.states import READY
from penstock.protocol.api_versions import NodeApiVersions

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

if cython.compiled:
    from cython.cimports.penstock.network._counters_cy import NetworkCounters, NodeMetrics
    from cython.cimports.penstock.network._exchange_cy import Exchange, InFlightRequests
    from cython.cimports.penstock.protocol._framing_cy import FrameReader, frame_size, parse_response_header
else:
    from penstock.network._counters_cy import NetworkCounters, NodeMetrics
    from penstock.network._exchange_cy import Exchange, InFlightRequests
    from penstock.protocol._framing_cy import FrameReader, frame_size, parse_response_header

# One read takes at most this much. Answers to produce requests are small; a large Metadata answer takes a few reads.
READ_SIZE = 65_536
# The largest answer in a handshake: what a broker can do takes less than a kibibyte, a token a few.
HANDSHAKE_BYTES = 1024 * 1024
_READ_SIZE = cython.declare(cython.Py_ssize_t, READ_SIZE)


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


@cython.cclass
class Wire:
    """A transport, the request being written, and the requests that wait for an answer.

    Args:
        known: what is remembered of the node.
        transport: moves the bytes.
        max_response_bytes: no answer is longer; before `allow_full_answers` none is longer than HANDSHAKE_BYTES either.
        metrics: counters of the client, and `node_metrics` those of the node.
    """

    def __init__(
        self,
        known: Any,
        transport: Any,
        max_response_bytes: cython.Py_ssize_t,
        metrics: NetworkCounters,
        node_metrics: NodeMetrics,
    ) -> None:
        self.known = known
        self.transport = transport
        self.in_flight = InFlightRequests()
        self.api_versions: NodeApiVersions | None = None
        self.last_used_at = known.last_attempt_at
        self.peer_closed = False
        self.trouble: Exception | None = None
        self.closed = False
        self.write_watched = False
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
        self._node_metrics = node_metrics

    def allow_full_answers(self) -> None:
        """The handshake is over: take answers of any size that the settings allow."""
        self._reader.allow(self._max_response_bytes)

    @property
    def fully_written(self) -> bool:
        """Whether the last byte of the previous request is with the operating system."""
        return self.unsent_bytes == 0

    def pick_version(self, request: Any) -> int:
        """The version in which the request is sent over this connection.

        Raises:
            UnsupportedVersionError: the broker knows none of those in which it can be said.
            IllegalStateError: the broker has not told yet what it knows.
        """
        api: Any = request.api
        lowest: cython.int = request.min_version
        highest: cython.int = request.max_version
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

    def _takes_more(self, now: cython.double, max_in_flight: cython.Py_ssize_t) -> cython.bint:
        """Whether another request can be sent now: ready, not throttled, and not too busy."""
        known: Any = self.known
        return (
            self.unsent_bytes == 0
            and known.state is READY
            and known.throttled_until <= now
            and len(self.in_flight) < max_in_flight
        )

    def _start_request(self, exchange: Exchange, buffers: list, now: cython.double) -> Any:  # type: ignore[type-arg]
        """Take a framed request; `_write_some` sends it."""
        size: cython.longlong = frame_size(buffers)
        has_answer: cython.bint = exchange.request.expects_response
        self.in_flight.add(exchange)  # the last that can fail: nothing is queued for writing before
        self._unsent = buffers
        self.unsent_bytes = size
        self._unsent_has_answer = has_answer
        self.last_used_at = now
        self._metrics.requests += 1
        self._node_metrics.requests += 1
        if size > self._node_metrics.request_max:
            self._node_metrics.request_max = size
            self._metrics.request_max = max(self._metrics.request_max, size)

    def _write_some(self) -> Exchange:
        """Write what the transport takes now.

        Returns:
            The exchange that has thereby ended: a request without an answer, with its last byte written; else None.

        Raises:
            OSError: the connection is broken.
        """
        sent: cython.longlong
        while self.unsent_bytes:
            sent = self.transport.send_some(self._unsent)
            if not sent:
                return None  # type: ignore[return-value]
            self._metrics.bytes_out += sent
            self._node_metrics.bytes_out += sent
            self.unsent_bytes -= sent
            # Releases the buffers when all is written: they are the producer's to reuse once the answer is there.
            self._unsent = _after(self._unsent, sent) if self.unsent_bytes else ()
        if self._unsent_has_answer:
            return None  # type: ignore[return-value]
        self._unsent_has_answer = True
        return self.in_flight.take_last()

    def go_on_writing(self) -> Exchange | None:
        """The same, for others."""
        return self._write_some()

    def _read_answers(self, now: cython.double) -> list:  # type: ignore[type-arg]
        """Read what is there; the requests it answers, oldest first, each with the body of its answer.

        Sets `peer_closed` or `trouble` when that was the last of it.
        """
        answers: list = []  # type: ignore[type-arg]
        expected: Exchange
        try:
            for frame in self._read_frames():
                expected = self.in_flight.oldest()
                if expected is None:
                    raise ProtocolError("an answer came although no request waits for one")
                api: Any = expected.request.api
                split: Any = parse_response_header(api, expected.version, frame)
                answers.append((self.in_flight.take_answered(split[0]), split[1]))
                self._node_metrics.record_latency(now - expected.sent_at)
        except Exception as error:  # noqa: BLE001 - answers that were taken before count, and nothing can follow them
            self.trouble = error
        if answers:
            self.last_used_at = now
            self._metrics.responses += len(answers)
            self._node_metrics.responses += len(answers)
        return answers

    def _read_frames(self) -> list:  # type: ignore[type-arg]
        frames: list = []  # type: ignore[type-arg]
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
            self.trouble = error
        return frames

    def close(self) -> list:  # type: ignore[type-arg]
        """Close this end; the exchanges that will get no answer, oldest first."""
        self.closed = True
        self._unsent = ()
        self.unsent_bytes = 0
        self.transport.close()
        return self.in_flight.take_all()


def _after(buffers: Any, sent: cython.longlong) -> list:  # type: ignore[type-arg]
    """What is left of the buffers after so many bytes, as views."""
    rest: list = []  # type: ignore[type-arg]
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
