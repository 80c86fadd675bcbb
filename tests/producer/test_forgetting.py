# SPDX-License-Identifier: Apache-2.0
"""Topics that are not used any more are forgotten everywhere, and lose nothing when they are used again."""

from __future__ import annotations

import gc
import threading
import tracemalloc
from typing import Any

import pytest
from producer.fakes_sender import Rig
from producer.fakes_txn import ClusterRig, GateRig, numbers

from penstock import Producer
from penstock._locks import inside
from penstock.partitioners import Partitioner, RoundRobinPartitioner, StickyPartitioner
from penstock.producer.batch._queue_cy import TopicForgotten
from penstock.producer.guarantee import _sequences_cy
from penstock.protocol.messages import INIT_PRODUCER_ID, PRODUCE
from penstock.records.python_rows import ManyRecords
from penstock.testing import FakeKafka
from penstock.types import ProducerRecord

IDLE: dict[str, Any] = {"metadata_max_idle_ms": 5000, "metadata_max_age_ms": 1000}
both = pytest.mark.parametrize("protocol", [1, 2], ids=["v1", "v2"])


def sizes(rig: Rig) -> dict[str, int]:
    """How much is kept of topics, part by part."""
    parts, sender = rig.parts, rig.parts.sender
    book = sender._gate.numbering.book
    return {
        "topics": len(parts.accumulator.topics),
        "queues": len(parts.accumulator._queues),
        "active": len(parts.accumulator._active),
        "numbers": len(book._partitions),
        "numbers put away": len(book.away),
        "metrics": len(parts.registry.snapshot(rig.clock.now()).get("producer-topic-metrics", ())),
        "statistics": len(parts.sender_metrics.topics()),
        "ratios": len(parts.accumulator.sealer.ratios._ratios),
        "seen": len(sender._drainer.load._seen),
        "split": len(sender._outcomes._split_topics),
        "in use": len(parts.metadata._topics.all()),
        "troubles": len(parts.metadata._troubles._topics),
        "known": len(parts.metadata.snapshot.topics),
    }


def visit(rig: Rig, name: str) -> None:
    """Use a topic once, and go on with other things; what the test itself keeps of it is dropped."""
    rig.cluster.add_topic(name, 2)
    delivery = rig.send(name, b"v")
    rig.run_until(delivery.done)
    rig.run_for(0.2)
    for broker in rig.brokers:
        broker.seen.clear()
    assert delivery.result(0).topic == name


def test_the_gate_is_asked_with_no_lock_held():
    rig = GateRig(**IDLE)
    rig.acknowledge_all()
    visit(rig, "t")
    inside_a_lock: list[bool] = []

    def may_forget(queue: object) -> bool:
        inside_a_lock.append(inside())
        return True

    forgotten = rig.parts.accumulator.forget_unused((), may_forget)
    assert {queue.topic for queue in forgotten} == {"t"}
    assert inside_a_lock == [False] * len(forgotten)


@pytest.fixture
def few_put_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_sequences_cy, "MOST_PUT_AWAY", 30)


def test_many_short_lived_topics_cost_what_a_few_do(few_put_away):
    rig = GateRig(compression_type="gzip", **IDLE)
    rig.acknowledge_all()
    rig.know("always")
    largest: dict[str, int] = {}
    try:
        for number in range(220):
            if number == 60:
                tracemalloc.start()
            visit(rig, f"t{number}")
            rig.cluster.topics.pop(f"t{number - 50}", None)
            rig.log.clear()
            for name, size in sizes(rig).items():
                largest[name] = max(largest.get(name, 0), size)
            if number == 110:
                gc.collect()
                before = tracemalloc.get_traced_memory()[0]
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert max(largest.values()) <= 60, largest  # five seconds are 25 topics; they leave at the next look
    assert grown < 50_000, f"{grown} bytes for 110 topics"
    rig.run_for(30)
    assert {name: size for name, size in sizes(rig).items() if size > 1} == {
        "numbers put away": sizes(rig)["numbers put away"]
    }
    assert sizes(rig)["numbers put away"] <= 30


def test_a_topic_that_is_used_stays():
    rig = GateRig(**IDLE)
    rig.acknowledge_all()
    rig.know("t")
    queue = rig.parts.accumulator.topic("t", 1).queues[0]
    for _ in range(10):
        rig.deliver(rig.send("t", b"v"))
        rig.run_for(3)
    assert rig.parts.accumulator.topics["t"].queues == [queue]
    rig.run_for(10)
    assert "t" not in rig.parts.accumulator.topics


