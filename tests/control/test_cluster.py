# SPDX-License-Identifier: Apache-2.0
"""What a control client keeps of the brokers' answers."""

from __future__ import annotations

import random

from penstock._time import ExponentialBackoff
from penstock.control.cluster import ControlMetadata
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
