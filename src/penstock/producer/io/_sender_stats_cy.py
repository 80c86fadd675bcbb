# SPDX-License-Identifier: Apache-2.0
"""What every produce request and its answer add to the statistics, in one call each. Compiled if possible.

`sender_metrics.SenderMetrics` has the statistics of what is not ordinary. I/O thread only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.producer.io import metric_names as names

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

if cython.compiled:
    from cython.cimports.penstock._stats_cy import WindowedStat
    from cython.cimports.penstock.producer.batch._requests_cy import RequestSums
else:
    from penstock._stats_cy import WindowedStat
    from penstock.producer.batch._requests_cy import RequestSums

if TYPE_CHECKING:
    from penstock._metrics import MetricsRegistry


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


@cython.final
@cython.cclass
class TopicStats:
    """The statistics of one topic, registered when its first batch is drained."""

    def __init__(self, registry: MetricsRegistry, topic: str) -> None:
        tags = {"topic": topic}
        self.sent: WindowedStat = registry.rate_total(*names.TOPIC_RECORD_SEND, tags)
        self.bytes: WindowedStat = registry.rate_total(*names.TOPIC_BYTE, tags)
        self.compression: WindowedStat = registry.avg(*names.TOPIC_COMPRESSION_RATE, tags)
        self.retries: WindowedStat = registry.rate_total(*names.TOPIC_RECORD_RETRY, tags)
        self.errors: WindowedStat = registry.rate_total(*names.TOPIC_RECORD_ERROR, tags)


@cython.cclass
class RequestStats:
    """The statistics that every request feeds, of the producer and of each topic.

    Args:
        registry: gives them their names.
    """

    def __init__(self, registry: MetricsRegistry) -> None:
        self._registry = registry
        self._topics: dict[str, TopicStats] = {}
        self._batch_size: WindowedStat = registry.avg_max(*names.BATCH_SIZE)
        self._compression: WindowedStat = registry.avg(*names.COMPRESSION_RATE)
        self._queue_time: WindowedStat = registry.avg_max(*names.RECORD_QUEUE_TIME)
        self._record_size: WindowedStat = registry.avg_max(*names.RECORD_SIZE)
        self._sent: WindowedStat = registry.rate_total(*names.RECORD_SEND)
        self._per_request: WindowedStat = registry.avg(*names.RECORDS_PER_REQUEST)
        self._latency: WindowedStat = registry.avg_max(*names.REQUEST_LATENCY)
        self._throttle: WindowedStat = registry.avg_max(*names.PRODUCE_THROTTLE_TIME)

    def on_request(self, batches: list, now: cython.double) -> None:  # type: ignore[type-arg]
        """A produce request with these batches goes out."""
        # Added up first, so that each statistic is touched once per request or topic, not once per batch.
        sums = RequestSums(batches)
        self._batch_size.add_whole(sums.size, sums.count, sums.largest, now)
        self._compression.add_real(sums.ratios, sums.count, 0.0, now)
        self._queue_time.add_real(sums.waited_ms, sums.count, sums.longest_ms, now)
        self._record_size.add_whole(sums.record_sizes, sums.count, sums.largest_record, now)
        self._sent.add_whole(sums.records, 1, sums.records, now)
        self._per_request.add_whole(sums.records, 1, sums.records, now)
        if sums.topic is not None:
            self._record_topic(sums.topic, sums, now)
            return
        for name in dict.fromkeys([batch.queue.topic for batch in batches]):
            of_topic = [batch for batch in batches if batch.queue.topic == name]
            self._record_topic(name, RequestSums(of_topic), now)

    def _record_topic(self, name: str, sums: RequestSums, now: cython.double) -> None:
        topic: TopicStats = self.topic(name)
        topic.sent.add_whole(sums.records, 1, sums.records, now)
        topic.bytes.add_whole(sums.size, 1, sums.size, now)
        topic.compression.add_real(sums.ratios, sums.count, 0.0, now)

    def on_response(self, latency: cython.double, throttle_ms: cython.longlong, now: cython.double) -> None:
        """An answer came, so many seconds after its request."""
        self._latency.add_real(latency * 1000, 1, latency * 1000, now)
        self._throttle.add_whole(throttle_ms, 1, throttle_ms, now)

    def topic(self, name: str) -> TopicStats:
        """The statistics of a topic."""
        found = self._topics.get(name)
        if found is None:
            found = self._topics[name] = TopicStats(self._registry, name)
        return found

    def topics(self) -> list[str]:
        """Those that have statistics."""
        return list(self._topics)

    def forget_topic(self, name: str) -> None:
        """Drop the statistics of a topic."""
        self._topics.pop(name, None)
        self._registry.remove(names.TOPIC_GROUP, {"topic": name})
