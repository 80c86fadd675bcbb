# SPDX-License-Identifier: Apache-2.0
"""Asks what the cluster wants to know, and pushes it. I/O thread only; loaded when a broker offers to take it.

Rules:
1. One request at a time, to one broker as long as its connection lasts; then to another one, under the same id.
2. The first push of a subscription comes at a random time around its interval, so that the clients of a cluster do not
   push together; later ones after exactly the interval.
3. What an error means is in `_MEANING`. An error that is not there ends it for good. Nothing is repeated without end: a
   subscription that changed is asked for at once, but only once for each push.
4. Nothing here raises or warns: telemetry is the cluster's concern. The log has it at DEBUG.
"""

from __future__ import annotations

import logging
import random
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum, auto
from typing import Any, NamedTuple

from penstock._events import Event, tell
from penstock._metrics import MetricValue
from penstock._time import FOREVER, Clock
from penstock.error_codes import ErrorCode
from penstock.errors import ConfigError, error_row
from penstock.network import ClientRequest, InFlightRequest
from penstock.protocol.messages import GET_TELEMETRY_SUBSCRIPTIONS, PUSH_TELEMETRY
from penstock.protocol.requests import SchemaRequest
from penstock.protocol.schema import ZERO_UUID
from penstock.records.compression import CODECS, Codec, codec
from penstock.telemetry.otlp import Deltas, Point, encode, points
from penstock.types import Node

log = logging.getLogger("penstock.telemetry")

_USUAL_INTERVAL = 300.0  # seconds, where the broker gives none, and after a request without an answer
_SHORTEST_INTERVAL = 0.1  # as brokers have it; a shorter one would cost the program its processor
_LAST_PUSH_SECONDS = 1.0
_NONE = codec("none")
_CODEC_NAMES = {row.id: row.name for row in CODECS}


class _NextStep(Enum):
    """How to go on after an error."""

    STOP = auto()
    ASK_AGAIN = auto()
    NEXT_INTERVAL = auto()


_MEANING = {
    ErrorCode.INVALID_REQUEST: _NextStep.STOP,
    ErrorCode.INVALID_RECORD: _NextStep.STOP,
    ErrorCode.UNSUPPORTED_VERSION: _NextStep.STOP,
    ErrorCode.UNKNOWN_SUBSCRIPTION_ID: _NextStep.ASK_AGAIN,
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: _NextStep.ASK_AGAIN,
    ErrorCode.TELEMETRY_TOO_LARGE: _NextStep.NEXT_INTERVAL,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: _NextStep.NEXT_INTERVAL,
}


class Subscription(NamedTuple):
    """What the cluster wants to know.

    Attributes:
        id: of this version of it.
        wanted: prefixes of names, or "*".
        interval: seconds between pushes.
        max_bytes: of one push.
        delta: sums are pushed as differences.
        codec: how a push is compressed.
    """

    id: int
    wanted: Sequence[str]
    interval: float
    max_bytes: int
    delta: bool
    codec: Codec


