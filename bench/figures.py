# SPDX-License-Identifier: Apache-2.0
"""From runs to figures: medians with their spread, ratios of Penstock to the others, and what became of the bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from bench.bars import Bar, Entry
from bench.model import Results

LATENCY = ("p50", "p95", "p99", "p99.9")


@dataclass(frozen=True)
class Figure:
    """A median, and the smallest and largest value it was taken from."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Figure:
        """Make a figure from the values of several runs."""
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
    latency_ms: Mapping[str, Figure] = field(default_factory=dict)


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


@dataclass(frozen=True)
class Verdict:
    """What became of a bar: the figure, with whom it was compared, and "passes", "falls short" or "not measured"."""

    bar: Bar
    figure: Figure | None
    other: str
    word: str

    @property
    def reaches_aim(self) -> bool:
        """Whether it also reaches what lies beyond the bar."""
        return self.figure is not None and _reaches(self.bar, self.figure.median, self.bar.aim)


def rows(results: Results) -> list[Row]:
    """One row for each case and contender that was run."""
    found = []
    for case in results.cases:
        for contender in results.contenders:
            runs = results.of(case.name, contender.name)
            if not runs:
                continue
            found.append(
                Row(
                    case.name,
                    contender.name,
                    contender.title,
                    sum(abs(run.sent - run.arrived) for run in runs),
                    Figure.of([run.rate for run in runs]),
                    Figure.of([run.cpu_us for run in runs]),
                    max(run.peak_rss for run in runs),
                    {
                        name: Figure.of([run.latency_ms[name] for run in runs])
                        for name in LATENCY
                        if all(name in run.latency_ms for run in runs)
                    },
                )
            )
    return found


def ratios(results: Results) -> list[Ratio]:
    """Each of ours against each of the others, case by case. Who lost records is compared with nobody."""
    names = [one.name for one in results.contenders]
    found = []
    for case in (case for case in results.cases if not case.rate):
        for ours in (name for name in names if name.startswith("penstock")):
            for other in (name for name in names if not name.startswith("penstock")):
                pair = (case.name, ours), (case.name, other)
                rate, cpu = (compare(results, *pair, measure) for measure in ("rate", "cpu_us"))
                if rate is not None and cpu is not None:
                    found.append(Ratio(case.name, ours, other, rate, cpu))
    return found


def compare(results: Results, ours: Entry, other: Entry, measure: str) -> Figure | None:
    """The ratio of two figures; None when one of them is not there, or may not be compared."""
    mine, theirs = results.values(*ours, measure), results.values(*other, measure)
    rounds = [mine[number] / theirs[number] for number in mine.keys() & theirs.keys() if theirs[number]]
    if not rounds or not median(theirs.values()):
        return None
    return Figure(median(mine.values()) / median(theirs.values()), min(rounds), max(rounds))


def judge(results: Results, bar: Bar) -> Verdict:
    """Compare a bar with what was measured."""
    figure: Figure | None
    if not bar.against:
        values = results.values(*bar.ours, bar.measure)
        figure, other = (Figure.of(list(values.values())) if values else None), ""
    else:
        rivals = [entry for entry in bar.against if _typical(results, entry, bar.measure)]
        if not rivals:
            return Verdict(bar, None, "", "not measured")
        best = (max if bar.more_is_better else min)(
            rivals, key=lambda entry: _typical(results, entry, bar.measure)
        )
        figure, other = compare(results, bar.ours, best, bar.measure), best[1]
    if figure is None:
        return Verdict(bar, None, other, "not measured")
    return Verdict(bar, figure, other, "passes" if _reaches(bar, figure.median, bar.bar) else "falls short")


def _typical(results: Results, entry: Entry, measure: str) -> float:
    """The median; 0 when there is none, or when it tells nothing: Java says 0 ms of what takes less than one."""
    return median(results.values(*entry, measure).values() or [0.0])


def _reaches(bar: Bar, value: float, mark: float) -> bool:
    return value >= mark if bar.more_is_better else value <= mark
