# SPDX-License-Identifier: Apache-2.0
"""Windowed statistics and their registry, in virtual time."""

from __future__ import annotations

import math
import threading

import pytest

from penstock._metrics import MetricsRegistry, WindowedStat
from penstock.producer.io import metric_names
from penstock.producer.io.metric_names import ALL_METRICS

START = 1_000.0


def two_windows_of_30_seconds() -> WindowedStat:
    return WindowedStat(num_samples=2, window_ms=30_000)


def test_average_and_maximum_are_over_the_windows_kept() -> None:
    stat = two_windows_of_30_seconds()
    stat.record(100, START)
    stat.record(2, START + 30)
    stat.record(4, START + 40)
    assert stat.avg(START + 40) == pytest.approx(106 / 3)
    assert stat.max(START + 40) == 100
    assert stat.avg(START + 59.9) == pytest.approx(106 / 3)
    assert stat.avg(START + 60) == 3  # the first window is too old now
    assert stat.max(START + 60) == 4
    stat.record(6, START + 70)  # a third window takes the place of the first
    assert stat.avg(START + 70) == 4
    assert (stat.total, stat.count) == (112, 4)


def test_without_recent_values_there_is_no_average_and_the_rate_is_zero() -> None:
    stat = two_windows_of_30_seconds()
    assert math.isnan(stat.avg(START))
    assert math.isnan(stat.max(START))
    assert stat.rate(START) == 0.0
    stat.record(5, START)
    assert stat.avg(START + 1) == 5
    assert math.isnan(stat.avg(START + 60))
    assert math.isnan(stat.max(START + 60))
    assert stat.rate(START + 60) == 0.0
    assert stat.total == 5


def test_negative_values_have_a_maximum_too() -> None:
    stat = two_windows_of_30_seconds()
    stat.record(-3, START)
    assert stat.max(START) == -3


def test_rate_takes_at_least_all_windows_but_one() -> None:
    stat = two_windows_of_30_seconds()
    stat.record(60, START)
    assert stat.rate(START) == pytest.approx(60 / 30)  # not 60 per no time at all
    assert stat.rate(START + 15) == pytest.approx(60 / 45)
    stat.record(60, START + 45)
    assert stat.rate(START + 45) == pytest.approx(120 / 45)


def test_rate_with_one_sample_spans_at_least_a_millisecond() -> None:
    stat = WindowedStat(num_samples=1, window_ms=1_000)
    stat.record(3, START)
    assert stat.rate(START) == pytest.approx(3_000)
    assert stat.rate(START + 0.5) == pytest.approx(6)
    stat.record(1, START + 1.0)
    assert stat.rate(START + 1.5) == pytest.approx(2)


def test_a_window_of_no_length_keeps_nothing_but_the_total() -> None:
    stat = WindowedStat(num_samples=2, window_ms=0)
    stat.record(3, START)
    assert math.isnan(stat.avg(START))
    assert stat.rate(START) == 0.0
    assert stat.total == 3


def test_steady_load_shows_its_rate() -> None:
    stat = two_windows_of_30_seconds()
    for second in range(300):
        stat.record(10, START + second)
    assert stat.rate(START + 299) == pytest.approx(10, rel=0.05)


def test_a_counter_kept_elsewhere_is_followed() -> None:
    stat = two_windows_of_30_seconds()
    stat.advance_to(90, START)
    stat.advance_to(90, START + 1)
    stat.advance_to(120, START + 2)
    assert stat.total == 120
    assert stat.rate(START + 30) == pytest.approx(4)


def test_registry_gives_plain_nested_values() -> None:
    registry = MetricsRegistry(num_samples=2, window_ms=30_000)
    registry.avg_max("producer-metrics", "batch-size", "bytes").record(10, START)
    registry.rate_total("producer-topic-metrics", "byte", "bytes", {"topic": "orders"}).record(60, START)
    registry.rate_total("producer-topic-metrics", "byte", "bytes", {"topic": "refunds"})
    registry.counter("producer-metrics", "flush-time-ns-total", "ns").add(5)
    registry.gauge("app-info", "version", "which", lambda _: "1.2.3")
    registry.avg("producer-metrics", "records-per-request-avg", "records").record(3, START)
    assert registry.snapshot(START) == {
        "kafka-metrics-count": {"count": 10},
        "producer-metrics": {
            "batch-size-avg": 10,
            "batch-size-max": 10,
            "flush-time-ns-total": 5,
            "records-per-request-avg": 3,
        },
        "producer-topic-metrics": {
            "orders": {"byte-rate": 2.0, "byte-total": 60},
            "refunds": {"byte-rate": 0.0, "byte-total": 0},
        },
        "app-info": {"version": "1.2.3"},
    }


