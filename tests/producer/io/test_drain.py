# SPDX-License-Identifier: Apache-2.0
"""What is ready when, and what goes into a request; virtual time."""

from __future__ import annotations

import gc
import logging
import random
import sys
import weakref
from typing import Any

import pytest
from producer.fakes_core import (
    NO_LEADER,
    START,
    TOPIC,
    BrokenCodec,
    Core,
    cluster,
    encoded,
    records,
    run,
    value_for,
    values,
)

from penstock._time import FOREVER, ExponentialBackoff
from penstock.errors import KafkaError
from penstock.producer.batch._batch_cy import Batch, BatchIdentity, BatchState
from penstock.producer.batch._partitioner_cy import PartitionerSettings
from penstock.producer.batch._queue_cy import PartitionQueue
from penstock.producer.guarantee.gate import OpenGate
from penstock.records.format import HEADER_SIZE
from penstock.records.reader import read_batches

FULL = value_for(1024 - HEADER_SIZE)  # fills a batch of 1024 bytes by itself
INCOMPRESSIBLE = b"refused"  # what cannot be compressed


def partitions(batches: list[Batch]) -> list[int]:
    return [batch.queue.partition for batch in batches]


# ---------------------------------------------------------------------------------------------- ready


def test_nothing_is_ready_when_there_is_nothing():
    core = Core()
    for _ in range(2):
        check = core.ready()
        assert not check.nodes
        assert not check.leaderless_topics
        assert check.next_delay == core.drainer.next_expiry == FOREVER
        core.topic()


def test_a_full_batch_is_ready_at_once():
    """Requirement 20."""
    core = Core([1, 2], linger_ms=1000)
    core.append(b"v", 0)
    core.append(FULL, 1)
    assert core.ready_ids() == [2]


def test_a_batch_lingers():
    """Requirement 22."""
    core = Core(linger_ms=100)
    core.append(b"v")
    assert core.ready_ids() == []
    core.now = START + 0.099
    core.append(b"v")  # a later record does not prolong it
    assert core.ready_ids() == []
    core.now = START + 0.1
    assert core.ready_ids() == [1]


def test_a_pass_that_finds_nothing_ready_keeps_no_batch():
    """Failed records that nobody looked at are told of when nothing refers to the result of their batch any more."""
    core = Core(linger_ms=100, delivery_timeout_ms=1000)
    delivery = core.append(b"v")
    assert core.ready().nodes == []
    [batch] = core.accumulator.take_expired(core.now + 1)
    core.fail(batch, KafkaError("expired"))
    unseen = weakref.ref(delivery._answered_by().unseen)
    del batch, delivery
    assert unseen() is None
    assert core.accumulator.unseen.has_news


def test_without_linger_everything_is_ready():
    """Requirement 22."""
    core = Core(linger_ms=0)
    core.append(b"v")
    assert core.ready_ids() == [1]


def test_the_delay_until_the_next_look_is_the_shortest_rest_of_linger():
    """Requirement 22."""
    core = Core([1, 1, 2], linger_ms=100)
    core.append(b"v", 0)
    assert core.ready().next_delay == pytest.approx(0.1)
    core.now += 0.03
    core.append(b"v", 2)
    core.now += 0.01
    assert core.ready().next_delay == pytest.approx(0.06)
    core.append(FULL, 1)  # broker 1 is ready now, and takes its other partition along
    check = core.ready()
    assert [node.id for node in check.nodes] == [1]
    assert check.next_delay == pytest.approx(0.06)  # partition 0 was looked at before
    core.drain(1)
    assert core.ready().next_delay == pytest.approx(0.09)


def test_the_delay_until_the_next_look_is_the_rest_of_the_backoff():
    """Requirement 22."""
    core = Core(linger_ms=100)
    core.append(FULL)
    [batch] = core.drain()
    core.retry(batch, backoff=0.25)
    core.now += 0.05
    check = core.ready()
    assert check.nodes == []
    assert check.next_delay == pytest.approx(0.2)


def test_a_clock_that_goes_backwards_does_not_lengthen_the_linger():
    """Requirement 40."""
    core = Core(linger_ms=100)
    core.append(b"v")
    core.now -= 50
    assert core.ready().next_delay == pytest.approx(0.1)


