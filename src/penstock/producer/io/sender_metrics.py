# SPDX-License-Identifier: Apache-2.0
"""The statistics that the sender records: once per batch or request, never per record. I/O thread only."""

from __future__ import annotations

from collections.abc import Callable, Container

from penstock._metrics import MetricsRegistry, WindowedStat
from penstock.producer.batch._batch_cy import Batch
from penstock.producer.io import metric_names as names
from penstock.producer.io._sender_stats_cy import RequestStats

_CATCH_UP_SECONDS = 1.0


def _nothing(_now: float) -> None:
    """Nobody else counts."""


class SenderMetrics(RequestStats):
    """What the sender tells the registry."""

    def __init__(self, registry: MetricsRegistry) -> None:
        super().__init__(registry)
        self.catch_up: Callable[[float], None] = _nothing  # set once, when the producer is put together
        self._next_catch_up = 0.0
        self._splits = registry.rate_total(*names.BATCH_SPLIT)
        self._retries = registry.rate_total(*names.RECORD_RETRY)
        self._errors = registry.rate_total(*names.RECORD_ERROR)

    def on_turn(self, now: float) -> None:
        """The sender takes a turn: once a second, what others count is brought up to date, so that rates are right."""
        if now >= self._next_catch_up:
            self._next_catch_up = now + _CATCH_UP_SECONDS
            self.catch_up(now)

    def on_retry(self, batch: Batch, now: float) -> None:
        """A batch is queued again."""
        self._retries.record(batch.record_count, now)
        self.topic(batch.queue.topic).retries.record(batch.record_count, now)

    def keep_topics(self, kept: Container[str]) -> None:
        """Forget the statistics of other topics; of one that is used again they begin anew."""
        for topic in [topic for topic in self.topics() if topic not in kept]:
            self.forget_topic(topic)

    def on_split(self, now: float) -> None:
        """A batch was too large and is cut."""
        self._splits.record(1, now)

    def on_batch_error(self, batch: Batch, now: float) -> None:
        """A batch failed for good."""
        self._errors.record(batch.record_count, now)
        self.topic(batch.queue.topic).errors.record(batch.record_count, now)

    def on_refused(self, topic: str, count: int, now: float) -> None:
        """Records of a batch were refused, and the others go on."""
        self._errors.record(count, now)
        self.topic(topic).errors.record(count, now)

    @property
    def send_errors(self) -> WindowedStat:
        """Records that failed for good; send() adds those that it refuses."""
        return self._errors
