# SPDX-License-Identifier: Apache-2.0
"""The statistics that the sender records: once per batch or request, never per record. I/O thread only."""

from __future__ import annotations

from collections.abc import Callable

from penstock._metrics import MetricsRegistry, WindowedStat
from penstock.producer import metric_names as names
from penstock.producer._requests_cy import RequestSums
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

    def on_request(self, batches: list[Batch], now: float) -> None:
        """A produce request with these batches goes out."""
        # Added up first, so that each statistic is touched once per request or topic, not once per batch.
        sums = RequestSums(batches)
        self._batch_size.record_many(sums.size, sums.count, sums.largest, now)
        self._compression.record_many(sums.ratios, sums.count, 0.0, now)
        self._queue_time.record_many(sums.waited_ms, sums.count, sums.longest_ms, now)
        self._record_size.record_many(sums.record_sizes, sums.count, sums.largest_record, now)
        self._sent.record(sums.records, now)
        self._per_request.record(sums.records, now)
        if sums.topic is not None:
            self._record_topic(sums.topic, sums, now)
            return
        for topic in dict.fromkeys(batch.queue.topic for batch in batches):
            of_topic = [batch for batch in batches if batch.queue.topic == topic]
            self._record_topic(topic, RequestSums(of_topic), now)

    def _record_topic(self, name: str, sums: RequestSums, now: float) -> None:
        topic = self._topic(name)
        topic.sent.record(sums.records, now)
        topic.bytes.record(sums.size, now)
        topic.compression.record_many(sums.ratios, sums.count, 0.0, now)

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
