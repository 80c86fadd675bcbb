# SPDX-License-Identifier: Apache-2.0
"""The values that cross module borders."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.types import Header, Node, ProducerRecord, RecordMetadata, TopicPartition, as_headers


def test_text_forms_name_what_matters() -> None:
    assert str(TopicPartition("orders", 3)) == "orders-3"
    assert str(Node(1, "host", 9092)) == "host:9092 (id 1)"


def test_record_metadata_knows_its_partition() -> None:
    metadata = RecordMetadata("orders", 3, 42, 1_700_000_000_000, -1, 5)
    assert metadata.topic_partition == TopicPartition("orders", 3)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"topic": None}, TypeError),
        ({"topic": b"orders"}, TypeError),
        ({"topic": ""}, ValueError),
        ({"topic": "t", "partition": -1}, ValueError),
        ({"topic": "t", "partition": "1"}, TypeError),
        ({"topic": "t", "partition": True}, TypeError),
        ({"topic": "t", "timestamp_ms": -1}, ValueError),
        ({"topic": "t", "timestamp_ms": 1.5}, TypeError),
        ({"topic": "t", "headers": [("h", "text")]}, TypeError),
        ({"topic": "t", "headers": [(b"h", b"")]}, TypeError),
        ({"topic": "t", "headers": ["h"]}, TypeError),
        ({"topic": "t", "headers": [("a", b"", b"")]}, TypeError),
    ],
)
def test_record_refuses_what_cannot_be_sent(fields: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        ProducerRecord(**fields)


def test_record_accepts_the_edges() -> None:
    record = ProducerRecord("t", partition=0, timestamp_ms=0)
    assert record.topic_partition == TopicPartition("t", 0)
    assert ProducerRecord("t").topic_partition == TopicPartition("t", -1)
    assert ProducerRecord("t").headers == ()


@pytest.mark.parametrize(
    "given",
    [
        [("a", b"1"), ("a", None)],
        (("a", b"1"), ("a", None)),
        [["a", bytearray(b"1")], Header("a", None)],
        (pair for pair in [("a", memoryview(b"1")), ("a", None)]),
    ],
)
def test_headers_are_frozen_in_order_with_repeats(given: Any) -> None:
    assert ProducerRecord("t", headers=given).headers == (Header("a", b"1"), Header("a", None))


def test_headers_from_a_mapping_or_nothing() -> None:
    assert as_headers({"a": b"1", "b": None}) == (Header("a", b"1"), Header("b", None))
    assert as_headers(None) == ()


def test_frozen_headers_do_not_follow_the_buffer_they_came_from() -> None:
    buffer = bytearray(b"1")
    headers = as_headers([("a", buffer)])
    buffer[0] = 0
    assert headers == (Header("a", b"1"),)
