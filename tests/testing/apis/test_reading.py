# SPDX-License-Identifier: Apache-2.0
"""Fetch and ListOffsets of the fake cluster."""

from __future__ import annotations

from typing import Any

import pytest
from testing.wire import NOW_MS, Producer, Wire, batch, fetch_body, make_cluster

from penstock.protocol.messages import FETCH, LIST_OFFSETS
from penstock.records.reader import read_batches
from penstock.testing import Code


@pytest.fixture
def wire() -> Wire:
    return Wire(make_cluster())


def values(row: dict[str, Any]) -> list[bytes | None]:
    """The data that a fetch brought; what was aborted is among it, as on the wire."""
    batches = [each for each in read_batches(row["records"]) if not each.is_control]
    return [record.value for each in batches for record in each.records()]


def write(wire: Wire, producer: Producer, *data: bytes) -> Producer:
    """Write in a transaction of the second protocol."""
    row = wire.produce(batch(data, producer, transactional=True), transactional_id="x")
    assert row["error_code"] == 0
    return producer


@pytest.mark.parametrize("version", range(4, 18))
def test_fetches_in_every_version(wire: Wire, version: int) -> None:
    wire.produce(batch([b"a", b"b"]))
    wire.produce(batch([b"c"]))
    row = wire.fetch(version=version)
    assert values(row) == [b"a", b"b", b"c"]
    assert (row["high_watermark"], row["last_stable_offset"]) == (3, 3)


def test_starts_with_the_batch_that_holds_the_offset(wire: Wire) -> None:
    wire.produce(batch([b"a", b"b"]))
    wire.produce(batch([b"c"]))
    assert values(wire.fetch(1)) == [b"a", b"b", b"c"]
    assert values(wire.fetch(2)) == [b"c"]
    assert values(wire.fetch(3)) == []


def test_one_batch_comes_whatever_the_limit(wire: Wire) -> None:
    wire.produce(batch([b"a" * 500]))
    wire.produce(batch([b"b"]))
    assert values(wire.fetch(max_bytes=1)) == [b"a" * 500]


def test_read_committed_stops_at_the_open_transaction(wire: Wire) -> None:
    wire.produce(batch([b"before"]))
    producer = write(wire, wire.init(), b"open")
    wire.produce(batch([b"after"]))
    assert values(wire.fetch()) == [b"before"]
    assert wire.fetch()["last_stable_offset"] == 1
    assert values(wire.fetch(committed=False)) == [b"before", b"open", b"after"]
    wire.end(producer, True, 5)
    assert values(wire.fetch()) == [b"before", b"open", b"after"]


def test_read_committed_names_aborted_transactions(wire: Wire) -> None:
    producer = write(wire, wire.init(), b"a", b"b")
    _, following = wire.end(producer, False, 5)
    write(wire, following, b"c")
    wire.end(following, True, 5)
    row = wire.fetch()
    assert row["aborted_transactions"] == [{"producer_id": producer.id, "first_offset": 0}]
    assert [record.value for record in wire.cluster.records("t", 0)] == [b"c"]
    assert len(wire.cluster.records("t", 0, "read_uncommitted")) == 3
    assert wire.fetch(committed=False)["aborted_transactions"] is None
    assert wire.fetch(3)["aborted_transactions"] == []


@pytest.mark.parametrize("commit", [True, False])
def test_control_records_tell_how_it_ended(wire: Wire, commit: bool) -> None:
    producer = write(wire, wire.init(), b"a")
    wire.end(producer, commit, 5)
    marker = list(read_batches(wire.fetch(1)["records"]))[-1]
    assert marker.is_control
    assert marker.is_transactional
    # The marker carries the raised epoch, so that nothing of the old one can follow it.
    assert (marker.producer_id, marker.producer_epoch) == producer.bumped()
    assert marker.records()[0].key == bytes([0, 0, 0, int(commit)])


def test_waits_for_data(wire: Wire) -> None:
    sent = wire.send(FETCH, fetch_body(wire.cluster, 0, max_wait_ms=1000), 12)
    assert wire.answers() == {}
    other = Wire(wire.cluster)
    other.produce(batch([b"a"]))
    (answer,) = wire.answers().values()
    assert values(answer["responses"][0]["partitions"][0]) == [b"a"]
    assert sent


