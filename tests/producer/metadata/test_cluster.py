# SPDX-License-Identifier: Apache-2.0
"""From one snapshot and an answer to the next snapshot."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from producer.fakes_metadata import arrived

from penstock.producer.metadata.cluster import (
    ClusterSnapshot,
    LeaderHint,
    MetadataAnswer,
    addresses,
    read_answer,
)
from penstock.types import Node

ID_A, ID_B, NO_ID = bytes([1]) * 16, bytes([2]) * 16, bytes(16)
EMPTY = ClusterSnapshot.bootstrap([Node(-1, "boot", 9092)])


def partition(index: int, *, leader: int = 1, epoch: int = 5, error: int = 0) -> dict[str, Any]:
    return {
        "error_code": error,
        "partition_index": index,
        "leader_id": leader,
        "leader_epoch": epoch,
        "replica_nodes": [],
        "isr_nodes": [],
    }


def body(name: str, *partitions: dict[str, Any], topic_id: bytes = ID_A, error: int = 0) -> dict[str, Any]:
    brokers = [{"node_id": number, "host": "h", "port": 9000 + number, "rack": None} for number in (1, 2)]
    topic = {"error_code": error, "name": name, "topic_id": topic_id, "partitions": list(partitions)}
    return {"brokers": brokers, "topics": [topic]}


def read(old: ClusterSnapshot, answer: dict[str, Any], version: int = 12) -> MetadataAnswer:
    pieces = read_answer(old, arrived(answer, version), {"t"}, partial=False, most=1)
    while True:
        try:
            next(pieces)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


KNOWN = read(EMPTY, body("t", partition(0, leader=1, epoch=5))).snapshot


def leader_and_epoch(answer: MetadataAnswer) -> tuple[int, int]:
    info = answer.snapshot.partition("t", 0)
    assert info is not None
    return info.leader_id, info.leader_epoch


@pytest.mark.parametrize(
    ("epoch", "topic_id", "version", "expected", "progress"),
    [
        pytest.param(4, ID_A, 12, (1, 5), False, id="older epoch: keep what we have"),
        pytest.param(5, ID_A, 12, (2, 5), False, id="same epoch: accepted, nothing new"),
        pytest.param(6, ID_A, 12, (2, 6), True, id="newer epoch"),
        pytest.param(0, ID_B, 12, (2, 0), True, id="topic made again: any epoch"),
        pytest.param(4, NO_ID, 9, (1, 5), False, id="no id in the answer: epochs decide"),
        pytest.param(4, NO_ID, 8, (2, -1), True, id="epochs of old versions prove nothing"),
        pytest.param(-1, ID_A, 12, (2, -1), True, id="no epoch in the answer"),
    ],
)
def test_leader_epochs_decide_what_is_newer(
    epoch: int, topic_id: bytes, version: int, expected: tuple[int, int], progress: bool
) -> None:
    """Requirement 88: stale epochs refused, topic id change accepted."""
    answer = read(KNOWN, body("t", partition(0, leader=2, epoch=epoch), topic_id=topic_id), version)
    assert leader_and_epoch(answer) == expected
    assert answer.progress is progress


def test_a_topic_that_is_as_it_was_takes_no_new_memory() -> None:
    assert read(KNOWN, body("t", partition(0))).snapshot.topics["t"] is KNOWN.topics["t"]


def test_a_topic_whose_id_was_lost_accepts_any_epoch() -> None:
    """Requirement 88."""
    gone = read(KNOWN, body("t", error=3)).snapshot
    assert leader_and_epoch(read(gone, body("t", partition(0, epoch=1)))) == (1, 1)


@pytest.mark.parametrize("code", [3, 5, 6, 9, 13, 56, 72, 100])
def test_stale_errors_are_noticed_for_topics_and_partitions(code: int) -> None:
    assert read(EMPTY, body("t", error=code)).stale
    answer = read(EMPTY, body("t", partition(0, error=code, epoch=8)))
    assert answer.stale
    assert leader_and_epoch(answer) == (1, 8)


@pytest.mark.parametrize("code", [0, 17, 29, -1, 9999])
def test_other_errors_are_not_stale(code: int) -> None:
    answer = read(EMPTY, body("t", error=code))
    assert not answer.stale
    assert set(answer.errors) == ({"t"} if code else set())


def test_topic_without_partitions_is_not_known() -> None:
    assert read(EMPTY, body("t")).snapshot.partition_count("t") is None


def test_partitions_are_sorted_and_found_by_number() -> None:
    snapshot = read(EMPTY, body("t", partition(3), partition(0), partition(1, leader=-1))).snapshot
    assert [info.partition for info in snapshot.topics["t"].partitions] == [0, 1, 3]
    found = snapshot.partition("t", 3)
    assert found is not None
    assert found.partition == 3
    assert snapshot.partition("t", 2) is None
    assert snapshot.partition("t", -1) is None
    assert snapshot.leader("t", 0) == Node(1, "h", 9001)
    assert snapshot.leader("t", 1) is None
    assert snapshot.leader("u", 0) is None
    assert (snapshot.has("t", None), snapshot.has("t", 2), snapshot.has("t", 3)) == (True, True, False)


def test_topics_without_a_name_are_skipped() -> None:
    answer = body("t", partition(0))
    answer["topics"].append({"error_code": 100, "name": None, "topic_id": ID_B, "partitions": []})
    assert read(EMPTY, answer).answered == {"t"}


def test_a_snapshot_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        KNOWN.nodes = {}  # type: ignore[misc]


def test_long_address_lists_are_cut() -> None:
    nodes = [Node(-number, f"h{number}", 9092) for number in range(1, 6)]
    assert addresses(nodes[:2]) == "h1:9092, h2:9092"
    assert addresses(nodes) == "h1:9092, h2:9092, h3:9092 and 2 more"


def test_a_hint_without_a_leader_is_no_hint_even_if_a_node_has_that_number() -> None:
    """Requirement 48."""
    assert KNOWN.with_leaders([LeaderHint("t", 0, -1, 9)], [Node(-1, "boot", 9092)]) is KNOWN


# ---- brokers that tell less


@pytest.mark.parametrize("version", range(10))
def test_an_answer_of_an_old_broker_is_enough(version: int) -> None:
    """Version 0 has no cluster id, racks, epochs, topic ids or offline replicas."""
    rows = body("t", partition(0, leader=2, epoch=-1), topic_id=NO_ID)
    snapshot = read(EMPTY, rows, version).snapshot
    assert snapshot.leader("t", 0) == Node(2, "h", 9002)
    assert (snapshot.cluster_id, snapshot.topic_id("t")) == (None, NO_ID)


def test_in_a_mixed_cluster_an_old_broker_does_not_make_the_cluster_id_unknown() -> None:
    known = read(EMPTY, body("t", partition(0)) | {"cluster_id": "c"}).snapshot
    by_old_broker = read(known, body("t", partition(0, epoch=-1), topic_id=NO_ID), 1).snapshot
    assert by_old_broker.cluster_id == "c"


def test_in_a_mixed_cluster_an_id_that_is_told_again_is_not_a_new_topic() -> None:
    """Else an answer with an old leader would count."""
    known = read(EMPTY, body("t", partition(0, leader=1, epoch=7))).snapshot
    by_old_broker = read(known, body("t", partition(0, leader=1, epoch=7), topic_id=NO_ID), 9).snapshot
    late = read(by_old_broker, body("t", partition(0, leader=2, epoch=6)))
    assert leader_and_epoch(late) == (1, 7)
