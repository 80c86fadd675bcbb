# SPDX-License-Identifier: Apache-2.0
"""What `penstock demo` tells: a line for each event while it runs, and a report page at the end.

The page is one HTML file that needs nothing else, in light and in dark. Colours of the charts: one blue for what was
written, one red for kills; both were chosen to keep their contrast on either background. A red line always carries its
word, so that its meaning does not depend on the colour alone.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple, TextIO

from penstock.cli.demo.check import TopicFigures, exactly_once
from penstock.cli.progress import NoProgress, PlainProgress, Progress


class Event(NamedTuple):
    """Something that happened: seconds since the demo began, and the words for it."""

    at: float
    text: str


@dataclass(frozen=True)
class BatchTime:
    """A micro-batch that is done; times are seconds since the demo began."""

    batch: int
    events: int
    begun: float
    done: float

    @property
    def seconds(self) -> float:
        """How long it took, a restart included."""
        return max(self.done - self.begun, 0.001)

    @property
    def rate(self) -> float:
        """Events per second of this micro-batch."""
        return self.events / self.seconds


class RunLog:
    """Tells what happens, and keeps it for the report page.

    Args:
        stream: where to; standard error unless told.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._waiting: Progress = PlainProgress(None, self._stream) if self._stream.isatty() else NoProgress()
        self._started = time.time()  # the files of Spark's checkpoint have times of this clock
        self.events: list[Event] = []

    @property
    def seconds(self) -> float:
        """Seconds since the demo began."""
        return time.time() - self._started

    def since_start(self, at: float) -> float:
        """A time of the system's clock as seconds since the demo began."""
        return at - self._started

    def say(self, text: str, at: float | None = None) -> None:
        """Tell what happened, now unless told otherwise (in seconds since the demo began)."""
        event = Event(self.seconds if at is None else at, text)
        self.events.append(event)
        self._waiting.finish()
        print(f"{event.at:6.1f} s  {text}", file=self._stream, flush=True)

    def show(self, lines: Sequence[str]) -> None:
        """Show lines that another process has written."""
        self._waiting.finish()
        for line in lines:
            print(f"    | {line}", file=self._stream, flush=True)

    def wait_for(self, text: str) -> None:
        """Show what is waited for, until something is said."""
        self._waiting.update(0, f"{self.seconds:6.1f} s  {text}")

    def close(self) -> None:
        """Leave nothing on the terminal that is no longer true."""
        self._waiting.finish()


_WIDTH, _HEIGHT = 860, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 34, 34

_STYLE = """
:root { color-scheme: light dark; --ground: #fbfbfa; --text: #1c2430; --soft: #66707d; --line: #d9dde3;
  --bar: #3f76c9; --kill: #c8402f; --good: #1f7a4d; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ground: #14181f; --text: #e8ebf0; --soft: #9aa4b2; --line: #313a47;
  --bar: #6ea0ee; --kill: #ff7a66; --good: #5cc792; --bad: #ff8a80; } }
body { margin: 0 auto; padding: 2.5rem 1.25rem 4rem; max-width: 54rem; background: var(--ground); color: var(--text);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 2.1rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2.5rem 0 .5rem; }
h1 .yes { color: var(--good); } h1 .no { color: var(--bad); }
p { margin: .4rem 0; } .soft { color: var(--soft); }
.facts { display: flex; flex-wrap: wrap; gap: .75rem 2.5rem; margin: 1.5rem 0 0; padding: 0; list-style: none; }
.facts b { display: block; font-size: 1.5rem; font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .3rem .6rem; border-bottom: 1px solid var(--line); }
th { font-weight: 500; color: var(--soft); } th:first-child, td:first-child { text-align: left; }
.events td:last-child { text-align: left; width: 100%; } .wrong { color: var(--bad); font-weight: 600; }
svg { width: 100%; height: auto; display: block; } svg text { fill: var(--soft); font-size: 12px; }
.grid { stroke: var(--line); } .bar { fill: var(--bar); } .kill { stroke: var(--kill); stroke-width: 2; }
svg text.killed { fill: var(--kill); }
"""


@dataclass(frozen=True)
class Outcome:
    """All that the demo has found."""

    events: int
    exactly_once_wanted: bool
    topics: Sequence[TopicFigures]
    batches: Sequence[BatchTime]
    kills: Sequence[tuple[float, str]]  # when, in seconds since the start, and what
    happened: Sequence[Event]
    seconds: float


