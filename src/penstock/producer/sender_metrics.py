# SPDX-License-Identifier: Apache-2.0
"""The statistics that the sender records: once per batch or request, never per record. I/O thread only."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock._metrics import MetricsRegistry, WindowedStat
from penstock.producer import metric_names as names
from penstock.producer.batch import Batch

_CATCH_UP_SECONDS = 1.0


def _nothing(_now: float) -> None:
    """Nobody else counts."""


class _TopicStats:
    """The statistics of one topic, registered when its first batch is drained."""

    __slots__ = ("bytes", "compression", "errors", "retries", "sent")

    def __init__(self, registry: MetricsRegistry, topic: str) -> None:
        tags = {"topic": topic}
        self.sent = registry.rate_total(*names.TOPIC_RECORD_SEND, tags)
        self.bytes = registry.rate_total(*names.TOPIC_BYTE, tags)
        self.compression = registry.avg(*names.TOPIC_COMPRESSION_RATE, tags)
        self.retries = registry.rate_total(*names.TOPIC_RECORD_RETRY, tags)
        self.errors = registry.rate_total(*names.TOPIC_RECORD_ERROR, tags)


class _Sums:
    """What the batches of one request amount to: added up first, so that a statistic is touched once per request."""

    __slots__ = (
        "batches",
        "largest_batch",
        "largest_record",
        "longest_queued_ms",
        "queued_ms",
        "ratio",
        "record_sizes",
        "records",
        "size",
    )

    def __init__(self) -> None:
        self.batches = 0
        self.records = 0
        self.size = 0
        self.largest_batch = 0
        self.ratio = 0.0
        self.queued_ms = 0.0
        self.longest_queued_ms = 0.0
        self.record_sizes = 0
        self.largest_record = 0

    def add(self, batch: Batch) -> None:
        """Count one batch."""
        writer = batch.writer
        size = batch.size
        queued_ms = (batch.drained_at - batch.created) * 1000
        self.batches += 1
        self.records += writer.count
        self.size += size
        self.ratio += size / writer.raw_size
        self.queued_ms += queued_ms
        self.record_sizes += writer.max_record_size
        self.largest_batch = max(self.largest_batch, size)
        self.longest_queued_ms = max(self.longest_queued_ms, queued_ms)
        self.largest_record = max(self.largest_record, writer.max_record_size)

    def merge(self, other: _Sums) -> None:
        """Add what another one has counted."""
        self.batches += other.batches
        self.records += other.records
        self.size += other.size
        self.ratio += other.ratio
        self.queued_ms += other.queued_ms
        self.record_sizes += other.record_sizes
        self.largest_batch = max(self.largest_batch, other.largest_batch)
        self.longest_queued_ms = max(self.longest_queued_ms, other.longest_queued_ms)
        self.largest_record = max(self.largest_record, other.largest_record)


class SenderMetrics:
    """What the sender tells the registry."""

    def __init__(self, registry: MetricsRegistry) -> None:
        self._registry = registry
        self.catch_up: Callable[[float], None] = _nothing  # set once, when the producer is put together
        self._next_catch_up = 0.0
        self._topics: dict[str, _TopicStats] = {}
        self._batch_size = registry.avg_max(*names.BATCH_SIZE)
        self._splits = registry.rate_total(*names.BATCH_SPLIT)
        self._compression = registry.avg(*names.COMPRESSION_RATE)
        self._queue_time = registry.avg_max(*names.RECORD_QUEUE_TIME)
        self._latency = registry.avg_max(*names.REQUEST_LATENCY)
        self._throttle = registry.avg_max(*names.PRODUCE_THROTTLE_TIME)
        self._sent = registry.rate_total(*names.RECORD_SEND)
        self._per_request = registry.avg(*names.RECORDS_PER_REQUEST)
        self._retries = registry.rate_total(*names.RECORD_RETRY)
        self._errors = registry.rate_total(*names.RECORD_ERROR)
        self._record_size = registry.avg_max(*names.RECORD_SIZE)

    def on_turn(self, now: float) -> None:
        """The sender takes a turn: once a second, what others count is brought up to date, so that rates are right."""
        if now >= self._next_catch_up:
            self._next_catch_up = now + _CATCH_UP_SECONDS
            self.catch_up(now)

    def on_request(self, batches: Iterable[Batch], now: float) -> None:
        """A produce request with these batches goes out."""
        requested = _Sums()
        by_topic: dict[str, _Sums] = {}
        for batch in batches:
            name = batch.queue.topic
            sums = by_topic.get(name)
            if sums is None:
                sums = by_topic[name] = _Sums()
            sums.add(batch)
        for name, sums in by_topic.items():
            topic = self._topic(name)
            topic.sent.record(sums.records, now)
            topic.bytes.record(sums.size, now)
            topic.compression.record_many(sums.ratio, sums.batches, 0.0, now)
            requested.merge(sums)
        count = requested.batches
        self._batch_size.record_many(requested.size, count, requested.largest_batch, now)
        self._compression.record_many(requested.ratio, count, 0.0, now)
        self._queue_time.record_many(requested.queued_ms, count, requested.longest_queued_ms, now)
        self._record_size.record_many(requested.record_sizes, count, requested.largest_record, now)
        self._sent.record(requested.records, now)
        self._per_request.record(requested.records, now)

    def on_response(self, latency: float, throttle_ms: int, now: float) -> None:
        """An answer came, so many seconds after its request."""
        self._latency.record(latency * 1000, now)
        self._throttle.record(throttle_ms, now)

    def on_retry(self, batch: Batch, now: float) -> None:
        """A batch is queued again."""
        self._retries.record(batch.record_count, now)
        self._topic(batch.queue.topic).retries.record(batch.record_count, now)

    def on_split(self, now: float) -> None:
        """A batch was too large and is cut."""
        self._splits.record(1, now)

    def on_batch_error(self, batch: Batch, now: float) -> None:
        """A batch failed for good."""
        self._errors.record(batch.record_count, now)
        self._topic(batch.queue.topic).errors.record(batch.record_count, now)

    @property
    def send_errors(self) -> WindowedStat:
        """Records that failed for good; send() adds those that it refuses."""
        return self._errors

    def _topic(self, name: str) -> _TopicStats:
        stats = self._topics.get(name)
        if stats is None:
            stats = self._topics[name] = _TopicStats(self._registry, name)
        return stats
