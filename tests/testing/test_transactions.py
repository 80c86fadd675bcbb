# SPDX-License-Identifier: Apache-2.0
"""What a real broker answers to the calls of a transaction, row by row, in both protocols."""

from __future__ import annotations

from dataclasses import replace

import pytest
from testing.wire import Producer, Wire, batch, make_cluster

from penstock.protocol.messages import INIT_PRODUCER_ID
from penstock.testing import Code

V1, V2 = 3, 5  # EndTxn
PRODUCE_VERSION = {V1: 11, V2: 13}

both = pytest.mark.parametrize("version", [V1, V2])


class Room:
    """One transactional id on one broker, with one end of a transaction."""

    def __init__(self, version: int, **settings: float) -> None:
        self.version = version
        level = 2 if version == V2 else 1
        self.cluster = make_cluster(features={"transaction.version": level}, settings=settings)
        self.wire = Wire(self.cluster)
        self.producer = self.wire.init()

    def write(self, producer: Producer | None = None, sequence: int = 0) -> int:
        """Produce a record in the transaction, by the rules of the protocol."""
        producer = producer or self.producer
        if self.version == V1:
            assert self.wire.add(producer) == 0
        data = batch(1, producer, sequence, transactional=True)
        row = self.wire.produce(data, version=PRODUCE_VERSION[self.version], transactional_id="x")
        return row["error_code"]

    def end(self, commit: bool, producer: Producer | None = None) -> tuple[int, Producer]:
        return self.wire.end(producer or self.producer, commit, self.version)

    def committed(self) -> int:
        return len(self.cluster.records("t", 0))

    def after_end(self) -> Producer:
        """What an end answers: only the second protocol tells, and raises, the epoch."""
        return self.producer.bumped() if self.version == V2 else Producer(-1, -1)

    def try_init(self) -> int:
        body = {"transactional_id": "x", "transaction_timeout_ms": 60_000}
        return self.wire.call(INIT_PRODUCER_ID, body)["error_code"]


@both
def test_commit_makes_records_visible(version: int) -> None:
    room = Room(version)
    assert room.write() == 0
    assert room.committed() == 0
    assert room.end(True) == (0, room.after_end())
    assert room.committed() == 1


@both
def test_commit_by_another_connection(version: int) -> None:
    room = Room(version)
    room.write()
    other = Wire(room.cluster)
    assert other.end(room.producer, True, version) == (0, room.after_end())


@both
@pytest.mark.parametrize("commit", [True, False])
def test_same_end_again_succeeds_with_the_same_answer(version: int, commit: bool) -> None:
    room = Room(version)
    room.write()
    assert room.end(commit) == room.end(commit) == room.end(commit) == (0, room.after_end())
    assert room.committed() == int(commit)


@both
@pytest.mark.parametrize("first", [True, False])
def test_other_end_afterwards_is_refused(version: int, first: bool) -> None:
    room = Room(version)
    room.write()
    room.end(first)
    assert room.end(not first)[0] == Code.INVALID_TXN_STATE
    assert room.committed() == int(first)


@both
def test_init_while_open_fences_and_takes_two_epochs(version: int) -> None:
    room = Room(version)
    room.write()
    assert room.try_init() == Code.CONCURRENT_TRANSACTIONS
    assert room.wire.init() == room.producer.bumped(2)
    assert room.end(True)[0] == Code.PRODUCER_FENCED
    data = batch(1, room.producer, 1, transactional=True)
    row = room.wire.produce(data, version=PRODUCE_VERSION[version], transactional_id="x")
    assert row["error_code"] == Code.INVALID_PRODUCER_EPOCH
    assert room.committed() == 0
    assert room.cluster.partition("t", 0).log.last_stable_offset == 2


@both
def test_a_marker_that_is_lost_with_its_leader_is_written_again(version: int) -> None:
    room = Room(version)
    room.write()
    room.cluster.hold_replication("t", 0)
    assert room.end(True)[0] == 0
    assert room.wire.describe()["transaction_state"] == "PrepareCommit"
    room.cluster.restart_broker(0, lose_unreplicated=True)
    room.cluster.resume_replication("t", 0)
    assert room.committed() == 0
    room.cluster.tick(room.wire.now + 1)
    assert room.committed() == 1


