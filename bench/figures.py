# SPDX-License-Identifier: Apache-2.0
"""From runs to figures: medians with their spread, and ratios of Penstock to each other contender."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from bench.model import Results, Run


@dataclass(frozen=True)
class Figure:
    """A median, and the smallest and largest value it was taken from."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Figure:
        """Summarise some values."""
        return cls(median(values), min(values), max(values))


@dataclass(frozen=True)
class Row:
    """What one contender needed in one case. With `lost` records (or doubled ones) it is not valid."""

    case: str
    contender: str
    title: str
    lost: int
    rate: Figure
    cpu_us: Figure
    peak_rss: int


@dataclass(frozen=True)
class Ratio:
    """One of ours against one of the others: how many times the rate, and what part of the CPU time per record.

    The median is that of the medians; the spread is that of the rounds, each compared with the same round.
    """

    case: str
    ours: str
    other: str
    rate: Figure
    cpu: Figure


def rows(results: Results) -> list[Row]:
    """One row for each case and contender."""
    found = []
    for case in results.cases:
        for contender in results.contenders:
            runs = results.of(case.name, contender.name)
            found.append(
                Row(
                    case.name,
                    contender.name,
                    contender.title,
                    sum(abs(run.sent - run.arrived) for run in runs),
                    Figure.of([run.rate for run in runs]),
                    Figure.of([run.cpu_us for run in runs]),
                    max(run.peak_rss for run in runs),
                )
            )
    return found


def ratios(results: Results) -> list[Ratio]:
    """Each of ours against each of the others, case by case. Who lost records is compared with nobody."""
    names = [one.name for one in results.contenders]
    found = []
    for case in results.cases:
        sound = [name for name in names if all(run.complete for run in results.of(case.name, name))]
        for ours in (name for name in sound if name.startswith("penstock")):
            for other in (name for name in sound if not name.startswith("penstock")):
                pair = results.of(case.name, ours), results.of(case.name, other)
                found.append(
                    Ratio(
                        case.name,
                        ours,
                        other,
                        _ratio(*pair, lambda run: run.rate),
                        _ratio(*pair, lambda run: run.cpu_us),
                    )
                )
    return found


def _ratio(ours: Sequence[Run], others: Sequence[Run], value: Callable[[Run], float]) -> Figure:
    rounds = [value(one) / value(other) for one, other in zip(ours, others, strict=True)]
    middle = median(map(value, ours)) / median(map(value, others))
    return Figure(middle, min(rounds), max(rounds))