def test_a_partition_without_leader_asks_for_metadata():
    core = Core([NO_LEADER, 1])
    core.append(b"v", 0)
    check = core.ready()
    assert check.nodes == []
    assert check.leaderless_topics == {TOPIC}
    assert core.drainer.next_expiry == START + 120
    core.append(b"v", 1)
    check = core.ready()
    assert [node.id for node in check.nodes] == [1]
    assert check.leaderless_topics == {TOPIC}
    core.snapshot = cluster([1, 1])
    assert core.ready().leaderless_topics == set()


def test_a_topic_that_the_cluster_does_not_know_is_leaderless():
    core = Core()
    core.append(b"v")
    core.snapshot = cluster(topic="another")
    assert core.ready().leaderless_topics == {TOPIC}


def test_a_leader_that_is_not_among_the_brokers_is_none():
    core = Core([1])
    core.append(b"v")
    core.snapshot = cluster([NO_LEADER])
    assert core.ready().leaderless_topics == {TOPIC}
    assert core.ready_ids() == []


def test_muted_partitions_are_not_ready():
    """Requirement 23."""
    core = Core([1, 2])
    core.append(FULL, 0)
    core.append(FULL, 1)
    core.queue(0).muted = True
    assert core.ready_ids() == [2]
    core.queue(0).unmute()
    assert core.ready_ids() == [1, 2]


def test_short_memory_makes_batches_ready():
    """Requirement 22."""
    core = Core([1, 2], memory=2048, linger_ms=1000)
    core.append(b"v", 0)
    core.append(b"v", 1)
    assert core.ready_ids() == []
    steps = core.steps(encoded(bytes(1500)), 0)
    run(steps)
    assert core.ready_ids() == [1, 2]


def test_closing_makes_batches_ready():
    core = Core(linger_ms=1000)
    core.append(b"v")
    core.accumulator.close()
    assert core.ready_ids() == [1]


# ---------------------------------------------------------------------------------------------- backoff


def test_a_retried_batch_waits_and_holds_up_its_partition():
    """Requirement 24."""
    core = Core([1, 1])
    core.append(FULL, 0)
    core.append(FULL, 0)
    [first] = core.drain()
    core.retry(first, backoff=0.1)
    core.append(FULL, 1)
    assert partitions(core.drain()) == [1]  # nothing of partition 0 overtakes the batch that waits
    assert core.ready_ids() == []
    core.now += 0.1
    assert core.drain() == [first]
    assert first.attempts == 1


def test_backoff_is_exponential_with_jitter_up_to_its_maximum():
    """Requirement 24."""
    backoff, rng = ExponentialBackoff(100, 1000), random.Random(3)
    core = Core()
    core.append(FULL)
    [batch] = core.drain()
    for attempt in range(8):
        wait = backoff.seconds(attempt, rng)
        nominal = min(1.0, 0.1 * 2**attempt)
        assert 0.8 * nominal <= wait <= min(1.0, 1.2 * nominal)
        core.retry(batch, wait)
        assert core.ready().next_delay == pytest.approx(wait)
        core.now += wait - 1e-6
        assert core.ready_ids() == []
        core.now += 2e-6
        assert core.drain() == [batch]


def test_constant_backoff():
    """Requirement 24."""
    backoff = ExponentialBackoff(100, 100)
    assert {backoff.seconds(attempt, random.Random(1)) for attempt in range(5)} == {0.1}


def test_a_new_leader_ends_the_backoff():
    """Requirement 24."""
    core = Core([1])
    core.append(FULL)
    [batch] = core.drain()
    core.retry(batch, backoff=10)
    assert core.ready_ids() == []
    core.snapshot = cluster([2], epoch=1)
    assert core.ready_ids() == [2]
    assert core.drain() == [batch]
    core.retry(batch, backoff=10)  # the leader is the same as at the last attempt now
    assert core.ready_ids() == []


def test_a_retried_batch_does_not_linger_again():
    """Requirement 24."""
    core = Core(linger_ms=10_000)
    core.append(b"v")
    core.now += 10
    [batch] = core.drain()
    core.retry(batch, backoff=0.1)
    core.now += 0.1
    assert core.drain() == [batch]


