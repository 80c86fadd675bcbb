# SPDX-License-Identifier: Apache-2.0
"""What a running pipeline has done so far: batches, rows, bytes, failed expectations, offsets, producers.

It has two sources: what Spark counts (its progress and observations), and a file to which the sink appends one line
of JSON for each batch that it has committed. The second is missing where the driver is on another machine, and a line
of it may be damaged, by a full disk for example; everything here then knows less, and nothing fails.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from penstock._events import Event, tell
from penstock._json_fields import Fields, as_number
from penstock.spark.pipeline.model import Expectation, Pipeline
from penstock.spark.pipeline.plan import ROW_METRICS
from penstock.spark.producer_numbers import ProducerNumbers

log = logging.getLogger("penstock.spark")

_LARGEST_PARTITION = 2**31 - 1
MOST_BATCHES = 40  # whose producers' numbers are kept one by one, and which a report shows


@dataclass(frozen=True)
class BatchFacts:
    """One micro-batch, or the whole of a batch job."""

    number: int
    at: float  # seconds after the start, when it was known to be done
    seconds: float
    rows_in: int | None  # None: not counted
    rows: int  # after the steps
    dead: int
    dropped: int
    failed: tuple[int, ...]  # for each expectation, in their order
    skipped: bool = False  # it was in the topics already: rows were counted, and none sent

    @property
    def rows_out(self) -> int:
        """Rows sent to the topic."""
        return 0 if self.skipped else self.rows - self.dead - self.dropped

    @property
    def dead_letters(self) -> int:
        """Rows sent to the dead-letter topic because of an expectation."""
        return 0 if self.skipped else self.dead


@dataclass
class PartitionFacts:
    """What went to one partition."""

    rows: int = 0
    end_offset: int | None = None

    @property
    def last_offset(self) -> int | None:
        """Of the last record written. The next one may be further on: a transaction's end takes an offset too."""
        return None if self.end_offset is None else self.end_offset - 1


