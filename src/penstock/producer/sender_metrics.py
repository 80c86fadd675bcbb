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
        # Added up first, so that each statistic is touched once per request or topic, not once per batch.
        count = records = total = record_sizes = largest = largest_record = 0
        ratios = waited = longest = 0.0
        topic, first = "", (0, 0, 0, 0.0)
        for batch in batches:
            if batch.queue.topic != topic:
                self._record_topic(topic, first, (count, records, total, ratios), now)
                topic, first = batch.queue.topic, (count, records, total, ratios)
            writer, size = batch.writer, batch.size
            in_queue = (batch.drained_at - batch.created) * 1000
            count += 1
            records += writer.count
            total += size
            ratios += size / writer.raw_size
            waited += in_queue
            record_sizes += writer.max_record_size
            largest = max(largest, size)
            longest = max(longest, in_queue)
            largest_record = max(largest_record, writer.max_record_size)
        self._record_topic(topic, first, (count, records, total, ratios), now)
        self._batch_size.record_many(total, count, largest, now)
        self._compression.record_many(ratios, count, 0.0, now)
        self._queue_time.record_many(waited, count, longest, now)
        self._record_size.record_many(record_sizes, count, largest_record, now)
        self._sent.record(records, now)
        self._per_request.record(records, now)

    def _record_topic(
        self, name: str, before: tuple[int, int, int, float], after: tuple[int, int, int, float], now: float
    ) -> None:
        """What the batches of one topic, which follow each other in a request, have added to its sums."""
        count, records, size, ratio = (new - old for new, old in zip(after, before, strict=True))
        if not count:
            return
        topic = self._topic(name)
        topic.sent.record(records, now)
        topic.bytes.record(size, now)
        topic.compression.record_many(ratio, int(count), 0.0, now)

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
