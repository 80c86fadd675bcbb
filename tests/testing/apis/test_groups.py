# SPDX-License-Identifier: Apache-2.0
"""AddOffsetsToTxn, TxnOffsetCommit and OffsetFetch."""

from __future__ import annotations

from typing import Any

import pytest
from testing.wire import Producer, Wire, make_cluster

from penstock.protocol.messages import ADD_OFFSETS_TO_TXN, OFFSET_FETCH, TXN_OFFSET_COMMIT
from penstock.testing import Code
from penstock.types import TopicPartition


@pytest.fixture
def wire() -> Wire:
    return Wire(make_cluster(topics={"t": 2}))


def add_offsets(wire: Wire, producer: Producer, version: int | None = None, **fields: Any) -> int:
    body = {
        "transactional_id": "x",
        "producer_id": producer.id,
        "producer_epoch": producer.epoch,
        "group_id": "g",
    }
    return wire.call(ADD_OFFSETS_TO_TXN, body | fields, version)["error_code"]


def commit(
    wire: Wire, producer: Producer, version: int, *, metadata: str | None = None, **fields: Any
) -> list[int]:
    """Commit offset 10 of t-0 and 11 of t-1; the codes of both."""
    body = {
        "transactional_id": "x",
        "group_id": "g",
        "producer_id": producer.id,
        "producer_epoch": producer.epoch,
        "topics": [
            {
                "name": "t",
                "partitions": [
                    {"partition_index": 0, "committed_offset": 10, "committed_metadata": metadata},
                    {"partition_index": 1, "committed_offset": 11, "committed_metadata": None},
                ],
            }
        ],
    }
    (topic,) = wire.call(TXN_OFFSET_COMMIT, body | fields, version)["topics"]
    return [row["error_code"] for row in topic["partitions"]]


def fetched(wire: Wire, version: int = 9, *, stable: bool = False) -> list[tuple[int, int]]:
    """(error, offset) of t-0 and t-1."""
    topics = [{"name": "t", "partition_indexes": [0, 1]}]
    if version < 8:
        body: dict[str, Any] = {"group_id": "g", "topics": topics}
        answer = wire.call(OFFSET_FETCH, body, version)
    else:
        body = {"groups": [{"group_id": "g", "topics": topics}], "require_stable": stable}
        answer = wire.call(OFFSET_FETCH, body, version)["groups"][0]
    return [(row["error_code"], row["committed_offset"]) for row in answer["topics"][0]["partitions"]]


@pytest.mark.parametrize("version", range(6))
@pytest.mark.parametrize("commits", [True, False])
def test_offsets_become_the_groups_with_the_transaction(wire: Wire, version: int, commits: bool) -> None:
    producer = wire.init()
    if version < 5:
        assert add_offsets(wire, producer) == 0
    assert commit(wire, producer, version) == [0, 0]
    assert fetched(wire) == [(0, -1), (0, -1)]
    wire.end(producer, commits, 5 if version == 5 else 3)
    assert fetched(wire) == ([(0, 10), (0, 11)] if commits else [(0, -1), (0, -1)])


@pytest.mark.parametrize(
    ("version", "code"), [(3, Code.INVALID_TXN_STATE), (4, Code.TRANSACTION_ABORTABLE), (5, Code.NONE)]
)
def test_the_group_must_be_in_the_transaction(wire: Wire, version: int, code: Code) -> None:
    assert commit(wire, wire.init(), version) == [code, code]


def test_the_group_is_a_partition_of_the_offsets_topic(wire: Wire) -> None:
    assert add_offsets(wire, wire.init()) == 0
    (topic,) = wire.describe()["topics"]
    assert topic == {"topic": "__consumer_offsets", "partitions": [ord("g") % 50]}


@pytest.mark.parametrize(("version", "code"), [(1, Code.INVALID_PRODUCER_EPOCH), (2, Code.PRODUCER_FENCED)])
def test_adding_offsets_with_an_old_epoch(wire: Wire, version: int, code: Code) -> None:
    producer = wire.init()
    wire.init()
    assert add_offsets(wire, producer, version) == code


def test_adding_offsets_as_another_producer_or_without_an_id(wire: Wire) -> None:
    assert add_offsets(wire, Producer(5, 0)) == Code.INVALID_PRODUCER_ID_MAPPING
    assert add_offsets(wire, Producer(5, 0), transactional_id="") == Code.INVALID_REQUEST


