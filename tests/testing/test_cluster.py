# SPDX-License-Identifier: Apache-2.0
"""Brokers, leaders and replication; the APIs have tests of their own."""

from __future__ import annotations

import random

import pytest
from testing.wire import Producer, Wire, batch, make_cluster

from penstock import testing
from penstock.testing import Code, FakeCluster, Refused

P = Producer(1000, 0)


@pytest.mark.parametrize("name", testing.__all__)
def test_public_names_are_there(name: str) -> None:
    assert getattr(testing, name).__name__ == {"Code": "ErrorCode"}.get(name, name)
    with pytest.raises(AttributeError):
        _ = testing.NOTHING


def test_the_same_seed_makes_the_same_cluster() -> None:
    first, second, other = (FakeCluster(rng=random.Random(seed)) for seed in (1, 1, 2))
    ids = [cluster.create_topic("t").topic_id for cluster in (first, second, other)]
    assert ids[0] == ids[1] != ids[2]


def test_a_moved_leader_keeps_what_was_replicated() -> None:
    cluster = make_cluster(3)
    wire = Wire(cluster)
    partition = cluster.partition("t", 0)
    old = partition.leader
    wire.produce(batch(2, P), broker=old)
    new = next(broker for broker in partition.isr if broker != old)
    cluster.move_leader("t", 0, new)
    assert (partition.leader, partition.leader_epoch) == (new, 1)
    assert wire.produce(batch(1, P, 2), broker=old)["error_code"] == Code.NOT_LEADER_OR_FOLLOWER
    # The new leader knows the producer, and the duplicate.
    assert wire.produce(batch(2, P), broker=new)["base_offset"] == 0
    assert wire.produce(batch(1, P, 2), broker=new)["base_offset"] == 2


def test_a_leader_must_be_in_step_and_up() -> None:
    cluster = make_cluster(3)
    partition = cluster.partition("t", 0)
    follower = next(broker for broker in partition.isr if broker != partition.leader)
    cluster.shrink_isr("t", 0, [partition.leader])
    with pytest.raises(ValueError, match="cannot lead"):
        cluster.move_leader("t", 0, follower)
    with pytest.raises(ValueError, match="cannot be in step"):
        cluster.shrink_isr("t", 0, [follower])


def test_a_stopped_broker_comes_back_into_step() -> None:
    cluster = make_cluster(3)
    partition = cluster.partition("t", 0)
    old = partition.leader
    cluster.stop_broker(old)
    assert old not in partition.isr
    assert partition.leader != old
    cluster.start_broker(old)
    assert old in partition.isr
    assert partition.leader != old


def test_starting_and_stopping_twice() -> None:
    cluster = make_cluster(2)
    with pytest.raises(ValueError, match="cannot be started"):
        cluster.start_broker(0)
    cluster.stop_broker(0)
    with pytest.raises(ValueError, match="not running"):
        cluster.stop_broker(0)


def test_the_controller_moves() -> None:
    cluster = make_cluster(2)
    cluster.stop_broker(0)
    assert cluster.controller_id == 1


@pytest.mark.parametrize("lose", [True, False])
def test_a_restart_may_lose_what_was_not_replicated(lose: bool) -> None:
    cluster = make_cluster(1)
    wire = Wire(cluster)
    wire.produce(batch([b"safe"], P))
    cluster.hold_replication("t", 0)
    wire.produce(batch([b"new"], P, 1), acks=1)
    cluster.restart_broker(0, lose_unreplicated=lose)
    cluster.resume_replication("t", 0)
    assert len(cluster.records("t", 0)) == (1 if lose else 2)
    # Its knowledge of the producer is what the log still has.
    row = wire.produce(batch([b"again"], P, 2))
    assert row["error_code"] == (Code.OUT_OF_ORDER_SEQUENCE_NUMBER if lose else 0)


def test_a_lost_marker_leaves_the_transaction_open_to_readers() -> None:
    cluster = make_cluster(1)
    wire = Wire(cluster)
    producer = wire.init()
    wire.produce(batch(1, producer, transactional=True), transactional_id="x")
    cluster.hold_replication("t", 0)
    wire.end(producer, True, 5)
    log = cluster.partition("t", 0).log
    assert (log.high_watermark, log.last_stable_offset) == (1, 0)
    assert cluster.records("t", 0) == []
    cluster.resume_replication("t", 0)
    assert len(cluster.records("t", 0)) == 1


def test_markers_carry_the_epoch_of_the_coordinator() -> None:
    cluster = make_cluster(2)
    wire = Wire(cluster)
    for owner in (1, 0):
        cluster.move_transaction_coordinator("x", owner)
    producer = wire.init()
    wire.add(producer)
    wire.end(producer, True, 5)
    (marker,) = cluster.partition("t", 0).log.batches
    moves = cluster.transaction_slots.epoch_of("x")
    assert moves >= 1
    assert marker.records()[0].value == bytes([0, 0, 0, 0, 0, moves])


def test_deleted_records_are_gone_and_offsets_go_on() -> None:
    cluster = make_cluster(1)
    wire = Wire(cluster)
    wire.produce(batch(3))
    wire.produce(batch(3))
    cluster.delete_records("t", 0, before=4)
    assert [record.offset for record in cluster.records("t", 0)] == [4, 5]
    cluster.delete_records("t", 0, before=100)
    assert cluster.records("t", 0) == []
    assert wire.produce(batch(1))["base_offset"] == 6


def test_truncation_after_deletion_keeps_the_end() -> None:
    cluster = make_cluster(1)
    wire = Wire(cluster)
    wire.produce(batch(3))
    cluster.delete_records("t", 0, before=3)
    cluster.restart_broker(0, lose_unreplicated=True)
    assert wire.produce(batch(1))["base_offset"] == 3


def test_a_cluster_needs_a_broker() -> None:
    with pytest.raises(ValueError, match="0 brokers"):
        FakeCluster(0)


def test_a_topic_made_in_a_test_is_judged_as_well() -> None:
    cluster = make_cluster(1)
    with pytest.raises(Refused) as refused:
        cluster.create_topic("t")
    assert refused.value.code is Code.TOPIC_ALREADY_EXISTS
    with pytest.raises(KeyError):
        cluster.records("nowhere", 0)


def test_markers_of_a_deleted_topic_are_not_waited_for() -> None:
    cluster = make_cluster(1)
    wire = Wire(cluster)
    producer = wire.init()
    wire.add(producer)
    cluster.topics.delete("t")
    assert wire.end(producer, True, 5)[0] == 0
    assert wire.describe()["transaction_state"] == "CompleteCommit"
