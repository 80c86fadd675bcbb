# SPDX-License-Identifier: Apache-2.0
"""Latencies in bounded memory: a histogram whose buckets grow with the value, as wide as one part in 128 of it.

A list of a hundred million latencies would fill the memory of the machine that is measured. Counting them in a few
thousand buckets costs the same for ten records as for ten billion, and shows any percentile within 0.8 %.
"""

from __future__ import annotations

from typing import NamedTuple

_PRECISION_BITS = 7
_EXACT = 1 << (_PRECISION_BITS + 1)  # below this many microseconds each has a bucket of its own
_HALF = 1 << _PRECISION_BITS
_LARGEST_US = (1 << 36) - 1  # 19 hours; whatever is longer is counted there


class LatencySummary(NamedTuple):
    """Milliseconds; all 0.0 when nothing was counted."""

    samples: int
    avg: float
    p50: float
    p95: float
    p99: float
    p99_9: float
    max: float


class LatencyHistogram:
    """Counts latencies. One thread adds; another may read at any time and sees a state that was true a moment ago."""

    def __init__(self) -> None:
        self._counts = [0] * (_bucket(_LARGEST_US) + 1)
        self._count = 0
        self._total_us = 0
        self._max_us = 0

    def add(self, seconds: float) -> None:
        """Count one latency; a negative one, from a clock set back, counts as zero."""
        us = min(max(int(seconds * 1e6), 0), _LARGEST_US)
        self._counts[_bucket(us)] += 1
        self._count += 1
        self._total_us += us
        self._max_us = max(self._max_us, us)

    def summary(self) -> LatencySummary:
        """Average, percentiles and maximum so far."""
        counts = self._counts.copy()
        total = sum(counts)
        if total == 0:
            return LatencySummary(0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
        p50, p95, p99, p99_9 = (min(us, self._max_us) / 1000 for us in _percentiles(counts, total))
        return LatencySummary(
            total, self._total_us / self._count / 1000, p50, p95, p99, p99_9, self._max_us / 1000
        )


def _percentiles(counts: list[int], total: int) -> list[int]:
    # Per mille, so that 99.9 % needs no fractions; the smallest value that at least that share does not exceed.
    ranks = [-(-total * share // 1000) for share in (500, 950, 990, 999)]
    found: list[int] = []
    seen = 0
    for bucket, count in enumerate(counts):
        seen += count
        while len(found) < len(ranks) and seen >= ranks[len(found)]:
            found.append(_upper_edge(bucket))
        if len(found) == len(ranks):
            break
    return found


def _bucket(us: int) -> int:
    if us < _EXACT:
        return us
    shift = us.bit_length() - _PRECISION_BITS - 1
    return shift * _HALF + (us >> shift)


def _upper_edge(bucket: int) -> int:
    """The largest number of microseconds in a bucket."""
    if bucket < _EXACT:
        return bucket
    shift = bucket // _HALF - 1
    return ((bucket - shift * _HALF + 1) << shift) - 1
