# SPDX-License-Identifier: Apache-2.0
"""Calls by a finalizer or a signal handler in the middle of another call of the same thread: none waits for itself.

A test that holds a lock of the producer is where such a finalizer is. What deadlocks runs in a thread that is given up.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from producer.fakes_sender import Rig
from producer.fakes_txn import GateRig

from penstock import BulkDelivery, Interceptor, Producer, ProducerRecord, Serializer
from penstock._locks import inside, new_lock
from penstock._short_lock_cy import is_compiled
from penstock._ticket import Ticket
from penstock.errors import (
    BufferExhaustedError,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    ProducerClosedError,
    RecordTooLargeError,
    ReentrantCallError,
    SerializationError,
    TransactionAbortableError,
    TransactionAbortedError,
)
from penstock.partitioners import Partitioner, StickyPartitioner
from penstock.producer.send import deferring
from penstock.testing import FakeKafka, MockProducer

SOON = 60.0  # seconds that a test that passes never needs

Make = Callable[..., Producer]


@pytest.fixture(scope="module")
def kafka() -> Iterator[FakeKafka]:
    with FakeKafka(topics={"t": 1, "two": 2, "noise": 1}) as kafka:
        yield kafka


@pytest.fixture
def make(kafka: FakeKafka) -> Iterator[Make]:
    made: list[Producer] = []

    def make(**options: Any) -> Producer:
        made.append(Producer({"bootstrap_servers": kafka.bootstrap_servers, "linger_ms": 0} | options))
        return made[-1]

    yield make
    for producer in made:
        producer.close(0)


def within(work: Callable[[], Any]) -> Any:
    """What a call gives; a failure, instead of a test that hangs, where it does not come back."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append((work(), None))
        except BaseException as error:
            outcome.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(SOON)
    assert not thread.is_alive(), "it waits for itself"
    result, error = outcome[0]
    if error is not None:
        raise error
    return result


LOCKS: dict[str, Callable[[Producer], Any]] = {
    "pool": lambda producer: producer._parts.accumulator.pool._lock,
    "accumulator": lambda producer: producer._parts.accumulator._lock,
    "metadata": lambda producer: producer._parts.metadata._lock,
    "registry": lambda producer: producer._parts.registry._lock,
    "metrics windows": lambda producer: producer._parts.client_metrics._lock,
    "producer": lambda producer: producer._core._lock,
    "a Ticket": lambda producer: Ticket("something")._lock,
    "a BulkDelivery": lambda producer: producer.send_many("t", [b"v"])._lock,
    "a partitioner": lambda producer: StickyPartitioner()._lock,
}

WAITING: dict[str, Callable[[Producer], object]] = {
    "flush": lambda producer: producer.flush(),
    "close": lambda producer: producer.close(),
    "close(0)": lambda producer: producer.close(0),
    "partitions_for": lambda producer: producer.partitions_for("t"),
    "send_many": lambda producer: producer.send_many("t", [b"v"]),
    "send_arrow": lambda producer: producer.send_arrow("t", object()),
    "result": lambda producer: producer.send("t", b"unsettled").result(),
    "exception": lambda producer: producer.send("t", b"unsettled").exception(),
}


@pytest.mark.parametrize("lock", LOCKS)
def test_a_record_sent_under_a_lock_is_accepted_and_delivered(make, lock):
    producer = make(batch_size=200)  # smaller than the record: memory is needed for each
    producer.send("t", b"first").result(SOON)
    told: list[Any] = []

    def work() -> Any:
        with LOCKS[lock](producer):
            return producer.send("t", b"x" * 300, on_delivery=lambda *args: told.append(args))

    delivery = within(work)
    metadata = delivery.result(SOON)
    assert (metadata.topic, metadata.serialized_value_size) == ("t", 300)
    assert metadata.offset >= 0
    assert [entry[0] for entry in told] == [metadata]
    assert delivery.done()
    assert producer.send("t", b"after").result(SOON).offset > metadata.offset


