# SPDX-License-Identifier: Apache-2.0
"""The collector for prometheus_client: names, labels and values, several producers, forks, and the dashboard."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fix_patience import wait_until
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from penstock import Producer
from penstock.testing import FakeCluster
from penstock.watching import MetricsSource
from penstock.watching.prometheus import ProducerCollector

DASHBOARD = Path(__file__).parents[2] / "examples" / "watching" / "grafana" / "penstock-producers.json"
PRODUCER = "kafka_producer_producer_metrics_"


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def collector(registry: CollectorRegistry) -> ProducerCollector:
    return ProducerCollector(registry)


def scraped(registry: CollectorRegistry) -> dict[tuple[str, ...], float]:
    """Values by name and sorted label values, as a server that scrapes reads them."""
    found: dict[tuple[str, ...], float] = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            key = (sample.name, *(f"{name}={value}" for name, value in sorted(sample.labels.items())))
            assert key not in found, "a sample twice: a server would refuse the scrape"
            found[key] = sample.value
    return found


def answers(values: dict[tuple[str, ...], float]) -> float:
    return sum(value for key, value in values.items() if key[0].endswith("node_metrics_response_total"))


def test_names_labels_and_values_are_those_of_a_jmx_exporter(
    kafka: FakeCluster, registry: CollectorRegistry, collector: ProducerCollector
) -> None:
    kafka.create_topic("orders", 1)
    with Producer(
        bootstrap_servers=kafka.bootstrap_servers, client_id="shop", metric_reporters=[collector]
    ) as producer:
        for _ in range(3):
            producer.send("orders", b"x").result(60)
        # Some is counted after the outcome of the record is told.
        times = (PRODUCER + "record_delivery_time_seconds_count", "client_id=shop")
        wait_until(lambda: scraped(registry).get(times) == 3 and answers(scraped(registry)) >= 3)
        values = scraped(registry)
    assert values[(PRODUCER + "record_send_total", "client_id=shop")] == 3
    assert (
        values[("kafka_producer_producer_topic_metrics_record_send_total", "client_id=shop", "topic=orders")]
        == 3
    )
    nodes = {key[2]: value for key, value in values.items() if key[0].endswith("node_metrics_response_total")}
    assert all(re.fullmatch(r"node_id=node-\d+", node) for node in nodes)
    assert sum(nodes.values()) == answers(values)
    batches = [value for key, value in values.items() if key[0].endswith("batch_metrics_batch_total")]
    assert sum(batches) == 3
    assert values[(PRODUCER + "record_delivery_time_seconds_count", "client_id=shop")] == 3
    assert 0 < values[(PRODUCER + "record_delivery_time_seconds_sum", "client_id=shop")] < 30
    above_all = (PRODUCER + "record_delivery_time_seconds_bucket", "client_id=shop", "le=+Inf")
    assert values[above_all] == 3
    (about,) = [key for key in values if key[0] == "kafka_producer_app_info"]
    assert any(label.startswith("version=") for label in about)


def test_buckets_are_cumulative_and_in_seconds(
    kafka: FakeCluster, registry: CollectorRegistry, collector: ProducerCollector
) -> None:
    kafka.create_topic("t", 1)
    with Producer(bootstrap_servers=kafka.bootstrap_servers, metric_reporters=[collector]) as producer:
        for _ in range(2):
            producer.send("t", b"x").result(60)  # the latency is counted after the record's outcome is told
        values = scraped(registry)
    name = PRODUCER + "request_latency_seconds_bucket"
    buckets = {float(key[2].removeprefix("le=")): value for key, value in values.items() if key[0] == name}
    bounds = sorted(buckets)
    assert bounds[0] == pytest.approx(0.000125)
    assert bounds[-2] == pytest.approx(131.072)
    assert [buckets[bound] for bound in bounds] == sorted(buckets.values())
    assert buckets[float("inf")] in (1, 2)
    ratios = [float(key[2][3:]) for key in values if key[0] == PRODUCER + "batch_fill_ratio_bucket"]
    assert sorted(ratios) == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, float("inf")])


def test_two_producers_of_one_name_are_told_apart_and_leave_when_closed(
    kafka: FakeCluster, registry: CollectorRegistry, collector: ProducerCollector
) -> None:
    def shown() -> set[str]:
        return {key[1] for key in scraped(registry) if key[0] == PRODUCER + "record_send_total"}

    options = {"bootstrap_servers": kafka.bootstrap_servers, "client_id": "same"}
    first = Producer(options, metric_reporters=[collector])
    second = Producer(options, metric_reporters=[collector])
    assert shown() == {"client_id=same", "client_id=same#2"}
    first.close()
    assert shown() == {"client_id=same#2"}
    with Producer(options, metric_reporters=[collector]):
        assert shown() == {"client_id=same", "client_id=same#2"}
    second.close()
    assert scraped(registry) == {}


def test_a_reporter_that_raises_does_no_harm(kafka: FakeCluster, caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def start(self, source: MetricsSource) -> None:
            raise RuntimeError(f"start {source.client_id}")

        def stop(self, _source: MetricsSource) -> None:
            raise RuntimeError("stop")

    kafka.create_topic("t", 1)
    with Producer(
        bootstrap_servers=kafka.bootstrap_servers, client_id="brave", metric_reporters=[Broken()]
    ) as producer:
        producer.send("t", b"x").result(60)
    assert [record.getMessage().split()[-1] for record in caplog.records] == ["started", "stopped"]
    assert "start brave" in caplog.text


def test_a_name_in_the_configuration_is_enough(kafka: FakeCluster) -> None:
    from prometheus_client import REGISTRY

    name = "penstock.watching.prometheus:collector"
    with Producer(
        {"bootstrap.servers": kafka.bootstrap_servers, "metric.reporters": name}, client_id="named"
    ):
        assert (PRODUCER + "record_send_total", "client_id=named") in scraped(REGISTRY)
    assert (PRODUCER + "record_send_total", "client_id=named") not in scraped(REGISTRY)


def test_a_multiprocess_directory_gets_one_warning(
    kafka: FakeCluster,
    collector: ProducerCollector,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "/nowhere")
    for _ in range(2):
        Producer(bootstrap_servers=kafka.bootstrap_servers, metric_reporters=[collector]).close()
    assert [record.kafka_event for record in caplog.records] == ["prometheus-multiprocess"]  # type: ignore[attr-defined]


FORK = """
import os, sys
from prometheus_client import CollectorRegistry, generate_latest
from penstock import Producer
from penstock.watching.prometheus import ProducerCollector

