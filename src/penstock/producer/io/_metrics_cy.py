# SPDX-License-Identifier: Apache-2.0
"""The statistics that the sender records: once per batch or request, never per record. Compiled if possible.

I/O thread only. Each request is one call here, and each answer is another one, without the interpreter.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Any

from penstock.producer.io import metric_names as names

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

if cython.compiled:
    from cython.cimports.penstock._stats_cy import CALLBACKS, OTHER, Histogram, TimeBudget, WindowedStat
    from cython.cimports.penstock.producer.batch._batch_cy import Batch
else:
    from penstock._stats_cy import CALLBACKS, OTHER, Histogram, TimeBudget, WindowedStat
    from penstock.producer.batch._batch_cy import Batch

if TYPE_CHECKING:
    from penstock._metrics import MetricsRegistry

_CATCH_UP_SECONDS = cython.declare(cython.double, 1.0)


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


@cython.final
@cython.cclass
class RequestSums:
    """What the batches of a request, or those of one topic in it, add up to.

    Attributes:
        size: bytes on the wire, and `largest`, those of the largest.
        ratios: of compression, one for each.
        waited_ms: time in the queue, and `longest_ms`, that of the one that waited longest.
        record_sizes: of the largest record of each, and `largest_record`, of all.
        topic: of all of them; None when they have several.
    """

    def __init__(self, batches: list) -> None:  # type: ignore[type-arg]
        self.count = len(batches)
        self.size = 0
        self.largest = 0
        self.records = 0
        self.ratios = 0.0
        self.waited_ms = 0.0
        self.longest_ms = 0.0
        self.record_sizes = 0
        self.largest_record = 0
        self.topic: str | None = None
        batch: Batch
        size: cython.Py_ssize_t
        waited: cython.double
        several: cython.bint = False
        for batch in batches:
            size = batch.wire_size()
            self.size += size
            self.largest = max(self.largest, size)
            self.records += batch.writer.count
            self.ratios += cython.cast(cython.double, size) / batch.writer.raw_size
            waited = (batch.drained_at - batch.created) * 1000
            self.waited_ms += waited
            self.longest_ms = max(self.longest_ms, waited)
            self.record_sizes += batch.writer.max_record_size
            self.largest_record = max(self.largest_record, batch.writer.max_record_size)
            if batch is batches[0]:
                self.topic = batch.queue.topic
            elif batch.queue.topic != self.topic:
                several = True
        if several:
            self.topic = None


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


@cython.final
@cython.cclass
class LeavingStats:
    """The batches that left for one reason."""

    def __init__(self, registry: MetricsRegistry, reason: str) -> None:
        tags = {"reason": reason}
        self.batches: WindowedStat = registry.rate_total(*names.LEFT_BATCH, tags)
        self.records: WindowedStat = registry.rate_total(*names.LEFT_RECORD, tags)
        self.fill: WindowedStat = registry.avg(*names.LEFT_FILL, tags)


class CallbackTime:
    """A `with` block whose time counts as that of callbacks. Its end restores the activity before."""

    __slots__ = ("_before", "_begun", "_metrics")

    def __init__(self, metrics: SenderMetrics) -> None:
        self._metrics = metrics
        self._before: int = OTHER
        self._begun = 0.0

    def __enter__(self) -> None:
        self._before = self._metrics.time.activity
        self._begun = self._metrics.enter(CALLBACKS)

    def __exit__(self, *_: object) -> None:
        now = self._metrics.enter(self._before)
        self._metrics.on_callbacks(now - self._begun, now)


def _nothing(_now: float) -> None:
    """Do nothing: the `catch_up` of metrics without other counters."""


@cython.final
@cython.cclass
class SenderMetrics:
    """Records the sender's statistics, of the producer and of each topic.

    Args:
        registry: gives the statistics their names.
        time: what the I/O thread does with its time.
        now: the monotonic clock.

    Attributes:
        time: the same.
        retry_cause: why a batch was queued again, the last time; None if none was.
        catch_up: updates rates of counters that other parts keep. Set once, when the producer is put together.
    """

    def __init__(self, registry: MetricsRegistry, time: TimeBudget, now: Callable[[], float]) -> None:
        self.time = time
        self._now = now
        self.catch_up: Callable[[float], None] = _nothing
        self._next_catch_up = 0.0
        self.retry_cause: Any = None
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
        self._splits: WindowedStat = registry.rate_total(*names.BATCH_SPLIT)
        self._retries: WindowedStat = registry.rate_total(*names.RECORD_RETRY)
        self._errors: WindowedStat = registry.rate_total(*names.RECORD_ERROR)
        times = names.TIME_BOUNDS
        self._queue_times: Histogram = registry.histogram(*names.RECORD_QUEUE_TIMES, times)
        self._latencies: Histogram = registry.histogram(*names.REQUEST_LATENCIES, times)
        self._retry_time: WindowedStat = registry.avg_max(*names.RECORD_RETRY_TIME)
        self._retry_times: Histogram = registry.histogram(*names.RECORD_RETRY_TIMES, times)
        self._delivery_time: WindowedStat = registry.avg_max(*names.RECORD_DELIVERY_TIME)
        self._delivery_times: Histogram = registry.histogram(*names.RECORD_DELIVERY_TIMES, times)
        self._callback_time: WindowedStat = registry.avg_max(*names.CALLBACK_TIME)
        self._callback_times: Histogram = registry.histogram(*names.CALLBACK_TIMES, times)
        self._fill: WindowedStat = registry.avg(*names.BATCH_FILL)
        self._fills: Histogram = registry.histogram(*names.BATCH_FILLS, names.RATIO_BOUNDS)
        self._reasons = [LeavingStats(registry, reason) for reason in names.LEAVING_REASONS]

    def enter(self, activity: cython.int) -> cython.double:
        """The I/O thread begins another activity. Returns the time."""
        now: cython.double = self._now()
        self.time.enter(activity, now)
        return now

    def callbacks(self) -> CallbackTime:
        """`with metrics.callbacks():` around a call that runs callbacks."""
        return CallbackTime(self)

    def on_turn(self, now: cython.double) -> None:
        """The sender takes a turn. Once a second, update the rates of counters that other parts keep."""
        if now >= self._next_catch_up:
            self._next_catch_up = now + _CATCH_UP_SECONDS
            self.catch_up(now)

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
        self._note_left(batches, now)
        if sums.topic is not None:
            self._record_topic(sums.topic, sums, now)
            return
        by_topic: dict = {}  # type: ignore[type-arg]
        batch: Batch
        for batch in batches:
            by_topic.setdefault(batch.queue.topic, []).append(batch)
        for name, of_topic in by_topic.items():
            self._record_topic(name, RequestSums(of_topic), now)

    def _note_left(self, batches: list, now: cython.double) -> None:  # type: ignore[type-arg]
        """Count why batches leave, how full they are, and how long they waited; once each."""
        batch: Batch
        fill: cython.double
        # Nearly all leave for the same reason: what they add up to is recorded when it changes, and at the end.
        left_by: cython.int = -1
        count: cython.longlong = 0
        records: cython.longlong = 0
        fills: cython.double = 0.0
        for batch in batches:
            if batch.attempts or batch.is_piece or batch.left_by < 0:
                continue
            if batch.left_by != left_by:
                self._add_left(left_by, count, records, fills, now)
                left_by, count, records, fills = batch.left_by, 0, 0, 0.0
            fill = cython.cast(cython.double, batch.wire_size()) / batch.writer.limit
            if fill > 1:
                fill = 1.0  # a record larger than batch.size has a batch of its own
            count += 1
            records += batch.writer.count
            fills += fill
            self._fills.add(fill, now)
            self._queue_times.add((batch.drained_at - batch.created) * 1000, now)
        self._add_left(left_by, count, records, fills, now)

    def _add_left(
        self,
        left_by: cython.int,
        count: cython.longlong,
        records: cython.longlong,
        fills: cython.double,
        now: cython.double,
    ) -> None:
        if not count:
            return
        reason: LeavingStats = self._reasons[left_by]
        reason.batches.add_whole(count, 1, count, now)
        reason.records.add_whole(records, 1, records, now)
        reason.fill.add_real(fills, count, 0.0, now)
        self._fill.add_real(fills, count, 0.0, now)

    def _record_topic(self, name: str, sums: RequestSums, now: cython.double) -> None:
        topic: TopicStats = self.topic(name)
        topic.sent.add_whole(sums.records, 1, sums.records, now)
        topic.bytes.add_whole(sums.size, 1, sums.size, now)
        topic.compression.add_real(sums.ratios, sums.count, 0.0, now)

    def on_response(self, latency: cython.double, throttle_ms: cython.longlong, now: cython.double) -> None:
        """An answer came, `latency` seconds after its request."""
        self._latency.add_real(latency * 1000, 1, latency * 1000, now)
        self._latencies.add(latency * 1000, now)
        self._throttle.add_whole(throttle_ms, 1, throttle_ms, now)

    def on_written(self, batches: list, now: cython.double) -> None:  # type: ignore[type-arg]
        """These batches are acknowledged."""
        batch: Batch
        ms: cython.double
        for batch in batches:
            ms = (now - batch.created) * 1000
            self._delivery_time.add_real(ms, 1, ms, now)
            self._delivery_times.add(ms, now)
            if batch.attempts or batch.is_piece:
                ms = batch.retried_for * 1000
                self._retry_time.add_real(ms, 1, ms, now)
                self._retry_times.add(ms, now)

    def on_callbacks(self, seconds: cython.double, now: cython.double) -> None:
        """Callbacks have taken this time."""
        self._callback_time.add_real(seconds * 1000, 1, seconds * 1000, now)
        self._callback_times.add(seconds * 1000, now)

    def on_retry(self, batch: Batch, now: cython.double) -> None:
        """A batch is queued again."""
        self.retry_cause = batch.last_error
        self._retries.record(batch.record_count, now)
        self.topic(batch.queue.topic).retries.record(batch.record_count, now)

    def on_split(self, now: cython.double) -> None:
        """A batch was too large and is cut."""
        self._splits.record(1, now)

    def on_batch_error(self, batch: Batch, now: cython.double) -> None:
        """A batch failed for good."""
        self._errors.record(batch.record_count, now)
        self.topic(batch.queue.topic).errors.record(batch.record_count, now)

    def on_refused(self, topic: str, count: Any, now: cython.double) -> None:
        """Records of a batch were refused, and the others go on."""
        self._errors.record(count, now)
        self.topic(topic).errors.record(count, now)

    @property
    def send_errors(self) -> WindowedStat:
        """Records that failed for good; send() adds those that it refuses."""
        return self._errors

    def topic(self, name: str) -> TopicStats:
        found = self._topics.get(name)
        if found is None:
            found = self._topics[name] = TopicStats(self._registry, name)
        return found

    def topics(self) -> list[str]:
        """The topics that have statistics."""
        return list(self._topics)

    def keep_topics(self, kept: Container[str]) -> None:
        """Forget the statistics of other topics; of one that is used again they begin anew."""
        for name in [name for name in self._topics if name not in kept]:
            del self._topics[name]
            self._registry.remove(names.TOPIC_GROUP, {"topic": name})
