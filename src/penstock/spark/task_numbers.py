# SPDX-License-Identifier: Apache-2.0
"""The numbers of one task, read from its producer when all of its rows are acknowledged.

The producer counts anyway, once for each batch and request. Here its counters are read, once for each task. It is kept
over tasks, one at a time, and sends nothing between two of them: what a task did is the difference to the last reading.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from penstock.producer.io import metric_names as names
from penstock.producer.producer import Producer, parts_of
from penstock.spark.producer_numbers import LONGEST_CAUSE, MILLION, Left, ProducerNumbers, Slowest

if TYPE_CHECKING:
    from penstock.producer.assembly import ProducerParts


class _Reading(NamedTuple):
    """The counters of a producer at one moment.

    Attributes:
        sums: (count, total) by name; of what has the tag `reason`, by name and reason.
        latency: requests by the time to their answer.
    """

    sums: dict[tuple[str, str], tuple[int, float]]
    latency: list[int]


_GROUPS = (names.PRODUCER_GROUP, names.BATCH_GROUP)
_NOTHING = (0, 0)

# What the last task of each producer has left.
_before: WeakKeyDictionary[Producer, _Reading] = WeakKeyDictionary()


def task_numbers(producer: Producer, seconds: float, ack_seconds: float) -> dict[str, Any]:
    """What the producer did since this was called for it the last time, as values of JSON.

    Args:
        producer: of the task; nothing of it is on its way any more.
        seconds: from the task's first row to its last acknowledgement.
        ack_seconds: of these, from its last row on.
    """
    parts = parts_of(producer)
    now, before = _read(parts), _before.get(producer, _Reading({}, []))
    _before[producer] = now

    def grown(row: names.MetricRow, reason: str = "") -> tuple[int, float]:
        name = row.name.removesuffix("-avg")
        (count, total), (old_count, old_total) = (
            reading.sums.get((name, reason), _NOTHING) for reading in (now, before)
        )
        return count - old_count, total - old_total

    left = {}
    for reason in names.LEAVING_REASONS:
        batches = int(grown(names.LEFT_BATCH, reason)[1])
        if batches:
            records, fill = grown(names.LEFT_RECORD, reason)[1], grown(names.LEFT_FILL, reason)[1]
            left[reason] = Left(batches, int(records), round(fill * MILLION))
    sends, size = grown(names.BATCH_SIZE)
    retries = int(grown(names.RECORD_RETRY)[1])
    cause = parts.sender_metrics.retry_cause if retries else None
    old_latency = before.latency or [0] * len(now.latency)
    latency = [count - old for count, old in zip(now.latency, old_latency, strict=True)]
    while latency and not latency[-1]:
        latency.pop()
    numbers = ProducerNumbers(
        tasks=1,
        ms=round(1000 * seconds),
        memory_ms=round(grown(names.BUFFERPOOL_WAIT_TIME)[1] / 1e6),
        ack_ms=round(1000 * ack_seconds),
        bytes=int(size),
        sends=sends,
        ratio=round(grown(names.COMPRESSION_RATE)[1] * MILLION),
        retries=retries,
        cause=None if cause is None else str(cause)[:LONGEST_CAUSE],
        left=left,
        latency=latency,
        linger_ms=parts.config.linger_ms,
        batch_size=parts.config.batch_size,
        codec=parts.config.compression_type,
    )
    numbers.slowest = Slowest(numbers.ms, numbers.records, numbers.ms, numbers.records, 1)
    return numbers.to_dict()


def _read(parts: ProducerParts) -> _Reading:
    sums = {
        (one.name, one.tags.get("reason", "")): (one.number, one.total)
        for one in parts.registry.sums()
        if one.group in _GROUPS
    }
    latency = next(
        one.histogram.counts()
        for one in parts.registry.histograms()
        if one.name == names.REQUEST_LATENCIES.name
    )
    return _Reading(sums, latency)
