# SPDX-License-Identifier: Apache-2.0
"""What the sender counts: records, bytes, retries, errors, per producer and per topic."""

from __future__ import annotations

import pytest
from producer.fakes_sender import Rig

from penstock.producer.io.metric_names import TOPIC_GROUP


def test_records_batches_and_requests_are_counted():
    rig = Rig(linger_ms=5)
    rig.know("t", 2)
    for partition, count in ((0, 3), (1, 1)):
        for _ in range(count):
            rig.send("t", b"x" * 100, partition=partition)
    request = rig.await_request()
    sizes = [len(row["records"]) for row in request.body["topic_data"][0]["partition_data"]]
    rig.answer()
    metrics = rig.metrics()
    assert metrics["record-send-total"] == 4
    assert metrics["records-per-request-avg"] == 4
    assert metrics["batch-size-max"] == max(sizes)
    assert metrics["batch-size-avg"] == sum(sizes) / 2
    assert 100 < metrics["record-size-max"] < 125
    assert metrics["record-queue-time-max"] == pytest.approx(5)
    topic = rig.metrics(TOPIC_GROUP)["t"]
    assert topic["record-send-total"] == 4
    assert topic["byte-total"] == sum(sizes)
    assert topic["compression-rate"] == 1.0


def test_topics_are_counted_apart():
    rig = Rig(linger_ms=5)
    for topic, count in (("a", 1), ("b", 2)):
        rig.know(topic)
        for _ in range(count):
            rig.send(topic, b"x")
    rig.await_request()
    topics = rig.metrics(TOPIC_GROUP)
    assert {name: values["record-send-total"] for name, values in topics.items()} == {"a": 1, "b": 2}


def test_the_compression_rate_is_that_of_the_wire():
    rig = Rig(linger_ms=5, compression_type="gzip")
    rig.know("t")
    for _ in range(20):
        rig.send("t", b"x" * 200)
    request = rig.await_request()
    wire = len(request.body["topic_data"][0]["partition_data"][0]["records"])
    rate = rig.metrics()["compression-rate-avg"]
    assert rate < 0.2
    assert rate == pytest.approx(wire / (61 + 20 * 209), rel=0.02)
    assert rig.metrics(TOPIC_GROUP)["t"]["compression-rate"] == rate


def test_latency_is_measured_from_request_to_answer():
    rig = Rig()
    rig.know("t")
    rig.send("t", b"x")
    rig.await_request()
    rig.run_for(0.4)
    rig.answer()
    assert rig.metrics()["request-latency-avg"] == pytest.approx(400)


def test_who_is_told_of_a_record_finds_the_latency_of_its_request():
    rig = Rig()
    rig.know("t")
    seen = []
    rig.send("t", b"x", on_delivery=lambda *_: seen.append(rig.metrics()["request-latency-avg"]))
    rig.await_request()
    rig.run_for(0.4)
    rig.answer()
    assert seen == [pytest.approx(400)]


def test_the_cause_of_the_last_retry_is_kept():
    rig = Rig(retries=1, retry_backoff_ms=10, retry_backoff_max_ms=10)
    rig.know("t")
    rig.send("t", b"x")
    rig.await_request()
    assert rig.parts.sender_metrics.retry_cause is None
    rig.answer(error_code=19)
    assert rig.parts.sender_metrics.retry_cause.code == 19
    rig.await_request()
    rig.answer()
    assert rig.parts.sender_metrics.retry_cause.code == 19


def test_retries_and_errors_count_records():
    rig = Rig(retries=1, retry_backoff_ms=10, retry_backoff_max_ms=10, linger_ms=5)
    rig.know("t")
    seen: list[float] = []  # by those who are told
    for _ in range(3):
        rig.send("t", b"x", on_delivery=lambda *_: seen.append(rig.metrics()["record-error-total"]))
    rig.await_request()
    rig.answer(error_code=19)
    metrics, topic = rig.metrics(), rig.metrics(TOPIC_GROUP)["t"]
    assert (metrics["record-retry-total"], topic["record-retry-total"]) == (3, 3)
    assert metrics["record-error-total"] == 0
    rig.await_request()
    rig.answer(error_code=19)
    metrics, topic = rig.metrics(), rig.metrics(TOPIC_GROUP)["t"]
    assert (metrics["record-retry-total"], metrics["record-error-total"]) == (3, 3)
    assert [topic["record-error-total"], *seen] == [3, 3, 3, 3]
    assert metrics["record-error-rate"] > 0


def test_expired_records_are_errors_too():
    rig = Rig(delivery_timeout_ms=1000, request_timeout_ms=1000, linger_ms=0)
    rig.know("t")
    rig.send("t", b"x")
    rig.await_request()
    rig.run_for(1.1)
    assert rig.metrics()["record-error-total"] == 1
    rig.run_for(5)
    assert rig.metrics()["record-error-total"] == 1


def test_a_split_is_counted_and_its_records_are_not_lost_from_the_counts():
    rig = Rig(linger_ms=5, batch_size=10_000)
    rig.know("t")
    for _ in range(2):
        rig.send("t", b"x" * 2000)
    rig.await_request()
    rig.answer(error_code=10)
    rig.await_request()
    metrics = rig.metrics()
    assert metrics["batch-split-total"] == 1
    assert metrics["record-error-total"] == 0
    assert metrics["record-retry-total"] == 0


def test_averages_look_back_on_the_configured_windows_only():
    rig = Rig(metrics_sample_window_ms=1000, metrics_num_samples=2)
    rig.know("t")
    rig.send("t", b"x" * 1000)
    rig.await_request()
    rig.answer()
    rig.run_for(10)
    rig.send("t", b"x")
    rig.await_request()
    rig.answer()
    metrics = rig.metrics()
    assert metrics["batch-size-max"] < 200
    assert metrics["record-send-total"] == 2