def test_sums_are_of_all_values_since_the_start() -> None:
    registry = MetricsRegistry(num_samples=2, window_ms=1000)
    size = registry.avg_max("producer-metrics", "batch-size", "bytes")
    sent = registry.rate_total("producer-batch-metrics", "batch", "batches", {"reason": "full"})
    fill = registry.avg("producer-metrics", "batch-fill-ratio-avg", "part")
    registry.counter("producer-metrics", "flush-time-ns-total", "ns").add(5)
    for second in range(10):  # far more than the windows
        size.record(10, START + second)
        sent.add_whole(3, 1, 3, START + second)
        fill.record(0.5, START + second)
    sums = {(one.group, one.name, *one.tags.values()): (one.number, one.total) for one in registry.sums()}
    assert sums == {
        ("producer-metrics", "batch-size"): (10, 100),
        ("producer-batch-metrics", "batch", "full"): (10, 30),
        ("producer-metrics", "batch-fill-ratio"): (10, 5.0),
        ("producer-metrics", "flush-time-ns-total"): (0, 5),
    }
    registry.remove("producer-batch-metrics", {"reason": "full"})
    assert len(registry.sums()) == 3


def test_groups_of_things_that_are_gone_are_removed() -> None:
    registry = MetricsRegistry()
    for node in ("node-1", "node-2"):
        registry.avg_max("producer-node-metrics", "request-latency", "ms", {"node-id": node})
    registry.remove("producer-node-metrics", {"node-id": "node-1"})
    registry.remove("producer-node-metrics", {"node-id": "node-9"})
    assert list(registry.snapshot(START)["producer-node-metrics"]) == ["node-2"]
    assert len(registry) == 3
    registry.avg_max(
        "producer-node-metrics", "request-latency", "ms", {"node-id": "node-1"}
    )  # it may come back


def test_a_name_is_given_once() -> None:
    registry = MetricsRegistry()
    registry.counter("g", "n", "d")
    registry.counter("g", "n", "d", {"topic": "t"})
    with pytest.raises(ValueError, match="'n' of group 'g'"):
        registry.counter("g", "n", "d")


def test_reading_while_another_thread_records_and_registers() -> None:
    registry = MetricsRegistry(num_samples=2, window_ms=1)
    stat = registry.rate_total("g", "records", "d")
    started, stop = threading.Event(), threading.Event()

    def work() -> None:
        number = 0
        while not stop.is_set():
            stat.record(1, START + number / 1_000)
            registry.counter("g", f"c{number}", "d")
            number += 1
            started.set()

    thread = threading.Thread(target=work)
    thread.start()
    started.wait(60)
    try:
        totals = [registry.snapshot(START)["g"]["records-total"] for _ in range(50)]
    finally:
        stop.set()
        thread.join(60)
    assert totals == sorted(totals)
    assert totals[0] >= 1


# ------------------------------------------------------------------------------------------- the catalogue

