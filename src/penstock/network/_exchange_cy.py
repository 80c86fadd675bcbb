# SPDX-License-Identifier: Apache-2.0
"""What is remembered of a request from when the client gets it until it has ended. Compiled if possible.

`exchange` and `in_flight` are where others find these classes.
"""

from __future__ import annotations

import math
from typing import Any

from penstock.errors import KafkaError, ProtocolError

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


@cython.final
@cython.cclass
class ClientRequest:
    """A request for one node.

    The buffers that `request.encode` returned must stay unchanged until `on_response` was called: they are written to
    the socket from where they are.

    Args:
        node: where it goes; the node must be ready.
        request: what is sent.
        timeout: seconds from sending to the answer, throttle time not counted.
        on_response: called once with the ClientResponse, on the I/O thread, at the end of a poll.
    """

    def __init__(self, node: Any, request: Any, timeout: cython.double, on_response: Any) -> None:
        self.node = node
        self.request = request
        self.timeout = timeout
        self.on_response = on_response

    def __repr__(self) -> str:
        return f"<ClientRequest {self.request.api.name} to {self.node}>"


@cython.final
@cython.cclass
class ClientResponse:
    """The end of a request: an answer, or an error that says why there is none.

    Attributes:
        node: where the request went.
        request: the request as it was given.
        version: its version on the wire; -1 when nothing was sent.
        body: the decoded answer; None on failure, and for a request that has no answer.
        error: NetworkError (disconnected), RequestTimedOutError, UnsupportedVersionError (nothing was sent),
            AuthenticationError, ProtocolError; None on success.
        sent_at: when it was given to the connection.
        received_at: when it ended.
    """

    def __init__(self, asked: ClientRequest, version: cython.int, sent_at: cython.double) -> None:
        self.node = asked.node
        self.request = asked.request
        self.on_response = asked.on_response
        self.version = version
        self.sent_at = sent_at
        self.received_at = sent_at
        self.body: Any = None
        self.error: KafkaError | None = None

    @property
    def latency(self) -> float:
        """Seconds from sending to the end."""
        return self.received_at - self.sent_at

    @property
    def disconnected(self) -> bool:
        """Whether the connection was lost before the answer came (a request time-out counts)."""
        return self.error is not None and self.version >= 0

    def __repr__(self) -> str:
        outcome = "answered" if self.error is None else type(self.error).__name__
        return f"<ClientResponse {self.request.api.name} v{self.version} from {self.node}: {outcome}>"


@cython.final
@cython.cclass
class Exchange:
    """One request on the wire and what is to be done when it ends.

    Args:
        on_done: called with this, the decoded answer or None, the error or None, and the time.
        about: whatever `on_done` needs to know.
    """

    def __init__(
        self,
        request: Any,
        version: cython.int,
        correlation_id: cython.int,
        sent_at: cython.double,
        timeout: cython.double,
        on_done: Any,
        about: Any = None,
    ) -> None:
        self.request = request
        self.version = version
        self.correlation_id = correlation_id
        self.sent_at = sent_at
        self.deadline = sent_at + timeout  # moves when the broker throttles
        self.on_done = on_done
        self.about = about

    def __repr__(self) -> str:
        return f"<Exchange {self.request.api.name} v{self.version} #{self.correlation_id}>"


@cython.final
@cython.cclass
class InFlightRequests:
    """A queue, oldest first. Owned by the I/O thread."""

    def __init__(self) -> None:
        self._queue: list[Exchange] = []  # a few at most

    def add(self, exchange: Exchange) -> Any:
        """A request was handed to the connection."""
        self._queue.append(exchange)

    def oldest(self) -> Exchange:
        """The one that must be answered next; None when there is none."""
        return self._queue[0] if self._queue else None  # type: ignore[return-value]

    def take_answered(self, correlation_id: cython.int) -> Exchange:
        """Remove the oldest, which the peer has answered.

        Raises:
            ProtocolError: the peer answered something else.
        """
        expected: Exchange = self._queue[0]
        if expected.correlation_id != correlation_id:
            raise ProtocolError(
                f"the answer carries correlation id {correlation_id}, but {expected.correlation_id} "
                f"({expected.request.api.name} v{expected.version}) is the oldest request without an answer"
            )
        del self._queue[0]
        return expected

    def take_last(self) -> Exchange:
        """Remove the youngest: a request that has no answer, once it is written."""
        return self._queue.pop()

    def take_all(self) -> list[Exchange]:
        """Empty the queue; oldest first."""
        everything = self._queue
        self._queue = []
        return everything

    def extend_deadlines(self, seconds: cython.double) -> None:
        """Time during which the broker throttles this client does not count."""
        exchange: Exchange
        for exchange in self._queue:
            exchange.deadline += seconds

    def first_expired(self, now: cython.double) -> Exchange | None:
        """The oldest one that has waited too long."""
        exchange: Exchange
        for exchange in self._queue:
            if exchange.deadline <= now:
                return exchange
        return None

    def next_deadline(self) -> float:
        """The earliest deadline, infinity when nothing waits. Requests may have time-outs of their own."""
        earliest: cython.double = math.inf
        exchange: Exchange
        for exchange in self._queue:
            earliest = min(earliest, exchange.deadline)
        return earliest

    def __len__(self) -> int:
        return len(self._queue)

    def __repr__(self) -> str:
        return f"<InFlightRequests {self._queue}>"
