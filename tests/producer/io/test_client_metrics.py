# SPDX-License-Identifier: Apache-2.0
"""The metrics that are read rather than recorded: memory, network, and the catalogue as a whole."""

from __future__ import annotations

import pytest
from producer.fakes_sender import Rig

from penstock import __version__
from penstock._metrics import MetricsRegistry
from penstock.errors import BufferExhaustedError
from penstock.network import NetworkMetrics
from penstock.producer.io.client_metrics import ClientMetrics, add_nanoseconds
from penstock.producer.io.metric_names import ALL_METRICS, NODE_GROUP, PRODUCER_GROUP, TOPIC_GROUP


def delivered(rig: Rig, *values: bytes) -> None:
    rig.acknowledge_all()
    for value in values:
        rig.send("t", value)
        rig.run_until(lambda: not rig.parts.accumulator.has_incomplete())


def test_every_metric_of_the_catalogue_is_there_after_a_delivery():
    rig = Rig()
    rig.know("t")
    delivered(rig, b"a")
    rig.parts.client_metrics.catch_up(rig.clock.now())
    present = {(metric.group, metric.name) for metric in rig.parts.registry}
    expected = {(row.group, name) for row in ALL_METRICS for name in row.names}
    assert present == expected


def test_every_metric_has_a_description_and_a_number():
    rig = Rig()
    rig.know("t")
    delivered(rig, b"a")
    rig.parts.client_metrics.catch_up(rig.clock.now())
    for metric in rig.parts.registry:
        assert metric.description
        value = metric.measure(rig.clock.now())
        assert isinstance(value, int | float) or metric.name in ("version", "commit-id")


def test_groups_by_topic_and_node_have_their_tags():
    rig = Rig(brokers=2)
    rig.know("t", leaders=[1])
    delivered(rig, b"a")
    assert set(rig.metrics(TOPIC_GROUP)) == {"t"}
    assert "node-1" in rig.metrics(NODE_GROUP)
    assert all(name.startswith("node-") and int(name[5:]) >= 0 for name in rig.metrics(NODE_GROUP))


def test_memory_is_shown_as_it_is():
    rig = Rig(buffer_memory=4000, batch_size=1000)
    rig.know("t")
    rig.send("t", b"x" * 500)
    metrics = rig.metrics()
    assert (metrics["buffer-total-bytes"], metrics["buffer-available-bytes"]) == (4000, 3000)
    rig.await_request()
    rig.answer()
    assert rig.metrics()["buffer-available-bytes"] == 4000


def test_who_waits_for_memory_is_counted():
    rig = Rig(buffer_memory=1000, batch_size=1000, max_block_ms=100)
    rig.know("t")
    rig.send("t", b"x" * 900)
    seen = []
    rig.network.after(0.05, lambda: seen.append(rig.metrics()["waiting-threads"]))
    with pytest.raises(BufferExhaustedError):
        rig.send("t", b"x" * 900)
    assert seen == [1]
    assert rig.metrics()["waiting-threads"] == 0


def test_requests_in_flight_and_the_age_of_the_metadata():
    rig = Rig()
    rig.know("t")
    rig.send("t", b"a")
    rig.await_request()
    rig.run_for(2)
    assert rig.metrics()["requests-in-flight"] == 1
    assert rig.metrics()["metadata-age"] == pytest.approx(2.0)


def test_network_counters_have_totals_and_rates():
    rig = Rig()
    rig.know("t")
    delivered(rig, b"to make the connections")
    before = rig.metrics()
    delivered(rig, b"a", b"b")
    after = rig.metrics()
    assert after["request-total"] - before["request-total"] == 2
    assert after["response-total"] - before["response-total"] == 2
    assert after["outgoing-byte-total"] > before["outgoing-byte-total"]
    assert after["request-rate"] > 0
    node = rig.metrics(NODE_GROUP)["node-0"]
    assert node["request-total"] == node["response-total"] >= 2
    assert node["request-size-avg"] == node["outgoing-byte-total"] / node["request-total"]
    assert after["connection-count"] == len(
        [peer for peer in rig.brokers[0].peers if not peer.closed_by_client]
    )


def test_node_latency_is_in_milliseconds():
    rig = Rig()
    rig.know("t")
    rig.brokers[0].latency = 0.25
    rig.acknowledge_all()
    rig.send("t", b"a")
    rig.run_until(lambda: not rig.parts.accumulator.has_incomplete())
    assert rig.metrics(NODE_GROUP)["node-0"]["request-latency-max"] == pytest.approx(250)


def test_the_client_says_what_it_is():
    rig = Rig()
    assert rig.metrics("app-info") == {
        "version": __version__,
        "commit-id": "unknown",
        "start-time-ms": 1_000_000,
    }


def test_ratios_are_shares_of_the_time_since_the_start():
    registry, network = MetricsRegistry(), NetworkMetrics()
    metrics = ClientMetrics(registry, network, started_at=100.0)
    network.io_wait_ns = 3_000_000_000
    network.io_ns = 1_000_000_000
    network.select_count = 4
    metrics.catch_up(110.0)
    values = registry.snapshot(110.0)[PRODUCER_GROUP]
    assert (values["io-wait-ratio"], values["io-ratio"]) == (pytest.approx(0.3), pytest.approx(0.1))
    assert (values["io-wait-time-ns-avg"], values["io-time-ns-avg"]) == (750_000_000, 250_000_000)


def test_catching_up_twice_counts_once():
    registry, network = MetricsRegistry(), NetworkMetrics()
    metrics = ClientMetrics(registry, network, started_at=0.0)
    network.requests = 5
    for now in (1.0, 1.0, 2.0):
        metrics.catch_up(now)
    assert registry.snapshot(2.0)[PRODUCER_GROUP]["request-total"] == 5


def test_bootstrap_servers_have_no_node_metrics():
    registry, network = MetricsRegistry(), NetworkMetrics()
    metrics = ClientMetrics(registry, network, started_at=0.0)
    network.node(-1).requests = 3
    metrics.catch_up(1.0)
    assert NODE_GROUP not in registry.snapshot(1.0)


def test_waits_are_counted_in_nanoseconds():
    registry = MetricsRegistry()
    metrics = ClientMetrics(registry, NetworkMetrics(), started_at=0.0)
    add_nanoseconds(metrics.flush_ns, 0.5)
    add_nanoseconds(metrics.flush_ns, 0.25)
    assert registry.snapshot(1.0)[PRODUCER_GROUP]["flush-time-ns-total"] == 750_000_000
