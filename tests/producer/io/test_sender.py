# SPDX-License-Identifier: Apache-2.0
"""The sender with the real network client and metadata, against a scripted cluster in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from producer.fakes_core import BrokenCodec
from producer.fakes_sender import QUIET, SHORT, Rig, produce_body

from penstock.errors import (
    BrokerError,
    DeliveryTimeoutError,
    KafkaError,
    NetworkError,
    ProducerClosedError,
)
from penstock.producer.io import thread as io_thread
from penstock.protocol.messages import METADATA, PRODUCE


def outcome_log(rig: Rig) -> tuple[list[tuple[bytes, str]], object]:
    """A list, and a maker of callbacks that note (value, outcome) in it."""
    notes: list[tuple[bytes, str]] = []

    def note(value: bytes) -> object:
        return lambda metadata, error: notes.append((value, type(error).__name__ if error else "ok"))

    return notes, note


def stop_listening(rig: Rig, host: str) -> None:
    """Refuse further connections to a broker; those that exist stay."""
    del rig.network.listeners[rig.network.names[host][0], 9092]


# --------------------------------------------------------------------------------------------------- order


def test_with_one_request_in_flight_order_is_kept_across_a_failure():
    """Requirement 42."""
    rig = Rig(max_in_flight_requests_per_connection=1, batch_size=100, **QUIET)
    rig.know("t")
    for number in range(3):
        rig.send("t", b"%d" % number * 40)
    written = []
    for turn in range(5):
        request = rig.await_request()
        assert len(rig.waiting()) == 1
        failed = turn in (0, 2)
        if not failed:
            written.append(rig.read(request)[0].values[0][:1])
        rig.answer(error_code=7 if failed else 0)
    assert written == [b"0", b"1", b"2"]


def test_order_is_kept_across_a_change_of_leader():
    """Requirement 42."""
    rig = Rig(brokers=2, max_in_flight_requests_per_connection=1, batch_size=100, **QUIET)
    rig.know("t", leaders=[0])
    rig.send("t", b"1" * 40)
    rig.await_request(broker=0)
    rig.cluster.move("t", 0, 1)
    rig.parts.metadata.request_update(rig.clock.now(), reset_backoff=True)
    rig.send("t", b"2" * 40)
    rig.run_until(lambda: rig.snapshot.leader("t", 0).id == 1)
    rig.settle()
    assert not rig.waiting(broker=1)  # the first has no answer yet: nothing may overtake it
    rig.answer(error_code=6)
    request = rig.await_request(broker=1)
    assert rig.read(request)[0].values == [b"1" * 40]
    rig.answer(broker=1)
    assert rig.read(rig.await_request(broker=1))[0].values == [b"2" * 40]


def test_an_in_flight_batch_that_expires_does_not_let_the_next_one_go():
    """Requirement 43."""
    rig = Rig(
        max_in_flight_requests_per_connection=1,
        batch_size=100,
        request_timeout_ms=5000,
        delivery_timeout_ms=5000,
    )
    rig.know("t")
    first = rig.send("t", b"1" * 40)
    rig.await_request()
    rig.run_for(3)
    second = rig.send("t", b"2" * 40)
    # The answer is late without being lost: the broker throttles, so that the request time-out does not count.
    rig.parts.client._pool.get(0).in_flight.extend_deadlines(10)
    rig.run_for(2.5)
    assert isinstance(first.exception(0), DeliveryTimeoutError)
    assert not second.done()
    assert len(rig.seen(PRODUCE)) == 1
    rig.answer()
    assert rig.read(rig.await_request())[0].values == [b"2" * 40]


def test_with_more_requests_in_flight_a_partition_is_not_muted():
    rig = Rig(batch_size=100)
    rig.know("t")
    for number in range(3):
        rig.send("t", b"%d" % number * 40)
    rig.await_request(count=3)
    for request in list(rig.waiting()):
        rig.answer(request)
    assert rig.parts.accumulator.has_incomplete() is False


def test_no_more_requests_than_allowed_are_in_flight():
    rig = Rig(batch_size=100, max_in_flight_requests_per_connection=2)
    rig.know("t", 4)
    for partition in range(4):
        for _ in range(2):
            rig.send("t", b"x" * 40, partition=partition)
    rig.settle()
    assert len(rig.waiting()) == 2


@pytest.mark.parametrize(
    ("partitions", "memory", "last", "waits"),
    [(100, 110_000, 600, True), (100, 1_100_000, 600, False), (30, 33_000, 600, False), (100, 110_000, 990, False)],
    ids=["many", "plenty-of-memory", "few", "a-full-batch"],
)  # fmt: skip
def test_many_small_batches_wait_for_the_answers_under_way_while_memory_is_short(
    partitions, memory, last, waits
):
    rig = Rig(batch_size=1000, buffer_memory=memory, linger_ms=5)
    rig.know("t", partitions)
    first = rig.send("t", b"first", partition=0)
    rig.await_request()
    others = [rig.send("t", bytes(600), partition=partition) for partition in range(1, partitions - 1)]
    others.append(rig.send("t", bytes(last), partition=partitions - 1))
    rig.run_for(0.05)
    assert len(rig.waiting()) == (1 if waits else 2)
    rig.answer()
    assert first.done()
    rig.await_request()
    rig.answer()
    assert all(delivery.done() for delivery in others)


# -------------------------------------------------------------------------------------------------- expiry


def test_a_queued_batch_expires_and_says_why_it_could_not_go():
    rig = Rig(brokers=2, **SHORT)
    rig.know("t", leaders=[1])
    free = rig.available_memory
    stop_listening(rig, "b1")
    delivery = rig.send("t", b"a")
    rig.run_for(1.01)
    error = delivery.exception(0)
    assert isinstance(error, DeliveryTimeoutError)
    assert str(error).startswith("Expiring 1 record(s) for t-0: 10")
    assert "It was never sent." in str(error)
    assert "cannot connect to broker 1 at b1:9092" in str(error)
    assert isinstance(error.__cause__, NetworkError)
    assert rig.available_memory == free


def test_a_batch_that_expires_after_answers_names_the_last_one():
    rig = Rig(**SHORT, retry_backoff_ms=600, retry_backoff_max_ms=600)
    rig.know("t")
    delivery = rig.send("t", b"a")
    rig.await_request()
    rig.answer(error_code=7)  # REQUEST_TIMED_OUT
    rig.await_request()
    rig.answer(error_code=19)  # NOT_ENOUGH_REPLICAS
    rig.run_for(1.01)
    error = delivery.exception(0)
    assert isinstance(error, DeliveryTimeoutError)
    assert "It was sent 2 times; the last attempt ended with: t-0:" in str(error)
    assert "[NOT_ENOUGH_REPLICAS (19)]" in str(error)
    assert isinstance(error.__cause__, BrokerError)
    assert error.__cause__.code == 19


def test_a_batch_that_expires_in_flight_names_the_answer_before_and_one_that_had_none_says_so():
    rig = Rig(**(SHORT | {"batch_size": 100}), retry_backoff_ms=100, retry_backoff_max_ms=100)
    rig.know("t")
    retried, first = rig.send("t", b"a" * 50), rig.send("t", b"b" * 50)
    rig.await_request(count=2)
    rig.answer(error_code=19)
    rig.await_request(count=2)
    rig.parts.client._pool.get(0).in_flight.extend_deadlines(10)  # as where the broker throttles
    rig.run_for(1.01)
    text = str(retried.exception(0))
    assert "It was sent 2 times; the last request has no answer, the one before ended with" in text
    assert "NOT_ENOUGH_REPLICAS" in text
    assert "It was sent, and no answer has come." in str(first.exception(0))


def test_a_batch_that_expires_while_no_broker_can_be_reached_says_so():
    rig = Rig(brokers=2, **SHORT)
    rig.know("t", leaders=[1])
    stop_listening(rig, "b0")
    stop_listening(rig, "b1")
    for broker in rig.brokers:
        for peer in broker.peers:
            peer.reset()
    delivery = rig.send("t", b"a")
    rig.run_for(1.01)
    error = delivery.exception(0)
    assert isinstance(error, DeliveryTimeoutError)
    assert "connection refused" in str(error)
    assert error.__cause__ is not None


def test_a_batch_that_expires_while_its_broker_is_away_is_kept_by_nobody(caplog):
    """The warning about failed records that nobody looked at comes when their result is dropped: in the same turn."""
    rig = Rig(brokers=2, **SHORT)
    rig.know("t", leaders=[1])
    stop_listening(rig, "b1")
    rig.send("t", b"a")
    rig.run_until(lambda: not rig.parts.accumulator.has_incomplete())
    assert [record.kafka_event for record in caplog.records] == ["connection-failed", "records-unseen"]


@pytest.mark.parametrize("sent", [True, False], ids=["in flight", "queued"])
def test_the_poll_ends_when_the_next_batch_expires(sent):
    """Requirement 49."""
    rig = Rig(
        brokers=2,
        request_timeout_ms=1000,
        delivery_timeout_ms=1500,
        linger_ms=0,
        reconnect_backoff_ms=100_000,
    )
    rig.know("t", leaders=[1])
    if not sent:
        stop_listening(rig, "b1")
    expired_at = []
    started = rig.clock.now()
    rig.send("t", b"a", on_delivery=lambda metadata, error: expired_at.append(rig.clock.now()))
    if sent:
        rig.await_request(broker=1)
        rig.parts.client._pool.get(1).in_flight.extend_deadlines(100)
    rig.run_for(20)
    assert expired_at == [pytest.approx(started + 1.5)]


@pytest.mark.parametrize("retried", [False, True])
def test_batches_of_a_partition_that_expire_together_do_so_in_order(retried):
    rig = Rig(batch_size=100, max_in_flight_requests_per_connection=2, **SHORT, **QUIET)
    rig.know("t")
    notes, note = outcome_log(rig)
    for value in (b"1", b"2"):
        rig.send("t", value * 40, on_delivery=note(value))
        rig.clock.advance(0.001)
    requests = rig.await_request(), rig.await_request(count=2)
    rig.parts.client._pool.get(0).in_flight.extend_deadlines(10)
    rig.clock.advance(0.95)
    if retried:
        rig.answer(requests[0], error_code=7)  # waits now, while the other one is still in flight
    else:
        rig.send("t", b"3" * 40, on_delivery=note(b"3"))  # waits behind both
    rig.clock.advance(10)
    rig.turn()
    assert [value for value, _ in notes] == ([b"1", b"2"] if retried else [b"1", b"2", b"3"])


def test_after_a_batch_has_expired_in_flight_the_gate_can_settle_it_at_once(monkeypatch):
    rig = Rig(**SHORT)
    rig.know("t")
    delivery = rig.send("t", b"a")
    rig.await_request()
    rig.parts.client._pool.get(0).in_flight.extend_deadlines(10)
    waits: list[float] = []

    def look(timeout: float) -> float:
        if delivery.done():
            waits.append(timeout)
        return timeout

    rig.watch_waits(monkeypatch, look)
    rig.run_for(1.5)
    assert waits[0] == 0


def test_a_late_answer_changes_nothing_and_frees_the_memory_once():
    """Requirements 45 and 46."""
    rig = Rig(**SHORT)
    rig.know("t")
    free = rig.available_memory
    notes, note = outcome_log(rig)
    delivery = rig.send("t", b"a", on_delivery=note(b"a"))
    request = rig.await_request()
    rig.parts.client._pool.get(0).in_flight.extend_deadlines(10)
    rig.run_for(1.01)
    assert isinstance(delivery.exception(0), DeliveryTimeoutError)
    assert rig.available_memory < free  # the request still holds the bytes
    rig.answer(request, base_offset=3)
    assert isinstance(delivery.exception(0), DeliveryTimeoutError)
    assert notes == [(b"a", "DeliveryTimeoutError")]
    assert rig.available_memory == free


@pytest.mark.parametrize("code", [7, 10])
def test_an_expired_batch_is_neither_retried_nor_split(code):
    """Requirement 45."""
    rig = Rig(**SHORT)
    rig.know("t")
    free = rig.available_memory
    deliveries = [rig.send("t", b"a"), rig.send("t", b"b")]
    request = rig.await_request()
    rig.parts.client._pool.get(0).in_flight.extend_deadlines(10)
    rig.run_for(1.01)
    rig.answer(request, error_code=code)
    rig.run_for(3)
    assert len(rig.seen(PRODUCE)) == 1
    assert all(isinstance(delivery.exception(0), DeliveryTimeoutError) for delivery in deliveries)
    assert rig.available_memory == free


def test_a_batch_whose_time_is_over_when_the_error_comes_is_not_retried():
    """Requirement 45."""
    rig = Rig(request_timeout_ms=1000, delivery_timeout_ms=1000, linger_ms=0)
    rig.know("t")
    delivery = rig.send("t", b"a")
    request = rig.await_request()
    rig.clock.advance(1.0)  # answer and expiry fall into the same turn
    rig.brokers[0].answer(request, produce_body(request, error_code=19))
    rig.settle(3)
    assert delivery.done()
    assert len(rig.seen(PRODUCE)) == 1


def test_memory_is_not_reused_while_a_request_holds_it():
    """Requirement 46."""
    rig = Rig(batch_size=1000, buffer_memory=1000, max_block_ms=100, **SHORT)
    rig.know("t")
    first = rig.send("t", b"a")
    rig.await_request()
    rig.parts.client._pool.get(0).in_flight.extend_deadlines(100)
    rig.run_for(1.5)
    assert first.done()
    with pytest.raises(KafkaError, match=r"buffer\.memory"):
        rig.send("t", b"b" * 100)
    rig.answer()
    assert rig.available_memory == 1000


def test_a_callback_of_an_expired_batch_may_send():
    """Requirement 44."""
    rig = Rig(**SHORT)
    rig.know("t")
    rig.cluster.topics["t"].leaders[0] = -1
    rig.parts.metadata.request_update(rig.clock.now(), reset_backoff=True)
    rig.run_until(lambda: rig.snapshot.leader("t", 0) is None)
    again = []
    first = rig.send("t", b"a", on_delivery=lambda metadata, error: again.append(rig.send("t", b"b")))
    rig.run_for(1.01)
    assert first.done()
    assert len(again) == 1
    rig.cluster.move("t", 0, 0)
    request = rig.await_request()
    assert rig.read(request)[0].values == [b"b"]
    rig.answer()
    assert again[0].result(0).offset == 0


def test_records_without_a_leader_wait_for_one():
    rig = Rig(**QUIET)
    rig.know("t")
    rig.cluster.topics["t"].leaders[0] = -1
    rig.parts.metadata.request_update(rig.clock.now(), reset_backoff=True)
    rig.run_until(lambda: rig.snapshot.leader("t", 0) is None)
    asked = len(rig.seen(METADATA))
    delivery = rig.send("t", b"a")
    rig.run_for(2)
    assert 2 <= len(rig.seen(METADATA)) - asked <= 30  # it asks, at the pace of the backoff
    rig.cluster.move("t", 0, 0)
    rig.await_request()
    rig.answer()
    assert delivery.done()


def test_a_leader_that_is_not_among_the_brokers_is_asked_for_again():
    rig = Rig(**QUIET)
    rig.know("t", leaders=[7])
    asked = len(rig.seen(METADATA))
    delivery = rig.send("t", b"a")
    rig.run_for(2)
    assert 2 <= len(rig.seen(METADATA)) - asked <= 30
    rig.cluster.move("t", 0, 0)
    rig.await_request()
    rig.answer()
    assert delivery.done()


# ------------------------------------------------------------------------------------------ linger, batching


def test_records_linger_and_go_out_together():
    rig = Rig(linger_ms=50)
    rig.know("t")
    started = rig.clock.now()
    for number in range(3):
        rig.send("t", b"%d" % number)
    request = rig.await_request()
    assert rig.clock.now() == pytest.approx(started + 0.05)
    assert rig.read(request)[0].values == [b"0", b"1", b"2"]


def test_a_flush_ends_the_linger():
    rig = Rig(linger_ms=10_000)
    rig.know("t")
    rig.acknowledge_all()
    started = rig.clock.now()
    delivery = rig.send("t", b"a")
    ticket = rig.parts.accumulator.flush()
    rig.run_until(lambda: ticket.done)
    assert delivery.done()
    assert rig.clock.now() == started


def test_a_flush_ends_when_a_batch_that_was_refused_twice_is_written():
    rig = Rig(linger_ms=10_000, **QUIET)
    rig.know("t")
    delivery = rig.send("t", b"a")
    ticket = rig.parts.accumulator.flush()
    for _ in range(2):
        rig.await_request()
        rig.answer(error_code=6)
        assert not ticket.done
        assert not delivery.done()
    rig.await_request()
    rig.answer(base_offset=7)
    assert ticket.done
    assert delivery.result(0).offset == 7


def test_each_broker_gets_its_own_partitions_in_one_request():
    rig = Rig(brokers=2, linger_ms=5)
    rig.know("t", leaders=[0, 1, 0, 1])
    for partition in range(4):
        rig.send("t", b"x", partition=partition)
    even, odd = rig.await_request(broker=0), rig.await_request(broker=1)
    assert [batch.partition for batch in rig.read(even)] == [0, 2]
    assert [batch.partition for batch in rig.read(odd)] == [1, 3]


def test_a_request_stays_below_max_request_size():
    rig = Rig(max_request_size=3000, batch_size=2000, linger_ms=5)
    rig.know("t", 3)
    for partition in range(3):
        rig.send("t", b"x" * 1400, partition=partition)
    rig.await_request(count=2)
    assert [[batch.partition for batch in rig.read(request)] for request in rig.waiting()] == [[0, 1], [2]]


def test_a_node_that_takes_nothing_is_noticed():
    """Requirement 49."""
    rig = Rig(brokers=2, linger_ms=0, batch_size=200, partitioner_availability_timeout_ms=100, **QUIET)
    rig.know("t", leaders=[0, 1])
    rig.acknowledge_all()
    for partition in (0, 1):
        rig.send("t", b"warm", partition=partition)
    for _ in range(10):  # so that both have been the sticky partition
        rig.send("t", b"x" * 120)
        rig.settle(3)
    rig.run_until(lambda: not rig.parts.accumulator.has_incomplete())
    stop_listening(rig, "b1")
    rig.brokers[1].peers[-1].reset()
    rig.send("t", b"stuck", partition=1)
    rig.run_for(0.5)
    before = len(rig.seen(PRODUCE, 0))
    for _ in range(12):
        rig.send("t", b"x" * 120)
        rig.settle(4)
    assert len(rig.seen(PRODUCE, 0)) - before >= 10


# ----------------------------------------------------------------------------------------- close, by hand


def test_what_is_left_at_a_forced_end_fails_and_all_memory_comes_back():
    rig = Rig(batch_size=1000, linger_ms=1000)
    rig.know("t")
    total = rig.available_memory
    in_flight = rig.send("t", b"a" * 990)
    rig.await_request()
    queued = rig.send("t", b"b")
    rig.parts.accumulator.close()
    rig.parts.io_thread.force_close()
    rig.run_to_end()
    for delivery in (in_flight, queued):
        assert isinstance(delivery.exception(0), ProducerClosedError)
    assert rig.available_memory == total
    assert rig.network.closed


def test_a_graceful_end_delivers_what_lingers():
    rig = Rig(linger_ms=60_000)
    rig.know("t")
    rig.acknowledge_all()
    delivery = rig.send("t", b"a")
    rig.parts.accumulator.close()
    rig.parts.io_thread.initiate_close()
    started = rig.clock.now()
    rig.run_to_end()
    assert delivery.result(0).offset == 0
    assert rig.clock.now() - started < 1


def test_an_error_in_a_turn_is_logged_and_the_next_turn_goes_on(monkeypatch, caplog):
    rig = Rig()
    rig.know("t")
    rig.acknowledge_all()
    gate = rig.parts.send_path.gate
    before_turn = gate.before_turn
    troubles = [RuntimeError("bad turn")]

    def fail_once(*args):
        if troubles:
            raise troubles.pop()
        return before_turn(*args)

    monkeypatch.setattr(gate, "before_turn", fail_once)
    delivery = rig.send("t", b"a")
    rig.parts.accumulator.close()
    rig.parts.io_thread.initiate_close()
    rig.run_to_end()
    assert delivery.done()
    assert "bad turn" in caplog.text


def test_a_request_that_cannot_be_made_fails_its_records_and_no_others(monkeypatch, caplog):
    rig = Rig(max_in_flight_requests_per_connection=1)
    rig.know("t")
    free = rig.available_memory
    rig.break_requests(monkeypatch, lambda: 1 / 0)
    bad = rig.send("t", b"a")
    rig.settle()
    error = bad.exception(0)
    assert isinstance(error.__cause__, ZeroDivisionError)
    assert rig.available_memory == free
    monkeypatch.undo()
    good = rig.send("t", b"b")
    rig.await_request()
    rig.answer()
    assert good.result(0).offset == 0
    assert "could not be made" in caplog.text


def test_when_the_thread_dies_nobody_is_left_waiting(monkeypatch):
    rig = Rig()
    rig.know("t")

    class UnknownError(BaseException):
        pass

    def die(*_):
        raise UnknownError

    monkeypatch.setattr(rig.parts.send_path.gate, "before_turn", die)
    delivery = rig.send("t", b"a")
    with pytest.raises(UnknownError):
        rig.run_to_end()
    error = delivery.exception(0)
    assert isinstance(error, ProducerClosedError)
    assert "ended by an error" in str(error)  # nobody has closed it
    with pytest.raises(ProducerClosedError):
        rig.send("t", b"b")


@pytest.mark.parametrize("kind", [MemoryError, SystemExit])
@pytest.mark.parametrize("step", ["gate", "deferred", "told", "metadata", "client", "telemetry"])
def test_each_step_of_the_end_is_taken_whatever_the_others_come_to(monkeypatch, caplog, step, kind):
    rig = Rig(enable_metrics_push=True)
    rig.know("t")
    delivery = rig.send("t", b"a")
    parts, ended = rig.parts, []
    monkeypatch.setattr(parts.accumulator.unseen, "end", lambda: ended.append(1))

    def die(*_: object, **_more: object) -> None:
        raise kind("no room")

    if step == "told":
        monkeypatch.setattr(io_thread, "tell", die)
    else:
        owner, name = {
            "gate": (parts.send_path.gate, "close"),
            "deferred": (parts.accumulator.deferred, "fail_all"),
            "metadata": (parts.metadata, "close"),
            "client": (rig.network, "close"),
            "telemetry": (parts.telemetry, "stop"),
        }[step]
        monkeypatch.setattr(owner, name, die)
    parts.io_thread.force_close()
    with pytest.raises(kind) if step == "told" or kind is SystemExit else contextlib.nullcontext():
        rig.run_to_end()
    assert isinstance(delivery.exception(0), ProducerClosedError)
    assert rig.network.closed or step == "client"
    assert parts.metadata._closed or step == "metadata"
    assert parts.telemetry.instance_id().done or step == "telemetry"
    assert ended
    assert "no room" in caplog.text or step == "told" or kind is SystemExit


def test_a_callback_that_wants_to_exit_does_not_end_the_thread(caplog):
    rig = Rig()
    rig.know("t")

    def leave(metadata, error):
        raise SystemExit

    delivery = rig.send("t", b"a", on_delivery=leave)
    rig.await_request()
    rig.answer()
    assert delivery.done()
    assert "SystemExit" in caplog.text


@pytest.mark.parametrize("kind", [asyncio.CancelledError, GeneratorExit, SystemExit])
@pytest.mark.parametrize("follows", [False, True], ids=["on_delivery", "done callback"])
def test_no_exception_of_a_callback_ends_the_thread(caplog, kind, follows):
    rig = Rig(linger_ms=5)
    rig.know("t")

    def leave(*_):
        raise kind

    first = rig.send("t", b"a", on_delivery=None if follows else leave)
    if follows:
        first.add_done_callback(leave)
    second = rig.send("t", b"b")
    rig.acknowledge_all()
    rig.parts.io_thread.initiate_close()
    rig.run_to_end()
    assert [first.result(0).offset, second.result(0).offset] == [0, 1]
    assert kind.__name__ in caplog.text
    assert rig.network.closed


# ------------------------------------------------------------------------------------------------- quota


def test_quota_throttling_is_measured():
    """Requirement 50."""
    rig = Rig()
    rig.know("t")
    for throttle in (100, 300):
        rig.send("t", b"a")
        rig.await_request()
        rig.answer(throttle_ms=throttle)
        rig.run_for(0.5)
    metrics = rig.metrics()
    assert metrics["produce-throttle-time-avg"] == pytest.approx(200)
    assert metrics["produce-throttle-time-max"] == 300


def test_a_throttled_broker_gets_nothing_until_its_time_is_over():
    """Requirement 50."""
    rig = Rig()
    rig.know("t")
    rig.send("t", b"a")
    rig.await_request()
    rig.answer(throttle_ms=700)
    started = rig.clock.now()
    rig.send("t", b"b")
    rig.await_request()
    assert rig.clock.now() - started == pytest.approx(0.7, abs=0.01)


# ---------------------------------------------------------------------------------------------- few turns


def turns_of_the_thread(rig: Rig, monkeypatch: pytest.MonkeyPatch, turns: int) -> list[float]:
    """Take turns as the I/O thread does; how long each would have waited."""
    waits: list[float] = []

    def look(timeout: float) -> float:
        waits.append(timeout)
        return 0.0

    rig.watch_waits(monkeypatch, look)
    for _ in range(turns):
        rig.parts.sender.run_once(rig.clock.now(), may_rest=True)
    monkeypatch.undo()
    return waits


def connected_rig(**options: Any) -> Rig:
    rig = Rig(linger_ms=0, batch_size=200, enable_idempotence=False, **options)
    rig.know("t")
    rig.send("t", b"first")
    rig.await_request()
    rig.answer()
    return rig


def test_a_turn_that_sent_all_there_is_waits_for_the_answer(monkeypatch):
    rig = connected_rig()
    rig.send("t", b"v")
    [wait] = turns_of_the_thread(rig, monkeypatch, 1)
    assert len(rig.waiting()) == 1
    assert wait > 1  # nothing is due before the time-outs


def test_a_turn_waits_for_nothing_while_the_broker_can_take_more(monkeypatch):
    rig = connected_rig(max_in_flight_requests_per_connection=2)
    for number in range(3):
        rig.send("t", bytes([number]) * 120)  # a batch each
    at_once, until_answered = turns_of_the_thread(rig, monkeypatch, 2)
    assert len(rig.waiting()) == 2
    assert at_once == 0
    assert until_answered > 1


def test_a_turn_waits_for_a_retry_behind_a_partition_that_the_gate_holds_back(monkeypatch):
    rig = Rig(retry_backoff_ms=100, retry_backoff_max_ms=100)
    rig.know("t", partitions=2)
    delivery = rig.send("t", b"v", partition=1)
    rig.await_request()
    rig.answer(error_code=7)
    gate = rig.parts.send_path.gate
    monkeypatch.setattr(gate.numbering, "may_drain", lambda queue, batch: queue.partition != 0)
    rig.send("t", b"v", partition=0)
    started = rig.clock.now()
    rig.await_request()
    rig.answer()
    assert delivery.done()
    assert rig.clock.now() - started < 1


def test_a_batch_that_could_not_be_sealed_is_counted_and_keeps_nobody_busy(monkeypatch):
    rig = connected_rig(compression_type="gzip")
    sealer = rig.parts.accumulator.sealer
    sealer.codec = BrokenCodec(sealer.codec, b"refused")
    with monkeypatch.context() as patched:
        delivery = rig.send("t", b"refused")
        [at_once] = turns_of_the_thread(rig, patched, 1)
    assert isinstance(delivery.exception(0).__cause__, MemoryError)
    assert at_once == 0  # the gate may have something to settle, and more may wait behind it
    assert min(turns_of_the_thread(rig, monkeypatch, 2)) > 1
    assert rig.metrics()["record-error-total"] == 1
