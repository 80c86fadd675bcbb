# SPDX-License-Identifier: Apache-2.0
"""Errors with a small effect: an answer that cannot be handled, an interrupt at the wrong moment, two producers."""

from __future__ import annotations

import math
import random
import re
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fix_patience import SOON, closed_port, why_it_waited
from producer.fakes_sender import LoopbackBroker, Rig
from producer.fakes_txn import GateRig

from penstock import Producer
from penstock._ticket import Ticket
from penstock.errors import KafkaError, RequestTimedOutError
from penstock.network.failures import FailureReporter
from penstock.producer.batch._batch_cy import Batch
from penstock.producer.batch._partitioner_cy import (
    BuiltInPartitioner,
    LoadTable,
    PartitionerSettings,
    TopicLoad,
    TopicState,
)
from penstock.producer.metadata.cluster import ClusterSnapshot


@pytest.fixture
def make() -> Iterator[Callable[..., Producer]]:
    made: list[Producer] = []
    with LoopbackBroker(t=3, one=1) as broker:

        def make_producer(**options: Any) -> Producer:
            defaults = {"bootstrap_servers": broker.address, "linger_ms": 0, "enable_idempotence": False}
            made.append(Producer(**(defaults | options)))
            return made[-1]

        yield make_producer
        for producer in made:
            producer.close(SOON)


@pytest.mark.parametrize(("step", "code"), [("on_success", 0), ("decide", 46)])  # 46: it was there already
def test_an_answer_that_cannot_be_handled_fails_its_batch_and_no_other(monkeypatch, caplog, step, code):
    rig = Rig(max_in_flight_requests_per_connection=1)
    rig.know("t", partitions=2)
    deliveries = [rig.send("t", b"v", partition=partition) for partition in range(2)]
    rig.await_request()
    gate = rig.parts.send_path.gate
    owner = gate.numbering if step == "on_success" else gate
    original = getattr(owner, step)

    def fail_for_the_first(*args: Any) -> Any:
        if any(isinstance(arg, Batch) and arg.queue.partition == 0 for arg in args):
            raise MemoryError("no room for an answer")
        return original(*args)

    monkeypatch.setattr(owner, step, fail_for_the_first)
    rig.answer(error_code=code)
    rig.run_until(deliveries[1].done)
    assert isinstance(deliveries[0].exception(0).__cause__, MemoryError)
    assert deliveries[1].result(0).offset >= 0
    assert rig.available_memory == rig.config.buffer_memory
    assert not any(queue.muted for queue in rig.parts.accumulator.topics["t"].queues)
    assert "could not be handled" in caplog.text


def test_records_are_told_of_their_outcome_although_their_memory_could_not_be_given_back(monkeypatch, caplog):
    rig = Rig()
    rig.know("t", partitions=2)
    deliveries = [rig.send("t", b"v", partition=partition) for partition in range(2)]
    rig.await_request()

    def fail(*_: Any) -> None:
        raise MemoryError("no room to give room back")

    monkeypatch.setattr(rig.parts.accumulator.pool, "give_back", fail)
    rig.answer()
    rig.run_until(deliveries[1].done)
    assert "no room to give room back" in caplog.text
    assert [delivery.result(0).partition for delivery in deliveries] == [0, 1]
    assert not rig.parts.accumulator.has_incomplete()


def test_records_count_as_without_outcome_until_their_callbacks_have_run():
    rig = Rig()
    rig.know("t", partitions=3)
    left: list[int] = []

    def look(*_: Any) -> None:
        left.append(rig.parts.accumulator.incomplete_records())

    for partition in range(3):
        rig.send("t", b"v", partition=partition, on_delivery=look)
    rig.await_request()
    rig.answer()
    rig.run_until(lambda: len(left) == 3)
    assert left == [3, 2, 1]
    assert rig.parts.accumulator.incomplete_records() == 0


def all_have_an_error(rig: Rig, deliveries: list[Any], kind: type[BaseException]) -> bool:
    """Whether each record failed because of that, and nothing of it is left anywhere."""
    assert [type(delivery.exception(0).__cause__) for delivery in deliveries] == [kind] * len(deliveries)
    assert rig.available_memory == rig.config.buffer_memory
    assert not rig.parts.accumulator.has_incomplete()
    assert not any(queue.muted for queue in rig.parts.accumulator.topics["t"].queues)
    return True


def fail(*_: Any) -> Any:
    raise MemoryError("no room")


def two_in_flight() -> tuple[Rig, list[Any]]:
    rig = Rig(max_in_flight_requests_per_connection=1)
    rig.know("t", partitions=2)
    deliveries = [rig.send("t", b"v", partition=partition) for partition in range(2)]
    rig.await_request()
    return rig, deliveries


