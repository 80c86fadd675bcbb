# SPDX-License-Identifier: Apache-2.0
"""The measured loop of `penstock perf`: send at a rate, keep every Delivery, count outcomes and latencies.

The loop calls `send` and keeps every Delivery, as an application that cares would. Those that are done are taken from
the front of the queue from time to time, so that the queue holds only what the producer itself holds.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import Any, NamedTuple, Protocol

from penstock.cli.options import DeliveryLike, ProducerLike

CHUNK = 1000  # records between two looks at the clock when the rate is not limited
MIN_SLEEP = 0.0005  # seconds; a shorter sleep takes longer than it says

_PRECISION_BITS = 7
_EXACT = 1 << (_PRECISION_BITS + 1)  # below this many microseconds each has a bucket of its own
_HALF = 1 << _PRECISION_BITS
_LARGEST_US = (1 << 36) - 1  # 19 hours; whatever is longer is counted there


class Pacer(Protocol):
    """Time, and a way to let it pass; tests have their own."""

    def now(self) -> float:
        """Return a monotonic time, in seconds."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait so many seconds."""
        ...


class SystemPacer:
    """The time of this machine."""

    def now(self) -> float:
        return time.perf_counter()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class Stats:
    """What is measured in one phase."""

    def __init__(self) -> None:
        # Written by the sending thread.
        self.sent = 0
        self.bytes = 0
        self.reaped = 0
        self.failed: Counter[str] = Counter()
        self.first_errors: dict[str, str] = {}
        # Written by the producer's I/O thread.
        self.latency = LatencyHistogram()
        self.window = LatencyHistogram()  # since the last report; the sending thread replaces it whole

    def on_delivery(self, pacer: Pacer, sent_at: float, metadata: Any, error: BaseException | None) -> None:
        """Note how long a record took; runs on the I/O thread."""
        del metadata
        if error is not None:
            return  # counted when its Delivery is reaped
        seconds = pacer.now() - sent_at
        self.latency.add(seconds)
        self.window.add(seconds)

    def reap(self, deliveries: deque[DeliveryLike]) -> None:
        """Take what is done from the front of the queue, and count what failed."""
        while deliveries and deliveries[0].done():
            error = deliveries.popleft().exception(0)
            self.reaped += 1
            if error is not None:
                name = type(error).__name__
                self.failed[name] += 1
                self.first_errors.setdefault(name, str(error))

    @property
    def acknowledged(self) -> int:
        """Records known to have arrived."""
        return self.reaped - self.failed.total()


@dataclass(frozen=True, slots=True)
class Load:
    """What is to be sent, and how it is watched."""

    topic: str
    payloads: list[bytes]
    rate: float  # records a second; 0 or less: no limit
    sample_every: int  # latency of every n-th record; 0: of none


Report = Callable[[Stats, float], None]  # shows how far it is, when `now` says that it is time


def send_all(
    load: Load, count: int, producer: ProducerLike, stats: Stats, pacer: Pacer, report: Report
) -> None:
    """Send `count` records at the rate asked for, and wait until all of them have their outcome.

    Raises:
        KafkaError: `send` refused a record: with equal records, all would be.
    """
    deliveries: deque[DeliveryLike] = deque()
    payloads = cycle(load.payloads)
    started = pacer.now()
    try:
        while stats.sent < count:
            due = count - stats.sent
            if load.rate > 0:
                due = min(due, _due_now(load.rate, started, stats.sent, pacer))
            _send_chunk(load, min(due, CHUNK), payloads, producer, stats, deliveries, pacer)
            stats.reap(deliveries)
            report(stats, pacer.now())
        producer.flush()
    finally:
        stats.reap(deliveries)


def _due_now(rate: float, started: float, sent: int, pacer: Pacer) -> int:
    """How many records the rate allows now; waits until it is at least one."""
    wait = started + sent / rate - pacer.now()
    if wait > 0:
        pacer.sleep(max(wait, MIN_SLEEP))
    return max(1, int((pacer.now() - started) * rate) - sent + 1)


def _send_chunk(
    load: Load,
    count: int,
    payloads: Iterator[bytes],
    producer: ProducerLike,
    stats: Stats,
    deliveries: deque[DeliveryLike],
    pacer: Pacer,
) -> None:
    # What runs for each record is looked up once: the loop is part of what is measured.
    topic, every, send, keep, now = load.topic, load.sample_every, producer.send, deliveries.append, pacer.now
    on_delivery = partial(stats.on_delivery, pacer)
    sent, size = stats.sent, 0
    try:
        for index, payload in zip(range(sent, sent + count), payloads, strict=False):
            if every and index % every == 0:
                keep(send(topic, payload, on_delivery=partial(on_delivery, now())))
            else:
                keep(send(topic, payload))
            sent += 1
            size += len(payload)
    finally:
        stats.sent = sent
        stats.bytes += size


# ---- latencies


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
    """Counts latencies in bounded memory, in buckets that grow with the value, as wide as one part in 128 of it.

    A list of a hundred million latencies would fill the memory of the machine that is measured. Counting them in a few
    thousand buckets costs the same for ten records as for ten billion, and shows any percentile within 0.8 %.

    One thread adds; another may read at any time and sees a state that was true a moment ago.
    """

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