EXPECTED = {
    "producer-metrics": """
        batch-size-avg batch-size-max batch-split-rate batch-split-total compression-rate-avg record-queue-time-avg
        record-queue-time-max request-latency-avg request-latency-max produce-throttle-time-avg
        produce-throttle-time-max record-send-rate record-send-total records-per-request-avg record-retry-rate
        record-retry-total record-error-rate record-error-total record-size-avg record-size-max requests-in-flight
        record-conversion-rate record-conversion-total conversion-time-ns-total idempotence-enabled
        metadata-age waiting-threads buffer-total-bytes buffer-available-bytes bufferpool-wait-ratio
        bufferpool-wait-time-ns-total buffer-exhausted-rate buffer-exhausted-total flush-time-ns-total
        txn-init-time-ns-total txn-begin-time-ns-total txn-send-offsets-time-ns-total txn-commit-time-ns-total
        txn-abort-time-ns-total successful-reauthentication-rate successful-reauthentication-total
        failed-reauthentication-rate failed-reauthentication-total
        metadata-wait-time-ns-total connection-close-rate connection-close-total connection-creation-rate
        connection-creation-total connection-count successful-authentication-rate successful-authentication-total
        failed-authentication-rate failed-authentication-total network-io-rate network-io-total outgoing-byte-rate
        outgoing-byte-total incoming-byte-rate incoming-byte-total request-rate request-total request-size-avg
        request-size-max response-rate response-total select-rate select-total io-wait-time-ns-avg io-wait-ratio
        io-wait-time-ns-total io-time-ns-avg io-ratio io-time-ns-total
        record-queue-time-p50 record-queue-time-p95 record-queue-time-p99
        request-latency-p50 request-latency-p95 request-latency-p99
        record-retry-time-avg record-retry-time-max record-retry-time-p50 record-retry-time-p95 record-retry-time-p99
        record-delivery-time-avg record-delivery-time-max record-delivery-time-p50 record-delivery-time-p95
        record-delivery-time-p99 callback-time-avg callback-time-max callback-time-p50 callback-time-p95
        callback-time-p99 batch-fill-ratio-avg batch-fill-ratio-p50 batch-fill-ratio-p95 batch-fill-ratio-p99
        bufferpool-wait-time-p50 bufferpool-wait-time-p95 bufferpool-wait-time-p99 bufferpool-longest-wait-ms
    """,
    "producer-topic-metrics": """
        record-send-rate record-send-total byte-rate byte-total compression-rate record-retry-rate record-retry-total
        record-error-rate record-error-total
    """,
    "producer-node-metrics": """
        request-rate request-total request-size-avg request-size-max outgoing-byte-rate outgoing-byte-total
        response-rate response-total incoming-byte-rate incoming-byte-total request-latency-avg request-latency-max
    """,
    "producer-batch-metrics": "batch-rate batch-total record-rate record-total batch-fill-ratio-avg",
    "producer-io-metrics": "io-activity-time-ns-total io-activity-ratio",
    "producer-event-metrics": "event-total",
    "app-info": "version commit-id start-time-ms",
    "kafka-metrics-count": "count",
}


@pytest.mark.parametrize("group", EXPECTED)
def test_catalogue_has_the_names_that_users_know(group: str) -> None:
    names = [name for row in ALL_METRICS if row.group == group for name in row.names]
    assert sorted(names) == sorted(EXPECTED[group].split())


def test_every_row_can_be_registered_and_appears_under_its_names() -> None:
    registry = MetricsRegistry()
    for row in ALL_METRICS:
        match row:
            case metric_names.AvgMax():
                registry.avg_max(*row)
            case metric_names.RateTotal():
                registry.rate_total(*row)
            case metric_names.Avg():
                registry.avg(*row)
            case metric_names.Count():
                registry.counter(*row)
            case metric_names.Percentiles():
                registry.histogram(*row, metric_names.TIME_BOUNDS)
            case metric_names.METRICS_COUNT:
                pass  # registered by the registry itself
            case _:
                registry.gauge(*row, lambda now: now)
    values = registry.snapshot(START)
    for row in ALL_METRICS:
        assert set(row.names) <= set(values[row.group])
        assert row.description


def test_a_window_that_is_not_quite_over_is_counted_as_missing() -> None:
    stat = WindowedStat(num_samples=11, window_ms=100)
    stat.record(1, 0.0)
    assert 1.0 // 0.1 == 9, "ten windows of 0.1 s are a little more than a second"
    assert stat.rate(1.0) == pytest.approx(1 / 1.1)


def test_whole_numbers_stay_whole_and_others_do_not():
    stat = two_windows_of_30_seconds()
    stat.record(2**40, START)
    stat.record(3, START + 40)
    assert [(type(value), value) for value in (stat.total, stat.max(START + 41))] == [
        (int, 2**40 + 3),
        (int, 2**40),
    ]
    stat.record(0.5, START + 41)
    assert stat.total == 2**40 + 3.5
    assert stat.avg(START + 41) == (2**40 + 3.5) / 3
    stat.record(3.5, START + 80)
    assert (stat.max(START + 81), stat.count) == (3.5, 4)


def test_several_values_are_added_at_once():
    whole, real = two_windows_of_30_seconds(), two_windows_of_30_seconds()
    whole.add_whole(10, 4, -2, START)
    whole.add_whole(5, 1, -5, START)
    real.add_real(1.0, 2, 0.75, START)
    real.add_real(0.5, 1, 0.5, START)
    for stat, total, count, largest in ((whole, 15, 5, -2), (real, 1.5, 3, 0.75)):
        assert (stat.total, stat.count, stat.max(START)) == (total, count, largest)
        assert stat.avg(START) == total / count


def test_what_is_not_a_number_is_never_the_largest():
    stat = two_windows_of_30_seconds()
    stat.record(math.nan, START)
    assert math.isnan(stat.max(START))
    stat.record(1.5, START)
    assert stat.max(START) == 1.5
