# SPDX-License-Identifier: Apache-2.0
"""What stays known of topics when no broker can be reached, and when it is forgotten."""

from __future__ import annotations

import random
from typing import Any

import pytest
from producer.fakes_metadata import hand_over

from penstock.errors import broker_error
from penstock.producer.metadata.cluster import NO_COPIES, ClusterSnapshot, TopicInfo
from penstock.producer.metadata.metadata import MetadataSettings, ProducerMetadata
from penstock.types import Node

BOOTSTRAP = (Node(-1, "first", 9092), Node(-2, "second", 9092))
BROKER = Node(1, "broker-1", 9092)
TOPIC_ID = bytes(range(16))


def answer(leader: int = 1, epoch: int = 7) -> dict[str, Any]:
    partition = {
        "error_code": 0,
        "leader_id": leader,
        "leader_epoch": epoch,
        "replica_nodes": [1],
        "isr_nodes": [1],
    }
    partitions = [{**partition, "partition_index": number} for number in range(3)]
    topic = {"error_code": 0, "name": "orders", "topic_id": TOPIC_ID, "partitions": partitions}
    broker = {"node_id": 1, "host": "broker-1", "port": 9092, "rack": None}
    return {"brokers": [broker], "topics": [topic], "cluster_id": "c", "controller_id": 1}


@pytest.fixture
def metadata() -> ProducerMetadata:
    known = ProducerMetadata(MetadataSettings(), BOOTSTRAP, random.Random(1), lambda: None)
    known.want_topic("orders", 0.0)
    hand_over(known, known.build_request(0.0), answer(), 0.0)
    assert known.snapshot.leader("orders", 0) == BROKER
    return known


def test_topics_stay_known_while_no_broker_can_be_reached(metadata: ProducerMetadata) -> None:
    metadata.rebootstrap(1.0)
    snapshot = metadata.snapshot
    assert list(metadata.nodes()) == list(BOOTSTRAP)
    assert snapshot.partition_count("orders") == 3
    assert metadata.await_topic("orders", 2, 1.0).done
    assert snapshot.available_partitions("orders") == []
    assert [snapshot.leader("orders", number) for number in range(3)] == [None] * 3


def test_the_next_answer_counts_even_with_an_older_epoch(metadata: ProducerMetadata) -> None:
    metadata.rebootstrap(1.0)
    hand_over(metadata, metadata.build_request(2.0), answer(epoch=0), 2.0)
    assert metadata.snapshot.leader("orders", 0) == BROKER


def test_topics_are_forgotten_when_a_broker_demands_to_start_again(metadata: ProducerMetadata) -> None:
    metadata.on_connection_failed(BROKER, broker_error(129), 1.0)
    metadata.rebootstrap(1.0)
    assert metadata.snapshot.partition_count("orders") is None


def test_no_leader_is_no_bootstrap_server() -> None:
    leaderless = TopicInfo.of("orders", TOPIC_ID, [0], [-1], [7], [NO_COPIES])
    snapshot = ClusterSnapshot({node.id: node for node in BOOTSTRAP}, {"orders": leaderless})
    assert snapshot.leader("orders", 0) is None
    assert snapshot.available_partitions("orders") == []
