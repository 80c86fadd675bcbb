# SPDX-License-Identifier: Apache-2.0
"""Counters, windowed statistics, and the registry that names them.

Rules:
1. No clock: whoever records or reads brings `now`, in monotonic seconds.
2. A statistic belongs to the thread that records it, and takes no lock. Any thread may read it: a reader changes
   nothing, and at worst misses the record being made.
3. Only the registry's list of names is locked, for the moment of a change or a copy.

Windows: a statistic is kept in `num_samples` samples of `window_ms` each (metrics.num.samples,
metrics.sample.window.ms). Averages and maxima are over the samples that are not too old; a rate is the sum over them,
divided by the time they span, for which at least num_samples - 1 whole windows are taken. So a burst in the first
second of a program's life does not look like a steady rate.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

Measure = Callable[[float], Any]  # now -> value

_NEVER = -math.inf
_SHORTEST_SPAN = 0.001  # a rate over no time at all has no meaning


class _Sample:
    """What was recorded during one window."""

    __slots__ = ("count", "last_at", "max", "start", "total")

    def __init__(self, start: float) -> None:
        self.start = start
        self.last_at = start
        self.count = 0
        self.total: float = 0
        self.max: float = _NEVER


class WindowedStat:
    """Values recorded over the last windows: their average, maximum and rate, and the total since the beginning.

    One `record` feeds all of them, so that a value with both an average and a maximum costs one call.

    Attributes:
        total: the sum of all values ever recorded.
        count: how many there were.
    """

    __slots__ = ("_current", "_num_samples", "_samples", "_window", "count", "total")

    def __init__(self, num_samples: int, window_ms: float) -> None:
        self._num_samples = num_samples
        self._window = window_ms / 1000
        self._samples: tuple[_Sample, ...] = ()  # oldest first; replaced whole, for readers on other threads
        self._current: _Sample | None = None
        self.total: float = 0
        self.count = 0

    def record(self, value: float, now: float) -> None:
        """Add one value."""
        sample = self._current
        if sample is None or now - sample.start >= self._window:
            sample = self._open_sample(now)
        sample.total += value
        sample.count += 1
        sample.last_at = now
        largest = sample.max
        if value > largest:  # max() would cost more than all the rest
            sample.max = value
        self.total += value
        self.count += 1

    def record_many(self, total: float, count: int, largest: float, now: float) -> None:
        """Add several values at once: their sum, how many they are, and the largest."""
        sample = self._current
        if sample is None or now - sample.start >= self._window:
            sample = self._open_sample(now)
        sample.total += total
        sample.count += count
        sample.last_at = now
        sample.max = max(sample.max, largest)
        self.total += total
        self.count += count

    def advance_to(self, total: float, now: float) -> None:
        """Record what a counter kept elsewhere has grown by since the last time."""
        if total != self.total:
            self.record(total - self.total, now)

    def avg(self, now: float) -> float:
        """The average over the windows; not-a-number without values."""
        samples = self._recent(now)
        count = sum(sample.count for sample in samples)
        return sum(sample.total for sample in samples) / count if count else math.nan

    def max(self, now: float) -> float:
        """The largest value of the windows; not-a-number without values."""
        largest = max((sample.max for sample in self._recent(now)), default=_NEVER)
        return math.nan if largest == _NEVER else largest

    def rate(self, now: float) -> float:
        """The sum over the windows, per second."""
        samples = self._recent(now)
        if not samples:
            return 0.0
        return sum(sample.total for sample in samples) / self._span(samples[0].start, now)

    def _open_sample(self, now: float) -> _Sample:
        sample = _Sample(now)
        self._samples = (
            (*self._samples[-(self._num_samples - 1) :], sample) if self._num_samples > 1 else (sample,)
        )
        self._current = sample
        return sample

    def _recent(self, now: float) -> list[_Sample]:
        oldest = now - self._num_samples * self._window
        return [sample for sample in self._samples if sample.last_at > oldest]

    def _span(self, start: float, now: float) -> float:
        elapsed = now - start
        missing = self._num_samples - 1 - (elapsed // self._window if self._window else 0)
        if missing > 0:
            elapsed += missing * self._window
        return max(elapsed, _SHORTEST_SPAN)


class Counter:
    """A number that only grows."""

    __slots__ = ("total",)

    def __init__(self) -> None:
        self.total = 0

    def add(self, amount: int = 1) -> None:
        """Count."""
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
        self._lock = threading.Lock()
        self._metrics: dict[_Key, dict[str, Metric]] = {}  # guarded by the lock
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
        return counter

    def avg(
        self, group: str, name: str, description: str, tags: Mapping[str, str] | None = None
    ) -> WindowedStat:
        """An average under its own name."""
        stat = self.stat()
        self.gauge(group, name, description, stat.avg, tags)
        return stat

    def avg_max(
        self, group: str, name: str, description: str, tags: Mapping[str, str] | None = None
    ) -> WindowedStat:
        """`<name>-avg` and `<name>-max` of one statistic."""
        stat = self.stat()
        self.gauge(group, f"{name}-avg", f"{description} (average)", stat.avg, tags)
        self.gauge(group, f"{name}-max", f"{description} (maximum)", stat.max, tags)
        return stat

    def rate_total(
        self, group: str, name: str, description: str, tags: Mapping[str, str] | None = None
    ) -> WindowedStat:
        """`<name>-rate` per second and `<name>-total` of one statistic."""
        stat = self.stat()
        self.gauge(group, f"{name}-rate", f"{description} (per second)", stat.rate, tags)
        self.gauge(group, f"{name}-total", f"{description} (since the start)", lambda _: stat.total, tags)
        return stat

    def remove(self, group: str, tags: Mapping[str, str] | None = None) -> None:
        """Forget the metrics of a group with these tags: those of a topic or node that is gone."""
        with self._lock:
            self._metrics.pop(_key(group, tags), None)

    def __len__(self) -> int:
        with self._lock:
            return sum(len(metrics) for metrics in self._metrics.values())

    def __iter__(self) -> Iterator[Metric]:
        with self._lock:
            return iter([metric for metrics in self._metrics.values() for metric in metrics.values()])

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
