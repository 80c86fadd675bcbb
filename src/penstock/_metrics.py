# SPDX-License-Identifier: Apache-2.0
"""Counters, and the registry that names them, the windowed statistics and the histograms (`_stats_cy`).

Rules:
1. No clock: a caller that records or reads passes `now`, in monotonic seconds.
2. A statistic belongs to the thread that records it, and takes no lock. Any thread may read it: a reader changes
   nothing, and at worst misses the record being made.
3. Only the registry's list of names is locked, for the moment of a change. Reading takes no lock, so that `metrics()`
   can be called anywhere, also from a signal handler: a copy of a dictionary's values is made in one step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from penstock._locks import new_lock
from penstock._stats_cy import Histogram, WindowedStat

__all__ = [
    "Counter",
    "Histogram",
    "HistogramMetric",
    "Measure",
    "Metric",
    "MetricValue",
    "MetricsRegistry",
    "SumMetric",
    "WindowedStat",
]

Measure = Callable[[float], Any]  # now -> value


class Counter:
    """A number that only grows."""

    __slots__ = ("total",)

    def __init__(self) -> None:
        self.total = 0

    def add(self, amount: int = 1) -> None:
        self.total += amount


class Metric(NamedTuple):
    """One named value.

    Attributes:
        group: for example "producer-metrics".
        name: for example "record-send-rate".
        description: what it tells, and its unit.
        tags: what it is about, for example {"topic": "orders"}; the same names within one group.
        measure: reads it.
    """

    group: str
    name: str
    description: str
    tags: Mapping[str, str]
    measure: Measure


class MetricValue(NamedTuple):
    """What a Metric was when it was read; the same fields, and its value."""

    group: str
    name: str
    description: str
    tags: Mapping[str, str]
    value: Any


class HistogramMetric(NamedTuple):
    """A histogram with its name: for systems that count buckets themselves. Its percentiles are Metrics.

    Attributes:
        group: as of a Metric, and so are the others.
        histogram: its values, in the unit that the description names.
    """

    group: str
    name: str
    description: str
    tags: Mapping[str, str]
    histogram: Histogram


class SumMetric(NamedTuple):
    """What all values since the start add up to, where a Metric has the average or the rate of the last windows.

    Attributes:
        group: as of a Metric, and so are the tags.
        name: without what the Metrics add to it: `batch-size`, not `batch-size-avg`.
        number: how many values there were; 0 of a plain counter, which does not know.
        total: their sum.
    """

    group: str
    name: str
    tags: Mapping[str, str]
    number: int
    total: Any


_PERCENTILES = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))

_Key = tuple[str, tuple[tuple[str, str], ...]]  # group, tags


class MetricsRegistry:
    """Names for statistics, and their values on demand.

    Args:
        num_samples: metrics.num.samples.
        window_ms: metrics.sample.window.ms.
    """

    def __init__(self, num_samples: int = 2, window_ms: float = 30_000) -> None:
        self._num_samples = num_samples
        self._window_ms = window_ms
        self._lock: Any = new_lock()
        self._metrics: dict[_Key, dict[str, Metric]] = {}  # changed under the lock
        self._histograms: dict[_Key, dict[str, HistogramMetric]] = {}  # likewise
        self._sums: dict[_Key, dict[str, WindowedStat | Counter]] = {}  # likewise
        self.gauge("kafka-metrics-count", "count", "How many metrics there are", lambda _: len(self))

    def stat(self) -> WindowedStat:
        """A statistic with this registry's windows, not yet named."""
        return WindowedStat(self._num_samples, self._window_ms)

    def gauge(
        self, group: str, name: str, description: str, measure: Measure, tags: Mapping[str, str] | None = None
    ) -> None:
        """Register a value that is computed when it is asked for: `measure(now)`.

        Raises:
            ValueError: the name is taken.
        """
        metric = Metric(group, name, description, dict(tags or {}), measure)
        with self._lock:
            metrics = self._metrics.setdefault(_key(group, tags), {})
            if name in metrics:
                raise ValueError(
                    f"metric {name!r} of group {group!r} with tags {dict(tags or {})} exists already"
                )
            metrics[name] = metric

    def counter(
        self, group: str, name: str, description: str, tags: Mapping[str, str] | None = None
    ) -> Counter:
        """A plain count under its own name."""
        counter = Counter()
        self.gauge(group, name, description, lambda _: counter.total, tags)
        self._keep_sum(group, name, tags, counter)
        return counter

    def avg(
        self, group: str, name: str, description: str, tags: Mapping[str, str] | None = None
    ) -> WindowedStat:
        """An average under its own name."""
        stat = self.stat()
        self.gauge(group, name, description, stat.avg, tags)
        self._keep_sum(group, name.removesuffix("-avg"), tags, stat)
        return stat

    def avg_max(
        self, group: str, name: str, description: str, tags: Mapping[str, str] | None = None
    ) -> WindowedStat:
        """`<name>-avg` and `<name>-max` of one statistic."""
        stat = self.stat()
        self.gauge(group, f"{name}-avg", f"{description} (average)", stat.avg, tags)
        self.gauge(group, f"{name}-max", f"{description} (maximum)", stat.max, tags)
        self._keep_sum(group, name, tags, stat)
        return stat

    def rate_total(
        self, group: str, name: str, description: str, tags: Mapping[str, str] | None = None
    ) -> WindowedStat:
        """`<name>-rate` per second and `<name>-total` of one statistic."""
        stat = self.stat()
        self.gauge(group, f"{name}-rate", f"{description} (per second)", stat.rate, tags)
        self.gauge(group, f"{name}-total", f"{description} (since the start)", lambda _: stat.total, tags)
        self._keep_sum(group, name, tags, stat)
        return stat

    def histogram(
        self,
        group: str,
        name: str,
        description: str,
        bounds: tuple[float, ...],
        tags: Mapping[str, str] | None = None,
    ) -> Histogram:
        """A histogram, and `<name>-p50`, `-p95` and `-p99` of its last windows."""
        histogram = Histogram(bounds, self._num_samples, self._window_ms)
        for suffix, fraction in _PERCENTILES:
            measure = partial(histogram.percentile, fraction)
            self.gauge(group, f"{name}-{suffix}", f"{description} ({fraction:.0%} are below)", measure, tags)
        with self._lock:
            named = self._histograms.setdefault(_key(group, tags), {})
            named[name] = HistogramMetric(group, name, description, dict(tags or {}), histogram)
        return histogram

    def histograms(self) -> list[HistogramMetric]:
        return [one for named in list(self._histograms.values()) for one in list(named.values())]

    def sums(self) -> list[SumMetric]:
        """The sums of all statistics and counters: what came between two moments is a difference."""
        return [
            SumMetric(
                group, name, dict(tags), stat.count if isinstance(stat, WindowedStat) else 0, stat.total
            )
            for (group, tags), named in list(self._sums.items())
            for name, stat in list(named.items())
        ]

    def _keep_sum(
        self, group: str, name: str, tags: Mapping[str, str] | None, stat: WindowedStat | Counter
    ) -> None:
        with self._lock:
            self._sums.setdefault(_key(group, tags), {})[name] = stat

    def remove(self, group: str, tags: Mapping[str, str] | None = None) -> None:
        """Forget the metrics of a group with these tags: those of a topic or node that is gone."""
        with self._lock:
            self._metrics.pop(_key(group, tags), None)
            self._histograms.pop(_key(group, tags), None)
            self._sums.pop(_key(group, tags), None)

    def __len__(self) -> int:
        return sum(len(metrics) for metrics in list(self._metrics.values()))

    def __iter__(self) -> Iterator[Metric]:
        return iter([metric for metrics in list(self._metrics.values()) for metric in list(metrics.values())])

    def values(self, now: float) -> list[MetricValue]:
        """All values, each with its name and what it is about."""
        return [MetricValue(*metric[:4], metric.measure(now)) for metric in self]

    def snapshot(self, now: float) -> dict[str, dict[str, Any]]:
        """All values: {group: {name: value}}, and for groups with tags {group: {tag values: {name: value}}}."""
        values: dict[str, dict[str, Any]] = {}
        for metric in self:
            place = values.setdefault(metric.group, {})
            if metric.tags:
                place = place.setdefault(",".join(metric.tags.values()), {})
            place[metric.name] = metric.measure(now)
        return values


def _key(group: str, tags: Mapping[str, str] | None) -> _Key:
    return group, tuple(sorted((tags or {}).items()))
