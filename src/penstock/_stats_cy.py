# SPDX-License-Identifier: Apache-2.0
"""Statistics over the last windows of time, histograms, and the time of a thread. Compiled if possible.

A statistic belongs to the thread that records it, and takes no lock. Any thread may read it: a reader changes nothing,
and at worst misses the record being made.

Windows: a statistic is kept in `num_samples` samples of `window_ms` each (metrics.num.samples,
metrics.sample.window.ms). Averages and maxima are over the samples that are not too old; a rate is the sum over them,
divided by the time they span, for which at least num_samples - 1 whole windows are taken. So many values in the first
second of a program's life does not look like a steady rate.

The buckets of a histogram count since the beginning, as Prometheus wants it. For the percentiles of the last windows
the counts at the start of each window are kept: what came since is a difference.

Of a thread's time each activity has its part. The thread tells when it begins something else, which ends what it did
before. So all activities together are its time, and one that does not end, such as a callback that blocks, is seen
while it lasts.
"""

from __future__ import annotations

import math
from itertools import pairwise
from operator import floordiv
from typing import Any

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

if not cython.compiled:
    # Compiled code has them in the .pxd.
    OTHER = 0  # looks at queues, handles answers, counts
    WAITING = 1  # for the network, or for something to do
    WRITING = 2  # requests are encoded and written
    READING = 3  # answers are read
    SEALING = 4  # batches are taken out of their queues, compressed and sealed
    CALLBACKS = 5  # the application is told of outcomes

ACTIVITIES = ("other", "waiting", "writing", "reading", "sealing", "callbacks")
_MOST_BOUNDS = 48  # of a histogram, as the .pxd has it
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
        """The largest value; minus infinity where there is none."""
        if self.has_whole and not (self.has_real and self.largest_real > self.largest_whole):
            return self.largest_whole
        return self.largest_real


@cython.final
@cython.cclass
class WindowedStat:
    """Values recorded over the last windows: their average, maximum and rate, and the total since the beginning.

    One call of `record` counts for all of them, so that a value with both an average and a maximum costs one call.

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
        """Add one value to the window of `now`."""
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


# ------------------------------------------------------------------------------------------ histograms


@cython.final
@cython.cclass
class Histogram:
    """How many values are in each bucket: since the beginning, and over the last windows.

    Args:
        bounds: the upper bound of each bucket, ascending; one more bucket has what is above the last.
        num_samples: windows that percentiles look back on.
        window_ms: how long each is.

    Attributes:
        count: how many values there were, and `sum`, what they add up to.

    Raises:
        ValueError: the bounds do not ascend, or are too many.
    """

    def __init__(
        self, bounds: tuple[float, ...], num_samples: cython.Py_ssize_t, window_ms: cython.double
    ) -> None:
        if not 0 < len(bounds) <= _MOST_BOUNDS or any(low >= high for low, high in pairwise(bounds)):
            raise ValueError(f"a histogram needs 1 to {_MOST_BOUNDS} ascending bounds, not {bounds}")
        self.bounds = bounds
        self._size = len(bounds)
        if not cython.compiled:
            self._bounds = list(bounds)
            self._counts = [0] * (len(bounds) + 1)
        at: cython.int
        for at in range(self._size):
            self._bounds[at] = bounds[at]
            self._counts[at] = 0
        self._counts[self._size] = 0
        self.count = 0
        self.sum = 0.0
        self._num_samples = num_samples
        self._window = window_ms / 1000
        self._window_start = -math.inf
        self._last_at = -math.inf
        # (start, counts then) of the last windows, oldest first.
        self._marks: tuple[tuple[float, list[int]], ...] = ()

    def add(self, value: cython.double, now: cython.double) -> None:
        """Count one value in its bucket, in the window of `now`."""
        if now - self._window_start >= self._window:
            self._open_window(now)
        low: cython.int = 0
        high: cython.int = self._size
        middle: cython.int
        while low < high:
            middle = (low + high) >> 1
            if value <= self._bounds[middle]:
                high = middle
            else:
                low = middle + 1
        self._counts[low] += 1
        self.count += 1
        self.sum += value
        self._last_at = now

    def counts(self) -> list[int]:
        """How many values are in each bucket; the last is for those above all bounds."""
        found: list = []
        at: cython.int
        for at in range(self._size + 1):
            found.append(self._counts[at])  # noqa: PERF401 - in a comprehension the array has no C type
        return found

    def percentile(self, fraction: float, now: float) -> float:
        """The value below which this part of the last windows' values is; not-a-number without values.

        It is taken as evenly spread within its bucket. Above the last bound it is that bound.
        """
        recent = self._recent(now)
        wanted = fraction * sum(recent)
        if not wanted:
            return math.nan
        seen = 0
        for at, count in enumerate(recent[:-1]):
            if count and seen + count >= wanted:
                low = self.bounds[at - 1] if at else 0.0
                return low + (self.bounds[at] - low) * (wanted - seen) / count
            seen += count
        return self.bounds[-1]

    def _recent(self, now: float) -> list[int]:
        """The counts over the last windows."""
        counts = self.counts()
        oldest = now - self._num_samples * self._window
        if self._last_at <= oldest:
            return [0] * len(counts)
        marks = self._marks
        base = marks[-1][1]
        # A window ends where the next begins; the last one goes on.
        for (_, then), (end, _) in pairwise(marks):
            if end > oldest:
                base = then
                break
        return [count - before for count, before in zip(counts, base, strict=True)]

    def _open_window(self, now: cython.double) -> None:
        kept = self._marks[-(self._num_samples - 1) :] if self._num_samples > 1 else ()
        self._marks = (*kept, (now, self.counts()))
        self._window_start = now


# ------------------------------------------------------------------------------------------ a thread's time


@cython.final
@cython.cclass
class TimeBudget:
    """The time of one thread, which alone calls `enter` and `relabel`; any thread may read.

    Attributes:
        activity: what it does now.
        since: when that began, in monotonic seconds; negative before the first `enter`.
    """

    def __init__(self) -> None:
        self.activity = OTHER
        self.since = -1.0
        if not cython.compiled:
            self._seconds = [0.0] * len(ACTIVITIES)
        at: cython.int
        for at in range(6):
            self._seconds[at] = 0.0

    def enter(self, activity: cython.int, now: cython.double) -> None:
        """End the activity before, and count the time from now on for `activity`."""
        if 0 <= self.since < now:
            self._seconds[self.activity] += now - self.since
        self.activity = activity
        self.since = now

    def relabel(self, activity: cython.int) -> None:
        """Count the time since the last `enter` for this activity instead."""
        self.activity = activity

    def seconds(self, activity: int, now: float) -> float:
        """How long the thread has done this so far, what it does now included."""
        if not 0 <= activity < len(ACTIVITIES):
            raise ValueError(f"there is no activity {activity}")
        spent: float = self._seconds[activity]
        if activity == self.activity and 0 <= self.since < now:
            spent += now - self.since
        return spent
