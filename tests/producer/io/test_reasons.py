# SPDX-License-Identifier: Apache-2.0
"""Why batches leave and how full they are, how long records wait and where, and what the I/O thread does."""

from __future__ import annotations

import threading

import pytest
from producer.fakes_sender import Rig
from producer.fakes_txn import GateRig

from penstock._stats_cy import ACTIVITIES, CALLBACKS, SEALING
from penstock.error_codes import ErrorCode
from penstock.producer.io.metric_names import BATCH_GROUP, IO_GROUP, LEAVING_REASONS

LONG = 10_000  # linger.ms: nothing leaves because of it


def left(rig: Rig) -> dict[str, int]:
    """How many batches left for each reason; those without any are left out."""
    values = rig.metrics(BATCH_GROUP)
    assert set(values) == set(LEAVING_REASONS)
    return {reason: metrics["batch-total"] for reason, metrics in values.items() if metrics["batch-total"]}


def test_a_full_batch_leaves_because_it_is_full_and_one_that_lingered_because_of_that():
    rig = Rig(linger_ms=5, batch_size=1000)
    rig.know("t")
    rig.send("t", b"x" * 500)
    rig.send("t", b"y" * 500)  # does not fit: the first batch is closed, the second is open
    rig.await_request()
    assert left(rig) == {"full": 1}
    rig.run_for(0.005)
    assert left(rig) == {"full": 1, "linger": 1}
    values = rig.metrics(BATCH_GROUP)
    assert values["full"]["record-total"] == 1
    sizes = [len(request.body["topic_data"][0]["partition_data"][0]["records"]) for request in rig.waiting()]
    assert values["full"]["batch-fill-ratio-avg"] == pytest.approx(sizes[0] / 1000)
    assert rig.metrics()["batch-fill-ratio-avg"] == pytest.approx(sum(sizes) / 2000)
    assert 0.55 <= rig.metrics()["batch-fill-ratio-p50"] <= 0.6


def test_a_record_larger_than_a_batch_counts_as_a_full_one_and_no_more():
    rig = Rig(batch_size=1000)
    rig.know("t")
    rig.send("t", b"x" * 5000)
    rig.await_request()
    assert left(rig) == {"full": 1}
    assert rig.metrics()["batch-fill-ratio-avg"] == 1.0


def test_a_flush_makes_batches_leave():
    rig = Rig(linger_ms=LONG)
    rig.know("t")
    rig.send("t", b"x")
    rig.parts.accumulator.flush()
    rig.await_request()
    assert left(rig) == {"flush": 1}


def test_what_waits_for_memory_makes_batches_leave_and_is_named():
    rig = Rig(linger_ms=LONG, batch_size=1000, buffer_memory=2000)
    rig.know("t", 3)
    for partition in range(2):
        rig.send("t", b"x" * 100, partition=partition)
    pool = rig.parts.accumulator.pool
    ticket = pool.take(1000)
    rig.clock.advance(0.25)
    (wait,) = pool.waits()
    assert (wait.thread, wait.size, wait.gathered) == (threading.current_thread().name, 1000, 0)
    assert rig.metrics()["bufferpool-longest-wait-ms"] == pytest.approx(250)
    rig.await_request()
    assert left(rig) == {"memory": 2}
    rig.answer()
    assert ticket.done
    assert pool.waits() == []
    assert rig.metrics()["bufferpool-longest-wait-ms"] == 0


def test_a_close_makes_batches_leave_and_does_not_make_them_full():
    rig = Rig(linger_ms=LONG)
    rig.know("t")
    rig.send("t", b"x")
    rig.parts.begin_close()
    rig.await_request()
    assert left(rig) == {"close": 1}


def test_the_end_of_a_transaction_makes_batches_leave():
    rig = GateRig.transactional(linger_ms=LONG)
    rig.acknowledge_all()
    rig.begin()
    rig.send("t", b"x")
    rig.commit()
    assert left(rig) == {"transaction-end": 1}


def test_a_batch_goes_along_with_another_one_to_its_broker():
    rig = Rig(linger_ms=LONG, batch_size=1000)
    rig.know("t", 2)
    rig.send("t", b"x", partition=1)
    for _ in range(2):
        rig.send("t", b"x" * 600, partition=0)
    rig.await_request()
    assert left(rig) == {"full": 1, "along": 1}


def test_a_batch_that_is_sent_again_has_left_once_and_its_times_add_up():
    rig = Rig(linger_ms=20, retry_backoff_ms=100, retry_backoff_max_ms=100)
    rig.know("t")
    delivery = rig.send("t", b"x")
    began = rig.clock.now()
    rig.await_request()
    first = rig.clock.now()
    rig.clock.advance(0.030)
    rig.answer(error_code=ErrorCode.NOT_ENOUGH_REPLICAS)
    rig.await_request()
    last = rig.clock.now()
    rig.clock.advance(0.040)
    rig.answer()
    answered = rig.clock.now()
    assert delivery.done()
    assert left(rig) == {"linger": 1}
    metrics = rig.metrics()
    assert first - began == pytest.approx(0.020)
    assert last - first > 0.1
    assert metrics["record-retry-time-max"] == pytest.approx(1000 * (last - first))
    assert metrics["record-delivery-time-max"] == pytest.approx(1000 * (answered - began))
    assert metrics["record-queue-time-p99"] == pytest.approx(20, rel=0.42)  # the width of a bucket
    assert metrics["record-delivery-time-p50"] == pytest.approx(1000 * (answered - began), rel=0.42)
    assert metrics["request-latency-p99"] == pytest.approx(40, rel=0.42)
    queue, delivered = (
        next(one.histogram for one in rig.parts.registry.histograms() if one.name == name)
        for name in ("record-queue-time", "record-delivery-time")
    )
    assert (queue.count, delivered.count) == (1, 1)
    assert queue.sum == pytest.approx(20)


