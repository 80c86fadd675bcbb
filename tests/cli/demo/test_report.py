# SPDX-License-Identifier: Apache-2.0
"""The page and the last lines of the demo, for a good run and for a bad one."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

from penstock.cli.demo.check import TopicFigures
from penstock.cli.demo.command import verdict
from penstock.cli.demo.report import (
    BatchTime,
    Event,
    Outcome,
    report_page,
)

GOOD = TopicFigures("orders", 1960, 1960, 0, 0, 0, 0, 0, Counter({0: 1000, 1: 960}))
BAD = replace(GOOD, read=2060, duplicates=100, examples=("orders: event 7 is there <2> times",))
BATCHES = [BatchTime(0, 400_000, 10, 14), BatchTime(1, 400_000, 14, 16)]
KILLS = [(12.0, "worker"), (15.0, "driver")]


def outcome(*topics: TopicFigures) -> Outcome:
    return Outcome(2000, True, topics, BATCHES, KILLS, [Event(0.4, "Kafka & Spark start")], 61.4)


def test_a_good_run_says_yes() -> None:
    assert verdict(outcome(GOOD)) == "exactly once: yes (2,000 events, 2 kills, 61 s)"
    page = report_page(outcome(GOOD))
    assert "<title>exactly once: yes</title>" in page
    assert "class=wrong" not in page
    assert "Kafka &amp; Spark start" in page


def test_a_bad_run_says_no_and_how_many() -> None:
    assert verdict(outcome(GOOD, BAD)).startswith(
        "exactly once: no (100 duplicates, 0 missing, 0 otherwise wrong"
    )
    page = report_page(outcome(GOOD, BAD))
    assert "<title>exactly once: no</title>" in page
    assert page.count("<td class=wrong>100</td>") == 1
    assert "event 7 is there &lt;2&gt; times" in page


def test_one_duplicate_is_told_as_one() -> None:
    found = outcome(replace(GOOD, duplicates=1))
    assert verdict(found).startswith("exactly once: no (1 duplicate, 0 missing")
    assert "<b>1</b> <span class=soft>duplicate</span>" in report_page(found)


def test_the_page_needs_nothing_from_elsewhere() -> None:
    page = report_page(outcome(GOOD, BAD))
    assert not re.search(r"https?:|src=|href=|url\(|@import", page)
