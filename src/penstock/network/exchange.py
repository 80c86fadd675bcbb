# SPDX-License-Identifier: Apache-2.0
"""A request given to the network client, and what became of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.errors import KafkaError
from penstock.protocol.requests import Request
from penstock.types import Node


class ClientRequest:
    """A request for one node.

    The buffers that `request.encode` returned must stay unchanged until `on_response` was called: they are written to
    the socket from where they are.

    Args:
        node: where it goes; the node must be ready.
        request: what is sent.
        timeout: seconds from sending to the answer, throttle time not counted.
        on_response: called once, on the I/O thread, at the end of a poll.
    """

    __slots__ = ("node", "on_response", "request", "timeout")

    def __init__(
        self, node: Node, request: Request, timeout: float, on_response: Callable[[ClientResponse], None]
    ) -> None:
        self.node = node
        self.request = request
        self.timeout = timeout
        self.on_response = on_response

    def __repr__(self) -> str:
        return f"<ClientRequest {self.request.api.name} to {self.node}>"


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

    __slots__ = ("body", "error", "node", "on_response", "received_at", "request", "sent_at", "version")

    def __init__(self, asked: ClientRequest, version: int, sent_at: float) -> None:
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