def test_pieces_of_a_batch_that_was_cut_do_not_leave_anew_and_count_as_retried():
    rig = Rig(batch_size=1000)
    rig.know("t")
    for _ in range(2):
        rig.send("t", b"x" * 100)
    rig.await_request()
    sent = rig.clock.now()
    rig.clock.advance(0.5)
    rig.answer(error_code=ErrorCode.MESSAGE_TOO_LARGE)
    rig.acknowledge_all()
    rig.run_until(lambda: not rig.parts.accumulator.has_incomplete())
    assert sum(left(rig).values()) == 1
    assert rig.metrics()["record-retry-time-max"] == pytest.approx(1000 * (rig.clock.now() - sent))


def test_a_callback_that_takes_long_shows_in_the_time_of_the_thread_while_it_lasts():
    rig = Rig()
    rig.know("t")
    time = rig.parts.sender_metrics.time
    seen = []

    def slow(*_: object) -> None:
        rig.clock.advance(2.0)
        seen.append((time.activity, time.seconds(CALLBACKS, rig.clock.now())))

    rig.send("t", b"x", on_delivery=slow)
    rig.await_request()
    rig.answer()
    assert seen == [(CALLBACKS, pytest.approx(2.0))]
    metrics = rig.metrics()
    assert metrics["callback-time-max"] == pytest.approx(2000)
    assert metrics["callback-time-p50"] == pytest.approx(2000, rel=0.42)
    assert rig.metrics(IO_GROUP)["callbacks"]["io-activity-time-ns-total"] == pytest.approx(2e9)


def test_the_callbacks_of_a_failed_batch_count_as_well():
    rig = Rig(retries=0)
    rig.know("t")
    rig.send("t", b"x", on_delivery=lambda *_: rig.clock.advance(1.0))
    rig.await_request()
    rig.answer(error_code=ErrorCode.INVALID_RECORD)
    assert rig.metrics()["callback-time-max"] == pytest.approx(1000)


def test_the_callbacks_of_a_batch_without_an_answer_count_as_well_and_so_does_its_delivery():
    rig = Rig(acks=0, enable_idempotence=False)
    rig.know("t")
    time = rig.parts.sender_metrics.time
    seen = []

    def slow(*_: object) -> None:
        seen.append(time.activity)
        rig.clock.advance(1.0)

    delivery = rig.send("t", b"x", on_delivery=slow)
    rig.run_until(delivery.done)
    assert seen == [CALLBACKS]
    metrics = rig.metrics()
    assert metrics["callback-time-max"] == pytest.approx(1000)
    assert metrics["record-delivery-time-max"] >= 0
    assert rig.metrics(IO_GROUP)["callbacks"]["io-activity-time-ns-total"] == pytest.approx(1e9)


def test_a_batch_that_the_broker_has_already_counts_as_delivered():
    rig = Rig()
    rig.know("t")
    seen = []

    def slow(*_: object) -> None:
        seen.append(rig.metrics()["record-delivery-time-max"])
        rig.clock.advance(1.0)

    rig.send("t", b"x", on_delivery=slow)
    rig.await_request()
    rig.answer(error_code=ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
    metrics = rig.metrics()
    assert metrics["callback-time-max"] == pytest.approx(1000)
    assert metrics["record-delivery-time-max"] >= 0
    assert seen == [metrics["record-delivery-time-max"]]  # it was counted before it was told


def test_the_callbacks_of_single_refused_records_count_as_well():
    rig = Rig()
    rig.know("t")
    refused = rig.send("t", b"x", on_delivery=lambda *_: rig.clock.advance(1.0))
    rig.send("t", b"y")
    rig.await_request()
    rig.answer(
        error_code=ErrorCode.INVALID_RECORD,
        record_errors=[{"batch_index": 0, "batch_index_error_message": "bad"}],
    )
    assert refused.done()
    assert rig.metrics()["callback-time-max"] == pytest.approx(1000)


def test_after_callbacks_the_thread_does_what_it_did_before():
    rig = Rig()
    metrics = rig.parts.sender_metrics
    metrics.enter(SEALING)
    with metrics.callbacks():
        assert metrics.time.activity == CALLBACKS
    assert metrics.time.activity == SEALING


def test_the_activities_of_the_thread_are_all_its_time():
    rig = Rig(linger_ms=5)
    rig.know("t")
    rig.acknowledge_all()
    rig.send("t", b"x")
    began = rig.clock.now()
    before = rig.metrics(IO_GROUP)
    rig.run_for(3.0)
    after = rig.metrics(IO_GROUP)
    assert set(after) == set(ACTIVITIES)
    spent = {
        name: after[name]["io-activity-time-ns-total"] - before[name]["io-activity-time-ns-total"]
        for name in ACTIVITIES
    }
    assert sum(spent.values()) == pytest.approx(1e9 * (rig.clock.now() - began), rel=1e-6)
    assert spent["waiting"] >= 2.9e9  # virtual time passes only while it waits
    assert sum(values["io-activity-ratio"] for values in after.values()) == pytest.approx(1.0)
    assert after["waiting"]["io-activity-ratio"] > 0.9
