# SPDX-License-Identifier: Apache-2.0
"""A collector for prometheus_client: reads the producers' metrics at each scrape, and costs nothing in between.

Rules:
1. A metric is called kafka_producer_<group>_<name>, as JMX exporters call it: dashboards and alerts for the Java client
   work. Names that end in -total are counters, the others gauges.
2. Histograms count in seconds, as is usual, and have every second bound that the producer has.
3. A producer of the parent process is not told in a forked child, nor one that has ended.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from penstock._events import Event, tell
from penstock._extras import how_to_install
from penstock.errors import ConfigError

try:
    from prometheus_client import REGISTRY, CollectorRegistry
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
except ModuleNotFoundError as missing:
    if missing.name != "prometheus_client":
        raise
    raise ConfigError(
        "metrics for Prometheus need the package prometheus-client: "
        + how_to_install("prometheus", "prometheus-client"),
        "metric.reporters",
    ) from missing

if TYPE_CHECKING:
    from penstock._metrics import HistogramMetric, MetricValue
    from penstock._reporting import MetricsSource

log = logging.getLogger("penstock.watching")

_PREFIX = "kafka_producer_"
_CLIENT = "client_id"
_ABOUT = "app-info"
_TOTAL = "-total"
# Histograms without a unit; all others are of milliseconds.
_RATIO = "-ratio"

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


class ProducerCollector:
    """Shows the metrics of all producers that have it among their metric.reporters.

    It registers itself when the first producer starts. Producers with the same client.id are told apart: the second is
    shown as "orders#2".

    Args:
        registry: of prometheus_client; by default the one that `start_http_server` shows.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._registry = registry
        self._registered = False
        self._shown: dict[str, MetricsSource] = {}  # by the client id that is shown; copies of it are atomic

    def start(self, source: MetricsSource) -> None:
        """Show the metrics of a producer that was made."""
        self._forget_ended()
        number, shown = 1, source.client_id
        while self._shown.setdefault(shown, source) is not source:  # one step: others may start meanwhile
            number += 1
            shown = f"{source.client_id}#{number}"
        if not self._registered:
            self._registered = True
            self._registry.register(self)
            if os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
                tell(
                    log, logging.WARNING, Event.PROMETHEUS_MULTIPROCESS,
                    "PROMETHEUS_MULTIPROC_DIR is set: its files have no metrics of producers, because "
                    "prometheus_client does not write those of collectors there. Let each worker process serve a port "
                    "of its own.",
                    client_id=source.client_id,
                )  # fmt: skip

    def stop(self, source: MetricsSource) -> None:
        """Show the metrics of a producer no more, because it is closed."""
        for shown, known in list(self._shown.items()):
            if known is source:
                self._shown.pop(shown, None)

    def describe(self) -> Iterable[Family]:
        """Nothing is known before a scrape; without this, registering would ask for all metrics."""
        return ()

    def collect(self) -> Iterator[Family]:
        """The metrics of all producers now."""
        families: dict[str, Any] = {}
        for shown, source in list(self._shown.items()):
            about: list[MetricValue] = []
            for value in source.values():
                if value.group == _ABOUT:
                    about.append(value)
                else:
                    _add_value(families, shown, value)
            _add_about(families, shown, about)
            for histogram in source.histograms():
                _add_histogram(families, shown, histogram)
        yield from families.values()

    def _forget_ended(self) -> None:
        for shown, source in list(self._shown.items()):
            if not source.usable:
                self._shown.pop(shown, None)


def _add_value(families: dict[str, Any], client_id: str, value: MetricValue) -> None:
    labels = _labels(value.tags)
    is_counter = value.name.endswith(_TOTAL)
    name = _name(value.group, value.name.removesuffix(_TOTAL) if is_counter else value.name)
    family = families.get(name)
    if family is None:
        kind = CounterMetricFamily if is_counter else GaugeMetricFamily
        family = families[name] = kind(name, value.description, labels=[_CLIENT, *labels])
    family.add_metric([client_id, *labels.values()], value.value)


def _add_about(families: dict[str, Any], client_id: str, about: list[MetricValue]) -> None:
    """Texts are labels of a metric that is 1; numbers are metrics."""
    texts = {value.name: value.value for value in about if isinstance(value.value, str)}
    for value in about:
        if value.name not in texts:
            _add_value(families, client_id, value)
    if not texts:
        return
    labels = _labels(texts)
    name = _name(_ABOUT)
    family = families.get(name)
    if family is None:
        family = families[name] = GaugeMetricFamily(name, "The client; always 1", labels=[_CLIENT, *labels])
    family.add_metric([client_id, *labels.values()], 1)


def _add_histogram(families: dict[str, Any], client_id: str, metric: HistogramMetric) -> None:
    labels = _labels(metric.tags)
    is_ratio = metric.name.endswith(_RATIO)
    name = _name(metric.group, metric.name if is_ratio else f"{metric.name}-seconds")
    scale = 1.0 if is_ratio else 1000.0
    family = families.get(name)
    if family is None:
        description = metric.description.replace("Milliseconds", "Seconds")
        family = families[name] = HistogramMetricFamily(name, description, labels=[_CLIENT, *labels])
    histogram = metric.histogram
    counts = histogram.counts()
    buckets: list[tuple[str, float]] = []
    below = 0
    for at, (bound, count) in enumerate(zip(histogram.bounds, counts, strict=False)):
        below += count
        if at % 2 == len(histogram.bounds) % 2 ^ 1:  # every second, the last among them
            buckets.append((repr(bound / scale), below))
    buckets.append(("+Inf", sum(counts)))
    family.add_metric([client_id, *labels.values()], buckets, histogram.sum / scale)


def _labels(tags: Mapping[str, str]) -> dict[str, str]:
    return {tag.replace("-", "_"): value for tag, value in tags.items()}


def _name(*parts: str) -> str:
    return _PREFIX + "_".join(parts).replace("-", "_")
