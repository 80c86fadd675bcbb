# SPDX-License-Identifier: Apache-2.0
"""A running pipeline can be looked at: a table on a terminal with rich, else lines."""

from __future__ import annotations

import builtins
import io
from typing import Any

import pytest

from penstock._json_fields import Fields
from penstock.spark.pipeline.check import load_pipeline
from penstock.spark.pipeline.stats import BatchCounts, RunStats
from penstock.spark.pipeline.view import LineView, NoView, RichView, draw, open_view

DEFINITION: dict[str, Any] = {
    "pipeline": {"name": "orders"},
    "source": {"format": "rate", "streaming": True},
    "expectations": [{"name": "positive [x]", "condition": "amount > 0", "action": "dead-letter"}],
    "sink": {
        "topic": "orders",
        "dead_letter_topic": "dead",
        "checkpoint": "c",
        "options": {"kafka.bootstrap.servers": "h:1"},
    },
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def stats() -> RunStats:
    return RunStats(pipeline=load_pipeline(DEFINITION), started=100.0)


def add(stats: RunStats, number: int, rows: int, **metrics: int) -> None:
    stats.add_batch(number, 1.0, 0.5, BatchCounts(rows, {"rows": rows, **metrics}))


def test_lines_tell_what_is_new(stats: RunStats) -> None:
    stream = io.StringIO()
    view = LineView(stream)
    view.start(stats)
    view.update(stats, 100.1, "x")
    add(stats, 0, 1000, dead=10, failed_0=10)
    view.update(stats, 101.0, "x")
    view.update(stats, 101.2, "x")
    add(stats, 1, 500)
    view.update(stats, 101.5, "x")
    stats.add_sink_line(Fields({"batchId": 0, "bytes": 12345}))
    view.update(stats, 103.0, "x")
    stats.finished = 104.0
    view.finish(stats)
    assert stream.getvalue().splitlines() == [
        "orders: started (streaming, exactly-once) -> orders",
        "    1.0 s, batch 0, 1,000 rows in, 990 out, 10 dead letters, 0 dropped, 990 rows/s",
        "    3.0 s, batch 1, 1,500 rows in, 1,490 out, 10 dead letters, 0 dropped, 12.3 kB, 497 rows/s",
    ]


def test_a_batch_that_takes_long_says_what_it_does(stats: RunStats) -> None:
    stream = io.StringIO()
    view = LineView(stream)
    view.start(stats)
    for seconds in range(0, 75, 5):
        view.update(stats, 100.0 + seconds, "3 of 8 tasks")
    add(stats, 0, 1)
    for seconds in range(75, 125, 5):
        view.update(stats, 100.0 + seconds, "")
    assert [line.split(",")[:2] for line in stream.getvalue().splitlines()[1:]] == [
        ["   30.0 s", " 3 of 8 tasks"],
        ["   60.0 s", " 3 of 8 tasks"],
        ["   75.0 s", " batch 0"],
        ["  105.0 s", " running"],
    ]


def test_one_row_is_told_as_one(stats: RunStats) -> None:
    stream = io.StringIO()
    view = LineView(stream)
    add(stats, 0, 1, dead=1)
    view.update(stats, 101.0, "x")
    assert "batch 0, 1 row in, 0 out, 1 dead letter, 0 dropped" in stream.getvalue()


def test_the_last_batch_is_told_at_the_end(stats: RunStats) -> None:
    stream = io.StringIO()
    view = LineView(stream)
    add(stats, 0, 10)
    view.update(stats, 101.0, "x")
    add(stats, 1, 10)
    view.update(stats, 101.1, "x")
    stats.finished = 102.0
    view.finish(stats)
    assert [line.split(",")[1] for line in stream.getvalue().splitlines()] == [" batch 0", " batch 1"]


def test_the_table_has_all_figures(stats: RunStats) -> None:
    from rich.console import Console

    add(stats, 4, 12_000, dead=30, dropped=7, failed_0=30)
    partitions = {str(number): {"rows": 5, "endOffset": 1000 + number} for number in range(14)}
    stats.add_sink_line(Fields({"batchId": 0, "bytes": 2_500_000, "partitions": {"orders": partitions}}))
    console = Console(file=io.StringIO(), width=100, record=True)
    console.print(draw(stats, 102.0, "Processing new data"))
    text = console.export_text()
    for figure in ("12,000", "11,963", "30", "2.5 MB", "5,982 rows/s", "positive [x]", "orders-0", "1,000"):
        assert figure in text
    for words in ("orders -> orders", "batch 4, 2 s", "Processing new data", "and 2 more"):
        assert words in text


def test_the_table_says_which_expectation_stopped_the_run(stats: RunStats) -> None:
    from rich.console import Console

    stats.outcome, stats.stopped_by = "failed", "positive [x]"
    console = Console(file=io.StringIO(), width=100, record=True)
    console.print(draw(stats, 102.0, ""))
    (line,) = (line for line in console.export_text().splitlines() if "positive [x]" in line)
    assert line.split()[3:] == ["-", "the", "run", "was", "stopped", line.split()[-1]]


def test_a_terminal_gets_the_table(stats: RunStats) -> None:
    stream = Terminal()
    view = open_view(stream)
    assert isinstance(view, RichView)
    view.start(stats)
    view.update(stats, 101.0, "working")
    view.finish(stats)
    assert "orders" in stream.getvalue()


def test_a_terminal_without_rich_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_rich(name: str, *args: Any) -> Any:
        if name.startswith("rich"):
            raise ImportError(name)
        return real_import(name, *args)

    real_import = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", without_rich)
    assert isinstance(open_view(Terminal()), LineView)


def test_a_file_gets_lines_and_quiet_gets_nothing(stats: RunStats) -> None:
    assert isinstance(open_view(io.StringIO()), LineView)
    view = open_view(Terminal(), wanted=False)
    assert isinstance(view, NoView)
    view.start(stats)
    view.update(stats, 101.0, "x")
    view.finish(stats)
