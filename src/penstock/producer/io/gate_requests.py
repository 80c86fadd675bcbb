# SPDX-License-Identifier: Apache-2.0
"""Sends what the gate itself asks for: producer ids, and the requests of transactions. I/O thread only."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from penstock._events import Event, tell_error
from penstock._time import FOREVER
from penstock.errors import KafkaError, NetworkError
from penstock.network import ClientRequest, InFlightRequest
from penstock.producer.guarantee.gate import Gate, GateRequest
from penstock.types import Node

log = logging.getLogger("penstock.producer")


class GateRequests:
    """Sends the gate's own requests, producer ids and transactions, to the node that they are for. One at a time.

    Args:
        gate: whose requests they are.
        client: the network.
        timeout: seconds for the answer, and for reaching the node before.
    """

    def __init__(self, gate: Gate, client: Any, timeout: float) -> None:
        self._gate = gate
        self._client = client
        self._timeout = timeout
        self.waiting: GateRequest | None = None  # until its node can take it; the sender looks
        self._give_up_at = FOREVER
        self._old_error: KafkaError | None = None  # why the node could not be reached before this request
        self._old_refusal: KafkaError | None = None  # why brokers did not let this client in before it

    def maybe_send(self, now: float, data_waits: bool | Callable[[], bool]) -> float:
        """Send what the gate needs, if it can be sent now; seconds until it is worth looking again.

        Args:
            data_waits: whether there is something to send; or what tells, asked only where the gate's need depends on
                it.
        """
        if self.waiting is None:
            self.waiting = self._gate.next_request(now, False)
            if self.waiting is None:
                delay = self._gate.seconds_to_request(now)
                if delay == FOREVER:
                    return FOREVER  # nearly always: whatever waits, it needs nothing from the gate
                if not (data_waits() if callable(data_waits) else data_waits):
                    return delay if self._gate.busy else FOREVER
                self.waiting = self._gate.next_request(now, True)
            if self.waiting is None:
                return self._gate.seconds_to_request(now)
            self._give_up_at = now + self._timeout
            node = self.waiting.node
            self._old_error = None if node is None else self._client.connection_error(node.id)
            self._old_refusal = self._client.refusal()
        waiting = self.waiting
        node = waiting.node or self._client.least_loaded_node(now)
        if node is None:
            return self._maybe_give_up(waiting, None, now)
        if self._client.ready(node, now):
            self.waiting = None
            return self._send(waiting, node, now)
        return self._maybe_give_up(waiting, node, now)

    def _send(self, waiting: GateRequest, node: Node, now: float) -> float:
        asked = ClientRequest(node, waiting.request, self._timeout, lambda response: _tell(waiting, response))
        try:
            self._client.send(asked, now)
        except Exception as cause:  # noqa: BLE001 - it is logged
            # No answer will ever come: without one the gate would wait for ever, and with it everything else.
            tell_error(
                log, Event.TRANSACTION_REQUEST_FAILED, "%s could not be sent to %s",
                waiting.request.api.name, node,
                node=node, request=waiting.request.api.name, error=cause,
            )  # fmt: skip
            error = KafkaError(f"{waiting.request.api.name} could not be sent: {cause!r}")
            error.__cause__ = cause
            _tell(waiting, InFlightRequest.never_sent(asked, error, now))
            return 0.0
        return FOREVER

    def _maybe_give_up(self, waiting: GateRequest, node: Node | None, now: float) -> float:
        """Report a node that cannot be reached, once that is known: the coordinator may be elsewhere by now.

        A refused authentication is reported, too, if no other broker may accept it: a call may wait for an answer that
        cannot come.
        """
        error = None if node is None else self._client.connection_error(node.id)
        failed = waiting.node is not None and error is not None and error is not self._old_error
        refusal = self._client.refusal()
        if refusal is not None and refusal is not self._old_refusal:
            error, failed = refusal, True
        if failed or now >= self._give_up_at:
            self.waiting = None
            waiting.on_unreachable(error or NetworkError("no broker could be reached"), now)
            return 0.0
        # Without a node, too: no event tells that one whose last attempt failed may be tried again.
        delay: float = (
            self._client.shortest_delay(now) if node is None else self._client.connection_delay(node, now)
        )
        return min(delay, self._give_up_at - now)


def _tell(waiting: GateRequest, response: InFlightRequest) -> None:
    waiting.on_response(response, response.received_at)