@pytest.mark.parametrize("lock", LOCKS)
@pytest.mark.parametrize("call", WAITING)
def test_what_would_wait_under_a_lock_is_refused_and_the_producer_goes_on(make, lock, call):
    producer = make(linger_ms=60_000)
    producer.partitions_for("t")

    def work() -> None:
        with LOCKS[lock](producer):
            WAITING[call](producer)

    with pytest.raises(ReentrantCallError, match="finalizer or a signal handler"):
        within(work)
    after = producer.send("t", b"after")
    producer.close(SOON)
    assert after.result(0).offset >= 0


OF_A_BULK: dict[str, Callable[[BulkDelivery], object]] = {
    "accepted": lambda bulk: bulk.accepted,
    "errors": lambda bulk: bulk.errors,
    "result": lambda bulk: bulk.result(0),
    "exception": lambda bulk: bulk.exception(0),
    "add_done_callback": lambda bulk: bulk.add_done_callback(print),
}


@pytest.mark.parametrize("call", OF_A_BULK)
def test_what_a_bulk_is_asked_inside_a_lock_is_refused(make, call):
    """Its lock may be held by a thread that is interrupted in turn, and wants the lock that this one holds."""
    producer = make()
    bulk = producer.send_many("t", [b"v"])
    bulk.result(SOON)

    def work() -> None:
        with new_lock():
            OF_A_BULK[call](bulk)

    with pytest.raises(ReentrantCallError, match="finalizer or a signal handler"):
        within(work)
    assert bulk.accepted == 1


def test_whether_a_bulk_is_done_is_known_without_its_lock(make):
    producer = make(linger_ms=60_000)
    producer.partitions_for("t")
    bulk = producer.send_many("t", [b"v"])

    def work() -> tuple[bool, str]:
        with bulk._lock:
            return bulk.done(), repr(bulk)

    assert within(work) == (False, "<BulkDelivery pending>")
    producer.flush(SOON)
    assert within(work) == (True, "<BulkDelivery done>")
    assert bulk.result(0).records == 1


@pytest.mark.parametrize("lock", LOCKS)
def test_metrics_can_be_asked_for_under_a_lock(make, lock):
    producer = make()
    producer.send("t", b"first").result(SOON)

    def work() -> dict[str, Any]:
        with LOCKS[lock](producer):
            return producer.metrics()

    assert within(work)["producer-metrics"]["buffer-available-bytes"] > 0


class UnderTheQueueLock:
    """Calls something where the partition's lock is held: when records without key move on to the next partition."""

    def __init__(self, producer: Producer, call: Callable[[], object]) -> None:
        self.producer = producer
        self.call = call
        self.came: list[object] = []
        self.was_inside: list[bool] = []
        accumulator = producer._parts.accumulator
        self._partitioner, accumulator.partitioner = accumulator.partitioner, self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._partitioner, name)

    def choose(self, topic: Any) -> int:
        chosen = int(self._partitioner.choose(topic))
        if topic.sticky_partition >= 0 and not self.came:
            self.was_inside.append(inside())
            self.came.append(None)
            try:
                self.came[0] = self.call()
            except Exception as error:
                self.came[0] = error
        return chosen


def send_until_it_comes(producer: Producer, hook: UnderTheQueueLock) -> None:
    def work() -> None:
        for _ in range(1000):
            producer.send("t", b"y" * 50)
            if hook.came:
                return

    within(work)
    assert hook.was_inside == [True]


def test_a_record_for_the_very_partition_whose_lock_is_held_is_accepted(make, kafka):
    producer = make(batch_size=400)
    hook = UnderTheQueueLock(
        producer, lambda: [producer.send("t", b"from inside %d" % number) for number in range(3)]
    )
    send_until_it_comes(producer, hook)
    producer.flush(SOON)
    offsets = [delivery.result(0).offset for delivery in hook.came[0]]
    assert offsets == sorted(offsets)
    values = {record.offset: record.value for record in kafka.records("t")}
    assert [values[offset] for offset in offsets] == [b"from inside %d" % number for number in range(3)]


@pytest.mark.parametrize("call", WAITING)
def test_what_would_wait_is_refused_under_the_lock_of_a_partition(make, call):
    producer = make(batch_size=400, linger_ms=60_000)
    hook = UnderTheQueueLock(producer, lambda: WAITING[call](producer))
    send_until_it_comes(producer, hook)
    assert isinstance(hook.came[0], ReentrantCallError)
    producer.close(SOON)


