# SPDX-License-Identifier: Apache-2.0
"""A running pipeline to look at: a table where there is a terminal and rich, else a line now and then."""

from __future__ import annotations

from typing import Any, Protocol, TextIO

from penstock._counted import counted
from penstock.spark.pipeline.producers import advice, producer_rows, short_text
from penstock.spark.pipeline.stats import (
    RunStats,
    bytes_text,
    count_text,
    destination,
    failed_text,
    sorted_partitions,
)

_LINE_EVERY = 2.0  # seconds between two plain lines
_LINE_AT_LEAST = 30.0  # and at most so many, also while no batch ends
_MOST_PARTITIONS = 12  # rows of the table; more would not fit on a screen


class View(Protocol):
    """Shows a run while it goes on."""

    def start(self, stats: RunStats) -> None:
        """Show that the run begins."""
        ...

    def update(self, stats: RunStats, now: float, words: str) -> None:
        """Show what is known now; `words` say what Spark is doing."""
        ...

    def finish(self, stats: RunStats) -> None:
        """Take the display away, so that what is printed next stands alone."""
        ...


def open_view(stream: TextIO, *, wanted: bool = True) -> View:
    """The best view for the stream."""
    if not wanted:
        return NoView()
    if stream.isatty():
        try:
            return RichView(stream)
        except ImportError:
            pass  # rich is an extra: lines do as well
    return LineView(stream)


class NoView:
    """A View that shows nothing."""

    def start(self, stats: RunStats) -> None:
        """Show nothing."""

    def update(self, stats: RunStats, now: float, words: str) -> None:
        """Show nothing."""

    def finish(self, stats: RunStats) -> None:
        """Show nothing."""


class LineView:
    """One line for what happened since the last one, and one for what producers have done so far."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._next = 0.0  # no line before this time
        self._shown = 0  # batches that lines have told of
        self._last = 0.0  # when the last line was written

    def start(self, stats: RunStats) -> None:
        """Write a line that says what begins."""
        self._last = stats.started
        pipeline = stats.pipeline
        kind = "streaming" if pipeline.source.streaming else "batch"
        self._write(
            f"{pipeline.title}: started ({kind}, {pipeline.sink.delivery}) -> {destination(pipeline)}"
        )

    def update(self, stats: RunStats, now: float, words: str) -> None:
        """A line, if something has changed and the last one is old enough; if nothing does, what is going on."""
        if len(stats.batches) > self._shown and now >= self._next:
            self._next = now + _LINE_EVERY
            self._tell(stats, now)
        elif now - self._last >= _LINE_AT_LEAST:
            self._last = now
            self._write(f"{stats.seconds(now):7.1f} s, {words or 'running'}")

    def finish(self, stats: RunStats) -> None:
        """Write the line that is still due."""
        if len(stats.batches) > self._shown:
            self._tell(stats, stats.finished or stats.started)

    def _tell(self, stats: RunStats, now: float) -> None:
        self._shown = len(stats.batches)
        self._last = now
        parts = [
            f"{stats.seconds(now):7.1f} s",
            f"batch {stats.batches[-1].number}",
            f"{count_text(stats.rows_in)} {'row' if stats.rows_in == 1 else 'rows'} in",
            f"{count_text(stats.rows_out)} out",
        ]
        if stats.dead_letters or stats.dropped:
            parts.append(f"{counted(stats.dead_letters, 'dead letter')}, {count_text(stats.dropped)} dropped")
        if stats.bytes is not None:
            parts.append(bytes_text(stats.bytes))
        parts.append(f"{stats.rate(now):,.0f} rows/s")
        self._write(", ".join(parts))
        if stats.producers is not None:
            self._write(f"{'':11}producers: {short_text(stats.producers)}")

    def _write(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()


class RichView:
    """A table that is drawn again in place.

    Raises:
        ImportError: rich is not installed.
    """

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        self._live = Live(console=Console(file=stream), transient=True, refresh_per_second=4)

    def start(self, stats: RunStats) -> None:
        """Draw the table for the first time."""
        self._live.update(draw(stats, stats.started, "starting"))
        self._live.start()

    def update(self, stats: RunStats, now: float, words: str) -> None:
        """Draw the table again."""
        self._live.update(draw(stats, now, words))

    def finish(self, stats: RunStats) -> None:
        """Remove the table."""
        del stats
        self._live.stop()


def draw(stats: RunStats, now: float, words: str) -> Any:
    """The whole view as something rich can show."""
    from rich.console import Group
    from rich.panel import Panel
    from rich.table import Table

    figures = Table.grid(padding=(0, 2))
    for _ in range(4):
        figures.add_column()
    figures.add_row("rows in", count_text(stats.rows_in), "bytes", bytes_text(stats.bytes))
    figures.add_row("rows out", count_text(stats.rows_out), "rate", f"{stats.rate(now):,.0f} rows/s")
    figures.add_row(
        *("dead letters", count_text(stats.dead_letters + stats.bad_rows)),
        *("dropped", count_text(stats.dropped)),
    )
    parts: list[Any] = [figures]
    if stats.pipeline.expectations:
        parts.append(_expectations(stats))
    if stats.partitions:
        parts.append(_partitions(stats))
    if stats.producers is not None:
        parts.append(_producers(stats))
    number = f"batch {stats.batches[-1].number}, " if stats.batches else ""
    return Panel(
        Group(*parts),
        title=f"{stats.pipeline.title} -> {destination(stats.pipeline)}",
        subtitle=f"{number}{stats.seconds(now):.0f} s  {words}"[:70],
        expand=False,
    )


def _expectations(stats: RunStats) -> Any:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, padding=(0, 2), pad_edge=False)
    for title, justify in (("expectation", "left"), ("failed", "right"), ("then", "left")):
        table.add_column(title, justify="right" if justify == "right" else "left")
    for expectation, count in stats.failed:
        style = "green" if count == 0 else "yellow"
        then = failed_text(stats, expectation)
        table.add_row(escape(stats.pipeline.hide(expectation.name)), count_text(count), then, style=style)
    return table


def _partitions(stats: RunStats) -> Any:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2), pad_edge=False)
    table.add_column("partition")
    table.add_column("rows", justify="right")
    table.add_column("last offset", justify="right")
    partitions = sorted_partitions(stats)
    for topic, number, facts in partitions[:_MOST_PARTITIONS]:
        table.add_row(f"{topic}-{number}", count_text(facts.rows), count_text(facts.last_offset))
    if len(partitions) > _MOST_PARTITIONS:
        table.add_row(f"and {len(partitions) - _MOST_PARTITIONS} more", "", "")
    return table


def _producers(stats: RunStats) -> Any:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2), pad_edge=False)
    table.add_column("producers")
    table.add_column("", justify="right")
    table.add_column("")
    for row in producer_rows(stats):
        table.add_row(row.label, row.value, Text(row.note))
    said = advice(stats)
    return table if said is None else Group(table, Text(said, style="yellow"))