def test_a_flush_does_not_shorten_the_backoff():
    """Requirement 24."""
    core = Core()
    core.append(FULL)
    [batch] = core.drain()
    core.retry(batch, backoff=0.1)
    core.accumulator.flush()
    assert core.ready_ids() == []
    assert core.drain(1) == []


# ---------------------------------------------------------------------------------------------- drain


def test_a_request_takes_the_first_batch_of_every_partition():
    """Requirement 23."""
    core = Core([1, 1, 2], linger_ms=1000)
    core.append(FULL, 0)
    core.append(FULL, 0)
    core.append(b"lingers", 1)
    core.append(b"elsewhere", 2)
    batches = core.drain()
    assert partitions(batches) == [0, 1]
    assert [batch.state for batch in batches] == [BatchState.IN_FLIGHT] * 2
    assert partitions(core.drain()) == [0]
    assert core.queue(2).depth() == 1


def test_a_request_has_its_batches_topic_by_topic():
    """As its answer has them: then each answer is found without a search."""
    core = Core([1] * 3)
    core.snapshot = cluster([1] * 3, more={"a": [1] * 3})
    core.ready()
    for partition in range(3):
        for topic in (TOPIC, "a"):
            core.append(b"v", partition, topic=topic)
    drained = core.drain()
    assert [batch.queue.topic for batch in drained] == [TOPIC] * 3 + ["a"] * 3
    assert partitions(drained) == [0, 1, 2] * 2


def test_drained_batches_are_sealed_and_stamped():
    core = Core()
    core.snapshot = cluster(epoch=7)
    core.append(b"v")
    core.now += 2
    [batch] = core.drain()
    [sealed] = read_batches(bytes(batch.wire))
    assert (sealed.producer_id, sealed.producer_epoch, sealed.base_sequence) == (-1, -1, -1)
    assert (batch.leader_epoch, batch.drained_at) == (7, START + 2)


def test_the_rotation_goes_on_where_it_stopped():
    """Requirement 23."""
    core = Core([1, 1, 1], max_request_size=1024)
    for _ in range(3):
        for partition in range(3):
            core.append(FULL, partition)
    drained = [partitions(core.drain()) for _ in range(9)]
    assert drained == [[0], [1], [2]] * 3


def test_the_rotation_respects_the_size_of_requests():
    """Requirement 23."""
    core = Core([1, 1, 1, 1], max_request_size=2 * 1024)
    for _ in range(2):
        for partition in range(4):
            core.append(FULL, partition)
    assert [partitions(core.drain()) for _ in range(4)] == [[0, 1], [2, 3]] * 2


def test_a_batch_that_does_not_fit_stops_the_request_and_is_first_next_time():
    """Requirement 23."""
    core = Core([1, 1, 1], batch_size=2048, max_request_size=2500)
    core.append(bytes(900), 0)
    core.append(bytes(1800), 1)
    core.append(bytes(100), 2)  # would fit, but comes after
    assert partitions(core.drain()) == [0]
    assert partitions(core.drain()) == [1, 2]


def test_what_a_full_request_left_behind_goes_with_the_next_one():
    """It need not linger: its broker is busy with older batches, and a queue that is served again comes after it."""
    core = Core([1, 1, 1], max_request_size=1500, linger_ms=1000)
    core.append(FULL, 0)
    core.append(bytes(800), 1)
    core.append(bytes(800), 2)
    found = []
    for _ in range(3):
        found.append(partitions(core.drain()))
        core.append(FULL, 0)
    assert found == [[0], [1], [2]]
    assert partitions(core.drain()) == [0]


def test_of_many_queues_only_those_of_the_request_are_looked_at():
    gate = CountingGate()
    core = Core([1] * 500, gate=gate, max_request_size=4 * 1024)
    for partition in range(500):
        core.append(FULL, partition)
    for _ in range(10):
        assert len(core.drain()) == 4
    assert gate.asked == 40


def test_a_queue_that_is_idle_keeps_no_former_cluster():
    core = Core([1])
    core.append(FULL)
    core.drain()
    former = core.snapshot
    core.snapshot = cluster([1], more={"other": [1]})
    core.append(FULL, topic="other")
    core.drain()
    gc.collect()
    unused = cluster()
    assert sys.getrefcount(former) == sys.getrefcount(unused)


