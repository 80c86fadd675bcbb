# SPDX-License-Identifier: Apache-2.0
"""What becomes of batches when their answer comes, with the real sender, client and metadata; virtual time."""

from __future__ import annotations

import logging

import pytest
from network.fakes import api_versions_body
from producer.fakes_sender import QUIET, Rig, produce_body
from producer.fakes_txn import CUT, GateRig

from penstock.errors import (
    InvalidRecordError,
    KafkaError,
    MessageTooLargeError,
    NetworkError,
    NotLeaderOrFollowerError,
    RequestTimedOutError,
    TopicAuthorizationError,
    UnsupportedVersionError,
)
from penstock.producer.guarantee.transactions.states import TxnState
from penstock.protocol.messages import API_VERSIONS, METADATA
from penstock.types import Node

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
    assert "a batch of 1 record for t-0 is sent again (attempt 1): " in warnings[0]
    assert warnings[0].count("NETWORK_EXCEPTION") == 1


def test_a_retry_says_how_many_there_may_be_where_somebody_said_it(caplog):
    rig = Rig(**QUIET, retries=7)
    rig.know("t")
    rig.send("t", b"a")
    rig.send("t", b"b")
    rig.await_request()
    rig.break_connection()
    (warning,) = [record.getMessage() for record in caplog.records if record.name == "penstock.producer"]
    assert "a batch of 2 records for t-0 is sent again (attempt 1 of 7): " in warning


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
    rig.brokers[0].rules[API_VERSIONS.key] = lambda _: api_versions_body(Produce=(20, 21))
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


def test_a_batch_that_is_too_large_is_cut_and_every_record_has_its_outcome(caplog):
    caplog.set_level(logging.DEBUG, logger="penstock.producer")
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
    first, second = [record.getMessage() for record in caplog.records if "too large" in record.getMessage()]
    assert first.startswith(
        "a batch of 20 records for t-0 was too large for the broker; it is sent again as it is. "
    )
    assert "; it is sent again in 3 pieces. A smaller batch.size" in second
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


def test_a_callback_that_sends_finds_the_memory_of_the_whole_answer():
    rig = Rig(buffer_memory=2048, batch_size=1024, linger_ms=0, enable_idempotence=False)
    rig.know("t", partitions=2)
    free = []
    for partition in range(2):
        rig.send("t", b"v", partition=partition, on_delivery=lambda *_: free.append(rig.available_memory))
    rig.await_request()
    rig.answer()
    assert free == [2048, 2048]


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
