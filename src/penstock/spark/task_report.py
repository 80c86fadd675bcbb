# SPDX-License-Identifier: Apache-2.0
"""What a task wrote, as it is sent to the driver: sums, never rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.types import BulkReport


@dataclass(slots=True)
class PartitionCount:
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
    partitions: dict[str, dict[int, PartitionCount]] = field(default_factory=dict)

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
        count = self.partitions.setdefault(topic, {}).setdefault(partition, PartitionCount())
        count.rows += rows
        count.end_offset = max(count.end_offset, end_offset)


def summed(reports: Iterable[TaskReport]) -> TaskReport:
    """One report of many."""
    total = TaskReport()
    for report in reports:
        total.add(report)
    return total
