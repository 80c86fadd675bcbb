# SPDX-License-Identifier: Apache-2.0
"""One producer as viewers see it: its state now, what it did since a few seconds ago, and advice.

Rates come from two looks at counters that the producer keeps anyway, so nothing runs while nobody looks. Any number of
viewers share a look: the state is read again when the last one is older than `FRESH` seconds.

One viewer looks at a time, and holds no lock meanwhile: under a lock of ours, rates would not be brought up to date.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock._locks import Latch, new_lock
from penstock._stats_cy import ACTIVITIES
from penstock.producer.io import metric_names as names
from penstock.watching.glass_box import events, reading
from penstock.watching.glass_box.advice import advice_for
from penstock.watching.glass_box.following import Follower

if TYPE_CHECKING:
    from penstock.producer.assembly import ProducerParts
    from penstock.watching.glass_box.events import Events

FRESH: Final = 0.2  # seconds
WINDOW: Final = 10.0  # seconds that rates and shares are about
_MOST_SAMPLES: Final = 64
_GAP: Final = 30.0  # seconds without a look, after which the samples before tell nothing

_TIMES: Final = (
    names.RECORD_QUEUE_TIMES,
    names.REQUEST_LATENCIES,
    names.RECORD_RETRY_TIMES,
    names.RECORD_DELIVERY_TIMES,
    names.CALLBACK_TIMES,
)


class _Sample(NamedTuple):
    """Counters at one moment."""

    at: float
    totals: Mapping[str, float]
    leaving: Mapping[str, float]  # batches, by reason
    activities: Mapping[str, float]
    nodes: Mapping[int, tuple[int, float]]  # responses, and the sum of their latencies


class ProducerView:
    """One producer on the page.

    Args:
        number: tells producers of the process apart, also when they have the same name.
        parts: the producer.
        thread: its I/O thread.
        log: gets what is seen to change.
    """

    def __init__(self, number: int, parts: ProducerParts, thread: threading.Thread, log: Events) -> None:
        self.number = number
        self.client_id = parts.config.client_id
        self.follower = Follower(parts)
        self._parts = parts
        self._options = reading.options_of(parts)
        self._thread = thread
        self._log = log
        self._lock: Any = new_lock()
        self._looking: Latch | None = None  # opens when the look under way has ended; guarded by the lock
        # All below belongs to the viewer that looks; where none does, to the lock.
        self._samples: deque[_Sample] = deque(maxlen=_MOST_SAMPLES)
        self._state: dict[str, Any] | None = None
        self._measures: dict[tuple[str, ...], Callable[[float], Any]] = {}

    def state(self, now: float | None = None) -> dict[str, Any]:
        """The state, at most FRESH seconds old.

        Args:
            now: monotonic seconds, by the producer's clock; its time unless told.
        """
        mine = Latch()
        while True:
            at = self._parts.clock.now() if now is None else now
            with self._lock:
                others = self._looking
                if others is None:
                    if self._state is not None and 0 <= at - self._samples[-1].at < FRESH:
                        return self._state
                    self._looking = mine
            if others is None:
                break
            others.wait()
        try:
            return self._look(at)
        finally:
            with self._lock:
                self._looking = None
            mine.set()

    def _look(self, now: float) -> dict[str, Any]:
        if self._samples and now - self._samples[-1].at > _GAP:
            self._samples.clear()
            self._state = None
        lanes, counts = reading.lanes_of(self._parts, now)
        brokers = reading.brokers_of(self._parts, now)
        io = reading.io_of(self._parts, self._thread, now)
        sample = self._sample(brokers, io, now)
        self._samples.append(sample)
        before = self._before(now)
        transactions = self._parts.transactions
        state: dict[str, Any] = {
            "id": self.number,
            "client_id": self.client_id,
            "servers": ", ".join(self._parts.config.bootstrap_servers),
            "options": self._options,
            "transaction": None if transactions is None else transactions.state.value,
            "counts": counts
            | {
                "waiting_records": self._parts.accumulator.incomplete_records(),
                "waiting_for_metadata": self._parts.metadata.waiting_calls(),
            },
            "totals": {name: int(value) for name, value in sample.totals.items()},
            "recent": _recent(before, sample),
            "rates": _rates(before, sample),
            "leaving": self._leaving(before, sample),
            "times": self._times(now),
            "memory": reading.as_json(reading.memory_of(self._parts, now)),
            "io": reading.as_json(io) | {"shares": _shares(before, sample)},
            "brokers": [_with_latency(line, before, sample) for line in brokers],
            "lanes": [reading.as_json(lane) for lane in lanes],
            "following": self.follower.state(now),
        }
        state["advice"] = [said._asdict() for said in advice_for(state)]
        if self._state is not None:
            for tone, text in events.changes(self.client_id, self._state, state):
                self._log.add(tone, text)
        self._state = state
        return state

    def _before(self, now: float) -> _Sample:
        """The oldest sample of the window."""
        while len(self._samples) > 2 and now - self._samples[1].at >= WINDOW:
            self._samples.popleft()
        return self._samples[0]

    def _sample(self, brokers: list[reading.BrokerLine], io: reading.IoThread, now: float) -> _Sample:
        network = self._parts.client.metrics
        producer = names.PRODUCER_GROUP
        totals = {
            "records": self._value(now, producer, names.RECORD_SEND.names[1]),
            "retries": self._value(now, producer, names.RECORD_RETRY.names[1]),
            "errors": self._value(now, producer, names.RECORD_ERROR.names[1]),
            "refused": self._value(now, producer, names.BUFFER_EXHAUSTED.names[1]),
            "requests": network.requests,
            "bytes": network.bytes_out,
        }
        leaving = {
            reason: self._value(now, names.BATCH_GROUP, names.LEFT_BATCH.names[1], reason)
            for reason in names.LEAVING_REASONS
        }
        nodes = {line.id: (line.responses, line.latency_sum) for line in brokers}
        return _Sample(now, totals, leaving, io.seconds, nodes)

    def _leaving(self, before: _Sample, now: _Sample) -> list[dict[str, Any]]:
        """Why batches left in the window; since the start, where none did."""
        counts = {reason: count - before.leaving[reason] for reason, count in now.leaving.items()}
        if not any(counts.values()):
            counts = dict(now.leaving)
        total = sum(counts.values())
        return [
            {
                "reason": reason,
                "batches": int(count),
                "share": round(count / total, 4),
                "fill": round(self._value(now.at, names.BATCH_GROUP, names.LEFT_FILL.name, reason), 4),
            }
            for reason, count in sorted(counts.items(), key=lambda entry: -entry[1])
            if count
        ]

    def _times(self, now: float) -> dict[str, dict[str, float]]:
        found = {}
        for row in _TIMES:
            p50, p95, p99 = (self._value(now, row.group, name) for name in row.names)
            if p99:
                found[row.name] = {"p50": round(p50, 2), "p95": round(p95, 2), "p99": round(p99, 2)}
        return found

    def _value(self, now: float, *place: str) -> float:
        """A metric, by group, name and the value of its tag; their names are looked up once."""
        measure = self._measures.get(place)
        if measure is None:
            self._measures = {
                (metric.group, metric.name, *metric.tags.values()): metric.measure
                for metric in self._parts.registry
                if metric.group in (names.PRODUCER_GROUP, names.BATCH_GROUP)
            }
            measure = self._measures[place]
        value = measure(now)
        return 0.0 if value != value else float(value)  # noqa: PLR0124 - not a number, where nothing was counted


def _recent(before: _Sample, now: _Sample) -> dict[str, Any]:
    counted = {name: int(total - before.totals[name]) for name, total in now.totals.items()}
    return counted | {"seconds": round(now.at - before.at, 1)}


def _rates(before: _Sample, now: _Sample) -> dict[str, float]:
    seconds = now.at - before.at
    if seconds <= 0:
        return dict.fromkeys(now.totals, 0.0)
    return {name: round((total - before.totals[name]) / seconds, 1) for name, total in now.totals.items()}


def _shares(before: _Sample, now: _Sample) -> dict[str, float]:
    """What part of its time the I/O thread spent on what; empty before the second look."""
    spent = {name: now.activities[name] - before.activities[name] for name in ACTIVITIES}
    total = sum(spent.values())
    return {name: round(seconds / total, 4) for name, seconds in spent.items()} if total > 0 else {}


def _with_latency(line: reading.BrokerLine, before: _Sample, now: _Sample) -> dict[str, Any]:
    responses, latency_sum = before.nodes.get(line.id, (0, 0.0))
    answered = line.responses - responses
    latency = None if answered <= 0 else round(1000 * (line.latency_sum - latency_sum) / answered, 2)
    shown = reading.as_json(line)
    del shown["latency_sum"]
    return shown | {"latency_ms": latency, "answers": max(0, answered)}