def test_two_threads_that_interrupt_themselves_do_not_wait_for_each_other(make):
    """Each holds the lock that the other one's record needs."""
    producer = make(batch_size=200)
    producer.send("two", b"v", partition=0).result(SOON)
    both = threading.Barrier(2)
    accumulator, pool = producer._parts.accumulator._lock, producer._parts.accumulator.pool._lock
    sent: list[Any] = []

    def work(lock: Any) -> None:
        with lock:
            both.wait(SOON)
            sent.append(producer.send("two", b"x" * 300))

    threads = [threading.Thread(target=work, args=(lock,), daemon=True) for lock in (accumulator, pool)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)
    assert not any(thread.is_alive() for thread in threads)
    assert all(delivery.result(SOON).offset >= 0 for delivery in sent)


# ---------------------------------------------------------------------------------------------- what was put aside


def put_aside(producer: Producer, **record: Any) -> Any:
    """Send under a lock that leaves no way but to put the record aside."""

    def work() -> Any:
        with producer._parts.accumulator.pool._lock:
            return producer.send_record(ProducerRecord("t", **({"value": b"v"} | record)))

    return within(work)


def test_what_is_wrong_with_a_record_is_raised_at_once(make):
    class Failing(Serializer):
        def serialize(self, topic: str, headers: Any, data: Any) -> bytes | None:
            raise ValueError("no bytes for it")

    producer = make(max_request_size=5000)
    with pytest.raises(RecordTooLargeError):
        put_aside(producer, value=b"x" * 6000)
    with pytest.raises(SerializationError, match="no bytes for it"):
        put_aside(make(value_serializer=Failing()))
    producer.close()
    with pytest.raises(ProducerClosedError):
        put_aside(producer)


def test_serializer_partitioner_and_interceptor_see_it_as_any_other(make, kafka):
    seen: list[Any] = []

    class UpperCase(Serializer):
        def serialize(self, topic: str, headers: Any, data: Any) -> bytes | None:
            headers.add("encoded", b"1")
            return str(data).upper().encode()

    class Second(Partitioner):
        def partition(self, *args: Any) -> int:
            seen.append(args[:5])
            return 1

    class Watching:
        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            seen.append("on_send")
            return record

        def on_acknowledgement(self, metadata: Any, error: Any, headers: Any) -> None:
            seen.append(("acknowledged", metadata.partition, error))

    producer = make(value_serializer=UpperCase(), partitioner=Second(), interceptors=[Watching()])

    def work() -> Any:
        with producer._parts.metadata._lock:
            return producer.send("two", "hello", timestamp_ms=7)

    metadata = within(work).result(SOON)
    assert (metadata.partition, metadata.timestamp) == (1, 7)
    (record,) = (record for record in kafka.records("two", 1) if record.offset == metadata.offset)
    assert (record.value, record.headers[0].key) == (b"HELLO", "encoded")
    assert seen == ["on_send", ("two", None, None, "hello", b"HELLO"), ("acknowledged", 1, None)]


def test_flush_and_close_wait_for_it(make, kafka):
    producer = make(linger_ms=60_000)
    flushed = put_aside(producer, value=b"flushed")
    producer.flush(SOON)
    assert flushed.result(0).offset >= 0
    closed = put_aside(producer, value=b"closed")
    producer.close(SOON)
    assert closed.result(0).offset > flushed.result(0).offset


def test_the_callbacks_and_coroutines_that_follow_it_are_told(make):
    producer = make()
    told: list[Any] = []
    event = threading.Event()
    delivery = put_aside(producer)
    delivery.add_done_callback(lambda done: (told.append(done), event.set()))
    assert event.wait(SOON)
    assert told == [delivery]
    assert delivery.exception(0) is None
    assert f"offset={delivery.result(0).offset}" in repr(delivery)