@both
def test_commit_after_the_time_out(version: int) -> None:
    room = Room(version)
    room.write()
    room.wire.now += 60.1
    room.cluster.tick(room.wire.now)
    expected = Code.PRODUCER_FENCED if version == V1 else Code.INVALID_TXN_STATE
    assert room.end(True)[0] == expected
    assert room.committed() == 0
    assert room.wire.describe()["transaction_state"] == "CompleteAbort"
    assert room.wire.init() == room.producer.bumped(2)


@both
def test_time_outs_are_looked_for_every_ten_seconds(version: int) -> None:
    room = Room(version)  # the first request sets the rhythm
    start = room.wire.now
    room.wire.now = start + 5
    room.write()
    room.cluster.tick(start + 60)  # 55 s old: too young
    room.wire.now = start + 66  # 61 s old, but nobody looks
    assert room.wire.describe()["transaction_state"] == "Ongoing"
    assert room.cluster.next_event_at() == start + 70
    room.wire.now = start + 70
    assert room.wire.describe()["transaction_state"] == "CompleteAbort"


@both
def test_commit_of_nothing_is_refused(version: int) -> None:
    room = Room(version)
    assert room.end(True)[0] == Code.INVALID_TXN_STATE


def test_abort_of_nothing_in_the_first_protocol() -> None:
    assert Room(V1).end(False)[0] == Code.INVALID_TXN_STATE


def test_abort_of_nothing_in_the_second_protocol_raises_the_epoch() -> None:
    room = Room(V2)
    assert room.end(False) == (0, room.producer.bumped())
    assert room.end(False, room.producer.bumped()) == (0, room.producer.bumped(2))


def test_old_commit_commits_the_next_transaction_in_the_first_protocol() -> None:
    room = Room(V1)
    room.write()
    room.end(True)
    assert room.write(sequence=1) == 0
    assert room.end(True)[0] == 0
    assert room.committed() == 2


def test_old_commit_is_fenced_in_the_second_protocol() -> None:
    room = Room(V2)
    room.write()
    room.end(True)
    assert room.write(room.producer.bumped()) == 0
    assert room.end(True)[0] == Code.PRODUCER_FENCED
    assert room.committed() == 1


def test_exhausted_epoch_gives_a_new_producer_id() -> None:
    room = Room(V2)
    transaction = room.cluster.transactions.find("x")
    assert transaction is not None
    transaction.epoch = 32766
    last = replace_epoch(room.producer, 32766)
    assert room.write(last) == 0
    code, fresh = room.end(True, last)
    assert (code, fresh.epoch) == (0, 0)
    assert fresh.id != last.id
    assert room.end(True, last) == (0, fresh)
    assert room.write(fresh) == 0
    assert room.end(True, fresh) == (0, fresh.bumped())
    assert room.committed() == 2


def replace_epoch(producer: Producer, epoch: int) -> Producer:
    return producer._replace(epoch=epoch)


@both
def test_markers_being_written_ask_for_patience(version: int) -> None:
    room = Room(version, marker_delay=0.5)
    room.write()
    assert room.end(True)[0] == 0
    assert room.end(True)[0] == Code.CONCURRENT_TRANSACTIONS
    assert room.end(False)[0] == Code.CONCURRENT_TRANSACTIONS
    assert room.try_init() == Code.CONCURRENT_TRANSACTIONS
    assert room.committed() == 0
    assert room.wire.describe()["transaction_state"] == "PrepareCommit"
    assert room.cluster.next_event_at() == room.wire.now + 0.5
    room.wire.now += 0.5
    assert room.end(True) == (0, room.after_end())
    assert room.committed() == 1


@pytest.mark.parametrize("commit", [True, False])
def test_the_next_transaction_is_ended_once_the_markers_of_the_one_before_are_written(commit: bool) -> None:
    room = Room(V2, marker_delay=0.5)
    room.write()
    _, following = room.end(True)
    assert room.write(following) == Code.CONCURRENT_TRANSACTIONS
    assert room.end(commit, following)[0] == Code.CONCURRENT_TRANSACTIONS
    room.wire.now += 0.5
    # Nothing was written in it: there is nothing to be committed, and an abort raises the epoch.
    expected = (Code.INVALID_TXN_STATE, Producer(-1, -1)) if commit else (0, following.bumped())
    assert room.end(commit, following) == expected
    assert room.committed() == 1


