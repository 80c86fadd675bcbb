# SPDX-License-Identifier: Apache-2.0
"""Statistics over the last windows of time: what a request adds to a dozen of them. Compiled if possible.

A statistic belongs to the thread that records it, and takes no lock. Any thread may read it: a reader changes nothing,
and at worst misses the record being made.

Windows: a statistic is kept in `num_samples` samples of `window_ms` each (metrics.num.samples,
metrics.sample.window.ms). Averages and maxima are over the samples that are not too old; a rate is the sum over them,
divided by the time they span, for which at least num_samples - 1 whole windows are taken. So a burst in the first
second of a program's life does not look like a steady rate.
"""

from __future__ import annotations

import math
from operator import floordiv
from typing import Any

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

_NEVER = -math.inf
_SHORTEST_SPAN = 0.001  # a rate over no time at all has no meaning


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


@cython.final
@cython.cclass
class _Sample:
    """What was recorded during one window: whole numbers and others apart, so that each is added up in C."""

    def __init__(self, start: cython.double) -> None:
        self.start = start
        self.last_at = start
        self.count = 0
        self.whole = 0
        self.real = 0.0
        self.has_whole = False
        self.has_real = False
        self.largest_whole = 0
        self.largest_real = _NEVER

    @property
    def total(self) -> Any:
        """The sum; a whole number as long as only such were recorded."""
        return self.whole + self.real if self.has_real else self.whole

    @property
    def max(self) -> Any:
        """The largest; minus infinity without any."""
        if self.has_whole and not (self.has_real and self.largest_real > self.largest_whole):
            return self.largest_whole
        return self.largest_real


@cython.final
@cython.cclass
class WindowedStat:
    """Values recorded over the last windows: their average, maximum and rate, and the total since the beginning.

    One `record` feeds all of them, so that a value with both an average and a maximum costs one call.

    Attributes:
        count: how many values there were.
    """

    def __init__(self, num_samples: cython.Py_ssize_t, window_ms: cython.double) -> None:
        self._num_samples = num_samples
        self._window = window_ms / 1000
        self._samples: tuple[_Sample, ...] = ()  # oldest first; replaced whole, for readers on other threads
        self._current: _Sample | None = None
        self._whole = 0
        self._real = 0.0
        self._has_real = False
        self.count = 0

    @property
    def total(self) -> Any:
        """The sum of all values ever recorded; a whole number as long as they all were."""
        return self._whole + self._real if self._has_real else self._whole

    def record(self, value: Any, now: cython.double) -> None:
        """Add one value."""
        if isinstance(value, int):
            self.add_whole(value, 1, value, now)
        else:
            self.add_real(value, 1, value, now)

    def add_whole(
        self,
        total: cython.longlong,
        count: cython.longlong,
        largest: cython.longlong,
        now: cython.double,
    ) -> None:
        """Add several whole numbers at once: their sum, how many they are, and the largest."""
        sample = self._current
        if sample is None or now - sample.start >= self._window:
            sample = self._open_sample(now)
        sample.whole += total
        sample.count += count
        sample.last_at = now
        if not sample.has_whole or largest > sample.largest_whole:
            sample.largest_whole = largest
            sample.has_whole = True
        self._whole += total
        self.count += count

    def add_real(
        self, total: cython.double, count: cython.longlong, largest: cython.double, now: cython.double
    ) -> None:
        """The same for numbers that need not be whole."""
        sample = self._current
        if sample is None or now - sample.start >= self._window:
            sample = self._open_sample(now)
        sample.real += total
        sample.has_real = True
        sample.count += count
        sample.last_at = now
        if largest > sample.largest_real:
            sample.largest_real = largest
        self._real += total
        self._has_real = True
        self.count += count

    def advance_to(self, total: Any, now: cython.double) -> None:
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

    def _open_sample(self, now: cython.double) -> _Sample:
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
        # Python's own division, also when compiled: C's would round up where the quotient is nearly whole.
        missing = self._num_samples - 1 - (floordiv(elapsed, self._window) if self._window else 0)
        if missing > 0:
            elapsed += missing * self._window
        return max(elapsed, _SHORTEST_SPAN)