def aside(rig: Rig, on_delivery: Any = None, **record: Any) -> Any:
    later = rig.later(ProducerRecord(**record), on_delivery)
    return rig.parts.accumulator.deferred.put_aside(later, on_delivery, rig.config.max_block_ms / 1000)


def test_a_topic_that_does_not_exist_fails_it_when_its_time_is_over():
    rig = Rig(max_block_ms=3000)
    told: list[Any] = []
    delivery = aside(rig, lambda *args: told.append(args), topic="nowhere", value=b"v")
    other = aside(rig, topic="also-nowhere", value=b"v")
    rig.run_for(2.9)
    assert not delivery.done()
    assert rig.parts.accumulator.incomplete_records() == 2
    rig.run_for(0.2)
    assert isinstance(delivery.exception(0), KafkaTimeoutError)
    assert "3000 ms" in str(delivery.exception(0))
    assert isinstance(told[0][1], KafkaTimeoutError)
    assert other.done()
    assert len(rig.parts.accumulator.deferred) == 0
    assert not rig.parts.fast_path.detour


def test_it_waits_its_turn_for_memory_and_gets_it():
    rig = Rig(buffer_memory=16_384, batch_size=16_384, max_block_ms=3000)
    rig.know("t")
    first = rig.send("t", b"x" * 16_000)
    rig.await_request()
    second = aside(rig, topic="t", value=b"y" * 16_000)
    rig.settle()
    assert not second.done()
    rig.answer()
    rig.await_request()
    rig.answer(base_offset=1)
    assert first.result(0).offset == 0
    assert second.result(0).offset == 1
    assert rig.available_memory == rig.config.buffer_memory


def test_without_memory_it_fails_when_its_time_is_over_and_leaves_nothing_behind():
    rig = Rig(buffer_memory=16_384, batch_size=16_384, max_block_ms=1000, request_timeout_ms=20_000)
    rig.know("t")
    rig.send("t", b"x" * 16_000)
    rig.await_request()
    delivery = aside(rig, topic="t", value=b"y" * 16_000)
    rig.run_for(1.1)
    assert isinstance(delivery.exception(0), BufferExhaustedError)
    rig.answer()
    assert rig.available_memory == rig.config.buffer_memory


def test_records_of_one_handler_keep_their_order():
    """The second would fit into the open batch, the first does not."""
    rig = Rig(batch_size=1000, linger_ms=60_000)
    rig.know("t")
    rig.send("t", b"o" * 500)
    deliveries = [aside(rig, topic="t", value=b"x" * 800)]
    assert rig.parts.fast_path.detour
    assert rig.parts.fast_path.try_send("t", b"short", None, None, None, None, None) is None
    deliveries.append(aside(rig, topic="t", value=b"short"))
    rig.acknowledge_all()
    rig.settle()
    rig.run_for(60)
    assert [delivery.result(0).offset for delivery in deliveries] == [1, 2]


def test_there_is_an_end_to_what_can_be_put_aside(monkeypatch):
    monkeypatch.setattr(deferring, "_MOST_BYTES", 1000)
    rig = Rig()
    rig.know("t")
    rig.acknowledge_all()
    first = aside(rig, topic="t", value=b"x" * 600)
    with pytest.raises(ReentrantCallError, match="no room for more"):
        aside(rig, topic="t", value=b"x" * 600)
    rig.run_until(first.done)
    second = aside(rig, topic="t", value=b"x" * 600)
    rig.run_until(second.done)
    assert second.result(0).offset == 1


def test_the_io_thread_of_a_forgotten_producer_appends_all_before_it_ends():
    rig = Rig()
    rig.know("t")
    rig.acknowledge_all()
    deliveries = [aside(rig, topic="t", value=b"v") for _ in range(250)]  # more than a turn takes
    rig.parts.io_thread.initiate_close()
    rig.run_to_end()
    assert [delivery.exception(0) for delivery in deliveries] == [None] * 250


def test_a_close_does_not_wait_for_one_that_is_not_accepted_any_more():
    rig = Rig()
    delivery = aside(rig, topic="nowhere", value=b"v")
    rig.settle()
    rig.parts.begin_close()
    rig.run_to_end()
    assert isinstance(delivery.exception(0), ProducerClosedError)