def test_leaders_that_cannot_be_noted_leave_no_batch_without_an_outcome(monkeypatch, caplog):
    rig, deliveries = two_in_flight()
    monkeypatch.setattr(rig.parts.metadata, "update_leader_hints", fail)
    rig.answer(error_code=6, current_leader={"leader_id": 0, "leader_epoch": 7})
    assert all_have_an_error(rig, deliveries, MemoryError)
    assert "could not be handled" in caplog.text


@pytest.mark.parametrize("code", [0, 87])
@pytest.mark.parametrize("counted", [False, True])
def test_a_gate_that_cannot_hear_of_failures_keeps_no_batch_from_its_outcome(
    monkeypatch, caplog, code, counted
):
    rig, deliveries = two_in_flight()
    gate = rig.parts.send_path.gate
    monkeypatch.setattr(gate.numbering, "on_success", fail)
    for step in ("decide", "on_failure"):
        monkeypatch.setattr(gate, step, fail)
    if not counted:
        rig.break_counting(monkeypatch, fail)
    rig.answer(error_code=code)
    assert all_have_an_error(rig, deliveries, MemoryError)


def test_an_unmade_request_of_which_the_gate_cannot_hear_leaves_no_batch_without_an_outcome(
    monkeypatch, caplog
):
    rig = Rig(max_in_flight_requests_per_connection=1)
    rig.know("t", partitions=2)
    rig.break_requests(monkeypatch, fail)
    monkeypatch.setattr(rig.parts.send_path.gate, "on_failure", fail)
    deliveries = [rig.send("t", b"v", partition=partition) for partition in range(2)]
    rig.settle()
    assert all_have_an_error(rig, deliveries, MemoryError)


@pytest.mark.parametrize("step", ["on_expired", "connection_error"])
def test_trouble_with_expired_batches_leaves_none_without_an_outcome(monkeypatch, caplog, step):
    rig = Rig(delivery_timeout_ms=1000, request_timeout_ms=1000)
    rig.know("t", partitions=3)
    gate = rig.parts.send_path.gate
    monkeypatch.setattr(gate.numbering, "may_drain", lambda queue, _: queue.partition == 2)
    if step == "on_expired":
        monkeypatch.setattr(gate, step, fail)
    else:
        monkeypatch.setattr(FailureReporter, "last_error", fail)
    stuck = [rig.send("t", b"v", partition=partition) for partition in range(2)]
    rig.run_for(0.9)
    rig.clock.advance(0.2)
    drained = rig.send("t", b"v", partition=2)
    rig.turn()
    assert [type(delivery.exception(0).__cause__) for delivery in stuck] == [MemoryError] * 2
    rig.await_request()
    rig.answer()
    assert drained.result(0).partition == 2
    assert rig.available_memory == rig.config.buffer_memory


@pytest.mark.parametrize("idempotent", [False, True])
def test_pieces_of_which_the_gate_cannot_hear_leave_no_record_without_an_outcome(
    monkeypatch, caplog, idempotent
):
    rig = (GateRig if idempotent else Rig)(linger_ms=5, max_in_flight_requests_per_connection=1)
    rig.know("t")
    heard: list[Any] = []
    deliveries = [rig.send("t", b"v", on_delivery=lambda *told: heard.append(told)) for _ in range(2)]
    rig.await_request()
    with monkeypatch.context() as broken:
        broken.setattr(rig.parts.send_path.gate, "on_split", fail)
        rig.answer(error_code=10)
    assert all_have_an_error(rig, deliveries, MemoryError)
    assert len(heard) == 2
    rig.acknowledge_all()
    following = rig.send("t", b"w")
    rig.run_until(following.done)
    assert following.result(0).offset >= 0


def test_a_batch_is_looked_at_again_soon_when_the_gate_could_not_say_whether_it_may_leave(
    monkeypatch, caplog
):
    rig = Rig()
    rig.know("t")
    rig.acknowledge_all()
    answers = iter([fail, fail])
    numbering = rig.parts.send_path.gate.numbering
    monkeypatch.setattr(numbering, "may_drain", lambda *_: next(answers, lambda: True)())
    delivery = rig.send("t", b"v")
    before = rig.clock.now()
    rig.run_until(delivery.done)
    assert 0 < rig.clock.now() - before < 1
    assert delivery.result(0).offset >= 0


def test_counting_that_fails_keeps_no_other_request_from_being_sent(monkeypatch, caplog):
    rig = Rig(brokers=2, max_in_flight_requests_per_connection=1)
    rig.know("t", partitions=2)
    rig.acknowledge_all()
    for partition in range(2):  # connects
        rig.send("t", b"v", partition=partition)
    rig.settle()
    rig.break_counting(monkeypatch, fail)
    deliveries = [rig.send("t", b"v", partition=partition) for partition in range(2)]
    with pytest.raises(MemoryError):
        rig.turn()
    rig.settle()
    assert [delivery.result(0).offset for delivery in deliveries] == [1, 1]