def test_adding_offsets_denied(wire: Wire) -> None:
    wire.cluster.denied_groups.add("g")
    assert add_offsets(wire, wire.init()) == Code.GROUP_AUTHORIZATION_FAILED
    wire.cluster.denied_transactional_ids.add("x")
    assert add_offsets(wire, Producer(5, 0)) == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_both_coordinators_are_checked() -> None:
    cluster = make_cluster(2, {"t": 2})
    wire = Wire(cluster)
    cluster.move_transaction_coordinator("x", 0)
    cluster.move_group_coordinator("g", 1)
    producer = wire.init()
    assert add_offsets(wire, producer) == 0
    assert commit(wire, producer, 3) == [Code.NOT_COORDINATOR] * 2
    cluster.move_transaction_coordinator("x", 1)
    assert add_offsets(wire, producer) == Code.NOT_COORDINATOR


@pytest.mark.parametrize("version", [4, 5])
def test_committing_with_an_old_epoch(wire: Wire, version: int) -> None:
    producer = wire.init()
    add_offsets(wire, producer)
    wire.cluster.fence("x", wire.now)
    assert commit(wire, producer, version) == [Code.INVALID_PRODUCER_EPOCH] * 2


@pytest.mark.parametrize(
    ("member", "code"),
    [
        ({}, Code.NONE),
        ({"member_id": "m", "generation_id": 4}, Code.NONE),
        ({"member_id": "m", "generation_id": 3}, Code.ILLEGAL_GENERATION),
        ({"member_id": "other", "generation_id": 4}, Code.UNKNOWN_MEMBER_ID),
    ],
)
def test_members_are_checked(wire: Wire, member: dict[str, Any], code: Code) -> None:
    wire.cluster.groups.set_members("g", 4, {"m"})
    assert commit(wire, wire.init(), 5, **member) == [code, code]


def test_members_of_a_group_without_members(wire: Wire) -> None:
    assert commit(wire, wire.init(), 5, member_id="m", generation_id=1) == [Code.UNKNOWN_MEMBER_ID] * 2


def test_without_a_generation_a_group_without_members_accepts_every_committer(wire: Wire) -> None:
    assert commit(wire, wire.init(), 5, member_id="m") == [Code.NONE] * 2


def test_too_much_metadata_fails_its_partition_alone(wire: Wire) -> None:
    producer = wire.init()
    assert commit(wire, producer, 5, metadata="m" * 4097) == [Code.OFFSET_METADATA_TOO_LARGE, 0]
    wire.end(producer, True, 5)
    assert fetched(wire) == [(0, -1), (0, 11)]
    assert wire.cluster.groups.offsets("g")[TopicPartition("t", 1)].metadata is None


@pytest.mark.parametrize("version", range(1, 10))
def test_fetches_in_every_version(wire: Wire, version: int) -> None:
    producer = wire.init()
    commit(wire, producer, 5)
    wire.end(producer, True, 5)
    assert fetched(wire, version) == [(0, 10), (0, 11)]


def test_fetches_all_topics(wire: Wire) -> None:
    producer = wire.init()
    commit(wire, producer, 5, metadata="note")
    wire.end(producer, True, 5)
    answer = wire.call(OFFSET_FETCH, {"group_id": "g", "topics": None}, 7)
    (topic,) = answer["topics"]
    rows = [(row["partition_index"], row["committed_offset"], row["metadata"]) for row in topic["partitions"]]
    assert rows == [(0, 10, "note"), (1, 11, None)]


def test_open_offsets_are_unstable(wire: Wire) -> None:
    producer = wire.init()
    commit(wire, producer, 5)
    assert fetched(wire, stable=True) == [(Code.UNSTABLE_OFFSET_COMMIT, -1)] * 2
    wire.end(producer, False, 5)
    assert fetched(wire, stable=True) == [(0, -1)] * 2


def test_fetch_denied_or_elsewhere() -> None:
    cluster = make_cluster(2)
    cluster.move_group_coordinator("g", 1)
    wire = Wire(cluster)
    body = {"groups": [{"group_id": "g", "topics": None}]}
    assert wire.call(OFFSET_FETCH, body)["groups"][0]["error_code"] == Code.NOT_COORDINATOR
    cluster.denied_groups.add("g")
    assert wire.call(OFFSET_FETCH, body)["groups"][0]["error_code"] == Code.GROUP_AUTHORIZATION_FAILED
