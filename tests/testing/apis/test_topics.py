# SPDX-License-Identifier: Apache-2.0
"""CreateTopics and DescribeConfigs of the fake cluster."""

from __future__ import annotations

from typing import Any

import pytest
from testing.wire import Wire, make_cluster

from penstock.protocol.messages import CREATE_TOPICS, DESCRIBE_CONFIGS, METADATA
from penstock.testing import Code

TOPIC, BROKER = 2, 4


@pytest.fixture
def wire() -> Wire:
    return Wire(make_cluster(3, {"t": 3, "u": 1}))


# ------------------------------------------------------------------------------------------------ CreateTopics


def create(
    wire: Wire, *rows: dict[str, Any], version: int | None = None, **fields: Any
) -> list[dict[str, Any]]:
    defaults = {"num_partitions": -1, "replication_factor": -1}
    body = {"topics": [defaults | row for row in rows]} | fields
    return wire.call(CREATE_TOPICS, body, version)["topics"]


@pytest.mark.parametrize("version", range(2, 8))
def test_makes_topics_in_every_version(wire: Wire, version: int) -> None:
    row = {"name": "new", "num_partitions": 4, "replication_factor": 2}
    assert create(wire, row, version=version)[0]["error_code"] == 0
    (topic,) = wire.call(METADATA, {"topics": [{"name": "new"}]})["topics"]
    assert [len(part["replica_nodes"]) for part in topic["partitions"]] == [2] * 4


def test_defaults_and_their_answer(wire: Wire) -> None:
    (row,) = create(wire, {"name": "new"})
    assert (row["num_partitions"], row["replication_factor"]) == (1, 3)
    assert wire.cluster.topics.by_id(row["topic_id"]) is wire.cluster.topics.by_name("new")


def test_assignment_by_hand(wire: Wire) -> None:
    by_hand = [{"partition_index": 1, "broker_ids": [2]}, {"partition_index": 0, "broker_ids": [1, 0]}]
    assert create(wire, {"name": "new", "assignments": by_hand})[0]["error_code"] == 0
    assert wire.cluster.partition("new", 0).replicas == [1, 0]
    assert wire.cluster.partition("new", 1).leader == 2


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ({"name": "t"}, Code.TOPIC_ALREADY_EXISTS),
        ({"name": "a b"}, Code.INVALID_TOPIC_EXCEPTION),
        ({"num_partitions": 0}, Code.INVALID_PARTITIONS),
        ({"replication_factor": 4}, Code.INVALID_REPLICATION_FACTOR),
        ({"assignments": [{"partition_index": 0, "broker_ids": [9]}]}, Code.INVALID_REPLICA_ASSIGNMENT),
        ({"assignments": [{"partition_index": 1, "broker_ids": [0]}]}, Code.INVALID_REPLICA_ASSIGNMENT),
        (
            {"assignments": [{"partition_index": 0, "broker_ids": [0]}], "num_partitions": 1},
            Code.INVALID_REQUEST,
        ),
        ({"configs": [{"name": "max.message.bytes", "value": "many"}]}, Code.INVALID_CONFIG),
        ({"configs": [{"name": "max.message.bytes", "value": "-1"}]}, Code.INVALID_CONFIG),
        ({"configs": [{"name": "min.insync.replicas", "value": None}]}, Code.INVALID_CONFIG),
        ({"configs": [{"name": "message.timestamp.type", "value": "Never"}]}, Code.INVALID_CONFIG),
    ],
)
def test_refuses_to_make(wire: Wire, row: dict[str, Any], code: Code) -> None:
    bad, good = create(wire, {"name": "new"} | row, {"name": "good"})
    assert (bad["error_code"], good["error_code"]) == (code, 0)
    assert wire.cluster.topics.by_name("new") is None


def test_a_name_twice_is_refused_once(wire: Wire) -> None:
    (row,) = create(wire, {"name": "n"}, {"name": "n"})
    assert row["error_code"] == Code.INVALID_REQUEST
    assert wire.cluster.topics.by_name("n") is None


def test_options_are_listed_with_their_source(wire: Wire) -> None:
    (row,) = create(wire, {"name": "n", "configs": [{"name": "retention.ms", "value": "5"}]})
    listed = {each["name"]: (each["value"], each["config_source"]) for each in row["configs"]}
    assert listed["retention.ms"] == ("5", 1)
    assert listed["cleanup.policy"] == ("delete", 5)


@pytest.mark.parametrize(("release", "code"), [("3.9", 0), ("4.3", Code.INVALID_CONFIG)])
def test_options_that_4_0_dropped(release: str, code: int) -> None:
    row = {"name": "n", "configs": [{"name": "message.downconversion.enable", "value": "true"}]}
    assert create(Wire(make_cluster(release=release)), row)[0]["error_code"] == code


def test_validate_only(wire: Wire) -> None:
    assert create(wire, {"name": "new"}, validate_only=True)[0]["error_code"] == 0
    assert wire.cluster.topics.by_name("new") is None


# --------------------------------------------------------------------------------------------- DescribeConfigs


def describe(
    wire: Wire, name: str, kind: int = TOPIC, keys: list[str] | None = None, version: int | None = None
) -> dict[str, Any]:
    row = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
    (result,) = wire.call(DESCRIBE_CONFIGS, {"resources": [row]}, version)["results"]
    assert (result["resource_type"], result["resource_name"]) == (kind, name)
    return result


def values(result: dict[str, Any]) -> dict[str, str]:
    assert result["error_code"] == 0
    return {row["name"]: row["value"] for row in result["configs"]}


@pytest.mark.parametrize("version", range(1, 5))
def test_a_topic_has_what_was_set_and_defaults_for_the_rest(wire: Wire, version: int) -> None:
    wire.cluster.create_topic("log", 1, 3, {"cleanup.policy": "compact", "min.insync.replicas": "2"})
    found = values(describe(wire, "log", version=version))
    assert (found["cleanup.policy"], found["min.insync.replicas"]) == ("compact", "2")
    assert (found["retention.ms"], found["max.message.bytes"]) == ("604800000", "1048588")


def test_only_what_was_asked_for(wire: Wire) -> None:
    assert values(describe(wire, "t", keys=["cleanup.policy", "no.such.option"])) == {
        "cleanup.policy": "delete"
    }


def test_a_denied_topic_is_not_described(wire: Wire) -> None:
    wire.cluster.denied_topics.add("t")
    assert describe(wire, "t")["error_code"] == Code.TOPIC_AUTHORIZATION_FAILED


def test_a_broker_describes_itself_alone(wire: Wire) -> None:
    assert values(describe(wire, "0", BROKER))["transaction.max.timeout.ms"] == "900000"
    other = describe(wire, "1", BROKER)
    assert (other["error_code"], other["configs"]) == (Code.INVALID_REQUEST, [])