def test_a_forced_close_fails_it():
    rig = Rig()
    delivery = aside(rig, topic="nowhere", value=b"v")
    rig.parts.io_thread.force_close()
    rig.run_to_end()
    assert isinstance(delivery.exception(0), ProducerClosedError)


# ---------------------------------------------------------------------------------------------- transactions


@pytest.fixture
def transactional(make: Make, request: pytest.FixtureRequest) -> Producer:
    producer = make(transactional_id=request.node.name, max_block_ms=60_000)
    producer.init_transactions()
    return producer


def committed(kafka: FakeKafka) -> list[bytes | None]:
    return [record.value for record in kafka.records("t")]


TRANSACTION_CALLS: dict[str, Callable[[Producer], object]] = {
    "init_transactions": lambda producer: producer.init_transactions(),
    "begin_transaction": lambda producer: producer.begin_transaction(),
    "commit_transaction": lambda producer: producer.commit_transaction(),
    "abort_transaction": lambda producer: producer.abort_transaction(),
    "detach_transaction": lambda producer: producer.detach_transaction(),
    "send_offsets_to_transaction": lambda producer: producer.send_offsets_to_transaction({("t", 0): 1}, "g"),
}


@pytest.mark.parametrize("call", TRANSACTION_CALLS)
def test_transaction_calls_under_a_lock_are_refused_and_change_nothing(transactional, kafka, call):
    with transactional.transaction():
        transactional.send("t", call.encode())

        def work() -> None:
            with transactional._parts.transactions._lock:
                TRANSACTION_CALLS[call](transactional)

        with pytest.raises(ReentrantCallError):
            within(work)
    assert call.encode() in committed(kafka)


def test_a_record_put_aside_is_part_of_its_transaction(transactional, kafka):
    with transactional.transaction():
        delivery = put_aside(transactional, value=b"in the transaction")
    assert delivery.result(0).offset >= 0
    assert b"in the transaction" in committed(kafka)
    transactional.begin_transaction()
    put_aside(transactional, value=b"aborted")
    transactional.abort_transaction()
    assert b"aborted" not in committed(kafka)


def test_outside_of_a_transaction_none_is_accepted(transactional):
    with pytest.raises(IllegalStateError, match="no transaction is open"):
        put_aside(transactional)


def test_one_that_cannot_be_appended_keeps_its_transaction_from_being_committed(transactional):
    transactional._core.max_block = 0.3
    transactional.begin_transaction()
    put_aside(transactional, value=b"x", partition=7)  # there is none of that number
    with pytest.raises((TransactionAbortableError, KafkaTimeoutError)):
        transactional.commit_transaction()
    transactional._core.max_block = SOON
    with pytest.raises(TransactionAbortableError):
        transactional.commit_transaction()
    transactional.abort_transaction()


def test_an_abort_does_not_wait_for_one_that_has_to_wait(transactional):
    transactional.begin_transaction()
    delivery = put_aside(transactional, value=b"late", partition=8)  # there is none of that number
    transactional._core.max_block = SOON
    started = time.monotonic()
    transactional.abort_transaction()
    assert time.monotonic() - started < 30  # and not the minute that the record may wait
    assert isinstance(delivery.exception(0), IllegalStateError | TransactionAbortedError)
    with transactional.transaction():
        transactional.send("t", b"next")


@pytest.mark.parametrize("protocol", [1, 2])
def test_one_that_comes_between_the_look_and_the_commit_is_not_left_out(protocol):
    rig = GateRig.transactional(protocol=protocol)
    rig.begin()
    rig.acknowledge_all()
    rig.deliver(rig.send("t", b"a", partition=0))
    delivery = aside(rig, topic="t", value=b"late")
    ticket = rig.manager.commit()  # which has waited for all that was put aside before
    with pytest.raises(TransactionAbortableError, match="a finalizer or a signal handler"):
        rig.finish(ticket)
    assert isinstance(delivery.exception(0), IllegalStateError)
    rig.abort()
    rig.begin()
    rig.deliver(rig.send("t", b"b", partition=0))
    rig.commit()


