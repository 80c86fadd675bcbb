# SPDX-License-Identifier: Apache-2.0
"""The numbers of all tasks' producers: in the live view, in the summary, in the report, and in a sentence of advice."""

from __future__ import annotations

import io
import logging
from html.parser import HTMLParser
from typing import Any

import pytest

from penstock._json_fields import Fields
from penstock.cli.run import summary_lines
from penstock.spark.pipeline.check import load_pipeline
from penstock.spark.pipeline.producers import advice, producer_rows
from penstock.spark.pipeline.report import render_report
from penstock.spark.pipeline.stats import MOST_BATCHES, BatchCounts, RunStats
from penstock.spark.pipeline.view import LineView, draw
from penstock.spark.producer_numbers import MILLION, Left, ProducerNumbers, Slowest, of_tasks

DEFINITION: dict[str, Any] = {
    "pipeline": {"name": "orders"},
    "source": {"format": "rate", "streaming": True},
    "sink": {
        "topic": "orders",
        "checkpoint": "c",
        "options": {"kafka.bootstrap.servers": "h:1"},
    },
}


@pytest.fixture
def stats() -> RunStats:
    return RunStats(pipeline=load_pipeline(DEFINITION), started=100.0)


def task(ms: int = 2000, **changed: Any) -> ProducerNumbers:
    """Numbers of a task that nothing is wrong with."""
    values: dict[str, Any] = {
        "tasks": 1,
        "ms": ms,
        "memory_ms": 0,
        "ack_ms": 40,
        "bytes": 1_000_000,
        "sends": 50,
        "ratio": 20 * MILLION,
        "left": {"full": Left(30, 9000, 30 * MILLION), "linger": Left(20, 1000, 10 * MILLION)},
        "latency": [0] * 8 + [40, 10],
        "linger_ms": 5,
        "batch_size": 16384,
        "codec": "zstd",
    } | changed
    numbers = ProducerNumbers(**values)
    numbers.slowest = Slowest(ms, numbers.records, ms, numbers.records, 1)
    return numbers


def tell(stats: RunStats, number: int, *tasks: ProducerNumbers, unknown: int = 0) -> None:
    stats.add_sink_line(Fields({"batchId": number, "producers": of_tasks(tasks, unknown).to_dict()}))


def shown(stats: RunStats) -> str:
    from rich.console import Console

    console = Console(file=io.StringIO(), width=120, record=True)
    console.print(draw(stats, 102.0, "working"))
    return console.export_text()


