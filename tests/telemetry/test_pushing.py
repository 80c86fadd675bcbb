# SPDX-License-Identifier: Apache-2.0
"""When telemetry is asked for and pushed, in virtual time; and what each error of a broker means."""

from __future__ import annotations

import random
import uuid
from typing import Any

import pytest
from telemetry.metrics_data import read

from penstock._metrics import MetricValue
from penstock._time import FOREVER
from penstock.error_codes import ErrorCode
from penstock.errors import NetworkError
from penstock.network import ClientRequest, InFlightRequest
from penstock.protocol.messages import GET_TELEMETRY_SUBSCRIPTIONS, PUSH_TELEMETRY
from penstock.protocol.requests import NodeApiVersions
from penstock.records.compression import decompress
from penstock.telemetry.pushing import TelemetryPusher
from penstock.types import Node

ID = uuid.UUID(int=77)
TAKES = NodeApiVersions({GET_TELEMETRY_SUBSCRIPTIONS.key: (0, 0), PUSH_TELEMETRY.key: (0, 0)})
TAKES_NOT = NodeApiVersions({0: (0, 13)})


class Clock:
    """Time that stands still until it is moved."""

    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        return self.time

    def wall_ms(self) -> int:
        return int(self.time * 1000)


class Cluster:
    """Brokers with connections, and the requests that they have got and not answered."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.versions: dict[int, NodeApiVersions] = {1: TAKES, 2: TAKES}
        self.asked: list[ClientRequest] = []
        self.sent = 0
        self.given: list[uuid.UUID] = []
        self.answers_last: Any = None
        self.pusher = TelemetryPusher(
            self, self.nodes, self.values, {}, self.clock, random.Random(1), 30.0, self.given.append
        )

    # what the pusher uses

    def nodes(self) -> list[Node]:
        return [Node(number, "h", 1) for number in (1, 2, 3)]

    def values(self, _now: float) -> list[MetricValue]:
        return [
            MetricValue("producer-metrics", "record-send-total", "", {}, self.sent),
            MetricValue("producer-topic-metrics", "record-send-total", "", {"topic": "t" * 3000}, self.sent),
        ]

    def api_versions(self, node_id: int) -> NodeApiVersions | None:
        return self.versions.get(node_id)

    def is_ready(self, _node: Node, _now: float) -> bool:
        return True

    def connection_delay(self, _node: Node, _now: float) -> float:
        return FOREVER

    def send(self, request: ClientRequest, _now: float) -> None:
        self.asked.append(request)

    def poll(self, timeout: float, _now: float) -> None:
        self.clock.time += timeout
        if self.answers_last is not None:
            self.answer(error_code=self.answers_last)

    # what tests use

    def turn(self, seconds: float = 0.0) -> float:
        self.clock.time += seconds
        return self.pusher.advance(self.clock.time)

    def answer(self, error: NetworkError | None = None, **body: Any) -> None:
        request = self.asked.pop(0)
        flight = InFlightRequest(request, 0, 1, self.clock.time)
        flight.end(None if error else {"throttle_time_ms": 0, **body}, error, self.clock.time)
        request.on_response(flight)

    def subscribe(self, wanted: tuple[str, ...] = ("*",), **more: Any) -> None:
        self.answer(
            **{
                "error_code": 0, "client_instance_id": ID.bytes, "subscription_id": 5,
                "accepted_compression_types": [4, 1], "push_interval_ms": 10_000, "telemetry_max_bytes": 1_000_000,
                "delta_temporality": True, "requested_metrics": list(wanted), **more,
            }
        )  # fmt: skip

    def names(self) -> list[str]:
        return [request.request.api.name for request in self.asked]

    def push(self) -> dict[str, Any]:
        (request,) = self.asked
        assert request.request.api is PUSH_TELEMETRY
        return dict(request.request.body)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def subscribed(cluster: Cluster) -> Cluster:
    """A cluster whose client has just made its first push."""
    cluster.turn()
    cluster.subscribe()
    cluster.turn(15)
    return cluster


def test_the_subscription_is_asked_for_at_once(cluster: Cluster) -> None:
    assert cluster.turn() == FOREVER
    assert cluster.names() == ["GetTelemetrySubscriptions"]
    assert cluster.asked[0].request.body == {"client_instance_id": bytes(16)}
    assert cluster.turn() == FOREVER, "one request at a time"
    cluster.subscribe()
    assert cluster.given == [ID]


def test_the_first_push_is_at_a_random_time_and_the_next_after_the_interval(cluster: Cluster) -> None:
    cluster.turn()
    cluster.subscribe()
    first = cluster.turn()
    assert 5 <= first <= 15
    assert cluster.turn(first - 0.1) == pytest.approx(0.1)
    cluster.turn(0.2)
    cluster.answer(error_code=0)
    assert cluster.turn() == 10
    cluster.turn(10)
    assert cluster.names() == ["PushTelemetry"]


def test_a_push_has_what_is_subscribed(subscribed: Cluster) -> None:
    body = subscribed.push()
    assert (body["client_instance_id"], body["subscription_id"], body["terminating"]) == (ID.bytes, 5, False)
    assert body["compression_type"] == 4
    _, points = read(decompress(4, body["metrics"], 10_000))
    assert {point.name for point in points} == {
        "org.apache.kafka.producer.record.send.total",
        "org.apache.kafka.producer.topic.record.send.total",
    }


@pytest.mark.parametrize(("accepted", "codec"), [([], 0), ([77, 1], 1), ([2], 2), ([3, 4], 3)])
def test_the_codec_is_the_brokers_choice(cluster: Cluster, accepted: list[int], codec: int) -> None:
    cluster.turn()
    cluster.subscribe(accepted_compression_types=accepted)
    cluster.turn(15)
    body = cluster.push()
    assert body["compression_type"] == codec
    raw = decompress(codec, body["metrics"], 10_000) if codec else body["metrics"]
    assert len(read(bytes(raw))[1]) == 2


def test_differences_begin_anew_only_after_an_acknowledgement(subscribed: Cluster) -> None:
    def pushed() -> float:
        return read(decompress(4, subscribed.push()["metrics"], 10_000))[1][0].value

    subscribed.answer(error_code=0)
    subscribed.sent = 5
    subscribed.turn(10)
    assert pushed() == 5
    subscribed.answer(error_code=ErrorCode.TELEMETRY_TOO_LARGE)
    subscribed.sent = 7
    subscribed.turn(10)
    assert pushed() == 7
    subscribed.answer(error_code=0)
    subscribed.sent = 8
    subscribed.turn(10)
    assert pushed() == 1


def test_what_does_not_fit_is_left_out(cluster: Cluster) -> None:
    cluster.turn()
    cluster.subscribe(telemetry_max_bytes=200, accepted_compression_types=[])
    cluster.turn(15)
    assert [point.tags for point in read(cluster.push()["metrics"])[1]] == [{}]
    cluster.answer(error_code=0)


def test_a_push_that_can_say_nothing_is_still_made(cluster: Cluster) -> None:
    cluster.turn()
    cluster.subscribe(("org.apache.kafka.consumer.",), accepted_compression_types=[])
    cluster.turn(15)
    assert cluster.push()["metrics"] == b""


def test_without_a_subscription_it_asks_again_after_the_interval(cluster: Cluster) -> None:
    cluster.turn()
    cluster.subscribe(())
    assert cluster.turn() == 10
    cluster.turn(10)
    assert cluster.asked[0].request.body == {"client_instance_id": ID.bytes}


@pytest.mark.parametrize(("interval_ms", "seconds"), [(0, 300), (1, 0.1), (100, 0.1), (150, 0.15)])
def test_an_interval_of_nothing_is_five_minutes_and_a_short_one_is_a_tenth_of_a_second(
    cluster: Cluster, interval_ms: int, seconds: float
) -> None:
    cluster.turn()
    cluster.subscribe((), push_interval_ms=interval_ms)
    assert cluster.turn() == pytest.approx(seconds)


@pytest.mark.parametrize("code", [35, 42, 87, 29, -1])
def test_errors_that_end_it(subscribed: Cluster, code: int) -> None:
    subscribed.answer(error_code=code)
    assert subscribed.pusher.stopped
    assert subscribed.turn(1000) == FOREVER
    assert not subscribed.asked


@pytest.mark.parametrize("code", [117, 76])
def test_a_changed_subscription_is_asked_for_at_once_but_once(subscribed: Cluster, code: int) -> None:
    subscribed.answer(error_code=code)
    subscribed.turn()
    assert subscribed.names() == ["GetTelemetrySubscriptions"]
    subscribed.subscribe()
    subscribed.turn(15)
    subscribed.answer(error_code=code)
    assert subscribed.turn() == 10, "not without end"


@pytest.mark.parametrize("code", [118, 89])
def test_errors_that_wait_for_the_next_interval(subscribed: Cluster, code: int) -> None:
    subscribed.answer(error_code=code)
    assert subscribed.turn() == 10
    subscribed.turn(10)
    assert subscribed.names() == ["PushTelemetry"]


def test_a_lost_connection_is_followed_by_another_broker(subscribed: Cluster) -> None:
    assert subscribed.asked[0].node.id == 1
    subscribed.answer(NetworkError("gone"))
    del subscribed.versions[1]
    assert subscribed.turn() == 10
    subscribed.turn(10)
    (asked,) = subscribed.asked
    assert (asked.node.id, asked.request.body) == (2, {"client_instance_id": ID.bytes})


def test_the_connection_to_a_bootstrap_server_serves_while_it_is_the_only_one(cluster: Cluster) -> None:
    """The metadata know that broker by another id, which has no connection yet."""
    numbers = [-1]
    cluster.nodes = lambda: [Node(number, "h", 1) for number in numbers]  # type: ignore[method-assign]
    cluster.pusher._nodes = cluster.nodes
    cluster.versions = {-1: TAKES}
    cluster.turn()
    cluster.subscribe()
    numbers[:] = [1, 2]
    cluster.turn(15)
    assert [(request.node.id, request.request.api) for request in cluster.asked] == [(-1, PUSH_TELEMETRY)]
    cluster.answer(error_code=0)
    cluster.versions[2] = TAKES
    cluster.turn(15)
    assert [request.node.id for request in cluster.asked] == [2]
    cluster.answer(error_code=0)
    cluster.versions.clear()
    assert cluster.turn(15) == FOREVER
    assert cluster.asked == []


def test_a_broker_that_takes_none_is_not_asked(cluster: Cluster) -> None:
    cluster.versions = {1: TAKES_NOT, 3: TAKES}
    cluster.turn()
    assert [request.node.id for request in cluster.asked] == [3]
    cluster.subscribe()
    cluster.versions = {1: TAKES_NOT}
    assert cluster.turn(1000) == FOREVER
    assert not cluster.asked


def test_it_stays_with_its_broker(subscribed: Cluster) -> None:
    subscribed.versions[2] = TAKES
    subscribed.versions = dict(reversed(subscribed.versions.items()))
    subscribed.answer(error_code=0)
    subscribed.turn(10)
    assert subscribed.asked[0].node.id == 1


def test_the_last_push_comes_at_once_and_says_so(subscribed: Cluster) -> None:
    subscribed.answer(error_code=0)
    subscribed.answers_last = 0
    pushed: list[bool] = []
    send = subscribed.send

    def watch(request: ClientRequest, now: float) -> None:
        pushed.append(request.request.body["terminating"])
        send(request, now)

    subscribed.send = watch  # type: ignore[method-assign]
    subscribed.pusher.push_last(lambda: False)
    assert pushed == [True]


def test_the_last_push_waits_for_the_answer_to_the_one_before(subscribed: Cluster) -> None:
    """Else both would tell the same differences."""
    told: list[float] = []
    subscribed.sent = 5
    send = subscribed.send

    def watch(request: ClientRequest, now: float) -> None:
        assert not subscribed.asked, "one request at a time"
        told.append(read(decompress(4, request.request.body["metrics"], 10_000))[1][0].value)
        send(request, now)

    def poll(timeout: float, now: float) -> None:
        subscribed.clock.time += 0.1
        subscribed.answer(error_code=0)

    subscribed.send = watch  # type: ignore[method-assign]
    subscribed.poll = poll  # type: ignore[method-assign]
    subscribed.pusher.push_last(lambda: False)
    assert told == [5]
    assert not subscribed.asked


def test_there_is_no_last_push_when_the_one_before_was_refused(subscribed: Cluster) -> None:
    subscribed.answers_last = ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    subscribed.pusher.push_last(lambda: False)
    assert not subscribed.asked


def test_the_last_push_is_waited_for_a_second_at_most(subscribed: Cluster) -> None:
    subscribed.answer(error_code=0)
    before = subscribed.clock.time
    subscribed.pusher.push_last(lambda: False)
    assert subscribed.clock.time == before + 1


def test_there_is_no_last_push_without_a_subscription_nor_when_forced(cluster: Cluster) -> None:
    cluster.pusher.push_last(lambda: False)
    cluster.turn()
    cluster.subscribe()
    cluster.pusher.push_last(lambda: True)
    assert not cluster.asked
