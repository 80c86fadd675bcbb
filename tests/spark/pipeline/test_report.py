# SPDX-License-Identifier: Apache-2.0
"""The report is one page that needs nothing else, and says what the run did."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from html.parser import HTMLParser
from typing import Any

import pytest

from penstock._json_fields import Fields
from penstock.spark.pipeline.check import load_pipeline
from penstock.spark.pipeline.report import render_report, shares
from penstock.spark.pipeline.stats import BatchCounts, RunStats

WHEN = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
DEFINITION: dict[str, Any] = {
    "pipeline": {"name": "orders <&>"},
    "source": {"format": "rate", "streaming": True, "options": {"password": "hush"}},
    "steps": [{"sql": "SELECT * FROM input WHERE a < 3"}],
    "expectations": [{"name": "positive", "condition": "amount > 0", "action": "dead-letter"}],
    "sink": {
        "topic": "orders",
        "dead_letter_topic": "dead",
        "checkpoint": "c",
        "options": {"kafka.bootstrap.servers": "h:1", "kafka.sasl.jaas.config": "hush"},
    },
}


@pytest.fixture
def stats() -> RunStats:
    stats = RunStats(pipeline=load_pipeline(DEFINITION), started=100.0)
    for number in range(60):
        metrics = {"rows": 90, "dead": 5, "dropped": 1, "failed_0": 5}
        stats.add_batch(number, number + 1.0, 0.9, BatchCounts(100, metrics))
    partitions = {"orders": {"0": {"rows": 5400, "endOffset": 6000}}}
    stats.add_sink_line(Fields({"batchId": 0, "bytes": 10**6, "partitions": partitions}))
    stats.finished = 160.0
    stats.outcome = "done"
    return stats


class Balance(HTMLParser):
    """Checks that every element is closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_well_formed_and_alone(stats: RunStats) -> None:
    page = render_report(stats, WHEN)
    parser = Balance()
    parser.feed(page)
    assert parser.open == []
    assert parser.links == []
    assert not parser.seen & {"script", "link", "img", "iframe", "object", "embed"}
    assert "svg" in parser.seen
    assert "//" not in re.sub(r"url\(#\w+\)", "", page), "no address of any kind"
    assert "@import" not in page
    assert page.count("url(") == page.count("url(#")


def test_the_page_has_the_figures(stats: RunStats) -> None:
    page = render_report(stats, WHEN)
    for words in (
        "5,040",
        "last offset",
        "5,999",
        "1.0 MB",
        "60.0 s",
        "2026-01-31 12:00 UTC",
        "The latest 40 of 60",
        "done",
    ):
        assert words in page
    assert "orders-0" in page
    assert '<span class="hit">300</span>' in page


def test_text_of_the_user_is_escaped_and_secrets_are_left_out(stats: RunStats) -> None:
    stats.outcome, stats.error = "failed", "no <broker> & no luck"
    page = render_report(stats, WHEN)
    assert "orders &lt;&amp;&gt;" in page
    assert "WHERE a &lt; 3" in page
    assert "no &lt;broker&gt; &amp; no luck" in page
    assert "hush" not in page


def test_every_row_has_gone_somewhere(stats: RunStats) -> None:
    assert [share.rows for share in shares(stats)] == [5040, 300, 0, 60, 600]
    assert sum(share.rows for share in shares(stats)) == stats.rows_in


def test_rows_that_were_there_already_have_not_been_sent_again(stats: RunStats) -> None:
    stats.add_sink_line(Fields({"batchId": 59, "rows": 89, "skipped": True}))
    assert [share.rows for share in shares(stats)] == [4956, 295, 89, 60, 600]
    page = render_report(stats, WHEN)
    assert "in the topics already" in page
    last = '<td class="number">100</td><td class="number">0</td><td class="number">0</td><td class="number">1</td>'
    assert page.count(last) == 1


def test_the_expectation_that_stopped_the_run_is_not_said_to_have_failed_no_row() -> None:
    stats = RunStats(pipeline=load_pipeline(DEFINITION), started=1.0, finished=2.0, outcome="failed")
    stats.stopped_by = "positive"
    page = render_report(stats)
    assert '<span class="hit">at least 1</span>' in page
    assert "<b>-</b><span>rows in</span>" in page
    assert "No rows came" not in page


def test_a_run_without_rows_has_a_page_too() -> None:
    stats = RunStats(pipeline=load_pipeline(DEFINITION), started=1.0, finished=1.0, outcome="failed")
    parser = Balance()
    parser.feed(render_report(stats))
    assert parser.open == []
