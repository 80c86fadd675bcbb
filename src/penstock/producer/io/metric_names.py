# SPDX-License-Identifier: Apache-2.0
"""The producer's metrics: their groups, names and meanings, which are those that users of Kafka's clients know.

A row is registered with the method its class names, for example `registry.avg_max(*BATCH_SIZE)`; the groups by topic
and by node take tags as well. Times are in milliseconds unless the name says otherwise.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

PRODUCER_GROUP = "producer-metrics"
TOPIC_GROUP = "producer-topic-metrics"  # tag "topic"
NODE_GROUP = "producer-node-metrics"  # tag "node-id", "node-1" for broker 1
BATCH_GROUP = "producer-batch-metrics"  # tag "reason", why batches left, as in `LEAVING_REASONS`
IO_GROUP = "producer-io-metrics"  # tag "activity", what the I/O thread does, as in `_stats_cy.ACTIVITIES`
EVENT_GROUP = "producer-event-metrics"  # tag "event", as in `_events.Event`
APP_INFO_GROUP = "app-info"
COUNT_GROUP = "kafka-metrics-count"


class _Row(NamedTuple):
    group: str
    name: str
    description: str


class MetricRow(_Row):
    """A statistic with its group, its name without suffix, and what it tells."""

    suffixes: ClassVar[tuple[str, ...]] = ("",)

    @property
    def names(self) -> tuple[str, ...]:
        """The names under which its values appear."""
        return tuple(self.name + suffix for suffix in self.suffixes)


class AvgMax(MetricRow):
    """Register with `avg_max`."""

    suffixes = ("-avg", "-max")


class RateTotal(MetricRow):
    """Register with `rate_total`."""

    suffixes = ("-rate", "-total")


class Avg(MetricRow):
    """Register with `avg`."""


class Percentiles(MetricRow):
    """Register with `histogram`, which takes bounds as well."""

    suffixes = ("-p50", "-p95", "-p99")


class Count(MetricRow):
    """Register with `counter`."""


class Gauge(MetricRow):
    """Register with `gauge`."""


# Batches and requests, by the sender.
BATCH_SIZE = AvgMax(
    PRODUCER_GROUP, "batch-size", "Bytes of a batch as sent, for one partition in one request"
)
BATCH_SPLIT = RateTotal(
    PRODUCER_GROUP, "batch-split", "Batches that were too large for the broker and were cut in two"
)
COMPRESSION_RATE = Avg(
    PRODUCER_GROUP, "compression-rate-avg", "Compressed size of a batch over its raw size (average)"
)
RECORD_QUEUE_TIME = AvgMax(
    PRODUCER_GROUP, "record-queue-time", "Milliseconds a batch waited before it was sent"
)
REQUEST_LATENCY = AvgMax(PRODUCER_GROUP, "request-latency", "Milliseconds from a request to its answer")
PRODUCE_THROTTLE_TIME = AvgMax(
    PRODUCER_GROUP, "produce-throttle-time", "Milliseconds for which a broker held a produce request back"
)
RECORD_SEND = RateTotal(PRODUCER_GROUP, "record-send", "Records sent")
RECORDS_PER_REQUEST = Avg(PRODUCER_GROUP, "records-per-request-avg", "Records in a produce request (average)")
RECORD_RETRY = RateTotal(PRODUCER_GROUP, "record-retry", "Records sent again")
RECORD_ERROR = RateTotal(PRODUCER_GROUP, "record-error", "Records that failed for good")
RECORD_CONVERSION = RateTotal(
    PRODUCER_GROUP, "record-conversion", "Records converted to an older message format for an old broker"
)
CONVERSION_TIME = Count(
    PRODUCER_GROUP, "conversion-time-ns-total", "Nanoseconds spent on such conversions, compression included"
)
IDEMPOTENCE = Gauge(
    PRODUCER_GROUP,
    "idempotence-enabled",
    "1 while a retry is written once; 0 if enable.idempotence is off, or was switched off because a broker is too old",
)
RECORD_SIZE = AvgMax(PRODUCER_GROUP, "record-size", "Bytes of the largest record of a batch")
REQUESTS_IN_FLIGHT = Gauge(PRODUCER_GROUP, "requests-in-flight", "Requests that wait for their answer now")
METADATA_AGE = Gauge(PRODUCER_GROUP, "metadata-age", "Seconds since the last complete metadata answer")

# How long records wait, and where: in the queue, until the last request is made, for its answer, for callbacks. A batch
# counts once, from its first record on; the first three add up to the delivery time.
RECORD_QUEUE_TIMES = Percentiles(
    PRODUCER_GROUP, "record-queue-time", "Milliseconds a batch waited before it was first sent"
)
REQUEST_LATENCIES = Percentiles(
    PRODUCER_GROUP, "request-latency", "Milliseconds from a produce request to its answer"
)
RECORD_RETRY_TIME = AvgMax(
    PRODUCER_GROUP,
    "record-retry-time",
    "Milliseconds from the first to the last request of a batch sent again",
)
RECORD_RETRY_TIMES = Percentiles(
    PRODUCER_GROUP,
    "record-retry-time",
    "Milliseconds from the first to the last request of a batch sent again",
)
RECORD_DELIVERY_TIME = AvgMax(
    PRODUCER_GROUP,
    "record-delivery-time",
    "Milliseconds from the first record of a batch to its acknowledgement",
)
RECORD_DELIVERY_TIMES = Percentiles(
    PRODUCER_GROUP,
    "record-delivery-time",
    "Milliseconds from the first record of a batch to its acknowledgement",
)
CALLBACK_TIME = AvgMax(
    PRODUCER_GROUP, "callback-time", "Milliseconds that the callbacks for one answer of a broker took"
)
CALLBACK_TIMES = Percentiles(
    PRODUCER_GROUP, "callback-time", "Milliseconds that the callbacks for one answer of a broker took"
)

# Why batches left, and how full they were. Each counts once: not when it is sent again, nor the pieces of one cut.
BATCH_FILL = Avg(
    PRODUCER_GROUP, "batch-fill-ratio-avg", "Size of a batch over batch.size, at most 1 (average)"
)
BATCH_FILLS = Percentiles(PRODUCER_GROUP, "batch-fill-ratio", "Size of a batch over batch.size, at most 1")
LEFT_BATCH = RateTotal(BATCH_GROUP, "batch", "Batches that left for this reason")
LEFT_RECORD = RateTotal(BATCH_GROUP, "record", "Records in batches that left for this reason")
LEFT_FILL = Avg(BATCH_GROUP, "batch-fill-ratio-avg", "Their size over batch.size, at most 1 (average)")

# Memory.
WAITING_THREADS = Gauge(PRODUCER_GROUP, "waiting-threads", "Senders that wait for memory now")
BUFFER_TOTAL = Gauge(PRODUCER_GROUP, "buffer-total-bytes", "Memory for records, used or not")
BUFFER_AVAILABLE = Gauge(PRODUCER_GROUP, "buffer-available-bytes", "Memory for records that is not in use")
BUFFERPOOL_WAIT_RATIO = Gauge(
    PRODUCER_GROUP, "bufferpool-wait-ratio", "Part of the time spent waiting for memory"
)
BUFFERPOOL_WAIT_TIME = Count(
    PRODUCER_GROUP, "bufferpool-wait-time-ns-total", "Nanoseconds spent waiting for memory, over all senders"
)
BUFFER_EXHAUSTED = RateTotal(
    PRODUCER_GROUP, "buffer-exhausted", "Records refused because no memory became free"
)

BUFFERPOOL_WAITS = Percentiles(
    PRODUCER_GROUP, "bufferpool-wait-time", "Milliseconds of one wait of a sender for memory"
)
BUFFERPOOL_LONGEST_WAIT = Gauge(
    PRODUCER_GROUP,
    "bufferpool-longest-wait-ms",
    "How long the first of those who wait for memory now has waited",
)

# Calls that block.
FLUSH_TIME = Count(PRODUCER_GROUP, "flush-time-ns-total", "Nanoseconds spent in flush()")
TXN_INIT_TIME = Count(PRODUCER_GROUP, "txn-init-time-ns-total", "Nanoseconds spent in init_transactions()")
TXN_BEGIN_TIME = Count(PRODUCER_GROUP, "txn-begin-time-ns-total", "Nanoseconds spent in begin_transaction()")
TXN_SEND_OFFSETS_TIME = Count(
    PRODUCER_GROUP, "txn-send-offsets-time-ns-total", "Nanoseconds spent in send_offsets_to_transaction()"
)
TXN_COMMIT_TIME = Count(
    PRODUCER_GROUP, "txn-commit-time-ns-total", "Nanoseconds spent in commit_transaction()"
)
TXN_ABORT_TIME = Count(PRODUCER_GROUP, "txn-abort-time-ns-total", "Nanoseconds spent in abort_transaction()")
METADATA_WAIT_TIME = Count(
    PRODUCER_GROUP, "metadata-wait-time-ns-total", "Nanoseconds that send() spent waiting for metadata"
)

# Connections and the I/O loop.
CONNECTION_CLOSE = RateTotal(PRODUCER_GROUP, "connection-close", "Connections closed")
CONNECTION_CREATION = RateTotal(PRODUCER_GROUP, "connection-creation", "Connections made")
CONNECTION_COUNT = Gauge(PRODUCER_GROUP, "connection-count", "Connections open now")
SUCCESSFUL_AUTHENTICATION = RateTotal(
    PRODUCER_GROUP, "successful-authentication", "Connections that a broker let in after authentication"
)
FAILED_AUTHENTICATION = RateTotal(
    PRODUCER_GROUP, "failed-authentication", "Connections that a broker refused at authentication"
)
SUCCESSFUL_REAUTHENTICATION = RateTotal(
    PRODUCER_GROUP, "successful-reauthentication", "Connections that authenticated anew"
)
FAILED_REAUTHENTICATION = RateTotal(
    PRODUCER_GROUP, "failed-reauthentication", "Connections that could not authenticate anew"
)
NETWORK_IO = RateTotal(PRODUCER_GROUP, "network-io", "Reads and writes on all connections")
OUTGOING_BYTE = RateTotal(PRODUCER_GROUP, "outgoing-byte", "Bytes sent")
INCOMING_BYTE = RateTotal(PRODUCER_GROUP, "incoming-byte", "Bytes received")
REQUEST = RateTotal(PRODUCER_GROUP, "request", "Requests sent")
REQUEST_SIZE = AvgMax(PRODUCER_GROUP, "request-size", "Bytes of a request")
RESPONSE = RateTotal(PRODUCER_GROUP, "response", "Answers received")
SELECT = RateTotal(PRODUCER_GROUP, "select", "Times the I/O thread looked for connections that are ready")
IO_WAIT_TIME_AVG = Gauge(
    PRODUCER_GROUP, "io-wait-time-ns-avg", "Nanoseconds of one wait for a connection (average)"
)
IO_WAIT_RATIO = Gauge(PRODUCER_GROUP, "io-wait-ratio", "Part of its time that the I/O thread waits")
IO_WAIT_TIME = Gauge(PRODUCER_GROUP, "io-wait-time-ns-total", "Nanoseconds that the I/O thread waited")
IO_TIME_AVG = Gauge(
    PRODUCER_GROUP, "io-time-ns-avg", "Nanoseconds of reading and writing after one wait (average)"
)
IO_RATIO = Gauge(PRODUCER_GROUP, "io-ratio", "Part of its time that the I/O thread reads and writes")
IO_TIME = Gauge(PRODUCER_GROUP, "io-time-ns-total", "Nanoseconds that the I/O thread read and wrote")

# What the I/O thread does with its time; all activities together are its time.
IO_ACTIVITY_TIME = Gauge(
    IO_GROUP, "io-activity-time-ns-total", "Nanoseconds that the I/O thread spent on this"
)
IO_ACTIVITY_RATIO = Gauge(
    IO_GROUP, "io-activity-ratio", "Part of its time that the I/O thread spends on this"
)

# By topic; registered when the topic's first batch is sent.
TOPIC_RECORD_SEND = RateTotal(TOPIC_GROUP, "record-send", "Records of the topic sent")
TOPIC_BYTE = RateTotal(TOPIC_GROUP, "byte", "Bytes of the topic's batches sent")
TOPIC_COMPRESSION_RATE = Avg(TOPIC_GROUP, "compression-rate", "Compressed size over raw size (average)")
TOPIC_RECORD_RETRY = RateTotal(TOPIC_GROUP, "record-retry", "Records of the topic sent again")
TOPIC_RECORD_ERROR = RateTotal(TOPIC_GROUP, "record-error", "Records of the topic that failed for good")

# By node.
NODE_REQUEST = RateTotal(NODE_GROUP, "request", "Requests sent to the broker")
NODE_REQUEST_SIZE = AvgMax(NODE_GROUP, "request-size", "Bytes of a request to the broker")
NODE_OUTGOING_BYTE = RateTotal(NODE_GROUP, "outgoing-byte", "Bytes sent to the broker")
NODE_RESPONSE = RateTotal(NODE_GROUP, "response", "Answers received from the broker")
NODE_INCOMING_BYTE = RateTotal(NODE_GROUP, "incoming-byte", "Bytes received from the broker")
NODE_REQUEST_LATENCY = AvgMax(
    NODE_GROUP, "request-latency", "Milliseconds from a request to the broker's answer"
)

# What is written to the log; registered when it has happened.
EVENT = Count(EVENT_GROUP, "event-total", "How often this happened, also where the log left it out")

# About the client itself. The registry counts its metrics by itself.
VERSION = Gauge(APP_INFO_GROUP, "version", "The version of this package")
COMMIT_ID = Gauge(APP_INFO_GROUP, "commit-id", "The commit this package was built from")
START_TIME = Gauge(
    APP_INFO_GROUP, "start-time-ms", "When the producer was made, in milliseconds since the epoch"
)
METRICS_COUNT = Gauge(COUNT_GROUP, "count", "How many metrics there are")

# The values of the tag "reason", in the order of the codes in `batch._batch_cy`.
LEAVING_REASONS = ("full", "linger", "flush", "memory", "close", "transaction-end", "along")

# Bounds of histograms. Milliseconds: two to a power of two, from 1/8 ms to two minutes.
TIME_BOUNDS = tuple(2.0 ** (step / 2) for step in range(-6, 35))
RATIO_BOUNDS = tuple(step / 20 for step in range(1, 21))

ALL_METRICS: tuple[MetricRow, ...] = tuple(row for row in globals().values() if isinstance(row, MetricRow))
