# SPDX-License-Identifier: Apache-2.0
"""The sender with the real network client and metadata, against a scripted cluster in virtual time."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from network.fakes import api_versions_body
from producer.fakes_core import BrokenCodec
from producer.fakes_sender import Rig, produce_body
from producer.fakes_txn import CUT, GateRig

from penstock.errors import (
    BrokerError,
    DeliveryTimeoutError,
    InvalidRecordError,
    KafkaError,
    MessageTooLargeError,
    NetworkError,
    NotLeaderOrFollowerError,
    ProducerClosedError,
    RequestTimedOutError,
    TopicAuthorizationError,
    UnsupportedVersionError,
)
from penstock.producer.guarantee.transactions.states import TxnState
from penstock.protocol.messages import API_VERSIONS, METADATA, PRODUCE
from penstock.types import Node

QUIET = {"retry_backoff_ms": 100, "retry_backoff_max_ms": 100}  # without jitter
SHORT = {"delivery_timeout_ms": 1000, "request_timeout_ms": 1000, "linger_ms": 0}


def outcome_log(rig: Rig) -> tuple[list[tuple[bytes, str]], object]:
    """A list, and a maker of callbacks that note (value, outcome) in it."""
    notes: list[tuple[bytes, str]] = []

    def note(value: bytes) -> object:
        return lambda metadata, error: notes.append((value, type(error).__name__ if error else "ok"))

    return notes, note


def stop_listening(rig: Rig, host: str) -> None:
    """Refuse further connections to a broker; those that exist stay."""
    del rig.network.listeners[rig.network.names[host][0], 9092]


# ---------------------------------------------------------------------------------------------------- acks


@pytest.mark.parametrize(("acks", "wire"), [("1", 1), ("all", -1)])
def test_an_acknowledged_record_has_its_place(acks, wire):
    rig = Rig(acks=acks)
    rig.know("t")
    first, second = rig.send("t", b"a", b"kk"), rig.send("t", b"bb")
    request = rig.await_request()
    assert request.body["acks"] == wire
    assert request.body["timeout_ms"] == rig.config.request_timeout_ms
    assert not first.done()
    rig.answer(base_offset=40)
    assert (first.result(0).offset, second.result(0).offset) == (40, 41)
    assert first.result(0).timestamp == 1_000_000
    assert (first.result(0).serialized_key_size, second.result(0).serialized_value_size) == (2, 2)


def test_the_brokers_time_counts_where_the_topic_has_log_append_time():
    rig = Rig()
    rig.know("t")
    delivery = rig.send("t", b"a")
    rig.await_request()
    rig.answer(base_offset=1, log_append_time_ms=123)
    assert delivery.result(0).timestamp == 123


def test_with_acks_0_written_is_delivered():
    rig = Rig(acks="0")
    rig.know("t")
    free = rig.available_memory
    delivery = rig.send("t", b"a")
    request = rig.await_request()
    rig.settle(2)
    assert request.body["acks"] == 0
    assert delivery.result(0).offset == -1
    assert rig.available_memory == free
    assert rig.parts.client.in_flight_count() == 0


def test_with_acks_0_the_wait_ends_only_when_all_is_written():
    rig = Rig(acks="0")
    rig.know("t")
    rig.send("t", b"warm up")
    rig.await_request()
    rig.settle(2)
    rig.brokers[0].peers[-1].limit_writes(10)
    delivery = rig.send("t", b"a")
    rig.settle()
    assert not delivery.done()
    rig.brokers[0].peers[-1].limit_writes(None)
    rig.settle()
    assert delivery.done()


# --------------------------------------------------------------------------------------------------- retry


def test_a_failed_batch_is_sent_again_and_succeeds():
    """Requirement 41."""
    rig = Rig(**QUIET)
    rig.know("t")
    delivery = rig.send("t", b"a")
    rig.await_request()
    rig.answer(error_code=19)
    assert not rig.waiting()
    before = rig.clock.now()
    again = rig.await_request()
    assert rig.clock.now() - before == pytest.approx(0.1)  # the backoff
    assert rig.read(again)[0].values == [b"a"]
    rig.answer(base_offset=5)
    assert delivery.result(0).offset == 5
    assert rig.metrics()["record-retry-total"] == 1


def test_retries_come_to_an_end():
    """Requirement 41."""
    rig = Rig(retries=2, **QUIET)
    rig.know("t")
    free = rig.available_memory
    delivery = rig.send("t", b"a")
    for _ in range(3):
        rig.await_request()
        rig.answer(error_code=6)
    error = delivery.exception(0)
    assert isinstance(error, NotLeaderOrFollowerError)
    assert "t-0" in str(error)
    assert rig.available_memory == free
    rig.run_for(5)
    assert not rig.waiting()


def test_a_lost_connection_is_retried():
    """Requirement 41."""
    rig = Rig(**QUIET)
    rig.know("t")
    delivery = rig.send("t", b"a")
    rig.await_request()
    rig.break_connection()
    assert not delivery.done()
    rig.await_request()
    rig.answer()
    assert delivery.result(0).offset == 0


def test_a_retry_is_logged_once_with_its_cause(caplog):
    rig = Rig(**QUIET)
    rig.know("t")
    rig.send("t", b"a")
    for _ in range(3):
        rig.await_request()
        rig.break_connection()
    warnings = [record.getMessage() for record in caplog.records if record.name == "penstock.producer"]
    assert len(warnings) == 1
    assert "a batch of 1 records for t-0 is sent again" in warnings[0]
    assert warnings[0].count("NETWORK_EXCEPTION") == 1


def test_without_retries_a_lost_connection_is_an_error_that_names_the_broker():
    """Requirement 41."""
    rig = Rig(retries=0)
    rig.know("t")
    delivery = rig.send("t", b"a")
    rig.await_request()
    rig.break_connection()
    error = delivery.exception(0)
    assert isinstance(error, NetworkError)
    assert "broker 0 at b0:9092" in str(error)


def test_a_request_time_out_is_retried_and_then_told():
    rig = Rig(retries=1, request_timeout_ms=2000, delivery_timeout_ms=60_000, **QUIET)
    rig.know("t")
    delivery = rig.send("t", b"a")
    rig.await_request()
    rig.run_for(2.1)
    rig.await_request(count=2)
    rig.run_for(2.1)
    assert isinstance(delivery.exception(0), RequestTimedOutError)


def test_a_broker_without_a_common_version_fails_the_batch():
    rig = Rig()
    rig.brokers[0].rules[API_VERSIONS.key] = lambda _: api_versions_body(Produce=(0, 2))
    rig.know("t")
    free = rig.available_memory
    delivery = rig.send("t", b"a")
    rig.run_until(delivery.done)
    assert isinstance(delivery.exception(0), UnsupportedVersionError)
    assert rig.available_memory == free


def test_an_error_that_is_no_passing_condition_fails_at_once():
    rig = Rig()
    rig.know("t")
    delivery = rig.send("t", b"a")
    rig.await_request()
    rig.answer(error_code=29, error_message="not for you")
    error = delivery.exception(0)
    assert isinstance(error, TopicAuthorizationError)
    assert "t-0: not for you" in str(error)


def test_a_partition_that_the_answer_leaves_out_is_retried():
    rig = Rig(**QUIET)
    rig.know("t", 2)
    deliveries = [rig.send("t", b"a", partition=0), rig.send("t", b"b", partition=1)]
    request = rig.await_request()
    body = produce_body(request)
    del body["responses"][0]["partition_responses"][1]
    rig.brokers[0].answer(request, body)
    rig.settle(2)
    assert [delivery.done() for delivery in deliveries] == [True, False]
    again = rig.await_request()
    assert [(batch.partition, batch.values) for batch in rig.read(again)] == [(1, [b"b"])]


def test_partitions_of_one_request_have_outcomes_of_their_own():
    rig = Rig()
    rig.know("t", 2)
    good, bad = rig.send("t", b"a", partition=0), rig.send("t", b"b", partition=1)
    request = rig.await_request()
    body = produce_body(request, base_offset=9)
    body["responses"][0]["partition_responses"][1]["error_code"] = 87
    rig.brokers[0].answer(request, body)
    rig.settle(2)
    assert good.result(0).offset == 9
    assert isinstance(bad.exception(0), InvalidRecordError)


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
    poll = rig.parts.client.poll

    def look(timeout: float, now: float) -> Any:
        if delivery.done():
            waits.append(timeout)
        return poll(timeout, now)

    rig.change_client(monkeypatch, poll=look)
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


# -------------------------------------------------------------------------------------------- leader hints


def test_a_leader_named_in_the_answer_is_tried_at_once():
    """Requirement 48."""
    rig = Rig(brokers=2, retry_backoff_ms=5000, retry_backoff_max_ms=5000)
    rig.know("t", leaders=[0])
    delivery = rig.send("t", b"a")
    rig.await_request(broker=0)
    before = rig.clock.now()
    rig.answer(error_code=6, current_leader={"leader_id": 1, "leader_epoch": 7}, nodes=(Node(1, "b1", 9092),))
    rig.await_request(broker=1)
    assert rig.clock.now() == before
    rig.answer(broker=1)
    assert delivery.done()
    assert rig.snapshot.partition("t", 0).leader_epoch == 7


@pytest.mark.parametrize(
    "hint",
    [
        {"leader_id": -1, "leader_epoch": 7},
        {"leader_id": 1, "leader_epoch": -1},
        {"leader_id": 5, "leader_epoch": 7},
    ],
)
def test_an_incomplete_leader_hint_is_ignored(hint):
    """Requirement 48."""
    rig = Rig(brokers=2, retry_backoff_ms=5000, retry_backoff_max_ms=5000)
    rig.know("t", leaders=[0])
    rig.send("t", b"a")
    rig.await_request(broker=0)
    asked = sum(len(rig.seen(METADATA, broker)) for broker in (0, 1))
    rig.answer(error_code=6, current_leader=hint)
    assert rig.snapshot.partition("t", 0).leader_id == 0
    before = rig.clock.now()
    rig.await_request(broker=0)
    assert rig.clock.now() - before == pytest.approx(5.0)
    assert sum(len(rig.seen(METADATA, broker)) for broker in (0, 1)) > asked


def test_a_leader_found_by_a_refresh_ends_the_backoff():
    """Requirement 48."""
    rig = Rig(brokers=2, retry_backoff_ms=1000, retry_backoff_max_ms=1000)
    rig.know("t", leaders=[0])
    rig.run_for(1.5)  # so that the next metadata question may be asked at once
    delivery = rig.send("t", b"a")
    rig.await_request(broker=0)
    rig.cluster.move("t", 0, 1)
    before = rig.clock.now()
    rig.answer(error_code=6)
    rig.await_request(broker=1)
    assert rig.clock.now() - before < 1.0
    rig.answer(broker=1)
    assert delivery.done()


# --------------------------------------------------------------------------------------------------- split


def test_a_batch_that_is_too_large_is_cut_and_every_record_has_its_outcome():
    rig = Rig(batch_size=10_000, linger_ms=5)
    rig.know("t")
    free = rig.available_memory
    deliveries = [rig.send("t", b"%02d" % number * 30) for number in range(20)]
    request = rig.await_request()
    assert len(rig.read(request)[0].records) == 20
    # The first split aims at batch.size, which is no smaller here; the piece is then halved.
    rig.answer(error_code=10)
    rig.await_request()
    rig.answer(error_code=10)
    offset = 0
    while rig.parts.accumulator.has_incomplete():
        request = rig.await_request()
        count = len(rig.read(request)[0].records)
        assert count < 20
        rig.answer(base_offset=offset)
        offset += count
    assert [delivery.result(0).offset for delivery in deliveries] == list(range(20))
    assert rig.metrics()["batch-split-total"] == 2
    assert rig.available_memory == free


def test_a_single_record_that_is_too_large_fails():
    rig = Rig()
    rig.know("t")
    delivery = rig.send("t", b"a" * 1000)
    rig.await_request()
    rig.answer(error_code=10)
    assert isinstance(delivery.exception(0), MessageTooLargeError)


# --------------------------------------------------------------------------------------------- record errors


def test_errors_of_single_records_reach_them():
    """Requirement 47."""
    rig = Rig(linger_ms=5)
    rig.know("t")
    deliveries = [rig.send("t", b"%d" % number) for number in range(4)]
    rig.await_request()
    rows = [
        {"batch_index": 0, "batch_index_error_message": "null key"},
        {"batch_index": 2, "batch_index_error_message": None},
    ]
    rig.answer(error_code=87, error_message="some were bad", record_errors=rows)
    assert "null key" in str(deliveries[0].exception(0))
    assert not any(delivery.done() for delivery in deliveries[1:])  # told in order
    rig.acknowledge_all()
    rig.run_until(lambda: all(delivery.done() for delivery in deliveries))
    errors = [delivery.exception(0) for delivery in deliveries]
    assert [type(error) for error in errors] == [InvalidRecordError, type(None)] * 2


def test_a_lone_bad_record_has_the_partitions_error():
    """Requirement 47."""
    rig = Rig(linger_ms=5)
    rig.know("t")
    deliveries = [rig.send("t", b"a"), rig.send("t", b"b")]
    rig.await_request()
    rows = [{"batch_index": 1, "batch_index_error_message": "too old"}]
    rig.answer(error_code=32, record_errors=rows)
    rig.acknowledge_all()
    rig.run_until(lambda: all(delivery.done() for delivery in deliveries))
    assert deliveries[0].exception(0) is None
    bad = deliveries[1].exception(0)
    assert bad.code == 32
    assert "too old" in str(bad)


def test_a_broker_that_names_no_record_is_told_to_be_so():
    rig = Rig(linger_ms=5)
    rig.know("t")
    deliveries = [rig.send("t", b"a"), rig.send("t", b"b")]
    rig.await_request()
    rig.answer(error_code=32)
    for delivery in deliveries:
        assert "does not say which of the 2 records of the batch it refused" in str(delivery.exception(0))


def test_the_brokers_own_message_is_kept():
    """Requirement 47."""
    rig = Rig()
    rig.know("t")
    delivery = rig.send("t", b"a")
    rig.await_request()
    rig.answer(error_code=44, error_message="only on weekdays")
    assert "only on weekdays" in str(delivery.exception(0))


# ----------------------------------------------------------------------------------------------- callbacks


def test_callbacks_run_in_order_and_before_the_delivery_is_done(caplog):
    rig = Rig(linger_ms=5)
    rig.know("t")
    seen = []

    def bad(metadata, error):
        seen.append(("bad", metadata.offset))
        raise RuntimeError("a bug of the user")

    first = rig.send("t", b"0", on_delivery=lambda metadata, error: seen.append((0, first.done())))
    rig.send("t", b"1", on_delivery=bad)
    last = rig.send("t", b"2", on_delivery=lambda metadata, error: seen.append((2, metadata.offset)))
    rig.await_request()
    with caplog.at_level(logging.ERROR, logger="penstock"):
        rig.answer(base_offset=10)
    assert seen == [(0, False), ("bad", 11), (2, 12)]
    assert last.done()
    assert "a bug of the user" in caplog.text


def test_callbacks_of_failed_records_get_their_topic_and_partition():
    """Requirement 14."""
    rig = Rig(retries=0)
    rig.know("t", 2)
    told = []
    rig.send("t", b"a", partition=1, on_delivery=lambda *args: told.append(args))
    rig.await_request()
    rig.answer(error_code=7)
    ((metadata, error),) = told
    assert tuple(metadata) == ("t", 1, -1, -1, -1, -1)
    assert isinstance(error, RequestTimedOutError)


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
    rig.parts.sender.force_close()
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
    rig.parts.sender.initiate_close()
    started = rig.clock.now()
    rig.run_to_end()
    assert delivery.result(0).offset == 0
    assert rig.clock.now() - started < 1


def test_an_error_in_a_turn_is_logged_and_the_next_turn_goes_on(monkeypatch, caplog):
    rig = Rig()
    rig.know("t")
    rig.acknowledge_all()
    ready = rig.parts.sender._drainer.ready
    troubles = [RuntimeError("bad turn")]

    def fail_once(*args):
        if troubles:
            raise troubles.pop()
        return ready(*args)

    rig.change_drainer(monkeypatch, ready=fail_once)
    delivery = rig.send("t", b"a")
    rig.parts.accumulator.close()
    rig.parts.sender.initiate_close()
    rig.run_to_end()
    assert delivery.done()
    assert "bad turn" in caplog.text


def test_a_request_that_cannot_be_made_fails_its_records_and_no_others(monkeypatch, caplog):
    rig = Rig(max_in_flight_requests_per_connection=1)
    rig.know("t")
    free = rig.available_memory
    rig.change_client(monkeypatch, send=lambda *args: 1 / 0)
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

    class Unheard(BaseException):
        pass

    def die(*_):
        raise Unheard

    rig.change_drainer(monkeypatch, ready=die)
    delivery = rig.send("t", b"a")
    with pytest.raises(Unheard):
        rig.run_to_end()
    assert isinstance(delivery.exception(0), ProducerClosedError)
    with pytest.raises(ProducerClosedError):
        rig.send("t", b"b")


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
    rig.parts.sender.initiate_close()
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


# ------------------------------------------------------------------------------------------------- doubts


@pytest.mark.parametrize("code", [-1, 6, 7, 20, 56, CUT])
def test_after_these_a_batch_may_have_been_written(code):
    assert doubted(code)


@pytest.mark.parametrize("code", [2, 3, 19, 51, 72, 74, 89])
def test_after_these_a_batch_was_not_written(code):
    assert not doubted(code)


def doubted(code: int | str) -> bool:
    """Whether a batch that is refused after such an answer may be in the log all the same.

    A coordinator that cannot raise the epoch makes the difference visible: the producer has to give up.
    """
    rig = GateRig.transactional(protocol=1, versions={"InitProducerId": (0, 2)})
    rig.begin()
    delivery = rig.send("t", b"a", partition=0)
    rig.await_request()
    if code == CUT:
        rig.break_connection(0)
    else:
        rig.answer(error_code=code)
    if not delivery.done():
        rig.await_request()
        rig.answer(error_code=87)
    assert isinstance(delivery.exception(0), KafkaError)
    return rig.state is TxnState.FATAL_ERROR


# ---------------------------------------------------------------------------------------------- few turns


def test_a_callback_that_sends_finds_the_memory_of_the_whole_answer():
    rig = Rig(buffer_memory=2048, batch_size=1024, linger_ms=0, enable_idempotence=False)
    rig.know("t", partitions=2)
    free = []
    for partition in range(2):
        rig.send("t", b"v", partition=partition, on_delivery=lambda *_: free.append(rig.available_memory))
    rig.await_request()
    rig.answer()
    assert free == [2048, 2048]


def turns_of_the_thread(rig: Rig, monkeypatch: pytest.MonkeyPatch, turns: int) -> list[float]:
    """Take turns as the I/O thread does; how long each would have waited."""
    waits: list[float] = []
    poll = rig.parts.client.poll

    def look(timeout: float, now: float) -> Any:
        waits.append(timeout)
        return poll(0.0, now)

    rig.change_client(monkeypatch, poll=look)
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
    sealer.codec = BrokenCodec(sealer.codec, b"spoiled")
    with monkeypatch.context() as patched:
        delivery = rig.send("t", b"spoiled")
        [at_once] = turns_of_the_thread(rig, patched, 1)
    assert isinstance(delivery.exception(0).__cause__, MemoryError)
    assert at_once == 0  # the gate may have something to settle, and more may wait behind it
    assert min(turns_of_the_thread(rig, monkeypatch, 2)) > 1
    assert rig.metrics()["record-error-total"] == 1