def test_one_batch_is_taken_however_large():
    """Requirement 20."""
    core = Core(max_request_size=1000)
    core.append(bytes(5000))
    [batch] = core.drain()
    assert batch.size > 5000


def test_draining_passes_over_muted_partitions():
    """Requirement 23."""
    core = Core([1, 1, 1])
    for partition in range(3):
        core.append(FULL, partition)
    core.queue(1).muted = True
    assert partitions(core.drain()) == [0, 2]
    core.queue(1).unmute()
    assert partitions(core.drain()) == [1]


def test_a_broker_without_partitions_gets_nothing():
    """Requirement 31."""
    core = Core([1])
    core.snapshot = cluster([1], more={"other": [2]})
    core.append(FULL)
    assert core.drain(2) == []
    assert core.queue().depth() == 1


def test_only_brokers_that_were_asked_for_are_drained():
    core = Core([1, 2])
    core.append(FULL, 0)
    core.append(FULL, 1)
    assert partitions(core.drain(2)) == [1]
    assert core.ready_ids() == [1]


def test_queues_that_ran_empty_are_forgotten_and_found_again():
    core = Core()
    core.append(b"v")
    core.drain()
    core.ready()
    assert core.accumulator.active_queues() == []
    core.append(b"v")
    assert core.ready_ids() == [1]


def test_the_answer_of_a_batch_changes_nothing_about_the_next_one():
    """Requirement 43."""
    core = Core()
    core.append(FULL)
    core.append(FULL)
    [first] = core.drain()
    core.queue().muted = True  # one request at a time
    first.fail(KafkaError("expired in flight"))
    core.accumulator.finish(first)
    assert core.drain(1) == []
    first.request_pending = False
    core.queue().unmute()
    assert len(core.drain()) == 1


# ---------------------------------------------------------------------------------------------- gate


class CountingGate(OpenGate):
    """Numbers batches once; holds back the partitions it is told to."""

    def __init__(self) -> None:
        super().__init__(retries=9)
        self.numbering = self
        self.held: set[int] = set()
        self.asked = 0
        self.next = 0

    def may_drain(self, queue: PartitionQueue, batch: Batch) -> bool:
        self.asked += 1
        return queue.partition not in self.held

    def assign(self, batch: Batch) -> BatchIdentity:
        if batch.identity.base_sequence < 0:
            batch.identity = BatchIdentity(77, 3, self.next, transactional=True)
            self.next += batch.record_count
        return batch.identity


def test_the_gate_holds_back_its_partition_alone():
    gate = CountingGate()
    core = Core([1, 1, 1], gate=gate)
    for partition in range(3):
        core.append(FULL, partition)
    gate.held = {1}
    assert partitions(core.drain()) == [0, 2]
    gate.held = set()
    assert partitions(core.drain()) == [1]


def test_the_gate_gives_batches_their_identity():
    core = Core(gate=CountingGate())
    core.append(FULL)
    core.append(FULL)
    found = []
    for batch in core.drain_all():
        [sealed] = read_batches(bytes(batch.wire))
        found.append(
            (sealed.producer_id, sealed.producer_epoch, sealed.base_sequence, sealed.is_transactional)
        )
    assert found == [(77, 3, 0, True), (77, 3, 1, True)]


def test_a_retried_batch_keeps_its_bytes():
    core = Core(gate=CountingGate())
    core.append(FULL)
    [batch] = core.drain()
    sent = bytes(batch.wire)
    core.retry(batch)
    [again] = core.drain()
    assert bytes(again.wire) == sent


def test_a_retry_is_waited_for_behind_a_partition_that_the_gate_holds_back():
    gate = CountingGate()
    core = Core([1, 1], gate=gate)
    core.append(FULL, 1)
    [batch] = core.drain()
    core.retry(batch, backoff=0.25)
    core.append(FULL, 0)
    gate.held = {0}
    check = core.ready()
    assert [node.id for node in check.nodes] == [1]
    assert core.drain(1) == []
    assert check.next_delay == pytest.approx(0.25)


