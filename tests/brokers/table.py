# SPDX-License-Identifier: Apache-2.0
"""The one table that is printed at the end, and what is said below it about each cell that failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Cell:
    """How a case ended on a release: ``ok``, ``refused`` (as it must be there), ``cannot be``, or ``FAILED``."""

    case: str
    release: str
    word: str
    problems: Sequence[str] = field(default_factory=tuple)

    @property
    def failed(self) -> bool:
        return self.word == "FAILED"


def table(cells: Sequence[Cell]) -> str:
    """Cases as rows, releases as columns, in the order in which they came. What did not run is empty."""
    cases, releases = (
        dict.fromkeys(cell.case for cell in cells),
        dict.fromkeys(cell.release for cell in cells),
    )
    words = {(cell.case, cell.release): cell.word for cell in cells}
    rows = [["", *releases], *([case, *(words.get((case, r), "") for r in releases)] for case in cases)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def report(cells: Sequence[Cell]) -> str:
    """The table, and below it what went wrong."""
    failed = [cell for cell in cells if cell.failed]
    lines = [table(cells)]
    for cell in failed:
        lines += [f"FAILED on {cell.release}: {cell.case}: {problem}" for problem in cell.problems]
    lines.append(
        f"{len(cells)} cells, {len(failed)} failed" if failed else f"{len(cells)} cells, none failed"
    )
    return "\n".join(lines)
