# SPDX-License-Identifier: Apache-2.0
"""What a read-committed consumer of another maker finds in a topic, against what was to be there."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from chaos.check import read_committed

PARTITIONS = 2


@dataclass(frozen=True)
class Found:
    """What is in a topic.

    Attributes:
        records: how many.
        missing: rows that are not there.
        repeated: rows that are there more than once.
        unknown: records that are no rows.
        out_of_order: rows of a task that stand behind a later one of the same task in the same partition.
    """

    records: int
    missing: tuple[str, ...]
    repeated: tuple[str, ...]
    unknown: tuple[str, ...]
    out_of_order: tuple[str, ...]

    @property
    def exactly_once(self) -> bool:
        return not (self.missing or self.repeated or self.unknown or self.out_of_order)

    def __str__(self) -> str:
        parts = [f"{self.records} records"]
        for name in ("missing", "repeated", "unknown", "out_of_order"):
            rows = getattr(self, name)
            parts.append(f"{len(rows)} {name.replace('_', ' ')}" + (f" ({rows[0]} ...)" if rows else ""))
        return ", ".join(parts)


@dataclass
class Input:
    """Files of numbered rows: batch, task and number in each line.

    Attributes:
        batches: micro-batches.
        tasks: files, and so tasks, of each.
        rows: lines of each file.
        first_batch: its number.
    """

    folder: Path
    batches: int = 3
    tasks: int = 2
    rows: int = 200
    first_batch: int = 0

    def write(self) -> None:
        """Write the files; Spark takes them in the order of their times."""
        self.folder.mkdir(parents=True)
        self._write(range(self.first_batch, self.first_batch + self.batches))

    def add(self, batches: int) -> None:
        """Write files for so many batches more."""
        end = self.first_batch + self.batches
        self._write(range(end, end + batches))
        self.batches += batches

    def _write(self, numbers: Iterable[int]) -> None:
        for batch in numbers:
            for task in range(self.tasks):
                path = self.folder / f"{batch:03}-{task}.txt"
                path.write_text("".join(f"{row}\n" for row in self.lines(batch, task)))
                time = 1_700_000_000 + batch * self.tasks + task
                os.utime(path, (time, time))

    def lines(self, batch: int, task: int) -> list[str]:
        return [f"{batch:03} {task} {number:05}" for number in range(self.rows)]

    def all_lines(self) -> set[str]:
        return {
            line
            for batch in range(self.first_batch, self.first_batch + self.batches)
            for task in range(self.tasks)
            for line in self.lines(batch, task)
        }


def look(servers: str, topic: str, wanted: Iterable[str]) -> Found:
    """Read the topic to its end, behind which nothing may be hidden by an open transaction."""
    expected = set(wanted)
    counts: Counter[str] = Counter()
    last: dict[tuple[int, str], str] = {}
    out_of_order = []
    for partition, _offset, value in read_committed(servers, topic, PARTITIONS):
        row = value.decode(errors="replace")
        counts[row] += 1
        source, _, _number = row.rpartition(" ")
        if counts[row] == 1 and row < last.get((partition, source), ""):
            out_of_order.append(row)
        last[partition, source] = max(row, last.get((partition, source), ""))
        if row in expected and int(row[-5:]) % 2 != partition:
            out_of_order.append(f"{row} in partition {partition}")
    return Found(
        records=sum(counts.values()),
        missing=tuple(sorted(expected - set(counts))),
        repeated=tuple(sorted(row for row, count in counts.items() if count > 1)),
        unknown=tuple(sorted(set(counts) - expected)),
        out_of_order=tuple(out_of_order),
    )