def test_a_producer_may_be_closed_flushed_and_waited_for_in_a_callback_of_another(make):
    first, second = make(), make(linger_ms=50)
    second.partitions_for("t")
    outcome: list[Any] = []
    called = threading.Event()

    def use_the_other(metadata: object, error: object) -> None:
        try:
            delivery = second.send("t", b"from a callback")
            second.flush(SOON)
            outcome.append(delivery.result(SOON))
            kept = second.send("t", b"the last one")
            second.close(SOON)
            outcome.append(kept.result(0))
        except BaseException as failure:
            outcome.append(failure)
        called.set()

    first.send("t", b"v", on_delivery=use_the_other)
    assert called.wait(SOON)
    assert [getattr(metadata, "topic", metadata) for metadata in outcome] == ["t", "t"]


def test_close_can_be_called_again_after_an_interrupt_in_its_middle(make, monkeypatch):
    producer = make()
    parts = producer._parts
    with monkeypatch.context() as patched:

        def interrupt() -> None:
            raise KeyboardInterrupt

        patched.setattr(parts.metadata, "close", interrupt)
        with pytest.raises(KeyboardInterrupt):
            producer.close(SOON)
    producer.close(SOON)
    assert not producer._core.thread.is_alive()


@pytest.mark.parametrize("load", [None, TopicLoad(LoadTable.of([(0, 3), (5, 0)]), None)])
def test_the_choice_stays_within_a_topic_that_was_made_anew_with_fewer_partitions(load):
    chooser = BuiltInPartitioner(PartitionerSettings(), lambda: ClusterSnapshot({}), random.Random(3))
    topic = TopicState("t", 100, chooser.choose)
    topic.queues = [object(), object()]
    topic.load = load
    assert {chooser.choose(topic) for _ in range(50)} == {0, 1}


@pytest.mark.parametrize("timeout", [math.inf, 1e12])
def test_any_time_can_be_waited(make, timeout):
    assert make().send("t", b"v").result(timeout).offset >= 0
    granted: Ticket[int] = Ticket("something")
    threading.Timer(0.01, granted.complete, (7,)).start()
    assert granted.wait(timeout)


def test_the_error_of_a_batch_does_not_collect_the_tracebacks_of_those_who_ask():
    rig = Rig(retries=0)
    rig.know("t")
    delivery = rig.send("t", b"v")
    rig.await_request()
    rig.answer(error_code=7)
    rig.run_until(delivery.done)
    depths = set()
    for _ in range(20):
        with pytest.raises(RequestTimedOutError) as caught:
            delivery.result(0)
        depths.add(len(traceback.extract_tb(caught.value.__traceback__)))
    assert len(depths) == 1


def test_rates_of_what_the_network_counts_do_not_depend_on_how_often_one_asks():
    rig = Rig()
    rig.know("t")
    rig.acknowledge_all()
    for _ in range(120):
        rig.send("t", b"v")
        rig.run_for(1.0)
    assert rig.metrics()["request-rate"] == pytest.approx(1.0, rel=0.2)


def test_a_record_that_waited_for_memory_is_refused_when_it_is_not_admitted_any_more():
    rig = Rig(buffer_memory=400, batch_size=200)
    rig.know("t")
    full = [rig.send("t", bytes(60), partition=0) for _ in range(2)]
    steps = rig.parts.accumulator.appender.append_steps(
        rig.parts.accumulator.topics["t"],
        0,
        _record(150),
        None,
        _refuse_from_call(2),
    )
    assert next(steps) == "memory"
    ticket = next(steps)
    assert not ticket.done
    rig.acknowledge_all()
    rig.run_until(lambda: ticket.done and all(delivery.done() for delivery in full))
    assert steps.send(ticket.result) == "second look"
    with pytest.raises(KafkaError, match="too late"):
        next(steps)
    assert rig.available_memory == 400


def test_close_does_not_wait_without_end_for_a_coordinator_that_is_not_there(caplog):
    with closed_port() as port:
        producer = Producer(
            bootstrap_servers=f"127.0.0.1:{port}",
            transactional_id="x",
            max_block_ms=100,
            request_timeout_ms=300,
        )
        error = why_it_waited(producer, producer.init_transactions)
        assert re.search(r"init_transactions.*connection refused", str(error))
        assert error.__cause__ is not None
        waiter = threading.Thread(target=producer.close, daemon=True)
        waiter.start()
        waiter.join(SOON)
    assert not waiter.is_alive()
    assert "no answer of the transaction coordinator" in caplog.text


def _record(size: int) -> Any:
    from penstock.producer.batch._appending_cy import EncodedRecord

    return EncodedRecord(1, None, bytes(size), None, size + 100)


def _refuse_from_call(first: int) -> Callable[[], None]:
    calls = iter(range(1, 100))

    def admitted() -> None:
        if next(calls) >= first:
            raise KafkaError("too late")

    return admitted