def test_statistics_begin_anew():
    rig = Rig(**IDLE)
    rig.acknowledge_all()
    rig.know("t")
    for _ in range(2):
        rig.run_until(rig.send("t", b"v").done)
        assert rig.metrics("producer-topic-metrics")["t"]["record-send-total"] == 1
        rig.run_for(15)
        assert "producer-topic-metrics" not in rig.parts.registry.snapshot(rig.clock.now())


# --------------------------------------------------------------------------------------------- sequence numbers


def forget(rig: Rig, *topics: str) -> None:
    """As if nobody had used these for long."""
    rig.parts.sender.keep_topics(set(rig.parts.accumulator.topics) - set(topics))
    for topic in topics:
        assert topic not in rig.parts.accumulator.topics


def test_within_an_epoch_numbers_go_on_where_they_were():
    """From 0 a broker would take the record for the first one: it would say that it was written, and it would not."""
    rig = ClusterRig(topics={"t": 2}, **IDLE)
    for number in range(4):
        rig.deliver(rig.send("t", b"%d" % number, partition=0))
        rig.run_for(15)
        assert "t" not in rig.parts.accumulator.topics
    assert rig.values() == [b"0", b"1", b"2", b"3"]
    assert len(rig.asked(INIT_PRODUCER_ID)) == 1


def test_numbers_that_are_dropped_make_a_new_epoch(few_put_away):
    rig = GateRig(**IDLE)
    rig.acknowledge_all()
    rig.cluster.add_topic("back", 1)
    for topic in ["back", *(f"t{number}" for number in range(31))]:
        rig.cluster.add_topic(topic, 1)
        rig.run_until(rig.send(topic, b"v").done)
        forget(rig, topic)
    rig.settle(2)
    assert sizes(rig)["numbers put away"] <= 1
    delivery = rig.send("back", b"again")
    rig.run_until(delivery.done)
    first, *_, last = [numbers(batch) for batch in rig.batches()]
    assert (first[1:], last[1:]) == ((0, 0), (1, 0))


def test_with_a_new_epoch_those_who_were_not_forgotten_lose_and_double_nothing(few_put_away):
    rig = ClusterRig(topics={"t": 1} | {f"t{number}": 1 for number in range(40)}, **IDLE)
    sent = []
    for number in range(40):
        sent.append(b"%d" % number)
        deliveries = [rig.send("t", sent[-1]), rig.send(f"t{number}", b"v")]
        rig.deliver(*deliveries)
        forget(rig, f"t{number}")
    assert rig.values() == sent
    rig.deliver(*[rig.send(f"t{number}", b"w") for number in range(40)])
    assert all(rig.values(f"t{number}") == [b"v", b"w"] for number in range(40))


@both
def test_transactions_go_on_after_topics_were_forgotten(protocol, few_put_away):
    features = {"transaction.version": protocol}
    rig = ClusterRig(
        topics={f"t{number}": 1 for number in range(35)}, features=features, transactional_id="x"
    )
    rig.init()
    for turn in range(2):
        for number in range(35):
            rig.begin()
            rig.deliver(rig.send(f"t{number}", b"%d" % turn))
            forget(rig, f"t{number}")
            if number % 2:  # used again within the transaction
                rig.deliver(rig.send(f"t{number}", b"more"))
            rig.commit()
            forget(rig, f"t{number}")
            assert len(rig.manager._numbers.book.away) <= 31
    for number in range(35):
        more = [b"more"] * (number % 2)
        assert rig.values(f"t{number}") == [b"0", *more, b"1", *more]


# ------------------------------------------------------------------------------------------------- at the same time


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_topic_with_records_on_their_way_is_kept(idempotent):
    rig = GateRig(linger_ms=50, enable_idempotence=idempotent)
    rig.know("t", partitions=2)
    queues = rig.parts.accumulator.topic("t", 2).queues
    delivery = rig.send("t", b"a", partition=0)
    for step in ("queued", "in flight"):
        rig.parts.sender.keep_topics(())
        assert rig.parts.accumulator.topics["t"].queues is queues, step
        rig.run_for(0.06)
    assert rig.parts.accumulator.appender.append_now(
        rig.parts.accumulator.topics["t"], 1, (0, None, b"b", None, 100), None
    )  # the other partition is as it was
    rig.acknowledge_all()
    rig.answer()
    rig.run_until(delivery.done)
    rig.run_for(1)
    rig.parts.sender.keep_topics(())
    assert "t" not in rig.parts.accumulator.topics


def test_a_queue_that_was_forgotten_takes_nothing():
    rig = Rig()
    rig.know("t")
    (queue,) = rig.parts.accumulator.topic("t", 1).queues
    forget(rig, "t")
    with pytest.raises(TopicForgotten):
        queue.append(0, None, b"v", None, None)
    assert rig.parts.accumulator.topic("t", 1).queues != [queue]


