# SPDX-License-Identifier: Apache-2.0
"""Metadata, ApiVersions and FindCoordinator."""

from __future__ import annotations

from typing import Any

import pytest
from testing.wire import Wire, make_cluster

from penstock.protocol.messages import API_VERSIONS, END_TXN, FIND_COORDINATOR, METADATA, PRODUCE
from penstock.protocol.requests import NodeApiVersions
from penstock.testing import Code
from penstock.testing.cluster import java_hash
from penstock.testing.releases import RELEASES, release_named


@pytest.fixture
def wire() -> Wire:
    return Wire(make_cluster(3, {"t": 3, "u": 1}))


def topics(wire: Wire, *names: str, version: int | None = None, **fields: Any) -> list[dict[str, Any]]:
    body = {"topics": [{"name": name} for name in names]} | fields
    return wire.call(METADATA, body, version)["topics"]


# ------------------------------------------------------------------------------------------------ Metadata


@pytest.mark.parametrize("version", range(1, 14))
def test_describes_the_cluster_in_every_version(wire: Wire, version: int) -> None:
    answer = wire.call(METADATA, {"topics": [{"name": "t"}]}, version)
    assert [row["host"] for row in answer["brokers"]] == ["broker-0", "broker-1", "broker-2"]
    assert answer["controller_id"] == 0
    (topic,) = answer["topics"]
    known = wire.cluster.topics.by_name("t")
    assert known is not None
    assert [row["leader_id"] for row in topic["partitions"]] == [part.leader for part in known.partitions]
    assert (topic["topic_id"] == known.topic_id) == (version >= 10)


def test_leaders_are_spread(wire: Wire) -> None:
    (topic,) = topics(wire, "t")
    assert sorted(row["leader_id"] for row in topic["partitions"]) == [0, 1, 2]
    assert all(sorted(row["isr_nodes"]) == [0, 1, 2] for row in topic["partitions"])


def test_null_is_all_topics_and_empty_none(wire: Wire) -> None:
    assert len(wire.call(METADATA, {"topics": None})["topics"]) == 2
    assert wire.call(METADATA, {"topics": []})["topics"] == []


def test_topic_by_id(wire: Wire) -> None:
    known = wire.cluster.topics.by_name("u")
    assert known is not None
    rows = [{"topic_id": known.topic_id, "name": None}, {"topic_id": b"\x09" * 16, "name": None}]
    found, missing = wire.call(METADATA, {"topics": rows}, 12)["topics"]
    assert (found["name"], found["error_code"]) == ("u", 0)
    assert missing["error_code"] == Code.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize(
    ("release", "code"), [("4.3", Code.UNKNOWN_TOPIC_OR_PARTITION), ("2.4", Code.LEADER_NOT_AVAILABLE)]
)
def test_makes_topics_on_demand(release: str, code: Code) -> None:
    wire = Wire(make_cluster(release=release))
    assert topics(wire, "new")[0]["error_code"] == code
    assert topics(wire, "new")[0]["error_code"] == 0


def test_makes_no_topics_when_not_allowed(wire: Wire) -> None:
    for _ in range(2):
        (row,) = topics(wire, "new", allow_auto_topic_creation=False)
        assert row["error_code"] == Code.UNKNOWN_TOPIC_OR_PARTITION
    strict = Wire(make_cluster(settings={"auto_create_topics": False}))
    for _ in range(2):
        assert topics(strict, "new")[0]["error_code"] == Code.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "x" * 250, "caf\u00e9"])
def test_illegal_names(wire: Wire, name: str) -> None:
    assert topics(wire, name)[0]["error_code"] == Code.INVALID_TOPIC_EXCEPTION


def test_denied_topics(wire: Wire) -> None:
    wire.cluster.denied_topics.add("t")
    assert topics(wire, "t")[0]["error_code"] == Code.TOPIC_AUTHORIZATION_FAILED
    assert [row["name"] for row in wire.call(METADATA, {"topics": None})["topics"]] == ["u"]


def test_a_stopped_broker_is_gone_and_its_partitions_have_other_leaders(wire: Wire) -> None:
    wire.cluster.stop_broker(1)
    answer = wire.call(METADATA, {"topics": [{"name": "t"}]})
    assert [row["node_id"] for row in answer["brokers"]] == [0, 2]
    for row in answer["topics"][0]["partitions"]:
        assert row["leader_id"] in (0, 2)
        assert (1 in row["isr_nodes"], row["offline_replicas"]) == (False, [1])


def test_no_leader_without_replicas() -> None:
    cluster = make_cluster(2)
    cluster.assign_topic("single", [[1]])
    cluster.stop_broker(1)
    wire = Wire(cluster)
    (row,) = topics(wire, "single")[0]["partitions"]
    assert (row["error_code"], row["leader_id"]) == (Code.LEADER_NOT_AVAILABLE, -1)
    cluster.start_broker(1)
    (row,) = topics(wire, "single")[0]["partitions"]
    assert (row["error_code"], row["leader_id"], row["leader_epoch"]) == (0, 1, 2)


# ------------------------------------------------------------------------------------------------ ApiVersions

SOFTWARE = {"client_software_name": "penstock", "client_software_version": "1.0"}


@pytest.mark.parametrize("release", [name for name in RELEASES if name != "0.9.0"])
def test_tells_the_ranges_of_the_release(release: str) -> None:
    wire = Wire(make_cluster(release=release))
    highest = RELEASES[release].ranges[API_VERSIONS.key][1]
    known = NodeApiVersions.from_response(wire.call(API_VERSIONS, SOFTWARE, min(3, highest)))
    for key, (low, high) in RELEASES[release].ranges.items():
        if key != PRODUCE.key:
            assert known.range(key) == (low, high)
    assert known.finalized_features.get("transaction.version", 0) == (2 if release >= "4" else 0)