registry = CollectorRegistry()
collector = ProducerCollector(registry)
parent = Producer(bootstrap_servers=sys.argv[1], client_id="parent", metric_reporters=[collector])
child = os.fork()
if child == 0:
    assert generate_latest(registry) == b"", "a child shows what is its parent's"
    with Producer(bootstrap_servers=sys.argv[1], client_id="child", metric_reporters=[collector]):
        text = generate_latest(registry).decode()
    assert 'client_id="child"' in text and 'client_id="parent"' not in text, text
    os._exit(0)
_, status = os.waitpid(child, 0)
text = generate_latest(registry).decode()
assert 'client_id="parent"' in text and 'client_id="child"' not in text, text
parent.close()
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this platform")
def test_a_forked_worker_shows_its_own_producers_alone(kafka: FakeCluster) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORK, kafka.bootstrap_servers],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_without_the_package_the_error_names_it() -> None:
    code = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "from penstock import Producer\n"
        "Producer(bootstrap_servers='x:1', metric_reporters='penstock.watching.prometheus:collector')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False
    )
    assert "ConfigError" in done.stderr
    assert "pip install '.[prometheus]'" in done.stderr


def test_every_metric_of_the_dashboard_is_shown(
    kafka: FakeCluster, registry: CollectorRegistry, collector: ProducerCollector
) -> None:
    kafka.create_topic("t", 1)
    with Producer(bootstrap_servers=kafka.bootstrap_servers, metric_reporters=[collector]) as producer:
        producer.send("t", b"x").result(60)
        wait_until(
            lambda: answers(scraped(registry)) >= 1
        )  # it is counted after the outcome of the record is told
        names = {key[0] for key in scraped(registry)}
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    asked = {
        name
        for panel in panels
        for target in panel.get("targets", ())
        for name in re.findall(r"kafka_producer_\w+", target["expr"])
    }
    assert len(asked) > 30
    assert asked <= names