class Cells(HTMLParser):
    """The texts of table cells, by row; checks that every element is closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows: list[list[str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        if tag != "meta":
            self.open.append(tag)

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def page_rows(stats: RunStats) -> list[list[str]]:
    page = Cells()
    page.feed(render_report(stats))
    assert page.open == []
    return page.rows


def test_the_summary_has_all_numbers_in_columns(stats: RunStats) -> None:
    tell(stats, 0, task(), task(6000, retries=12, cause="the broker\n is gone", memory_ms=80))
    tell(stats, 1, task())
    lines = list(summary_lines(stats))
    at = lines.index("producers of all tasks that ended well:")
    assert lines[at + 1 :] == [
        "  tasks                       3  the slowest took 6.0 s, 75 % of the time of the 2 tasks of its batch",
        "  records sent           30,000  dead letters included",
        "  bytes sent             3.0 MB  in batches, as they were sent",
        "  batches                   150  80 % full; left by full 60 %, linger 40 %",
        "  compression              40 %  of the size before, by zstd",
        "  sent again                 12  records, under 1 % of those sent; last error: the broker is gone",
        "  request time           2.8 ms  for 99 % of 150 requests; 1.8 ms for half of them",
        "  memory wait             80 ms  over all tasks, 1 % of their time",
        "  ack wait               120 ms  over all tasks, 1 % of their time, after their last row",
    ]


def test_before_the_first_batch_nothing_is_said_of_producers(stats: RunStats) -> None:
    assert producer_rows(stats) == []
    assert advice(stats) is None
    assert "producers" not in shown(stats)
    assert "Producers" not in render_report(stats)
    assert not any("producers" in line for line in summary_lines(stats))


def test_the_table_on_a_terminal_has_them_and_the_advice(stats: RunStats) -> None:
    tell(stats, 0, task(left={"linger": Left(50, 10_000, 4 * MILLION)}, cause="[bold]x", retries=1))
    text = " ".join(shown(stats).replace("│", " ").split())
    for words in (
        "producers",
        "batches 50 8 % full; left by linger 100 %",
        "last error: [bold]x",
        "linger.ms=20",
    ):
        assert words in text


def test_lines_have_them_in_short(stats: RunStats) -> None:
    stream = io.StringIO()
    view = LineView(stream)
    stats.add_batch(0, 1.0, 0.5, BatchCounts(10_000, {"rows": 10_000}))
    tell(stats, 0, task(retries=3, memory_ms=5))
    view.update(stats, 101.0, "x")
    assert stream.getvalue().splitlines()[1] == (
        "           producers: 1 task, 50 batches 80 % full (full 60 %, linger 40 %), 99 % of requests within 2.8 ms, "
        "3 records sent again, 5 ms waited for memory"
    )


def test_the_report_has_them_for_the_run_and_for_each_batch(stats: RunStats) -> None:
    for number in range(MOST_BATCHES + 5):
        tell(stats, number, task(), task(6000))
    stats.finished, stats.outcome = 200.0, "done"
    rows = page_rows(stats)
    assert ["tasks", "90", "the slowest took 6.0 s, 75 % of the time of the 2 tasks of its batch"] in rows
    (at,) = (number for number, row in enumerate(rows) if row[:2] == ["batch", "tasks"])
    batches = rows[at + 1 :]
    assert [row[0] for row in batches] == [str(number) for number in range(5, MOST_BATCHES + 5)]
    expected = {
        "tasks": "2",
        "records": "20,000",
        "bytes": "2.0 MB",
        "batches": "100",
        "full": "80 %",
        "left by": "full 60 %, linger 40 %",
        "compressed to": "40 %",
        "sent again": "0",
        "memory wait": "0 ms",
        "ack wait": "80 ms",
        "99 % of requests within": "2.8 ms",
        "slowest task, of the time of all": "6.0 s, 75 %",
    }
    assert dict(zip(rows[at][1:], batches[0][1:], strict=True)) == expected
    page = render_report(stats)
    assert "An attempt that failed" in page
    assert "came to no end" not in page
    stats.outcome = "failed"
    assert "So there are none of a batch that came to no end." in render_report(stats)


def test_a_number_that_is_not_known_is_a_dash(stats: RunStats) -> None:
    tell(stats, 0, unknown=4)
    assert [(row.label, row.value) for row in producer_rows(stats)] == [("tasks", "-")]
    tell(stats, 1, unknown=4)
    *_, last = page_rows(stats)
    assert last == ["1", *["-"] * 12]
    assert advice(stats) is None
    tell(stats, 2, task(codec="none", latency=[]), unknown=1)
    rows = {row.label: row for row in producer_rows(stats)}
    assert (rows["compression"].value, rows["request time"].value) == ("-", "-")
    assert rows["not known"].value == "9"
    assert "the numbers of 9 further tasks are not known" in rows["not known"].note


def test_what_cannot_be_read_is_told_and_left_out(stats: RunStats, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "penstock.spark"):
        stats.add_sink_line(Fields({"batchId": 3, "bytes": 5, "producers": {"tasks": "many"}}))
    assert "batch 3" in caplog.text
    assert (stats.bytes, stats.producers) == (5, None)


def test_texts_are_escaped_and_secrets_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIDDEN_USER", "hunter2")
    sink = {**DEFINITION["sink"], "checkpoint": "${env:HIDDEN_USER}"}
    definition = {**DEFINITION, "sink": sink}
    stats = RunStats(pipeline=load_pipeline(definition), started=100.0)
    tell(stats, 0, task(retries=5000, cause="no <b>rights</b> with hunter2"))
    page = render_report(stats)
    assert "no &lt;b&gt;rights&lt;/b&gt;" in page
    for text in (page, shown(stats), "\n".join(summary_lines(stats))):
        assert "hunter2" not in text


@pytest.mark.parametrize(
    ("tasks", "words"),
    [
        (
            [task(retries=900, cause="a time-out")],
            "900 records were sent again, 9 % of those sent. The last cause: a",
        ),
        (
            [task(left={"full": Left(1, 10, MILLION)}, retries=1, cause="a")],
            "1 record was sent again, 10 % of those sent. The last cause",
        ),
        ([task(memory_ms=500)], "Tasks waited 25 % of their time for memory"),
        (
            [task(20_000), task(), task()],
            "One task took 83 % of the time of the 3 tasks of its batch, with 33 % of",
        ),
        (
            [task(left={"flush": Left(40, 10_000, MILLION)})],
            "100 % of batches leave because their task has no more",
        ),
        (
            [task(left={"linger": Left(38, 10_000, 3 * MILLION), "full": Left(12, 1, 12 * MILLION)})],
            "76 % of batches leave by linger.ms=5 and are 8 % full: linger.ms=20 would make",
        ),
        (
            [task(left={"full": Left(40, 10_000, 40 * MILLION)})],
            "100 % of batches leave because they are full",
        ),
    ],
)
def test_advice_follows_from_the_numbers(stats: RunStats, tasks: list[ProducerNumbers], words: str) -> None:
    tell(stats, 0, *tasks)
    said = advice(stats)
    assert said is not None
    assert said.startswith(words)
    assert said in "\n".join(summary_lines(stats))
    assert len(set(said) & set("\n")) == 0


@pytest.mark.parametrize(
    "tasks",
    [
        [task()],
        [task(20_000), task()],  # of two tasks one is always the slower
        [task(900), task(10), task(10)],  # too short to matter
        [task(left={"flush": Left(4, 10, 1)})],  # too few to prove anything
    ],
)
def test_where_nothing_is_to_be_said_nothing_is_said(stats: RunStats, tasks: list[ProducerNumbers]) -> None:
    tell(stats, 0, *tasks)
    assert advice(stats) is None