@dataclass
class RunStats:
    """The counts of one run. Belongs to the thread that runs the pipeline."""

    pipeline: Pipeline
    started: float  # monotonic
    finished: float | None = None
    outcome: str = "running"
    error: str | None = None
    stopped_by: str | None = field(
        default=None, repr=False
    )  # the expectation that a row failed whose action is `fail`
    batches: list[BatchFacts] = field(default_factory=list)
    bytes: int | None = None  # None: the sink has not said
    skipped_rows: int = 0  # of batches that were there already
    # Spark may tell of them before the sink does, or after.
    skipped_batches: set[int] = field(default_factory=set)
    bad_rows: int = 0  # sent to the dead-letter topic by the sink itself
    partitions: dict[tuple[str, int], PartitionFacts] = field(default_factory=dict, repr=False)
    # What the producers of all tasks did: in all batches, and in each of the latest; None: the sink has not said.
    producers: ProducerNumbers | None = field(default=None, repr=False)
    producers_by_batch: dict[int, ProducerNumbers] = field(default_factory=dict, repr=False)

    def seconds(self, now: float) -> float:
        """How long it has run, or ran."""
        return (now if self.finished is None else self.finished) - self.started

    @property
    def rows_in(self) -> int | None:
        """Rows that the source gave; None where nobody counted them, as in a first batch that came to no end."""
        if self._nothing_counted:
            return None
        counted = [batch.rows_in for batch in self.batches]
        return None if None in counted else sum(count or 0 for count in counted)

    @property
    def rows_out(self) -> int:
        """Rows sent to the topic."""
        # Spark counts what it hands to the sink, and the sink tells of bad rows apart; either may be first.
        return max(0, sum(batch.rows_out for batch in self.batches) - self.bad_rows)

    @property
    def dead_letters(self) -> int:
        """Rows sent to the dead-letter topic because of an expectation."""
        return sum(batch.dead_letters for batch in self.batches)

    @property
    def dropped(self) -> int:
        """Rows that were sent to no topic."""
        return sum(batch.dropped for batch in self.batches)

    @property
    def failed(self) -> list[tuple[Expectation, int | None]]:
        """Each expectation, and how many rows did not meet it; None where they were not counted."""
        return [
            (expectation, self._failed_at(position, expectation))
            for position, expectation in enumerate(self.pipeline.expectations)
        ]

    def _failed_at(self, position: int, expectation: Expectation) -> int | None:
        # The row that stops a run is the first that one task met: how many more there are nobody knows.
        if self._nothing_counted or expectation.name == self.stopped_by:
            return None
        return sum(batch.failed[position] for batch in self.batches)

    @property
    def _nothing_counted(self) -> bool:
        """Whether it ended before its first batch did; Spark tells the counts of a batch when it is done."""
        return not self.batches and self.outcome in ("failed", "stopped")

    def rate(self, now: float) -> float:
        """Rows out per second, over the whole run."""
        seconds = self.seconds(now)
        return self.rows_out / seconds if seconds > 0 else 0.0

    def add_batch(self, number: int, at: float, seconds: float, counts: BatchCounts) -> None:
        """Note a batch that is done."""
        metrics = counts.metrics
        self.batches.append(
            BatchFacts(
                number=number,
                at=at,
                seconds=seconds,
                rows_in=counts.rows_in,
                rows=int(metrics.get("rows", 0)),
                dead=int(metrics.get("dead", 0)),
                dropped=int(metrics.get("dropped", 0)),
                failed=tuple(
                    int(metrics.get(f"failed_{position}", 0))
                    for position in range(len(self.pipeline.expectations))
                ),
                skipped=number in self.skipped_batches,
            )
        )

    def add_sink_line(self, line: Fields) -> None:
        """Note what the sink said of a batch.

        Raises:
            ValueError: a field is missing or wrong; nothing of the line was noted.
        """
        number, skipped = line.number("batchId", 0), line.flag("skipped", False)
        rows, size, dead_letters = (_amount(line, name) for name in ("rows", "bytes", "deadLetters"))
        partitions = _partitions(line)
        self.bytes = (self.bytes or 0) + size
        self.bad_rows += dead_letters
        if skipped:
            self.skipped_rows += rows
            self._mark_skipped(number)
        for place, said in partitions.items():
            facts = self.partitions.setdefault(place, PartitionFacts())
            facts.rows += said.rows
            if said.end_offset is not None:
                facts.end_offset = max(facts.end_offset or 0, said.end_offset)
        if line.has("producers"):
            self._add_producers(number, line.value("producers"))

    def _add_producers(self, number: int, said: Any) -> None:
        try:
            numbers = ProducerNumbers.from_dict(said)
        except ValueError as error:
            tell(
                log, logging.WARNING, Event.SPARK_NUMBERS_UNREADABLE,
                "what the producers of batch %d did cannot be read: %s", number, error,
                batch_id=number, error=error,
            )  # fmt: skip
            return
        if self.producers is None:
            self.producers = ProducerNumbers()
        self.producers.add(numbers)
        self.producers_by_batch.pop(number, None)  # the newest is last
        self.producers_by_batch[number] = numbers
        while len(self.producers_by_batch) > MOST_BATCHES:
            del self.producers_by_batch[next(iter(self.producers_by_batch))]

    def _mark_skipped(self, number: int) -> None:
        self.skipped_batches.add(number)
        self.batches = [
            replace(batch, skipped=True) if batch.number == number else batch for batch in self.batches
        ]


@dataclass(frozen=True)
class BatchCounts:
    """What Spark counted in a batch."""

    rows_in: int | None
    metrics: Mapping[str, Any]


# ---- a query's progress


class ProgressReader:
    """Takes each batch of a streaming query once, from the progress that Spark keeps of the latest ones."""

    def __init__(self, stats: RunStats) -> None:
        self._stats = stats
        self._last: tuple[int, str] | None = None  # batch and time stamp of the newest one taken

    def read(self, query: Any, now: float) -> int:
        """Take what is new; how many batches that was."""
        newest = query.lastProgress
        if newest is None:
            return 0
        latest = json.loads(newest.json)
        if self._key(latest) == self._last:
            return 0
        news = [latest]
        # The list takes long to fetch, and is needed only where batches were missed between two looks.
        first = 0 if self._last is None else self._last[0] + 1
        if latest["batchId"] > first:
            news = [json.loads(progress.json) for progress in query.recentProgress]
            news = [each for each in news if self._last is None or self._key(each) > self._last]
        for each in news:
            self._take(each, now)
        self._last = self._key(latest)
        return len(news)

    @staticmethod
    def _key(progress: Mapping[str, Any]) -> tuple[int, str]:
        return int(progress["batchId"]), str(progress["timestamp"])

    def _take(self, progress: Mapping[str, Any], now: float) -> None:
        metrics = (progress.get("observedMetrics") or {}).get(ROW_METRICS)
        if metrics is None:  # Spark reports at times that there was nothing to do
            return
        seconds = (progress.get("durationMs") or {}).get("triggerExecution", 0) / 1000
        counts = BatchCounts(rows_in=_rows_in(progress), metrics=_by_name(metrics))
        self._stats.add_batch(int(progress["batchId"]), now - self._stats.started, seconds, counts)


