# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import pytest
from control.fakes import FakeCluster
from network.fakes import Received, metadata_body

from penstock.control import configs
from penstock.control.configs import TopicDescription, describe_topic
from penstock.errors import BrokerError, KafkaTimeoutError
from penstock.protocol.messages import DESCRIBE_CONFIGS, METADATA

UNKNOWN_TOPIC, LEADER_NOT_AVAILABLE, DENIED, NOT_CONTROLLER = 3, 5, 29, 41


class Answers:
    """What every broker says of the one topic `log`."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.code = 0
        self.replicas = [[0, 1, 2], [1, 2]]
        self.metadata_code = 0
        for broker in cluster.brokers:
            broker.rules[DESCRIBE_CONFIGS.key] = self.describe
            broker.rules[METADATA.key] = self.metadata
        self.cluster = cluster

    def metadata(self, request: Received) -> dict[str, Any]:
        assert not request.body["allow_auto_topic_creation"]
        parts = [
            {"partition_index": index, "leader_id": 0, "replica_nodes": nodes, "isr_nodes": nodes}
            for index, nodes in enumerate(self.replicas)
        ]
        row = {
            "error_code": self.metadata_code,
            "name": "log",
            "partitions": [] if self.metadata_code else parts,
        }
        topics = [row for _ in request.body["topics"] or ()]
        return metadata_body(*self.cluster.nodes) | {"topics": topics, "controller_id": 0}

    def describe(self, request: Received) -> dict[str, Any]:
        (resource,) = request.body["resources"]
        assert (resource["resource_type"], resource["resource_name"]) == (2, "log")
        rows = [{"name": "cleanup.policy", "value": "compact"}, {"name": "secret", "value": None}]
        return {
            "results": [
                {
                    "error_code": self.code,
                    "error_message": None,
                    "resource_type": 2,
                    "resource_name": "log",
                    "configs": [] if self.code else rows,
                }
            ]
        }


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster(3)


@pytest.fixture
def answers(cluster: FakeCluster) -> Answers:
    return Answers(cluster)


def test_a_topic_with_its_partitions_fewest_copies_and_settings(
    cluster: FakeCluster, answers: Answers
) -> None:
    with cluster.client() as client:
        found = describe_topic(client, "log")
    assert found == TopicDescription("log", 2, 2, {"cleanup.policy": "compact"})


@pytest.mark.parametrize("where", ["metadata_code", "code"])
def test_a_topic_that_is_not_there_is_none(cluster: FakeCluster, answers: Answers, where: str) -> None:
    setattr(answers, where, UNKNOWN_TOPIC)
    with cluster.client() as client:
        assert describe_topic(client, "log", timeout=5) is None


@pytest.mark.parametrize("where", ["metadata_code", "code"])
def test_a_refusal_names_the_topic(cluster: FakeCluster, answers: Answers, where: str) -> None:
    setattr(answers, where, DENIED)
    with (
        cluster.client() as client,
        pytest.raises(BrokerError, match="topic 'log' could not be looked at") as e,
    ):
        describe_topic(client, "log")
    assert e.value.code == DENIED


def test_the_shape_alone_needs_no_right_to_see_settings(cluster: FakeCluster, answers: Answers) -> None:
    answers.code = DENIED
    with cluster.client() as client:
        assert configs.topic_shape(client, "log") == configs.TopicShape("log", 2, 2)
        answers.metadata_code = UNKNOWN_TOPIC
        assert configs.topic_shape(client, "log") is None


def test_passing_trouble_is_waited_for(cluster: FakeCluster, answers: Answers) -> None:
    answers.metadata_code = LEADER_NOT_AVAILABLE
    cluster.network.after(2.0, lambda: setattr(answers, "metadata_code", 0))
    with cluster.client() as client:
        assert describe_topic(client, "log") is not None


def test_time_is_up(cluster: FakeCluster, answers: Answers) -> None:
    answers.code = NOT_CONTROLLER
    with cluster.client() as client, pytest.raises(KafkaTimeoutError, match="NOT_CONTROLLER"):
        describe_topic(client, "log", timeout=3)