def report_page(outcome: Outcome) -> str:
    answer = "yes" if exactly_once(outcome.topics) else "no"
    delivery = "exactly once" if outcome.exactly_once_wanted else "at least once"
    duplicates = sum(one.duplicates for one in outcome.topics)
    facts = [
        (f"{outcome.events:,}", "order events"),
        (f"{sum(one.read for one in outcome.topics):,}", "records read"),
        (f"{duplicates:,}", "duplicate" if duplicates == 1 else "duplicates"),
        (f"{sum(one.missing for one in outcome.topics):,}", "missing"),
        (f"{len(outcome.kills)}", "kill" if len(outcome.kills) == 1 else "kills"),
        (f"{outcome.seconds:.0f} s", "in all"),
    ]
    listed = "".join(f"<li><b>{number}</b> <span class=soft>{words}</span></li>" for number, words in facts)
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>exactly once: {answer}</title><style>{_STYLE}</style></head><body>
<h1>exactly once: <span class={answer}>{answer}</span></h1>
<p class=soft>A Spark pipeline wrote order events to Kafka, {delivery}. A Python worker and the driver were killed on
the way. Kafka's own console consumer, read-committed, found what follows.</p>
<ul class=facts>{listed}</ul>
<h2>Events per second</h2>
<p class=soft>A bar for each micro-batch: as wide as its time, as high as its rate.</p>
<div class=wide>{rate_chart(outcome.batches, outcome.kills)}</div>
<h2>What is in the topics</h2>
<div class=wide>{_topics_table(outcome.topics)}</div>
{_examples(outcome.topics)}
<h2>Where the records are</h2>
<p class=soft>A bar for each partition, as long as its count of records, on one scale for all topics.</p>
<div class=wide>{partition_charts(outcome.topics)}</div>
<h2>What happened</h2>
<div class=wide><table class=events>{_event_rows(outcome.happened)}</table></div>
</body></html>
"""


def rate_chart(batches: Sequence[BatchTime], kills: Sequence[tuple[float, str]]) -> str:
    """A bar for each micro-batch, from its begin to its end and as high as its rate, and a line for each kill."""
    if not batches:
        return "<p class=soft>none was finished</p>"
    first = min(batch.begun for batch in batches)
    last = max(first + 0.1, *(batch.done for batch in batches))
    highest = max(batch.rate for batch in batches)
    across = (_WIDTH - _LEFT - _RIGHT) / (last - first)
    down = (_HEIGHT - _TOP - _BOTTOM) / highest
    floor = _HEIGHT - _BOTTOM
    parts = []
    for rate in _grid(highest):
        y = floor - rate * down
        parts.append(
            f'<line class=grid x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{rate:,}</text>'
        )
    for batch in batches:
        left, width = _LEFT + (batch.begun - first) * across, max(batch.seconds * across - 2, 1)
        height = batch.rate * down
        words = f"micro-batch {batch.batch}: {batch.events:,} events in {batch.seconds:.1f} s"
        parts.append(
            f'<rect class=bar x="{left:.1f}" y="{floor - height:.1f}" width="{width:.1f}" height="{height:.1f}" rx="2">'
            f"<title>{words}</title></rect>"
            f'<text x="{left + width / 2:.1f}" y="{floor + 16}" text-anchor="middle">{batch.batch}</text>'
        )
    for place, (at, victim) in enumerate(sorted(kills)):
        x = min(max(_LEFT + (at - first) * across, _LEFT), _WIDTH - _RIGHT)
        # The first word stands left of its line and the next right of it, so that near ones do not meet.
        anchor, shift = ("end", 4) if place == 0 and x > _WIDTH / 4 else ("start", -4)
        parts.append(
            f'<line class=kill x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 14}" y2="{floor}"/>'
            f'<text class=killed x="{x + shift:.1f}" y="{_TOP - 20}" text-anchor="{anchor}">'
            f"{escape(victim)} killed</text>"
        )
    title = "events per second of each micro-batch, over time"
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{title}">{"".join(parts)}</svg>'


def _grid(highest: float) -> range:
    """Round numbers from 0 up to the highest one, three to six of them."""
    step = 1
    while highest / step >= 6:
        step = step * 5 // 2 if str(step).startswith("2") else step * 2
    return range(0, int(highest) + 1, step)


def partition_charts(topics: Sequence[TopicFigures]) -> str:
    """A chart for each topic, on one scale: bars of different topics stand below each other and are compared."""
    most = max([1, *(count for one in topics for count in one.by_partition.values())])
    return "".join(partition_chart(one, most) for one in topics)


def partition_chart(figures: TopicFigures, most: int) -> str:
    """A bar for each partition of a topic, as long as its count of records; the longest bar has `most`."""
    row = 22
    bars = []
    for place, (partition, count) in enumerate(sorted(figures.by_partition.items())):
        # Few records beside very many are a thin line, none are none.
        y, width = place * row, max((_WIDTH - 360) * count / most, min(count, 1))
        bars.append(
            f'<text x="170" y="{y + 15}" text-anchor="end">{escape(figures.topic)}, {partition}</text>'
            f'<rect class=bar x="180" y="{y + 4}" width="{width:.1f}" height="{row - 8}" rx="2"/>'
            f'<text x="{186 + width:.1f}" y="{y + 15}">{count:,}</text>'
        )
    height = max(row * len(bars), 1)
    title = f"records of {escape(figures.topic)} by partition"
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{title}">{"".join(bars)}</svg>'


def _topics_table(topics: Sequence[TopicFigures]) -> str:
    names = ("topic", "expected", "read", "missing", "duplicates", "strangers", "misplaced", "changed")
    head = "".join(f"<th>{name}</th>" for name in names)
    rows = "".join(
        f"<tr><td>{escape(one.topic)}</td><td>{one.expected:,}</td><td>{one.read:,}</td>"
        + "".join(
            f"<td{' class=wrong' if count else ''}>{count:,}</td>"
            for count in (one.missing, one.duplicates, one.strangers, one.misplaced, one.changed)
        )
        + "</tr>"
        for one in topics
    )
    return f"<table><tr>{head}</tr>{rows}</table>"


def _examples(topics: Sequence[TopicFigures]) -> str:
    return "".join(f"<p class=soft>{escape(text)}</p>" for one in topics for text in one.examples)


def _event_rows(events: Sequence[Event]) -> str:
    return "".join(
        f"<tr><td>{event.at:.1f}&nbsp;s</td><td>{escape(event.text)}</td></tr>" for event in events
    )