def _rows_in(progress: Mapping[str, Any]) -> int:
    """What the sources gave; Spark Connect leaves the sum to the reader."""
    if "numInputRows" in progress:
        return int(progress["numInputRows"])
    return sum(int(source.get("numInputRows") or 0) for source in progress.get("sources") or ())


def _by_name(metrics: Mapping[str, Any]) -> Mapping[str, Any]:
    """Counts by their names; Spark Connect gives values and names apart."""
    if "values" not in metrics:
        return metrics
    names = [field["name"] for field in metrics["schema"]["fields"]]
    return dict(zip(names, metrics["values"], strict=True))


# ---- what the sink says


class SinkLines:
    """Reads the lines that the sink appends to a file, each once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read_to = 0
        self._seen = 0  # lines, those that could not be read included

    def read(self, stats: RunStats) -> int:
        """Take what is new; how many lines that was. Of a line that cannot be read the log tells."""
        count = 0
        for text in self._new_lines():
            self._seen += 1
            try:
                stats.add_sink_line(Fields.parse(text))
            except ValueError as error:
                tell(
                    log, logging.WARNING, Event.SPARK_NUMBERS_UNREADABLE,
                    "what the sink says of a batch cannot be read, and is not counted (line %d of its progress): %s",
                    self._seen, stats.pipeline.hide(str(error)), error=error,
                )  # fmt: skip
            else:
                count += 1
        return count

    def _new_lines(self) -> Iterator[bytes]:
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._read_to)
            data = file.read()
        whole, newline, _ = data.rpartition(b"\n")  # the last line may still be on its way
        self._read_to += len(whole) + len(newline)
        yield from whole.splitlines()


def _partitions(line: Fields) -> dict[tuple[str, int], PartitionFacts]:
    """What each partition got, by topic and number."""
    found: dict[tuple[str, int], PartitionFacts] = {}
    topics = Fields(line.value("partitions") if line.has("partitions") else {})
    for topic in topics.names():
        partitions = Fields(topics.value(topic))
        for name in partitions.names():
            if not (name.isascii() and name.isdecimal()):
                raise ValueError(f"partitions has {name[:40]!r} where a number is expected")
            number = as_number(int(name), "partitions", 0, _LARGEST_PARTITION)
            said = Fields(partitions.value(name))
            end_offset = said.number("endOffset", 0) if said.has("endOffset") else None
            found[topic, number] = PartitionFacts(_amount(said, "rows"), end_offset)
    return found


def _amount(fields: Fields, name: str) -> int:
    """A count; 0 where the sink says nothing of it."""
    return fields.number(name, 0) if fields.has(name) else 0


# ---- words


def failed_text(stats: RunStats, expectation: Expectation) -> str:
    """What becomes, or became, of rows that do not meet an expectation, in a word or a few."""
    return "the run was stopped" if expectation.name == stats.stopped_by else expectation.action.value


def batches_text(count: int) -> str:
    return f"{count:,} micro-batch{'' if count == 1 else 'es'}"


def count_text(count: int | None) -> str:
    """A count with separators; a dash for one that is not known."""
    return "-" if count is None else f"{count:,}"


def bytes_text(size: int | None) -> str:
    """A size in the unit that suits it."""
    if size is None:
        return "-"
    amount = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def sorted_partitions(stats: RunStats) -> Sequence[tuple[str, int, PartitionFacts]]:
    """All partitions that got rows, by topic and number; topics as they may be printed."""
    hide = stats.pipeline.hide
    return [(hide(topic), number, facts) for (topic, number), facts in sorted(stats.partitions.items())]


def destination(pipeline: Pipeline) -> str:
    """Where good rows go, in a few words."""
    topic = pipeline.sink.record.topic
    hide = pipeline.hide
    return hide(topic.name) if topic.name is not None else f"topic by {hide(str(topic.sql))}"
