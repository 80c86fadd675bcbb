# SPDX-License-Identifier: Apache-2.0
"""The page that `--report` writes: one HTML file about a run, that needs nothing else to be read.

Its charts are inline SVG: no script, no font and no picture from elsewhere. Colours are the page's CSS variables, so
that a chart follows light and dark by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape

from penstock._counted import counted
from penstock.spark.pipeline.dry_run import describe_pipeline
from penstock.spark.pipeline.model import Action, Expectation
from penstock.spark.pipeline.producers import (
    advice,
    compression_text,
    producer_note,
    producer_rows,
    time_text,
)
from penstock.spark.pipeline.stats import (
    MOST_BATCHES,
    BatchFacts,
    RunStats,
    bytes_text,
    count_text,
    destination,
    sorted_partitions,
)
from penstock.spark.producer_numbers import ms_text, percent

_STYLE = """
:root { color-scheme: light dark; --page: #f6f7f9; --card: #ffffff; --ink: #1b2430; --soft: #657184; --rule: #e2e6ec;
  --good: #1f7a8c; --dead: #d9822b; --gone: #a3adba; --bad: #c0392b; --node: #44546a; }
@media (prefers-color-scheme: dark) { :root { --page: #12161c; --card: #1a2029; --ink: #e6eaf0; --soft: #93a0b2;
  --rule: #2b3440; --good: #4fb3c6; --dead: #e6a15c; --gone: #5f6c7c; --bad: #ef7b6d; --node: #8fa1b8; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); line-height: 1.5;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 880px; margin: 0 auto; padding: 40px 20px 60px; }
header { display: flex; align-items: baseline; gap: 14px; flex-wrap: wrap; }
h1 { font-size: 1.9rem; margin: 0; letter-spacing: -0.02em; }
h2 { font-size: 1rem; margin: 0 0 14px; }
.sub { color: var(--soft); margin: 4px 0 26px; }
.badge { border-radius: 99px; padding: 2px 12px; font-size: .85rem; font-weight: 600; color: var(--card); }
.badge.done { background: var(--good); } .badge.stopped { background: var(--dead); }
.badge.failed { background: var(--bad); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 14px; margin-bottom: 14px; }
.tile, section { background: var(--card); border: 1px solid var(--rule); border-radius: 12px; padding: 16px 20px; }
.tile b { display: block; font-size: 1.45rem; font-variant-numeric: tabular-nums; letter-spacing: -0.01em; }
.tile span { color: var(--soft); font-size: .85rem; }
section { margin-top: 14px; overflow-x: auto; }
section.error { border-color: var(--bad); }
svg { width: 100%; height: auto; display: block; }
svg text { font-family: inherit; }
.tick { fill: var(--soft); font-size: 12px; } .count { fill: var(--ink); font-size: 15px; font-weight: 600; }
.start { text-anchor: start; } .mid { text-anchor: middle; } .end { text-anchor: end; }
.grid { stroke: var(--rule); } .line { fill: none; stroke: var(--good); stroke-width: 2; }
.area { fill: url(#fade); } .fade-top { stop-color: var(--good); stop-opacity: .35; }
.fade-end { stop-color: var(--good); stop-opacity: .02; }
.node { fill: var(--node); } .band { opacity: .32; } .band:hover { opacity: .55; }
.good { fill: var(--good); } .dead { fill: var(--dead); } .gone { fill: var(--bad); } .dim { fill: var(--gone); }
table { width: 100%; border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .92rem; }
th { text-align: left; color: var(--soft); font-weight: 500; }
th, td { padding: 6px 14px 6px 0; border-bottom: 1px solid var(--rule); white-space: nowrap; }
tr:last-child td { border-bottom: 0; } .number { text-align: right; } td.wide { white-space: normal; }
pre { margin: 0; font-size: .85rem; white-space: pre-wrap; overflow-wrap: anywhere; }
.advice { margin: 0 0 14px; padding-left: 12px; border-left: 3px solid var(--dead); }
.none { color: var(--soft); margin: 0; } .hit { color: var(--dead); font-weight: 600; }
footer { color: var(--soft); font-size: .85rem; margin-top: 24px; }
"""

_WIDTH, _HEIGHT = 760, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 14, 30  # room for the labels
_BINS = 60

_FADE = (
    '<defs><linearGradient id="fade" x1="0" y1="0" x2="0" y2="1"><stop offset="0" class="fade-top"/>'
    '<stop offset="1" class="fade-end"/></linearGradient></defs>'
)


def render_report(stats: RunStats, when: datetime | None = None) -> str:
    """The whole page; `when` is the time it was written, now by default."""
    pipeline = stats.pipeline
    seconds = stats.seconds(stats.finished if stats.finished is not None else stats.started)
    kind = "Streaming" if pipeline.source.streaming else "Batch"
    written = (when or datetime.now(UTC)).strftime("%Y-%m-%d %H:%M UTC")
    name = escape(pipeline.title)
    parts = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{name}: {escape(stats.outcome)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>",
        f'<header><h1>{name}</h1><span class="badge {escape(stats.outcome)}">{escape(stats.outcome)}</span></header>',
        f'<p class="sub">{kind}, {escape(pipeline.sink.delivery)}, to {escape(destination(pipeline))}. {written}</p>',
        _tiles(stats, seconds),
    ]
    if stats.error is not None:
        parts.append(_section("What went wrong", f"<pre>{escape(pipeline.hide(stats.error))}</pre>", "error"))
    parts.append(_section("Rows per second", rate_chart(stats.batches, seconds)))
    parts.append(_section("Where rows went", flow_chart(stats.rows_in, shares(stats))))
    if pipeline.expectations:
        parts.append(_section("Expectations", _expectations(stats)))
    if stats.partitions:
        parts.append(_section("Partitions", _partitions(stats)))
    if len(stats.batches) > 1:
        parts.append(_section("Batches", _batches(stats)))
    if stats.producers is not None:
        parts.append(_section("Producers", _producers(stats)))
    if len(stats.producers_by_batch) > 1:
        parts.append(_section("Producers of each batch", _producers_by_batch(stats)))
    parts.append(_section("Definition", f"<pre>{escape(chr(10).join(describe_pipeline(pipeline)))}</pre>"))
    parts.append(f"<footer>{_footnote(stats)}</footer>\n</main>\n</body>\n</html>\n")
    return "\n".join(parts)


def shares(stats: RunStats) -> list[Share]:
    """Where rows went, in the order of the chart."""
    pipeline = stats.pipeline
    after_steps = sum(batch.rows for batch in stats.batches)
    filtered = max(0, (stats.rows_in or 0) - after_steps)
    return [
        Share(destination(pipeline), stats.rows_out, "good"),
        Share(pipeline.hide(f"dead letters: {pipeline.sink.dead_letter_topic}"), stats.dead_letters, "dead"),
        Share("in the topics already", stats.skipped_rows, "dim"),
        Share("dropped by expectations", stats.dropped, "gone"),
        Share("left out or joined by steps", filtered, "dim"),
    ]


def _section(title: str, body: str, style: str = "") -> str:
    return f'<section class="{style}"><h2>{escape(title)}</h2>\n{body}\n</section>'


def _tiles(stats: RunStats, seconds: float) -> str:
    rate = stats.rate(stats.finished if stats.finished is not None else stats.started)
    figures = [
        (count_text(stats.rows_in), "rows in"),
        (count_text(stats.rows_out), "rows out"),
        (count_text(stats.dead_letters + stats.bad_rows), "dead letters"),
        (f"{rate:,.0f}", "rows per second"),
        (f"{seconds:,.1f} s", "run time"),
    ]
    if stats.bytes is not None:
        figures.insert(2, (bytes_text(stats.bytes), "written"))
    tiles = (
        f'<div class="tile"><b>{escape(figure)}</b><span>{words}</span></div>' for figure, words in figures
    )
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int]) -> str:
    """A table; `numbers` are the columns that are aligned to the right. Cells are HTML already."""

    def line(tag: str, cells: Sequence[str]) -> str:
        marks = (' class="number"' if position in numbers else "" for position in range(len(cells)))
        return (
            "<tr>"
            + "".join(f"<{tag}{mark}>{cell}</{tag}>" for mark, cell in zip(marks, cells, strict=True))
            + "</tr>"
        )

    return "<table>" + line("th", titles) + "".join(line("td", row) for row in rows) + "</table>"


def _expectations(stats: RunStats) -> str:
    consequence = {Action.FAIL: "the run fails", Action.DROP: "dropped", Action.DEAD_LETTER: "dead letter"}
    rows = [
        (
            escape(stats.pipeline.hide(expectation.name)),
            f"<code>{escape(stats.pipeline.hide(expectation.condition))}</code>",
            "0" if count == 0 else f'<span class="hit">{_failed_count(stats, expectation, count)}</span>',
            consequence[expectation.action],
        )
        for expectation, count in stats.failed
    ]
    return _table(("expectation", "condition", "rows that failed it", "then"), rows, (2,))


def _failed_count(stats: RunStats, expectation: Expectation, count: int | None) -> str:
    return "at least 1" if expectation.name == stats.stopped_by else count_text(count)


def _partitions(stats: RunStats) -> str:
    rows = [
        (f"{escape(topic)}-{number}", count_text(facts.rows), count_text(facts.last_offset))
        for topic, number, facts in sorted_partitions(stats)
    ]
    return _table(("partition", "rows", "last offset"), rows, (1, 2))


def _batches(stats: RunStats) -> str:
    latest = stats.batches[-MOST_BATCHES:]
    rows = [
        (
            str(batch.number),
            f"{batch.at:.1f} s",
            f"{batch.seconds:.2f} s",
            count_text(batch.rows_in),
            count_text(batch.rows_out),
            count_text(batch.dead_letters),
            count_text(batch.dropped),
        )
        for batch in latest
    ]
    titles = ("batch", "done after", "took", "rows in", "rows out", "dead letters", "dropped")
    note = ""
    if len(latest) < len(stats.batches):
        note = f'<p class="none">The latest {len(latest)} of {len(stats.batches):,}.</p>'
    return _table(titles, rows, range(1, 7)) + note


def _producers(stats: RunStats) -> str:
    said = advice(stats)
    top = "" if said is None else f'<p class="advice">{escape(said)}</p>'
    rows = [(row.label, escape(row.value), escape(row.note)) for row in producer_rows(stats)]
    return f'{top}{_table(("of all tasks", "", ""), rows, (1,))}<p class="none">{escape(producer_note(stats))}</p>'


def _producers_by_batch(stats: RunStats) -> str:
    rows = []
    for number, numbers in stats.producers_by_batch.items():
        slow = numbers.slowest
        known = numbers.tasks > 0
        cells = [
            count_text(numbers.tasks) if known else "-",
            count_text(numbers.records) if known else "-",
            bytes_text(numbers.bytes) if known else "-",
            count_text(numbers.batches) if known else "-",
            "-" if numbers.fill is None else percent(numbers.fill),
            numbers.reasons() or "-",
            compression_text(numbers),
            count_text(numbers.retries) if known else "-",
            time_text(numbers.memory_ms if known else None),
            time_text(numbers.ack_ms if known else None),
            time_text(numbers.latency_ms(0.99)),
            f"{ms_text(slow.ms)}, {percent(slow.ms / slow.all_ms)}" if slow.all_ms else "-",
        ]
        rows.append((str(number), *map(escape, cells)))
    titles = (
        *("batch", "tasks", "records", "bytes", "batches", "full", "left by", "compressed to", "sent again"),
        *("memory wait", "ack wait", "99 % of requests within", "slowest task, of the time of all"),
    )
    return _table(titles, rows, (1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12))


def _footnote(stats: RunStats) -> str:
    words = "Counts are of rows as Spark saw them"
    if stats.skipped_rows:
        words += f"; {stats.skipped_rows:,} of them were in the topic already and were not written again"
    return words + "."


# ---- chart: rate over time


def rates(batches: Sequence[BatchFacts], seconds: float, bins: int = _BINS) -> list[float]:
    """Rows out per second in equal slices of the run; a batch's rows are spread over the time it took."""
    if seconds <= 0:
        return []
    width = seconds / bins
    rows = [0.0] * bins
    for batch in batches:
        end = min(batch.at, seconds)
        begin = max(0.0, min(end - batch.seconds, end - width / 1000))
        density = batch.rows_out / (end - begin) if end > begin else 0.0
        for position in range(int(begin / width), min(bins, int(end / width) + 1)):
            covered = min(end, (position + 1) * width) - max(begin, position * width)
            rows[position] += density * max(0.0, covered)
    return [count / width for count in rows]


def rate_chart(batches: Sequence[BatchFacts], seconds: float) -> str:
    """Rows out per second over the run."""
    values = rates(batches, seconds)
    if not any(values):
        return '<p class="none">No rows were written, so there is no rate to show.</p>'
    top = nice_ceiling(max(values))
    wide, high = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    step = wide / len(values)

    def y(value: float) -> float:
        return _TOP + high * (1 - value / top)

    points: list[str] = []
    for position, value in enumerate(values):
        left = _LEFT + position * step
        points += [f"{left:.1f},{y(value):.1f}", f"{left + step:.1f},{y(value):.1f}"]
    line = "M" + " L".join(points)
    floor = _TOP + high
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="Rows per second over time">',
        _FADE,
    ]
    for quarter in range(5):
        value = top * quarter / 4
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>'
        )
        parts.append(f'<text class="tick end" x="{_LEFT - 8}" y="{y(value) + 4:.1f}">{short(value)}</text>')
    for quarter in range(5):
        x = _LEFT + wide * quarter / 4
        anchor = ("start", "mid", "mid", "mid", "end")[quarter]
        parts.append(
            f'<text class="tick {anchor}" x="{x:.1f}" y="{_HEIGHT - 8}">{seconds * quarter / 4:.3g} s</text>'
        )
    parts.append(f'<path class="area" d="{line} L{_LEFT + wide},{floor} L{_LEFT},{floor} Z"/>')
    parts.append(f'<path class="line" d="{line}"/>')
    parts.append("</svg>")
    return "\n".join(parts)


def nice_ceiling(value: float) -> float:
    """The next of 1, 2, 4, 8 times a power of ten, for the top of an axis with four parts."""
    power = 1.0
    while power * 10 <= value:
        power *= 10
    while power > value:
        power /= 10
    return next(power * factor for factor in (1, 2, 4, 8, 10, 20) if power * factor >= value * 0.999999)


def short(value: float) -> str:
    """A number for an axis: 1.5k, 2M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


# ---- chart: where rows went


@dataclass(frozen=True)
class Share:
    """One place where rows went."""

    label: str
    rows: int
    style: str  # a class of the page: good, dead, gone, dim


def flow_chart(came: int | None, shares: Sequence[Share]) -> str:
    """Bands from one bar on the left, as thick as the rows that took each way."""
    shares = [share for share in shares if share.rows > 0]
    total = sum(share.rows for share in shares)
    if not total:
        why = "No rows were counted" if came is None else "No rows came, so none went anywhere"
        return f'<p class="none">{why}.</p>'
    gap, bar, left, right = 26, 14, 150, 470
    full = 170.0
    height = full + gap * (len(shares) - 1) + 44
    start = (height - full) / 2
    parts = [f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" role="img" aria-label="Where rows went">']
    parts.append(f'<rect class="node" x="{left}" y="{start:.1f}" width="{bar}" height="{full}" rx="3"/>')
    shown = total if came is None else came
    parts.append(
        _two_lines(
            left - 12, start + full / 2, f"{shown:,}", "rows in" if came is not None else "rows", "end"
        )
    )
    from_y, to_y = start, 22.0
    for share in shares:
        thick = full * share.rows / total
        drawn = max(thick, 1.5)
        middle = (left + bar + right) / 2
        a, b = left + bar, right
        path = (
            f"M{a},{from_y:.1f} C{middle},{from_y:.1f} {middle},{to_y:.1f} {b},{to_y:.1f} "
            f"L{b},{to_y + drawn:.1f} C{middle},{to_y + drawn:.1f} {middle},{from_y + drawn:.1f} "
            f"{a},{from_y + drawn:.1f} Z"
        )
        percent = 100 * share.rows / total
        title = f"<title>{escape(share.label)}: {counted(share.rows, 'row')}, {percent:.2f} %</title>"
        parts.append(f'<path class="band {share.style}" d="{path}">{title}</path>')
        parts.append(
            f'<rect class="end {share.style}" x="{b}" y="{to_y:.1f}" width="{bar}" height="{drawn:.1f}" rx="3"/>'
        )
        words = f"{share.rows:,} ({percent:.3g} %)"
        parts.append(_two_lines(b + bar + 12, to_y + drawn / 2, words, share.label, "start"))
        from_y += thick
        to_y += thick + gap
    parts.append("</svg>")
    return "\n".join(parts)


def _two_lines(x: float, y: float, first: str, second: str, anchor: str) -> str:
    second = second if len(second) <= 34 else f"{second[:31]}..."
    return (
        f'<text class="count {anchor}" x="{x}" y="{y - 2:.1f}">{escape(first)}</text>'
        f'<text class="tick {anchor}" x="{x}" y="{y + 14:.1f}">{escape(second)}</text>'
    )