def test_what_lingers_goes_along_although_the_gate_holds_back_what_is_ready():
    """So nobody has to wake up for the end of its linger."""
    gate = CountingGate()
    core = Core([1, 1], gate=gate, linger_ms=100)
    core.append(FULL, 0)
    core.append(b"v", 1)
    gate.held = {0}
    assert partitions(core.drain()) == [1]


def test_what_lingers_waits_although_the_gate_holds_back_another_that_lingers():
    gate = CountingGate()
    core = Core([1, 1, 1], gate=gate, linger_ms=1000)
    core.append(b"v", 0)
    core.append(FULL, 1)
    gate.held = {0}
    assert partitions(core.drain()) == [1]
    core.append(b"v", 2)
    assert core.ready_ids() == []
    core.now = START + 1
    assert core.ready_ids() == [1]


@pytest.mark.parametrize("how", ["expired", "unsent"])
@pytest.mark.parametrize("another_first", [True, False])
def test_a_broker_whose_batches_left_otherwise_is_not_ready(how, another_first):
    core = Core([1, 1], linger_ms=100, delivery_timeout_ms=1000)
    core.append(FULL, 0)
    assert core.ready_ids() == [1]
    core.now = START + 1
    if another_first:
        core.append(b"v", 1)
    if how == "expired":
        assert len(core.drainer.take_expired(core.now)) == 1
    else:
        assert core.queue(0).take_some(lambda _: True)
    if not another_first:
        core.append(b"v", 1)
    assert core.ready_ids() == []
    core.now += 0.1
    assert core.ready_ids() == [1]


def test_queues_that_an_error_has_forgotten_are_listed_anew():
    core = Core([1, 2])
    core.ready()
    core.append(FULL, 0)
    core.append(FULL, 1)
    assert len(core.accumulator.take_news()) == 2  # as a turn does, before an error ends it
    assert core.ready_ids() == []
    core.drainer.forget_leaders()
    assert core.ready_ids() == [1, 2]


# ---------------------------------------------------------------------------------------------- failures


def core_that_cannot_seal(leaders: list[int], **options: Any) -> Core:
    """One that cannot compress what INCOMPRESSIBLE is in."""
    core = Core(leaders, compression="gzip", **options)
    core.sealer.codec = BrokenCodec(core.sealer.codec, INCOMPRESSIBLE)
    return core


def test_a_batch_that_cannot_be_sealed_fails_alone(caplog):
    core = core_that_cannot_seal([1, 1, 1], memory=4096)
    deliveries = [
        core.append(INCOMPRESSIBLE if partition == 1 else b"v", partition) for partition in range(3)
    ]
    with caplog.at_level(logging.ERROR):
        batches = core.drain()
    assert partitions(batches) == [0, 2]
    error = deliveries[1].exception(0)
    assert "could not be put into wire format" in str(error)
    assert isinstance(error.__cause__, MemoryError)
    assert "orders-1" in caplog.text
    for batch in batches:
        core.acknowledge(batch)
    assert core.pool.available() == 4096
    assert not core.accumulator.has_incomplete()


@pytest.mark.parametrize("gate_fails", [False, True])
def test_the_gate_hears_of_a_batch_that_cannot_be_sealed_before_its_records_do(caplog, gate_fails):
    heard: list[str] = []

    class ListeningGate(CountingGate):
        def on_failure(self, *_: Any) -> None:
            heard.append("gate")
            if gate_fails:
                raise RuntimeError("the gate's own trouble")

    core = core_that_cannot_seal([1, 1], gate=ListeningGate())
    core.append(b"v", 0)
    core.append(INCOMPRESSIBLE, 1, on_delivery=lambda *_: heard.append("record"))
    assert partitions(core.drain()) == [0]
    assert heard == ["gate", "record"]
    assert ("the gate's own trouble" in caplog.text) is gate_fails


def test_a_batch_of_which_the_gate_cannot_say_whether_it_may_leave_stays_alone(caplog):
    class FailingGate(CountingGate):
        fails = True

        def may_drain(self, queue: PartitionQueue, batch: Batch) -> bool:
            if self.fails and queue.partition == 1:
                raise MemoryError("no room for an answer")
            return super().may_drain(queue, batch)

    gate = FailingGate()
    core = Core([1, 1, 1, 2], gate=gate)
    for partition in range(4):
        core.append(FULL, partition)
    assert sorted(partitions(core.drain(1, 2))) == [0, 2, 3]
    assert "orders-1" in caplog.text
    gate.fails = False
    assert partitions(core.drain()) == [1]


