# SPDX-License-Identifier: Apache-2.0
"""Says what was measured: a table for people, JSON for programs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator

from bench.bars import BARS
from bench.figures import LATENCY, Figure, Row, judge, ratios, rows
from bench.model import Case, Results
from bench.words import counted

_NOTES = """\
Ratios are medians of the rounds, with the smallest and the largest round in brackets; rates by themselves are for
orientation only. CPU is user + system time of the client's process up to the last acknowledgement, start-up included
(for Java: the whole process, and as many records again as warm-up), divided by records. RSS is the most memory the
process had. With Spark, CPU is that of the whole application during the job (driver, JVM, Python workers), and RSS
that of the largest Python worker. While somebody looks, and in the groups usage and scale, CPU is that of sending
alone, without start-up. Java tells latencies in whole milliseconds, rounded down: 0 is compared with nothing. Every run
was counted at the broker."""


_WAITING = ("p50", "p99")  # of tasks that wait, beside their rate


def table(results: Results) -> str:
    """Everything on one page."""
    return "\n".join(_lines(results))


def _lines(results: Results) -> Iterator[str]:
    found = rows(results)
    for case in results.cases:
        yield from _case(results, case, [row for row in found if row.case == case.name])
    yield from _verdicts(results)
    yield ""
    yield from results.notes
    known = {case.name for case in results.cases}
    for (name, _), why in results.failures.items():
        if name not in known:
            yield f"failed: {name}: {why}"
    for name, why in results.skipped.items():
        yield f"left out: {name}: {why}"
    yield "\n" + ", ".join(f"{name} {value}" for name, value in results.machine.items())
    shares = [100 * run.others_share for run in results.runs if run.others_share is not None]
    if shares:
        others = Figure.of(shares)
        yield f"Other programs used {others.median:.0f} % of the machine ({others.low:.0f}-{others.high:.0f} % by run)."
    yield _NOTES


def _case(results: Results, case: Case, found: list[Row]) -> Iterator[str]:
    failures = {who: why for (name, who), why in results.failures.items() if name == case.name}
    if not found and not failures:
        return
    yield f"\n{case.name}: {case.title}"
    titles = {row.contender: row.contender if case.rate else row.title for row in found}
    width = max(map(len, [*titles.values(), *failures]))
    if case.rate:
        yield f"  {'':<{width}}" + "".join(f"  {f'{name}, ms':>20}" for name in LATENCY)
    elif case.tasks:
        heads = ("K records/s", "CPU us/record", *(f"{name}, ms" for name in _WAITING))
        yield f"  {'':<{width}}" + "".join(f"  {head:>20}" for head in heads)
    else:
        yield f"  {'':<{width}}  {'M records/s':>20}  {'CPU us/record':>20}  {'RSS MiB':>7}"
    for row in found:
        yield f"  {titles[row.contender]:<{width}}{_figures(case, row)}" + (
            f"  NOT VALID: {counted(row.lost, 'record')} lost or doubled" if row.lost else ""
        )
    for name, why in failures.items():
        yield f"  {name:<{width}}  failed: {why}"
    for ratio in (ratio for ratio in ratios(results) if ratio.case == case.name):
        rate, cpu = spread(ratio.rate), spread(ratio.cpu)
        yield f"  {ratio.ours} / {ratio.other}: {rate} x the records/s, {cpu} x the CPU per record"


def _figures(case: Case, row: Row) -> str:
    if case.tasks:
        figures = (_in(1e3, row.rate), row.cpu_us, *(row.latency_ms[name] for name in _WAITING))
        return "".join(f"  {spread(figure):>20}" for figure in figures)
    if row.latency_ms:
        return "".join(f"  {spread(row.latency_ms[name]):>20}" for name in LATENCY)
    rate = spread(_in(1e6, row.rate))
    memory = row.peak_rss >> 20 or "-"  # Spark's connector has no Python worker
    return f"  {rate:>20}  {spread(row.cpu_us):>20}  {memory:>7}"


def _in(unit: float, figure: Figure) -> Figure:
    return Figure(figure.median / unit, figure.low / unit, figure.high / unit)


def _verdicts(results: Results) -> Iterator[str]:
    verdicts = [judge(results, bar) for bar in BARS]
    ran = {case.name for case in results.cases} | {one.case for one in results.samples}
    shown = [one for one in verdicts if one.bar.ours[0] in ran]
    if not shown:
        return
    width = max(len(verdict.bar.what) for verdict in shown)
    yield f"\n{'what Penstock must reach':<{width}}  {'measured':>22}  {'bar':>9}  {'aim':>9}"
    for verdict in shown:
        bar = verdict.bar
        sign = ">=" if bar.more_is_better else "<="
        measured = spread(verdict.figure) if verdict.figure else "-"
        word = verdict.word + (", and the aim" if verdict.reaches_aim else "")
        against = f" ({verdict.other})" if verdict.other and len(bar.against) > 1 else ""
        bar_text, aim_text = (f"{sign}{value:g} {bar.unit}" for value in (bar.bar, bar.aim))
        yield f"{bar.what:<{width}}  {measured:>22}  {bar_text:>9}  {aim_text:>9}  {word}{against}"
    words = [verdict.word for verdict in verdicts]
    passed, short, unknown = (words.count(word) for word in ("passes", "falls short", "not measured"))
    yield f"of {len(words)} bars {passed} are reached, {short} are not, {unknown} were not measured"


def spread(figure: Figure) -> str:
    """A median with the smallest and the largest round."""
    return f"{figure.median:.2f} ({figure.low:.2f}-{figure.high:.2f})"


def as_json(results: Results) -> str:
    """All figures, and the runs they come from."""
    return json.dumps(
        {
            "machine": dict(results.machine),
            "bars": [
                {**dataclasses.asdict(verdict), "reaches_aim": verdict.reaches_aim}
                for verdict in (judge(results, bar) for bar in BARS)
            ],
            "cases": [
                {**dataclasses.asdict(case), "settings": dict(case.settings)} for case in results.cases
            ],
            "rows": [dataclasses.asdict(row) for row in rows(results)],
            "ratios": [dataclasses.asdict(ratio) for ratio in ratios(results)],
            "runs": [dataclasses.asdict(run) for run in results.runs],
            "samples": [dataclasses.asdict(sample) for sample in results.samples],
            "failures": [
                {"case": case, "contender": contender, "why": why}
                for (case, contender), why in results.failures.items()
            ],
            "left_out": dict(results.skipped),
            "notes": list(results.notes),
        },
        indent=2,
    )