class TelemetryPusher:
    """Pushes the metrics of one producer.

    Args:
        client: the network.
        nodes: the brokers that are known.
        values: reads all metrics, with the time.
        resource: attributes of this client.
        clock: the time.
        rng: when the first push is.
        timeout: seconds for an answer.
        on_instance_id: told the id that a broker has given.

    Attributes:
        stopped: why nothing is pushed any more; "" while it goes on.
    """

    def __init__(
        self,
        client: Any,
        nodes: Callable[[], Iterable[Node]],
        values: Callable[[float], list[MetricValue]],
        resource: Mapping[str, str],
        clock: Clock,
        rng: random.Random,
        timeout: float,
        on_instance_id: Callable[[uuid.UUID], object],
    ) -> None:
        self._client = client
        self._nodes = nodes
        self._values = values
        self._resource = resource
        self._clock = clock
        self._rng = rng
        self._timeout = timeout
        self._on_instance_id = on_instance_id
        self._instance_id = ZERO_UUID
        self._subscription: Subscription | None = None
        self._chosen: Node | None = None  # of the last request
        self._busy = False  # a request has no answer yet
        self._next_at = -FOREVER
        self._has_pushed = False
        self._asked_again = False  # since the last push
        self._started_ns = self._now_ns()
        self._deltas = Deltas(self._started_ns)
        self.stopped = ""

    def advance(self, now: float) -> float:
        """Send what is due, if it can be sent; seconds until there will be more to do."""
        if self.stopped or self._busy:
            return FOREVER
        if now < self._next_at:
            return self._next_at - now
        node = self._node()
        if node is None:
            return FOREVER  # a new connection ends the wait
        if not self._client.is_ready(node, now):
            delay: float = self._client.connection_delay(node, now)
            return delay
        if self._subscription is None:
            self._ask(node, now)
        else:
            self._push(node, self._subscription, now, terminating=False)
        return FOREVER

    def push_last(self, forced: Callable[[], bool]) -> None:
        """The producer closes: tell the cluster what there is, and that no more will come. Takes a second at most."""
        now = self._clock.now()
        deadline = now + _LAST_PUSH_SECONDS
        sent = False
        while not self.stopped and not forced() and now < deadline:
            subscription, node = self._subscription, self._node()
            if subscription is None or node is None or (sent and not self._busy):
                return
            # Not before the answer to the push that is on its way: until then its differences would be told again.
            if not sent and not self._busy and self._client.is_ready(node, now):
                self._push(node, subscription, now, terminating=True)
                sent = True
            self._client.poll(deadline - now, now)
            now = self._clock.now()

    # ------------------------------------------------------------------------------------------ what the cluster wants

    def _ask(self, node: Node, now: float) -> None:
        body = {"client_instance_id": self._instance_id}
        request = SchemaRequest.of(GET_TELEMETRY_SUBSCRIPTIONS, body)
        self._send(node, request, now, self._on_subscription)

    def _on_subscription(self, body: Mapping[str, Any], now: float) -> None:
        if self._failed("asking for the subscription", body["error_code"], now):
            return
        self._instance_id = bytes(body["client_instance_id"])
        self._on_instance_id(uuid.UUID(bytes=self._instance_id))
        given = body["push_interval_ms"] / 1000
        interval = max(given, _SHORTEST_INTERVAL) if given > 0 else _USUAL_INTERVAL
        wanted = list(body["requested_metrics"])
        text = "the cluster subscribes to %s every %.1f s"
        tell(log, logging.DEBUG, Event.TELEMETRY_SUBSCRIBED, text, wanted, interval)
        if not wanted:
            self._subscription = None
            self._next_at = now + interval
            return
        self._subscription = Subscription(
            body["subscription_id"],
            wanted,
            interval,
            body["telemetry_max_bytes"],
            body["delta_temporality"],
            _first_known(body["accepted_compression_types"]),
        )
        self._next_at = now + interval * (1.0 if self._has_pushed else self._rng.uniform(0.5, 1.5))

    # ------------------------------------------------------------------------------------------ pushing

    def _push(self, node: Node, subscription: Subscription, now: float, *, terminating: bool) -> None:
        now_ns = self._now_ns()
        wanted = points(self._values(now), subscription.wanted)
        pushed, payload = self._payload(subscription, wanted, now_ns)
        body = {
            "client_instance_id": self._instance_id,
            "subscription_id": subscription.id,
            "terminating": terminating,
            "compression_type": subscription.codec.id,
            "metrics": payload,
        }

        def on_answer(answer: Mapping[str, Any], at: float) -> None:
            if self._failed("pushing metrics", answer["error_code"], at):
                return
            self._has_pushed = True
            self._asked_again = False
            self._next_at = at + subscription.interval
            self._deltas.remember(pushed, wanted, now_ns)

        self._send(node, SchemaRequest.of(PUSH_TELEMETRY, body), now, on_answer)

    def _payload(
        self, subscription: Subscription, wanted: list[Point], now_ns: int
    ) -> tuple[list[Point], bytes]:
        """What is pushed, as far as it fits: all, or what is of the whole producer, or nothing."""
        deltas = self._deltas if subscription.delta else None
        whole = [point for point in wanted if not point.tags]
        for pushed in (wanted, whole):
            raw = encode(pushed, self._resource, now_ns, self._started_ns, deltas)
            payload = bytes(subscription.codec.compress(raw))
            if len(payload) <= subscription.max_bytes:
                return pushed, payload
        return [], b""

    # ------------------------------------------------------------------------------------------ requests

    def _node(self) -> Node | None:
        """A broker that takes telemetry and has a connection: the one of the last request, if it still has."""
        able = [node for node in self._nodes() if self._is_able(node)]
        last = self._chosen
        if last is not None and not able and self._is_able(last):
            return last  # a bootstrap server, which the metadata know by another id, with the only connection
        same = (node for node in able if last is not None and node.id == last.id)
        self._chosen = next(same, able[0] if able else None)
        return self._chosen

    def _is_able(self, node: Node) -> bool:
        return takes_telemetry(self._client.api_versions(node.id))

    def _send(
        self,
        node: Node,
        request: SchemaRequest,
        now: float,
        on_answer: Callable[[Mapping[str, Any], float], None],
    ) -> None:
        self._busy = True

        def on_response(response: InFlightRequest) -> None:
            self._busy = False
            if response.body is not None:
                on_answer(response.body, response.received_at)
                return
            tell(
                log, logging.DEBUG, Event.TELEMETRY_REFUSED, "%s has no answer: %s", request.api.name, response.error,
                node=node, request=request.api.name, error=response.error,
            )  # fmt: skip
            known = self._subscription
            interval = _USUAL_INTERVAL if known is None else min(known.interval, _USUAL_INTERVAL)
            self._subscription = None
            self._next_at = response.received_at + interval

        self._client.send(ClientRequest(node, request, self._timeout, on_response), now)

    def _failed(self, doing: str, code: int, now: float) -> bool:
        """Whether the broker refused, and then how it goes on."""
        if code == ErrorCode.NONE:
            return False
        next_step = _MEANING.get(code, _NextStep.STOP)  # type: ignore[call-overload]
        interval = _USUAL_INTERVAL if self._subscription is None else self._subscription.interval
        if next_step is _NextStep.STOP:
            self.stopped = f"{doing}: the broker answered with error {code}"
        elif next_step is _NextStep.ASK_AGAIN:
            self._subscription = None
            self._next_at = now + interval if self._asked_again else now
            self._asked_again = True
        else:
            self._next_at = now + interval
        text, error = "%s: error %d; %s", error_row(code).name
        tell(log, logging.DEBUG, Event.TELEMETRY_REFUSED, text, doing, code, next_step.name, error=error)
        return True

    def _now_ns(self) -> int:
        return self._clock.wall_ms() * 1_000_000


def takes_telemetry(versions: Any) -> bool:
    """Whether a broker with these versions takes telemetry; None: it has no connection."""
    return versions is not None and versions.range(PUSH_TELEMETRY.key) is not None


def _first_known(accepted: Iterable[int]) -> Codec:
    """The codec that the broker likes best of those that can be used here."""
    for number in accepted:
        name = _CODEC_NAMES.get(number)
        if name is None:
            continue
        try:
            return codec(name)
        except ConfigError:
            continue  # its library is not there
    return _NONE