def test_a_batch_that_failed_and_cannot_be_cleared_away_takes_no_other_with_it(monkeypatch, caplog):
    core = core_that_cannot_seal([1, 1, 1])
    deliveries = [
        core.append(INCOMPRESSIBLE if partition == 1 else b"v", partition) for partition in range(3)
    ]

    def fail(*_: Any) -> None:
        raise MemoryError("no room to give room back")

    with monkeypatch.context() as broken:
        broken.setattr(core.pool, "give_back", fail)
        batches = core.drain()
    assert partitions(batches) == [0, 2]
    assert "could not be put into wire format" in str(deliveries[1].exception(0))
    assert "no room to give room back" in caplog.text
    for batch in batches:
        core.acknowledge(batch)
    assert not core.accumulator.has_incomplete()


@pytest.mark.parametrize("partitions_each", [1, 4, 40])
def test_active_queues_come_by_topic_and_partition(partitions_each):
    names = ["b", "a", "".join(["orders", "-", "é"]), "aa"]
    core = Core([1])
    queues = [
        queue for name in names for queue in reversed(core.accumulator.topic(name, partitions_each).queues)
    ]
    random.Random(partitions_each).shuffle(queues)
    core.accumulator._active.update(queues)
    found = [(queue.topic, queue.partition) for queue in core.accumulator.active_queues()]
    assert found == [(name, partition) for name in sorted(names) for partition in range(partitions_each)]


# ---------------------------------------------------------------------------------------------- load


def sticky_load(core: Core, topic: str = TOPIC) -> Any:
    return core.topic(topic).load


def fill(core: Core, *lengths: int, topic: str = TOPIC) -> None:
    """Bring the queues of a topic to these lengths."""
    core.topic(topic).sticky_partition = 0
    for partition, length in enumerate(lengths):
        while core.queue(partition, topic).depth() < length:
            core.append(FULL, partition, topic=topic)


def test_queue_lengths_are_told_once_every_partition_had_a_batch():
    """Requirement 30."""
    core = Core([1, 1, 1])
    fill(core, 3, 1, 0)
    core.ready()
    assert sticky_load(core) is None
    fill(core, 3, 1, 2)
    core.ready()
    load = sticky_load(core)
    assert load.everywhere.partitions == (0, 1, 2)
    assert load.everywhere.cumulative == (1, 4, 6)  # weights 1, 3 and 2


def test_queue_lengths_are_told_of_every_topic():
    """Requirement 30."""
    core = Core()
    core.snapshot = cluster([1, 1], more={"a": [1, 1], "z": [1, 1]})
    lengths = {"a": (3, 1), TOPIC: (1, 2), "z": (4, 1)}
    for topic, some in lengths.items():
        fill(core, *some, topic=topic)
    core.ready()
    found = {topic: sticky_load(core, topic).everywhere.cumulative for topic in lengths}
    assert found == {"a": (1, 4), TOPIC: (2, 3), "z": (1, 5)}


def test_the_lengths_of_many_queues_are_told_every_few_turns():
    core = Core([1] * 200)
    fill(core, *[1] * 200)
    core.append(FULL, 7)
    told = []
    for _ in range(5):
        core.ready()
        told.append(sticky_load(core) is not None)
    assert told == [False, False, False, True, True]


def test_even_queues_need_no_weights():
    """Requirement 30."""
    core = Core([1, 1])
    fill(core, 2, 1)
    core.ready()
    assert sticky_load(core) is not None
    fill(core, 2, 2)
    core.ready()
    assert sticky_load(core) is None


def test_old_lengths_are_forgotten_when_the_queues_run_empty():
    """Requirement 30."""
    core = Core([1, 1])
    fill(core, 3, 1)
    core.ready()
    assert sticky_load(core) is not None
    core.drain_all()
    core.ready()
    assert sticky_load(core) is None


def test_lengths_do_not_matter_when_adaptivity_is_off():
    """Requirement 30."""
    core = Core([1, 1], partitioner=PartitionerSettings(adaptive=False))
    fill(core, 3, 1)
    core.ready()
    assert sticky_load(core) is None


