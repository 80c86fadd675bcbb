# SPDX-License-Identifier: Apache-2.0
"""Transactions against a cluster that validates: what can be read in the end, whatever happened before."""

from __future__ import annotations

import random

import pytest
from producer.fakes_txn import ClusterRig, both, some_fault

from penstock._identity import ProducerIdentity
from penstock.errors import InvalidRecordError, KafkaError, ProducerFencedError
from penstock.producer.guarantee.transactions.states import TxnState
from penstock.protocol.messages import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    PRODUCE,
    TXN_OFFSET_COMMIT,
)
from penstock.testing import ClusterSettings, Fault
from penstock.types import TopicPartition


@pytest.mark.parametrize(
    ("release", "level"), [("4.3", 2), ("4.3", 1), ("4.3", 0), ("4.0", 2), ("3.9", 0), ("2.8", 0), ("2.4", 0)]
)
def test_what_is_committed_can_be_read_and_what_is_aborted_cannot(release, level):
    """Requirement 64."""
    features = {"transaction.version": level} if release >= "4" else None
    rig = ClusterRig(3, {"t": 3, "in": 1}, release=release, features=features, transactional_id="x")
    rig.init()
    for number in range(4):
        rig.begin()
        for partition in range(3):
            rig.send("t", b"%d" % number, partition=partition)
        rig.send_offsets({("in", 0): number})
        if number % 2:
            rig.abort()
        else:
            rig.commit()
    rig.run_for(0.1)
    for partition in range(3):
        assert rig.values("t", partition) == [b"0", b"2"]
    assert rig.kafka.groups.offsets("g")[TopicPartition("in", 0)].offset == 2
    assert rig.kafka.groups.pending("g") == set()


@pytest.mark.parametrize("epoch", [32_760, 32_765, 32_766])
def test_the_epochs_of_an_id_are_used_up_on_a_cluster(epoch):
    """Requirement 67."""
    rig = ClusterRig(1, transactional_id="x")
    rig.init()
    rig.kafka.transactions.find("x").epoch = epoch
    rig.manager._numbers.identity = ProducerIdentity(rig.manager.identity.producer_id, epoch)
    for number in range(10):
        rig.begin()
        rig.send("t", b"%d" % number, partition=0)
        rig.commit()
    assert rig.values() == [b"%d" % number for number in range(10)]
    assert rig.manager.identity.epoch < 10


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
def test_a_cluster_that_changes_the_protocol_loses_nothing(before, after):
    """Requirement 65."""
    rig = ClusterRig(1, features={"transaction.version": before}, transactional_id="x")
    rig.init()
    for number in range(6):
        rig.begin()
        rig.send("t", b"%d" % number, partition=0)
        if number == 2:
            rig.kafka.set_feature("transaction.version", after)
            rig.kafka.drop_connections()
            rig.served.pump()
        rig.commit()
    assert rig.values() == [b"%d" % number for number in range(6)]


_CODES = {
    PRODUCE: [7, 20, 19, 6, 3, 51, 87],
    INIT_PRODUCER_ID: [51, 15, 16, 14],
    FIND_COORDINATOR: [15, 14],
    ADD_PARTITIONS_TO_TXN: [51, 15, 16, 14, 3],
    ADD_OFFSETS_TO_TXN: [51, 15, 16],
    TXN_OFFSET_COMMIT: [14, 15, 16, 7, 3],
    END_TXN: [51, 15, 16, 14],
}


def try_transaction(rig: ClusterRig, rng: random.Random, numbers_: range) -> dict[int, list[bytes]] | None:
    """Send some records and offsets, and commit or abort; what was committed."""
    rig.begin()
    sent: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    deliveries = []
    try:
        for number in numbers_:
            partition = rng.randrange(3)
            sent[partition].append(b"%d" % number)
            deliveries.append(rig.send("t", b"%d" % number, partition=partition))
            rig.settle(rng.randrange(3))
            if rng.random() < 0.1:
                rig.run_for(rng.random())
        if rng.random() < 0.4:
            rig.finish(rig.offsets_ticket({("in", 0): numbers_.start}), 100)
        if rng.random() < 0.7:
            rig.finish(rig.manager.commit(), 100)
            assert all(delivery.exception(0) is None for delivery in deliveries)
            return sent
    except KafkaError:
        assert rig.state is TxnState.ABORTABLE_ERROR
    rig.finish(rig.manager.abort(), 100)
    assert all(delivery.done() for delivery in deliveries)
    return None


