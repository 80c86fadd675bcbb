# SPDX-License-Identifier: Apache-2.0
"""Says what was measured: a table for people, JSON for programs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator

from bench.figures import Figure, ratios, rows
from bench.model import Results

_NOTES = """\
Ratios are medians of the rounds, with the smallest and the largest round in brackets; rates by themselves are for
orientation only. CPU is user + system time of the client's whole process, start-up included (for Java: the virtual
machine, and as many records again as warm-up), divided by records. RSS is the most memory the process had. Every run
was counted at the broker."""


def table(results: Results) -> str:
    """Everything on one page."""
    return "\n".join(_lines(results))


def _lines(results: Results) -> Iterator[str]:
    found, compared = rows(results), ratios(results)
    width = max(len(row.title) for row in found)
    for case in results.cases:
        yield f"\n{case.name}: {case.title}"
        yield f"  {'':<{width}}  {'M records/s':>22}  {'CPU us/record':>22}  {'RSS MiB':>7}"
        for row in (row for row in found if row.case == case.name):
            rate = _spread(Figure(row.rate.median / 1e6, row.rate.low / 1e6, row.rate.high / 1e6))
            line = f"  {row.title:<{width}}  {rate:>22}  {_spread(row.cpu_us):>22}  {row.peak_rss >> 20:>7}"
            yield line + (f"  NOT VALID: {row.lost:,} records lost or doubled" if row.lost else "")
        for ratio in (ratio for ratio in compared if ratio.case == case.name):
            rate, cpu = _spread(ratio.rate), _spread(ratio.cpu)
            yield f"  {ratio.ours} / {ratio.other}: {rate} x the records/s, {cpu} x the CPU per record"
    for name, why in results.skipped.items():
        yield f"\nleft out: {name}: {why}"
    yield "\n" + ", ".join(f"{name} {value}" for name, value in results.machine.items())
    shares = [100 * run.others_share for run in results.runs if run.others_share is not None]
    if shares:
        others = Figure.of(shares)
        yield f"Other programs used {others.median:.0f} % of the machine ({others.low:.0f}-{others.high:.0f} % by run)."
    yield _NOTES


def _spread(figure: Figure) -> str:
    return f"{figure.median:.2f} ({figure.low:.2f}-{figure.high:.2f})"


def as_json(results: Results) -> str:
    """All figures, and the runs they come from."""
    return json.dumps(
        {
            "machine": dict(results.machine),
            "cases": [
                {**dataclasses.asdict(case), "settings": dict(case.settings)} for case in results.cases
            ],
            "rows": [dataclasses.asdict(row) for row in rows(results)],
            "ratios": [dataclasses.asdict(ratio) for ratio in ratios(results)],
            "runs": [dataclasses.asdict(run) for run in results.runs],
            "left_out": dict(results.skipped),
        },
        indent=2,
    )