def test_partitions_without_leader_are_left_out():
    """Requirement 37."""
    core = Core([1, 1, 1])
    fill(core, 1, 1, 1)
    core.snapshot = cluster([1, NO_LEADER, 1])
    core.ready()
    assert sticky_load(core).everywhere.partitions == (0, 2)


def test_a_broker_that_takes_nothing_is_avoided_after_a_while():
    """Requirements 30 and 49."""
    core = Core([1, 2, 2], partitioner=PartitionerSettings(availability_timeout_ms=500))
    fill(core, 1, 1, 1)
    core.drainer.load.note_node(1, True, core.now)
    core.drainer.load.note_node(2, False, core.now)
    core.now += 0.5
    core.drainer.load.note_node(1, True, core.now)
    core.drainer.load.note_node(2, False, core.now)
    core.ready()
    assert sticky_load(core) is None  # not longer than the time-out yet
    core.now += 0.001
    core.drainer.load.note_node(2, False, core.now)
    core.ready()
    assert sticky_load(core).everywhere.partitions == (0,)  # also when only one is left
    core.drainer.load.note_node(2, True, core.now)
    core.ready()
    assert sticky_load(core) is None


def test_without_the_timeout_no_broker_is_avoided():
    """Requirement 30."""
    core = Core([1, 2])
    fill(core, 1, 1)
    core.drainer.load.note_node(2, False, core.now)
    core.now += 1000
    core.drainer.load.note_node(2, False, core.now)
    core.ready()
    assert sticky_load(core) is None


def test_when_all_brokers_are_stuck_none_is_avoided():
    """Requirement 37."""
    core = Core([1, 2], partitioner=PartitionerSettings(availability_timeout_ms=500))
    fill(core, 1, 1)
    for _ in range(2):
        core.drainer.load.note_node(1, False, core.now)
        core.drainer.load.note_node(2, False, core.now)
        core.now += 1
    core.ready()
    assert sticky_load(core) is None
    assert {core.partitioner.choose(core.topic()) for _ in range(50)} == {0, 1}


# ---------------------------------------------------------------------------------------------- all of it


@pytest.mark.parametrize("seed", range(8))
def test_any_course_of_events_delivers_every_record_once_in_order(seed):
    """Random appends, drains, retries, splits and answers under a tight memory."""
    rng = random.Random(seed)
    compression = rng.choice(["none", "gzip", "lz4"])
    core = Core(
        [1, 2, 1], batch_size=400, memory=40 * 400, compression=compression, linger_ms=5, max_request_size=900
    )
    sent: list[list[bytes]] = [[], [], []]
    arrived: list[list[bytes]] = [[], [], []]
    deliveries: list[tuple[int, int, Any]] = []
    in_flight: list[Batch] = []
    for number in range(1500):
        action = rng.random()
        core.now += 0.001
        if action < 0.7 and core.pool.available() > 2000:
            partition = rng.randrange(3)
            value = b"%d:" % number + bytes(rng.randrange(150))
            deliveries.append((partition, len(sent[partition]), core.append(value, partition)))
            sent[partition].append(value)
        else:
            batches = core.drain()
            for batch in batches:  # one request at a time in each partition, as for strict order
                batch.queue.muted = True
            in_flight += batches
        if in_flight and rng.random() < 0.5:
            batch = in_flight.pop(rng.randrange(len(in_flight)))
            batch.queue.unmute()
            drawn = rng.random()
            if drawn < 0.2:
                core.retry(batch, rng.random() * 0.01)
            elif drawn < 0.4 and batch.record_count > 1:
                core.split(batch)
            else:
                log = arrived[batch.queue.partition]
                base = len(log)
                log += [record.value for record in records(batch)]
                core.acknowledge(batch, base)
    flush = core.accumulator.flush()
    for batch in in_flight:
        batch.queue.unmute()
        core.retry(batch)
    core.now += 1
    for batch in core.drain_all():
        log = arrived[batch.queue.partition]
        base = len(log)
        log += values(batch)
        core.acknowledge(batch, base)
    assert flush.done
    assert arrived == sent
    assert core.pool.available() == core.pool.total
    for partition, place, delivery in deliveries:
        assert delivery.result(0)[1:3] == (partition, place)
