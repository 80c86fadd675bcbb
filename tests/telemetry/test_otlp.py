# SPDX-License-Identifier: Apache-2.0
"""Metrics as protobuf: names, kinds, values, differences, and what a subscription wants."""

from __future__ import annotations

import pytest
from telemetry.metrics_data import Read, read

from penstock._metrics import MetricValue
from penstock.telemetry.otlp import Deltas, Point, encode, full_name, points

SENT = "org.apache.kafka.producer.record.send.total"


def values(*rows: tuple[str, str, dict[str, str], object]) -> list[MetricValue]:
    return [MetricValue(group, name, "", tags, value) for group, name, tags, value in rows]


SOME = values(
    ("producer-metrics", "record-send-total", {}, 7),
    ("producer-metrics", "request-latency-avg", {}, 1.5),
    ("producer-topic-metrics", "record-send-total", {"topic": "a-b"}, 3),
    ("producer-topic-metrics", "record-send-total", {"topic": "c"}, 4),
    ("producer-node-metrics", "request-latency-max", {"node-id": "node-1"}, 2.0),
    ("app-info", "version", {}, "0.2"),
    ("kafka-metrics-count", "count", {}, 170),
)


@pytest.mark.parametrize(
    ("group", "name", "expected"),
    [
        (
            "producer-metrics",
            "connection-creation-rate",
            "org.apache.kafka.producer.connection.creation.rate",
        ),
        (
            "producer-node-metrics",
            "request-latency-avg",
            "org.apache.kafka.producer.node.request.latency.avg",
        ),
    ],
)
def test_names_are_those_of_the_java_client(group: str, name: str, expected: str) -> None:
    assert full_name(group, name) == expected


@pytest.mark.parametrize(
    ("wanted", "count"),
    [(["*"], 5), ([], 0), (["org.apache.kafka.producer.record."], 1), (["org.apache.kafka.producer.t"], 2),
     (["org.apache.kafka.producer."], 5), (["org.apache.kafka.consumer."], 0), (["*", "x"], 0)],
)  # fmt: skip
def test_a_subscription_has_prefixes(wanted: list[str], count: int) -> None:
    assert len(points(SOME, wanted)) == count


def test_what_was_written_can_be_read() -> None:
    resource = {"client_rack": "r-1", "transactional_id": "tx"}
    about, found = read(encode(points(SOME, ["*"]), resource, 2_000, 1_000, None))
    assert about == resource
    name = "org.apache.kafka.producer."
    assert found == [
        Read(SENT, {}, "cumulative", 7, 1_000, 2_000),
        Read(name + "request.latency.avg", {}, "gauge", 1.5, 0, 2_000),
        Read(name + "topic.record.send.total", {"topic": "a-b"}, "cumulative", 3, 1_000, 2_000),
        Read(name + "topic.record.send.total", {"topic": "c"}, "cumulative", 4, 1_000, 2_000),
        Read(name + "node.request.latency.max", {"node_id": "node-1"}, "gauge", 2.0, 0, 2_000),
    ]


def test_a_difference_is_to_what_was_acknowledged() -> None:
    deltas = Deltas(1_000)

    def pushed(value: int, now: int) -> Read:
        (found,) = read(encode([Point(SENT, {}, value, True)], {}, now, 0, deltas))[1]
        return found

    assert pushed(7, 2_000) == Read(SENT, {}, "delta", 7, 1_000, 2_000)
    assert pushed(8, 3_000) == Read(SENT, {}, "delta", 8, 1_000, 3_000), "the first was not acknowledged"
    deltas.remember([Point(SENT, {}, 8, True)], [], 3_000)
    assert pushed(10, 4_000) == Read(SENT, {}, "delta", 2, 3_000, 4_000)
    assert pushed(1, 5_000) == Read(SENT, {}, "delta", 1, 3_000, 5_000), "it was made anew"


def test_a_sum_that_was_left_out_goes_on_from_what_was_pushed_before() -> None:
    deltas = Deltas(1_000)
    whole, of_topic = Point(SENT, {}, 5, True), Point(SENT, {"topic": "t"}, 5, True)
    deltas.remember([whole, of_topic], [whole, of_topic], 2_000)
    deltas.remember([whole], [whole, of_topic], 3_000)
    assert deltas.of(of_topic._replace(value=7)) == 2
    deltas.remember([whole], [whole], 4_000)
    assert deltas.of(of_topic._replace(value=7)) == 7, "it was forgotten, and made anew"


@pytest.mark.parametrize("value", [0, -1, 2**63 - 1, -(2**63), 0.0, -1.5, float("inf")])
def test_numbers_come_as_they_are(value: float) -> None:
    (found,) = read(encode([Point("n", {}, value, False)], {}, 1, 0, None))[1]
    assert (found.value, type(found.value)) == (value, type(value))


def test_long_texts_and_many_metrics() -> None:
    tags = {"topic": "\u00e4" * 200}
    many = [Point(f"n{number}", tags, number, False) for number in range(300)]
    assert [(one.name, one.tags, one.value) for one in read(encode(many, {}, 1, 0, None))[1]] == [
        (one.name, tags, one.value) for one in many
    ]


def test_nothing_is_no_bytes() -> None:
    assert encode([], {"client_rack": "r"}, 1, 0, None) == b""