def test_an_error_while_one_fails_keeps_no_other_from_failing_at_the_end():
    rig = Rig()
    deliveries = [aside(rig, topic="unknown", value=b"v") for _ in range(3)]
    deferred = rig.parts.accumulator.deferred

    def fail_once(error: KafkaError) -> bool:
        deferred.on_failed = lambda _: False
        raise RuntimeError("planted")

    deferred.on_failed = fail_once
    with pytest.raises(RuntimeError, match="planted"):
        deferred.fail_all(ProducerClosedError("closed"))
    assert [type(delivery.exception(0)) for delivery in deliveries] == [ProducerClosedError] * 3


def ended_with_one_more() -> tuple[Rig, Any, Any]:
    """A producer whose I/O thread has ended, what defers its records, and a record that comes after that."""
    rig = Rig()
    rig.know("t")
    later = rig.later(ProducerRecord("t", b"late"))
    deferred = rig.parts.accumulator.deferred
    rig.parts.io_thread.initiate_close()
    rig.run_to_end()
    return rig, deferred, later


def test_one_that_comes_behind_the_end_of_the_io_thread_is_refused():
    """Between its look and its place among those put aside, while nothing else waits: no turn would append it."""
    _, deferred, later = ended_with_one_more()
    with pytest.raises(ProducerClosedError):
        deferred.put_aside(later, None, 1.0)
    assert deferred.all_appended().done
    assert deferred.results() == []


def test_a_flush_that_has_seen_one_behind_the_end_of_the_io_thread_goes_on(monkeypatch):
    rig, deferred, later = ended_with_one_more()
    waits: list[Any] = []
    take = deferred._take

    def flush_first(record: Any) -> bool:
        waits.extend((rig.parts.accumulator.flush(), deferred.all_appended()))
        assert not any(ticket.done for ticket in waits)
        return take(record)

    monkeypatch.setattr(deferred, "_take", flush_first)
    with pytest.raises(ProducerClosedError):
        deferred.put_aside(later, None, 1.0)
    assert [ticket.done for ticket in waits] == [True, True]


class Seeing(Interceptor):
    """Sees records that are sent, and what becomes of them."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.told: list[Any] = []

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        self.sent.append(record.value)
        return record

    def on_acknowledgement(self, metadata: object, error: BaseException | None) -> None:
        self.told.append(error)


@pytest.mark.parametrize("begun", [False, True], ids=["not begun", "waiting"])
def test_interceptors_are_told_of_what_a_forced_close_fails_before_its_callback_is(begun):
    seeing = Seeing()
    rig = Rig(interceptors=[seeing])
    delivery = aside(rig, lambda *args: seeing.told.append("callback"), topic="unknown", value=b"v")
    if begun:
        rig.turn()
    rig.parts.io_thread.force_close()
    rig.run_to_end()
    assert seeing.sent == [b"v"]
    assert [type(told) for told in seeing.told] == [ProducerClosedError, str]
    assert isinstance(delivery.exception(0), ProducerClosedError)


def test_interceptors_are_told_of_what_cannot_be_put_aside(monkeypatch):
    monkeypatch.setattr(deferring, "_MOST_BYTES", 100)
    seeing = Seeing()
    rig = Rig(interceptors=[seeing])
    with pytest.raises(ReentrantCallError) as caught:
        aside(rig, topic="unknown", value=b"v" * 101)
    assert seeing.told == [caught.value]
    later = rig.later(ProducerRecord("unknown", b"v"))
    rig.parts.io_thread.force_close()
    rig.run_to_end()
    with pytest.raises(ProducerClosedError):
        rig.parts.accumulator.deferred.put_aside(later, None, 1.0)
    assert [type(told) for told in seeing.told] == [ReentrantCallError, ProducerClosedError]


def test_one_that_comes_behind_the_end_of_its_transaction_is_told_in_the_log(caplog):
    rig = GateRig.transactional()
    rig.begin()
    rig.acknowledge_all()
    rig.deliver(rig.send("t", b"a", partition=0))
    later = rig.later(ProducerRecord("t", b"late"))
    rig.commit()  # between its look and its place among those put aside
    rig.parts.accumulator.deferred.put_aside(later, None, 1.0)
    rig.run_for(1)
    assert "1 record for topic 't' failed, and the program did not ask" in caplog.text
    rig.begin()
    rig.deliver(rig.send("t", b"b", partition=0))
    rig.commit()


# ---------------------------------------------------------------------------------------------- as it happens


class Node:
    """Says in its finalizer, as asyncio's Task does, that something was forgotten; the collector has to find it."""

    def __init__(self, say: Callable[[], object]) -> None:
        self.me = self
        self.say = say

    def __del__(self) -> None:
        self.say()


