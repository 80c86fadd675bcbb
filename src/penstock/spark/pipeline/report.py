# SPDX-License-Identifier: Apache-2.0
"""The page that `--report` writes: one HTML file about a run, with its charts, that needs nothing else to be read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape

from penstock.spark.pipeline.charts import Share, flow_chart, rate_chart
from penstock.spark.pipeline.dry_run import describe_pipeline
from penstock.spark.pipeline.model import Action, Expectation
from penstock.spark.pipeline.stats import RunStats, bytes_text, count_text, destination, sorted_partitions

_MOST_BATCHES = 40  # rows of the table of batches

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
.none { color: var(--soft); margin: 0; } .hit { color: var(--dead); font-weight: 600; }
footer { color: var(--soft); font-size: .85rem; margin-top: 24px; }
"""


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
    latest = stats.batches[-_MOST_BATCHES:]
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


def _footnote(stats: RunStats) -> str:
    words = "Counts are of rows as Spark saw them"
    if stats.skipped_rows:
        words += f"; {stats.skipped_rows:,} of them were in the topic already and were not written again"
    return words + "."
