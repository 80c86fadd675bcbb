# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import pytest
from control.fakes import ScriptedCluster
from network.fakes import Received, metadata_body

from penstock.control.topics import (
    NewTopic,
    TopicDescription,
    TopicShape,
    create_topic,
    create_topics,
    describe_topic,
    topic_shape,
)
from penstock.errors import BrokerError, KafkaTimeoutError
from penstock.protocol.messages import CREATE_TOPICS, DESCRIBE_CONFIGS, METADATA

EXISTS, NOT_CONTROLLER, POLICY_VIOLATION, INVALID_REPLICATION = 36, 41, 44, 38
UNKNOWN_TOPIC, LEADER_NOT_AVAILABLE, DENIED = 3, 5, 29


class Controller:
    """Answers CreateTopics; `codes` by topic, else NONE."""

    def __init__(self, cluster: ScriptedCluster) -> None:
        self.codes: dict[str, int] = {}
        self.existing: set[str] = set()
        self.cluster = cluster
        for broker in cluster.brokers:
            broker.rules[CREATE_TOPICS.key] = self.create

    def create(self, request: Received) -> dict[str, Any]:
        rows = []
        for topic in request.body["topics"]:
            code = EXISTS if topic["name"] in self.existing else self.codes.get(topic["name"], 0)
            if code == 0:
                self.existing.add(topic["name"])
            rows.append({"name": topic["name"], "error_code": code, "error_message": f"because {code}"})
        return {"topics": rows}


@pytest.fixture
def cluster() -> ScriptedCluster:
    return ScriptedCluster(3)


@pytest.fixture
def controller(cluster: ScriptedCluster) -> Controller:
    return Controller(cluster)


def test_the_controller_is_asked_for_what_is_wanted(cluster: ScriptedCluster, controller: Controller) -> None:
    with cluster.client() as client:
        create_topic("log", 3, 2, {"cleanup.policy": "compact", "preallocate": True, "x": 7}, config=client)
    (request,) = cluster.seen(CREATE_TOPICS.key, 2)
    (topic,) = request.body["topics"]
    assert (topic["name"], topic["num_partitions"], topic["replication_factor"]) == ("log", 3, 2)
    assert {row["name"]: row["value"] for row in topic["configs"]} == {
        "cleanup.policy": "compact",
        "preallocate": "true",
        "x": "7",
    }


def test_each_has_its_own_outcome_in_order(cluster: ScriptedCluster, controller: Controller) -> None:
    controller.codes = {"b": POLICY_VIOLATION}
    with cluster.client() as client:
        results = create_topics([NewTopic(name) for name in "cba"], config=client)
    assert [result.name for result in results] == ["c", "b", "a"]
    assert [result.error is None for result in results] == [True, False, True]


@pytest.mark.parametrize("code", [EXISTS, POLICY_VIOLATION, INVALID_REPLICATION])
def test_a_refusal_names_topic_reason_and_code(
    cluster: ScriptedCluster, controller: Controller, code: int
) -> None:
    controller.codes = {"a": code}
    with (
        cluster.client() as client,
        pytest.raises(BrokerError, match=f"topic 'a' was not created: because {code}") as e,
    ):
        create_topic("a", config=client)
    assert e.value.code == code
    assert "this very call" not in str(e.value)


def test_passing_trouble_is_repeated_for_those_that_had_it(
    cluster: ScriptedCluster, controller: Controller
) -> None:
    controller.codes = {"b": NOT_CONTROLLER}
    cluster.network.after(2.0, controller.codes.clear)
    with cluster.client() as client:
        results = create_topics([NewTopic("a"), NewTopic("b")], config=client)
    assert [result.error for result in results] == [None, None]


def test_a_topic_made_by_an_attempt_without_answer(cluster: ScriptedCluster, controller: Controller) -> None:
    def make_and_break(request: Received) -> None:
        controller.create(request)
        cluster.brokers[2].rules[CREATE_TOPICS.key] = controller.create
        request.peer.reset()

    cluster.brokers[2].rules[CREATE_TOPICS.key] = make_and_break
    with cluster.client() as client, pytest.raises(BrokerError, match="perhaps made by this very call"):
        create_topic("a", config=client)


def test_time_is_up(cluster: ScriptedCluster, controller: Controller) -> None:
    controller.codes = {"a": NOT_CONTROLLER}
    with cluster.client() as client, pytest.raises(KafkaTimeoutError, match="NOT_CONTROLLER"):
        create_topic("a", config=client, timeout=3)


def test_defaults_of_the_broker_need_a_version_that_has_them(
    cluster: ScriptedCluster, controller: Controller
) -> None:
    cluster.limit_versions(CreateTopics=(2, 3))
    with cluster.client() as client:
        create_topic("a", 1, 1, config=client)
        with pytest.raises(BrokerError, match="CreateTopics"):
            create_topic("b", 1, config=client)


@pytest.mark.parametrize("numbers", [{"partitions": 0}, {"replication": -2}])
def test_numbers_that_no_broker_takes(numbers: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        NewTopic("a", **numbers)


def test_nothing_to_create_asks_nobody() -> None:
    assert create_topics([], config={}) == []


# ---- describing


class Answers:
    """What every broker says of the one topic `log`."""

    def __init__(self, cluster: ScriptedCluster) -> None:
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
def answers(cluster: ScriptedCluster) -> Answers:
    return Answers(cluster)


def test_a_topic_with_its_partitions_fewest_copies_and_settings(
    cluster: ScriptedCluster, answers: Answers
) -> None:
    with cluster.client() as client:
        found = describe_topic(client, "log")
    assert found == TopicDescription("log", 2, 2, {"cleanup.policy": "compact"})


@pytest.mark.parametrize("where", ["metadata_code", "code"])
def test_a_topic_that_is_not_there_is_none(cluster: ScriptedCluster, answers: Answers, where: str) -> None:
    setattr(answers, where, UNKNOWN_TOPIC)
    with cluster.client() as client:
        assert describe_topic(client, "log", timeout=5) is None


@pytest.mark.parametrize("where", ["metadata_code", "code"])
def test_a_refusal_names_the_topic(cluster: ScriptedCluster, answers: Answers, where: str) -> None:
    setattr(answers, where, DENIED)
    with (
        cluster.client() as client,
        pytest.raises(BrokerError, match="topic 'log' could not be looked at") as e,
    ):
        describe_topic(client, "log")
    assert e.value.code == DENIED


def test_the_shape_alone_needs_no_right_to_see_settings(cluster: ScriptedCluster, answers: Answers) -> None:
    answers.code = DENIED
    with cluster.client() as client:
        assert topic_shape(client, "log") == TopicShape("log", 2, 2)
        answers.metadata_code = UNKNOWN_TOPIC
        assert topic_shape(client, "log") is None


def test_passing_trouble_is_waited_for(cluster: ScriptedCluster, answers: Answers) -> None:
    answers.metadata_code = LEADER_NOT_AVAILABLE
    cluster.network.after(2.0, lambda: setattr(answers, "metadata_code", 0))
    with cluster.client() as client:
        assert describe_topic(client, "log") is not None


def test_a_topic_is_not_described_in_time(cluster: ScriptedCluster, answers: Answers) -> None:
    answers.code = NOT_CONTROLLER
    with cluster.client() as client, pytest.raises(KafkaTimeoutError, match="NOT_CONTROLLER"):
        describe_topic(client, "log", timeout=3)
