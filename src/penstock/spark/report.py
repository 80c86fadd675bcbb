# SPDX-License-Identifier: Apache-2.0
"""What a task wrote, as it is sent to the driver, and as the driver tells others: sums, never rows."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql.datasource import WriterCommitMessage

from penstock.types import BulkReport

log = logging.getLogger("penstock.spark")


@dataclass(slots=True)
class PartitionSums:
    """What one partition of a topic got.

    Attributes:
        rows: how many records.
        end_offset: one above the highest offset known, or -1.
    """

    rows: int = 0
    end_offset: int = -1


@dataclass(slots=True)
class TaskReport:
    """Sums of one task, or of all tasks of a batch.

    Attributes:
        rows: rows taken from Spark.
        bytes: of keys and values.
        dead_letters: of the rows, those that went to the dead-letter topic.
        partitions: what each partition got, dead letters included; by topic, then by number.
    """

    rows: int = 0
    bytes: int = 0
    dead_letters: int = 0
    partitions: dict[str, dict[int, PartitionSums]] = field(default_factory=dict)

    def add_delivered(self, report: BulkReport) -> None:
        """Add what was acknowledged."""
        self.bytes += report.bytes
        for (topic, partition), part in report.partitions.items():
            self._count(topic, partition, part.records, part.last_offset + 1 if part.last_offset >= 0 else -1)

    def add(self, other: TaskReport) -> None:
        """Add another report."""
        self.rows += other.rows
        self.bytes += other.bytes
        self.dead_letters += other.dead_letters
        for topic, counts in other.partitions.items():
            for partition, count in counts.items():
                self._count(topic, partition, count.rows, count.end_offset)

    def _count(self, topic: str, partition: int, rows: int, end_offset: int) -> None:
        count = self.partitions.setdefault(topic, {}).setdefault(partition, PartitionSums())
        count.rows += rows
        count.end_offset = max(count.end_offset, end_offset)


def summed(reports: Iterable[TaskReport]) -> TaskReport:
    """One report of many."""
    total = TaskReport()
    for report in reports:
        total.add(report)
    return total


@dataclass
class TaskMessage(WriterCommitMessage):
    """What one task did; pickled by Spark.

    Attributes:
        report: its sums.
        outcome: of the exactly-once protocol, what the driver needs to end the task's transaction; None otherwise.
        skipped: the batch had been written before, and its rows were only counted.
    """

    report: TaskReport = field(default_factory=TaskReport)
    outcome: Any = None
    skipped: bool = False


def append_progress(path: str, batch_id: int, report: TaskReport, *, skipped: bool) -> None:
    """Append one line of JSON for a committed batch, for a program on the driver's machine that shows the progress.

    `commit` runs in a process of Spark's, so that the program which started the query has no other way to learn what
    went where. The file is for people to look at: when it cannot be written, the batch is none the worse.

    Args:
        path: the file.
        batch_id: of the micro-batch; 0 in batch jobs.
        report: the sums of all tasks.
        skipped: whether the batch had been written before, so that its rows were only counted.
    """
    partitions = {
        topic: {
            str(number): {"rows": count.rows}
            | ({"endOffset": count.end_offset} if count.end_offset >= 0 else {})
            for number, count in sorted(counts.items())
        }
        for topic, counts in sorted(report.partitions.items())
    }
    line = {
        "batchId": batch_id,
        "rows": report.rows,
        "bytes": report.bytes,
        "skipped": skipped,
        "deadLetters": report.dead_letters,
        "partitions": partitions,
    }
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")  # one write, so that a reader never sees half a line
    except OSError as error:
        log.warning("the progress of batch %d could not be written to %s: %s", batch_id, path, error)