def test_the_fast_path_finds_a_topic_that_was_forgotten_while_it_remembered_it():
    rig = Rig()
    rig.acknowledge_all()
    rig.know("t")
    name = "t"
    for _ in range(3):
        rig.run_until(rig.send(name, b"v").done)
        assert rig.parts.fast_path.try_send(name, b"v", None, None, None, None, None) is not None
        rig.run_for(1)
        forget(rig, name)


def test_a_record_whose_topic_is_forgotten_while_it_waits_for_memory_finds_the_new_queue():
    rig = Rig()
    rig.acknowledge_all()
    rig.know("t")
    steps = rig.steps(ProducerRecord("t", b"v"))
    while next(steps) != "second look":
        pass
    free = rig.available_memory
    forget(rig, "t")
    rig.run_until(rig.drive(steps).done)
    assert rig.available_memory > free


@pytest.mark.parametrize("partition", [None, 1, [0, 1] * 50], ids=["sticky", "one partition", "each its own"])
@pytest.mark.parametrize("checkpoint", range(1, 12))
def test_rows_whose_topic_is_forgotten_meanwhile_are_sent_once_and_in_order(partition, checkpoint):
    rig = Rig(batch_size=200)
    rig.acknowledge_all()
    rig.know("t", partitions=2)
    many = ManyRecords.of("t", [b"%d" % number for number in range(100)], None, None, partition, None)
    steps = rig.parts.columns.steps("t", [many.rows(None)], skip=False)
    try:
        for _ in range(checkpoint):
            next(steps)
        rig.run_for(1)  # what was appended is written
        rig.parts.sender.keep_topics(())
        bulk = rig.drive(steps)
    except StopIteration as stop:
        bulk = stop.value
    rig.run_until(bulk.done)
    assert bulk.result(0).records == 100
    rows = [
        int(value) for request in rig.seen(PRODUCE) for batch in rig.read(request) for value in batch.values
    ]
    assert sorted(rows) == list(range(100))


def test_threads_that_send_while_topics_are_forgotten_lose_and_double_nothing(monkeypatch):
    with (
        FakeKafka(topics={"t": 2, "u": 2}) as kafka,
        Producer(bootstrap_servers=kafka.bootstrap_servers, linger_ms=0, batch_size=500) as producer,
    ):
        sender, io_thread = producer._parts.sender, producer._parts.io_thread
        now_of_clock, topics = io_thread._now, producer._parts.accumulator.topics
        forgotten = 0

        def forgetful() -> float:
            """The clock of the I/O thread, which is read at the beginning of each turn."""
            nonlocal forgotten
            before = len(topics)
            sender.keep_topics(())
            forgotten += len(topics) < before
            now: float = now_of_clock()
            return now

        monkeypatch.setattr(io_thread, "_now", forgetful)
        sent = [0, 0]

        def send(thread: int) -> None:
            while sent[thread] < 500 or forgotten <= 10:  # a busy machine may need more of them
                number = sent[thread]
                sent[thread] += 1
                delivery = producer.send("tu"[number % 2], b"%d %d" % (thread, number), partition=thread)
                if number % 20 == 0:
                    delivery.result(60)

        threads = [threading.Thread(target=send, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        producer.flush(60)
        for topic, first in (("t", 0), ("u", 1)):
            for partition in range(2):
                found = [record.value for record in kafka.records(topic, partition)]
                assert found == [
                    b"%d %d" % (partition, number) for number in range(first, sent[partition], 2)
                ]


# ------------------------------------------------------------------------------------------------------ partitioners


class Counting(Partitioner):
    def __init__(self) -> None:
        self.forgotten: list[str] = []

    def partition(self, *_: Any) -> int:
        return 0

    def on_topic_forgotten(self, topic: str) -> None:
        self.forgotten.append(topic)
        raise ZeroDivisionError


def test_a_partitioner_is_told_and_may_fail(caplog):
    partitioner = Counting()
    rig = Rig(partitioner=partitioner, **IDLE)
    rig.acknowledge_all()
    rig.know("t", partitions=3)
    rig.run_until(rig.send("t", b"v").done)
    rig.run_for(20)
    assert partitioner.forgotten == ["t"]
    assert "on_topic_forgotten raised" in caplog.text


@pytest.mark.parametrize("partitioner", [RoundRobinPartitioner(), StickyPartitioner()])
def test_our_partitioners_forget(partitioner):
    rig = Rig(partitioner=partitioner, **IDLE)
    rig.acknowledge_all()
    rig.know("t", partitions=3)
    rig.run_until(rig.send("t", b"v").done)
    kept = vars(partitioner).get("_counters", vars(partitioner).get("_current"))
    assert list(kept) == ["t"]
    rig.run_for(20)
    assert not kept