@pytest.mark.parametrize(
    ("release", "produce", "end"),
    [
        ("2.4", 8, 1),
        ("2.8", 9, 3),
        ("3.0", 9, 3),
        ("3.7", 10, 3),
        ("3.9", 11, 4),
        ("4.0", 12, 5),
        ("4.1", 13, 5),
        ("4.3", 13, 5),
    ],
)
def test_highest_versions(release: str, produce: int, end: int) -> None:
    ranges = release_named(release).ranges
    assert (ranges[PRODUCE.key], ranges[END_TXN.key][1]) == ((0, produce), end)


@pytest.mark.parametrize("version", range(5))
def test_every_version_of_api_versions(wire: Wire, version: int) -> None:
    answer = wire.call(API_VERSIONS, SOFTWARE, version)
    assert answer["error_code"] == 0
    assert len(answer["api_keys"]) == 18


def test_a_newer_version_is_answered_in_version_0() -> None:
    wire = Wire(make_cluster(release="3.7"))
    answer = wire.call(API_VERSIONS, SOFTWARE, 4)
    assert answer["error_code"] == Code.UNSUPPORTED_VERSION
    assert answer["api_keys"] == [{"api_key": 18, "min_version": 0, "max_version": 3}]
    assert wire.call(API_VERSIONS, SOFTWARE, 3)["error_code"] == 0  # the connection is open


@pytest.mark.parametrize("name", ["", "-penstock", "pen stock"])
def test_odd_software_names(wire: Wire, name: str) -> None:
    body = {"client_software_name": name, "client_software_version": "1"}
    assert wire.call(API_VERSIONS, body)["error_code"] == Code.INVALID_REQUEST


@pytest.mark.parametrize(("version", "lowest"), [(3, {7}), (4, {0, 7})])
def test_features_that_begin_at_level_0_are_for_version_4(wire: Wire, version: int, lowest: set[int]) -> None:
    rows = wire.call(API_VERSIONS, SOFTWARE, version)["supported_features"]
    assert {row["min_version"] for row in rows} == lowest


def test_features_can_change(wire: Wire) -> None:
    before = NodeApiVersions.from_response(wire.call(API_VERSIONS, SOFTWARE))
    wire.cluster.set_feature("transaction.version", 1)
    after = NodeApiVersions.from_response(wire.call(API_VERSIONS, SOFTWARE))
    assert after.finalized_features["transaction.version"] == 1
    assert after.finalized_features_epoch > before.finalized_features_epoch


def test_unknown_release() -> None:
    with pytest.raises(ValueError, match=r"no Kafka 0\.8, only 0\.9\.0, .*, 4\.3"):
        release_named("0.8")


# ------------------------------------------------------------------------------------------------ FindCoordinator


def find(wire: Wire, key: str, key_type: int = 1, version: int = 6) -> dict[str, Any]:
    if version < 4:
        body = {"key": key} | ({"key_type": key_type} if version else {})
        return wire.call(FIND_COORDINATOR, body, version)
    body = {"coordinator_keys": [key], "key_type": key_type}
    return wire.call(FIND_COORDINATOR, body, version)["coordinators"][0]


@pytest.mark.parametrize("version", range(1, 7))
@pytest.mark.parametrize("key_type", [0, 1])
def test_finds_who_coordinates(version: int, key_type: int) -> None:
    wire = Wire(make_cluster(3))
    if key_type:
        wire.cluster.move_transaction_coordinator("x", 2)
    else:
        wire.cluster.move_group_coordinator("x", 2)
    row = find(wire, "x", key_type, version)
    assert (row["error_code"], row["node_id"], row["host"], row["port"]) == (0, 2, "broker-2", 9092)


def test_finds_groups_in_version_0() -> None:
    assert find(Wire(make_cluster()), "g", version=0)["node_id"] == 0


def test_several_keys_at_once(wire: Wire) -> None:
    body = {"coordinator_keys": ["a", "b", "a"], "key_type": 1}
    rows = wire.call(FIND_COORDINATOR, body)["coordinators"]
    assert [row["key"] for row in rows] == ["a", "b", "a"]


def test_unknown_key_type(wire: Wire) -> None:
    assert find(wire, "x", 9)["error_code"] == Code.INVALID_REQUEST


def test_denied_keys(wire: Wire) -> None:
    wire.cluster.denied_transactional_ids.add("x")
    wire.cluster.denied_groups.add("g")
    assert find(wire, "x", 1)["error_code"] == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert find(wire, "g", 0)["error_code"] == Code.GROUP_AUTHORIZATION_FAILED


def test_keys_are_hashed_as_java_does() -> None:
    texts = ("", "a", "hello", "polygenelubricants")
    assert [java_hash(text) for text in texts] == [0, 97, 99162322, -(2**31)]
    slots = make_cluster(3).transaction_slots
    assert slots.slot_of("polygenelubricants") == 0
    assert slots.slot_of("a") == 97 % 50


def test_a_stopped_brokers_keys_move() -> None:
    cluster = make_cluster(2)
    cluster.move_transaction_coordinator("x", 0)
    cluster.stop_broker(0)
    wire = Wire(cluster)
    body = {"coordinator_keys": ["x"], "key_type": 1}
    assert wire.call(FIND_COORDINATOR, body, broker=1)["coordinators"][0]["node_id"] == 1
