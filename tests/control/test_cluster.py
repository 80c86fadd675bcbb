# SPDX-License-Identifier: Apache-2.0
"""What a control client keeps of the brokers' answers."""

from __future__ import annotations

import random

import pytest

from penstock._time import ExponentialBackoff
from penstock.control.cluster import AskForTopics, ControlMetadata
from penstock.protocol.codec import decode_request_body
from penstock.protocol.messages import METADATA
from penstock.types import Node


def test_brokers_that_were_named_are_remembered_when_all_starts_again() -> None:
    start = Node(-1, "kafka", 9092)
    metadata = ControlMetadata([start], ExponentialBackoff(100, 1000), random.Random(1))
    assert not metadata.named
    brokers = [{"node_id": 1, "host": "internal", "port": 9092}]
    body = {"brokers": brokers, "controller_id": 1, "topics": []}
    metadata.on_response(metadata.build_request(0.0), body, 4, 0.0)
    metadata.rebootstrap(1.0)
    assert not metadata.answered
    assert list(metadata.nodes()) == [start]
    assert [node.host for node in metadata.named] == ["internal"]


@pytest.mark.parametrize("version", range(METADATA.max_version + 1))
def test_a_question_for_topics_can_be_asked_in_every_version(version: int) -> None:
    asked = AskForTopics(["t"], create=True, operations=True)
    body = decode_request_body(METADATA, version, b"".join(asked.encode(version)))
    assert [row["name"] for row in body["topics"]] == ["t"]
    assert body["allow_auto_topic_creation"] is True
    assert body["include_topic_authorized_operations"] is (version >= 8)


def test_a_question_that_must_not_make_topics_is_not_asked_of_brokers_that_would() -> None:
    assert AskForTopics(["t"], create=False).min_version == 4
    assert AskForTopics([], create=False).min_version == 0