def test_finalizers_that_send_whenever_the_collector_runs(make):
    producer = make(batch_size=300, buffer_memory=60_000)
    sent: list[Any] = []
    where: set[bool] = set()
    numbers = itertools.count()

    def say() -> None:
        where.add(inside())
        # On the I/O thread, without memory, it cannot wait: there a clear error is all that can be had.
        with contextlib.suppress(IllegalStateError):
            sent.append(producer.send("noise", b"from a finalizer", headers=[("level", b"W")]))

    def enough() -> bool:
        happened = True in where or not is_compiled()  # under a lock; in plain Python that is rare
        return happened and len(sent) > 100

    def work() -> None:
        before = gc.get_threshold()
        try:
            end = time.monotonic() + 1.0
            while time.monotonic() < end or not enough():
                gc.set_threshold(1 + next(numbers) % 23, 2, 2)  # at another place each time
                Node(say)
                producer.send("noise", b"x" * 50, headers=[("a", b"b")], on_delivery=lambda *_: None)
        finally:
            gc.set_threshold(*before)

    within(work)
    producer.flush(SOON)
    assert enough()
    assert all(delivery.exception(0) is None for delivery in sent)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers here")
def test_a_signal_handler_that_sends_again_and_again(make):
    producer = make(batch_size=200, buffer_memory=60_000)
    producer.send("noise", b"first").result(SOON)
    sent: list[Any] = []
    busy: list[int] = []

    def handle(*_: Any) -> None:
        if not busy:
            busy.append(1)
            sent.append(producer.send("noise", b"from the handler" * 8))
            producer.metrics()
            busy.clear()

    before = signal.signal(signal.SIGALRM, handle)
    watchdog = threading.Timer(SOON, lambda: signal.raise_signal(signal.SIGINT))  # ends what waits for itself
    watchdog.start()
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0007, 0.0007)
        end = time.monotonic() + 1.0
        while time.monotonic() < end or len(sent) <= 50:
            producer.send("noise", b"x" * 100)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        watchdog.cancel()
    producer.flush(SOON)
    assert all(delivery.exception(0) is None for delivery in sent)


def test_a_finalizer_on_the_thread_of_the_fake_cluster_is_served(make, kafka):
    producer = make(batch_size=200)
    producer.send("t", b"first").result(SOON)
    came: list[Any] = []

    class Looks:
        """Called by the serving thread, with the cluster's lock held."""

        def __init__(self) -> None:
            self.original = kafka.cluster.tick

        def __call__(self, now: float) -> None:
            self.original(now)
            if not came:
                came.append(producer.send("t", b"x" * 300))
                for call in (producer.flush, came[0].result):
                    with pytest.raises(ReentrantCallError):
                        call()
                came.append("refused")

    kafka.cluster.tick = Looks()
    try:
        within(lambda: producer.send("t", b"second").result(SOON))
    finally:
        kafka.cluster.tick = kafka.cluster.tick.original
    assert came[0].result(SOON).offset >= 0
    assert came[1] == "refused"


def test_a_mock_producer_takes_records_in_the_middle_of_a_call():
    producer = MockProducer(auto_complete=False)

    def work() -> None:
        with producer._lock:
            producer.send("t", b"inside")
            producer.flush()
            assert producer.metrics() == {}

    within(work)
    assert [record.value for record in producer.history()] == [b"inside"]
    delivery = producer.send("t", b"pending")

    def wait() -> None:
        with producer._lock:
            delivery.result()

    with pytest.raises(ReentrantCallError):
        within(wait)
    producer.close()