@pytest.mark.parametrize(
    ("version", "id_change", "epoch_change", "code"),
    [
        (V1, 0, 1, Code.PRODUCER_FENCED),
        (V1, 0, -1, Code.PRODUCER_FENCED),
        (V1, 9, 0, Code.INVALID_PRODUCER_ID_MAPPING),
        (V2, 0, 5, Code.CONCURRENT_TRANSACTIONS),
        (V2, 0, -1, Code.CONCURRENT_TRANSACTIONS),
        (V2, 9, 0, Code.CONCURRENT_TRANSACTIONS),
    ],
)
def test_another_producer_while_markers_are_written(
    version: int, id_change: int, epoch_change: int, code: Code
) -> None:
    room = Room(version, marker_delay=0.5)
    room.producer = room.wire.init()  # so that there is an epoch before
    room.write()
    room.end(True)
    stranger = Producer(room.producer.id + id_change, room.producer.epoch + epoch_change)
    assert room.end(True, stranger)[0] == code


@both
def test_markers_wait_for_a_leader(version: int) -> None:
    room = Room(version)
    wire = Wire(room.cluster)
    room.write()
    partition = room.cluster.partition("t", 0)
    partition.elect(-1)
    assert room.end(True)[0] == 0
    assert room.end(True)[0] == Code.CONCURRENT_TRANSACTIONS
    partition.elect(0)
    wire.now += 1
    assert wire.end(room.producer, True, version)[0] == 0
    assert room.committed() == 1


@both
def test_race_of_commit_and_init_has_two_outcomes_only(version: int) -> None:
    for init_first in (True, False):
        room = Room(version)
        room.write()
        if init_first:
            room.try_init()
            lost = Code.PRODUCER_FENCED if version == V1 else Code.INVALID_TXN_STATE
            assert room.end(True)[0] == lost
        else:
            assert room.end(True)[0] == 0
            assert room.try_init() == 0
        assert room.committed() == int(not init_first)


def test_mixing_versions_answers_wrongly_as_kafka_does() -> None:
    room = Room(V2)
    room.write()
    assert room.wire.end(room.producer, True, V1)[0] == 0
    assert room.wire.end(room.producer, False, V2)[0] == 0
    other = Room(V2)
    other.write()
    assert other.wire.end(other.producer, True, V2)[0] == 0
    assert other.wire.end(other.producer, True, V1)[0] == Code.PRODUCER_FENCED


def test_coordinator_killed_between_write_and_commit() -> None:
    cluster = make_cluster(3)
    wire = Wire(cluster)
    cluster.move_transaction_coordinator("x", 0)
    producer = wire.init()
    leader = cluster.partition("t", 0).leader
    data = batch(1, producer, transactional=True)
    assert wire.produce(data, broker=leader, transactional_id="x")["error_code"] == 0
    cluster.stop_broker(0)
    owner = cluster.transaction_slots.owner_of("x")
    assert owner in (1, 2)
    cluster.start_broker(0)
    assert wire.end(producer, True, V2)[0] == Code.NOT_COORDINATOR
    cluster.move_transaction_coordinator("x", 0)
    assert wire.end(producer, True, V2) == (0, producer.bumped())
    assert len(cluster.records("t", 0)) == 1


def test_fence_by_the_test() -> None:
    room = Room(V2)
    room.cluster.fence("x", room.wire.now)
    assert room.write() == Code.INVALID_PRODUCER_EPOCH
    with pytest.raises(KeyError):
        room.cluster.fence("never used", room.wire.now)


def test_the_table_of_states_guards_the_coordinator() -> None:
    room = Room(V1)
    transaction = room.cluster.transactions.find("x")
    assert transaction is not None
    with pytest.raises(RuntimeError, match="no way from Empty"):
        replace(transaction).complete()