def test_waits_no_longer_than_told(wire: Wire) -> None:
    wire.send(FETCH, fetch_body(wire.cluster, 0, max_wait_ms=1000), 12)
    assert wire.session().next_output_at() == wire.now + 1
    wire.now += 1
    (answer,) = wire.answers().values()
    assert values(answer["responses"][0]["partitions"][0]) == []


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"offset": 2}, Code.OFFSET_OUT_OF_RANGE),
        ({"offset": 0, "partition": 5}, Code.UNKNOWN_TOPIC_OR_PARTITION),
        ({"offset": 0, "topic": "nowhere"}, Code.UNKNOWN_TOPIC_OR_PARTITION),
        ({"offset": 0, "topic": "nowhere", "version": 13}, Code.UNKNOWN_TOPIC_ID),
        ({"offset": 0, "leader_epoch": 1}, Code.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_fetch_refuses(wire: Wire, options: dict[str, Any], code: Code) -> None:
    wire.produce(batch())
    assert wire.fetch(**options)["error_code"] == code


def test_fetch_before_the_start_of_the_log(wire: Wire) -> None:
    wire.produce(batch(3))
    wire.produce(batch(1))
    wire.cluster.delete_records("t", 0, before=3)
    assert wire.fetch(2)["error_code"] == Code.OFFSET_OUT_OF_RANGE
    assert wire.fetch(3)["log_start_offset"] == 3


def test_fetch_knows_no_sessions(wire: Wire) -> None:
    answer = wire.call(FETCH, fetch_body(wire.cluster, 0, session_id=7), 12)
    assert answer["error_code"] == Code.FETCH_SESSION_ID_NOT_FOUND


def test_fetch_follows_the_leader() -> None:
    cluster = make_cluster(2)
    old = cluster.partition("t", 0).leader
    cluster.move_leader("t", 0, 1 - old)
    wire = Wire(cluster)

    def code(broker: int, epoch: int) -> int:
        answer = wire.call(FETCH, fetch_body(cluster, 0, leader_epoch=epoch), 12, broker)
        return answer["responses"][0]["partitions"][0]["error_code"]

    assert [code(1 - old, 1), code(old, 1)] == [0, Code.NOT_LEADER_OR_FOLLOWER]
    assert code(1 - old, 0) == Code.FENCED_LEADER_EPOCH


# ------------------------------------------------------------------------------------------------ ListOffsets


def offset_at(
    wire: Wire, timestamp: int, *, committed: bool = False, version: int | None = None
) -> tuple[int, int]:
    """Ask for the offset at a timestamp; return (error, offset)."""
    body: dict[str, Any] = {
        "topics": [{"name": "t", "partitions": [{"partition_index": 0, "timestamp": timestamp}]}]
    }
    if committed:
        body["isolation_level"] = 1
    row = wire.call(LIST_OFFSETS, body, version)["topics"][0]["partitions"][0]
    return row["error_code"], row["offset"]


@pytest.mark.parametrize("version", range(1, 11))
def test_ends_of_the_log(wire: Wire, version: int) -> None:
    wire.produce(batch(3))
    wire.produce(batch(2))
    wire.cluster.delete_records("t", 0, before=1)
    assert offset_at(wire, -1, version=version) == (0, 5)
    assert offset_at(wire, -2, version=version) == (0, 1)


def test_latest_depends_on_isolation(wire: Wire) -> None:
    wire.produce(batch())
    write(wire, wire.init(), b"open")
    assert offset_at(wire, -1) == (0, 2)
    assert offset_at(wire, -1, committed=True) == (0, 1)


def test_offset_by_timestamp(wire: Wire) -> None:
    for age in (3, 2, 1):
        wire.produce(batch(1, timestamp=NOW_MS - age))
    assert offset_at(wire, NOW_MS - 2) == (0, 1)
    assert offset_at(wire, 0) == (0, 0)
    assert offset_at(wire, NOW_MS) == (0, -1)
    assert offset_at(wire, -3) == (0, 2)


def test_offsets_above_the_high_watermark_are_not_told(wire: Wire) -> None:
    wire.cluster.hold_replication("t", 0)
    wire.produce(batch(), acks=1)
    assert offset_at(wire, -1) == (0, 0)
    wire.cluster.resume_replication("t", 0)
    assert offset_at(wire, -1) == (0, 1)


def test_offsets_of_nothing_and_elsewhere(wire: Wire) -> None:
    wire.cluster.topics.delete("t")
    assert offset_at(wire, -1)[0] == Code.UNKNOWN_TOPIC_OR_PARTITION
    wire.cluster.denied_topics.add("t")
    assert offset_at(wire, -1)[0] == Code.TOPIC_AUTHORIZATION_FAILED
    other = make_cluster(2)
    other.move_leader("t", 0, 1)
    assert offset_at(Wire(other), -1)[0] == Code.NOT_LEADER_OR_FOLLOWER
