# SPDX-License-Identifier: Apache-2.0
"""The requests of one connection that wait for their answer, in the order in which they were sent.

A broker answers the requests of one connection in order, so the oldest one is always the next to be answered; the
correlation id only confirms that.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any

from penstock.errors import KafkaError, ProtocolError
from penstock.protocol.requests import Request

# exchange, decoded answer or None, error or None, now
OnDone = Callable[["Exchange", Any, KafkaError | None, float], None]


class Exchange:
    """One request on the wire and what is to be done when it ends."""

    __slots__ = ("correlation_id", "deadline", "on_done", "request", "sent_at", "version")

    def __init__(
        self,
        request: Request,
        version: int,
        correlation_id: int,
        sent_at: float,
        timeout: float,
        on_done: OnDone,
    ) -> None:
        self.request = request
        self.version = version
        self.correlation_id = correlation_id
        self.sent_at = sent_at
        self.deadline = sent_at + timeout  # moves when the broker throttles
        self.on_done = on_done

    def __repr__(self) -> str:
        return f"<Exchange {self.request.api.name} v{self.version} #{self.correlation_id}>"


class InFlightRequests:
    """A queue, oldest first. Owned by the I/O thread."""

    __slots__ = ("_queue",)

    def __init__(self) -> None:
        self._queue: deque[Exchange] = deque()

    def add(self, exchange: Exchange) -> None:
        """A request was handed to the connection."""
        self._queue.append(exchange)

    def oldest(self) -> Exchange | None:
        """The one that must be answered next."""
        return self._queue[0] if self._queue else None

    def take_answered(self, correlation_id: int) -> Exchange:
        """Remove the oldest, which the peer has answered.

        Raises:
            ProtocolError: the peer answered something else.
        """
        expected = self._queue[0]
        if expected.correlation_id != correlation_id:
            raise ProtocolError(
                f"the answer carries correlation id {correlation_id}, but {expected.correlation_id} "
                f"({expected.request.api.name} v{expected.version}) is the oldest request without an answer"
            )
        return self._queue.popleft()

    def take_last(self) -> Exchange:
        """Remove the youngest: a request that has no answer, once it is written."""
        return self._queue.pop()

    def take_all(self) -> list[Exchange]:
        """Empty the queue; oldest first."""
        everything = list(self._queue)
        self._queue.clear()
        return everything

    def extend_deadlines(self, seconds: float) -> None:
        """Time during which the broker throttles this client does not count."""
        for exchange in self._queue:
            exchange.deadline += seconds

    def first_expired(self, now: float) -> Exchange | None:
        """The oldest one that has waited too long."""
        return next((exchange for exchange in self._queue if exchange.deadline <= now), None)

    def next_deadline(self) -> float:
        """The earliest deadline, infinity when nothing waits. Requests may have time-outs of their own."""
        return min((exchange.deadline for exchange in self._queue), default=math.inf)

    def __len__(self) -> int:
        return len(self._queue)

    def __repr__(self) -> str:
        return f"<InFlightRequests {list(self._queue)}>"