@pytest.mark.parametrize(("release", "level"), [("4.3", 2), ("4.3", 1), ("3.9", 0), ("2.4", 0)])
@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_exactly_what_was_committed_can_be_read(seed, release, level):
    """Requirements 66 and 68."""
    rng = random.Random(seed)
    marker_delay = rng.choice([0, 0, 0.03])
    rig = ClusterRig(
        3,
        {"t": 3, "in": 1},
        seed=seed,
        release=release,
        features={"transaction.version": level} if release >= "4" else None,
        settings=ClusterSettings(marker_delay=marker_delay),
        transactional_id="x",
        batch_size=rng.choice([100, 300, 2000]),
        retry_backoff_ms=20,
        retry_backoff_max_ms=50,
    )
    rig.init()
    committed: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    for number in range(10):
        for _ in range(rng.randrange(4)):
            api = rng.choice(list(_CODES))
            rig.kafka.faults.add(some_fault(rng, [api], _CODES[api]))
        first = 100 * number
        sent = try_transaction(rig, rng, range(first, first + rng.randrange(12)))
        for partition, values in (sent or {}).items():
            committed[partition] += values
    rig.kafka.faults.clear()
    rig.begin()
    rig.send("t", b"last", partition=0)
    rig.commit()
    rig.run_for(1)
    committed[0].append(b"last")
    assert {partition: rig.values("t", partition) for partition in committed} == committed


@both
@pytest.mark.parametrize("unanswered", [1, 3, 5])
def test_answers_of_a_former_leader_that_never_come(unanswered, protocol):
    rig = ClusterRig(
        2,
        {"t": 2},
        features={"transaction.version": protocol},
        transactional_id="x",
        retry_backoff_ms=20,
        retry_backoff_max_ms=50,
        request_timeout_ms=5000,
    )
    rig.init()
    rig.begin()
    deliveries = [rig.send("t", b"0", partition=0), rig.send("t", b"", partition=1)]
    rig.deliver(*deliveries)  # both brokers are connected now
    leader = rig.kafka.partition("t", 0).leader
    rig.served.lose_answers(leader)
    for number in range(1, 40):
        if number == unanswered + 1:
            rig.kafka.move_leader("t", 0, 1 - leader)
            rig.parts.metadata.request_update(rig.clock.now())
            rig.run_for(0.1)
        deliveries.append(rig.send("t", b"%d" % number, partition=0))
        rig.run_for(0.1 if number > unanswered else 0.01)
    rig.deliver(*deliveries, seconds=100)
    rig.commit()
    rig.run_for(1)
    assert rig.values() == [b"%d" % number for number in range(40)]


@both
def test_a_transaction_is_aborted_although_the_one_before_still_gets_its_markers(protocol):
    rig = ClusterRig(
        1,
        features={"transaction.version": protocol},
        settings=ClusterSettings(marker_delay=0.5),
        transactional_id="x",
    )
    rig.init()
    rig.begin()
    rig.deliver(rig.send("t", b"a", partition=0))
    rig.commit()
    rig.kafka.faults.add(Fault(api=PRODUCE, error=87))
    rig.begin()
    refused = rig.send("t", b"b", partition=0)
    rig.deliver(refused)
    assert isinstance(refused.exception(0), InvalidRecordError)
    rig.abort()
    rig.begin()
    rig.send("t", b"c", partition=0)
    rig.commit()
    rig.run_for(1)
    assert rig.values() == [b"a", b"c"]


@both
def test_a_newer_producer_fences_the_older_one(protocol):
    rig = ClusterRig(1, features={"transaction.version": protocol}, transactional_id="x")
    rig.init()
    rig.begin()
    rig.deliver(rig.send("t", b"a", partition=0))
    for _ in range(2):  # the first call ends what is open, the second one takes over
        rig.kafka.transactions.init_producer_id("x", 60_000, None, rig.clock.now())
    rig.send("t", b"b", partition=0)
    with pytest.raises(KafkaError):
        rig.commit()
    if (
        rig.state is TxnState.ABORTABLE_ERROR
    ):  # the broker said that the epoch is old, the coordinator says why
        with pytest.raises(ProducerFencedError):
            rig.abort()
    assert rig.state is TxnState.FATAL_ERROR
    with pytest.raises(ProducerFencedError):
        rig.manager.begin()
    rig.run_for(1)
    assert rig.values() == []


def test_a_transaction_that_took_too_long_can_be_aborted_in_the_second_protocol():
    rig = ClusterRig(1, transactional_id="x", transaction_timeout_ms=1000)
    rig.init()
    rig.begin()
    rig.deliver(rig.send("t", b"a", partition=0))
    rig.run_for(30)  # the coordinator has aborted it
    rig.send("t", b"b", partition=0)
    with pytest.raises(KafkaError):
        rig.commit()
    rig.abort()
    rig.begin()
    rig.send("t", b"c", partition=0)
    rig.commit()
    assert rig.values() == [b"c"]
