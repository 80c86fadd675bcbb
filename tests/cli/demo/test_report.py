# SPDX-License-Identifier: Apache-2.0
"""The page and the last lines of the demo, for a good run and for a bad one."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import replace

import pytest

from penstock.cli.demo import report as _demo_report
from penstock.cli.demo.check import TopicFigures
from penstock.cli.demo.command import verdict
from penstock.cli.demo.report import (
    BatchTime,
    Event,
    Outcome,
    partition_chart,
    partition_charts,
    rate_chart,
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


def svg(text: str) -> ET.Element:
    # HTML lets attributes stand without quotes; XML does not.
    return ET.fromstring(re.sub(r"class=(\w+)", r'class="\1"', text))


def test_the_chart_has_a_bar_for_each_batch_and_a_line_for_each_kill() -> None:
    chart = svg(rate_chart(BATCHES, KILLS))
    slow, fast = chart.findall("rect")
    assert float(fast.get("height", "")) == 2 * float(slow.get("height", "")) > 100
    assert float(slow.get("width", "")) > 1.9 * float(fast.get("width", ""))
    assert [text.text for text in chart.findall("text[@class='killed']")] == [
        "worker killed",
        "driver killed",
    ]
    lines = [float(line.get("x1", "")) for line in chart.findall("line[@class='kill']")]
    left = float(slow.get("x", ""))
    assert left < lines[0] < float(fast.get("x", "")) < lines[1]


@pytest.mark.parametrize("highest", [1.0, 7.9, 999.0, 1000.0, 210_526.3, 3_000_000.0])
def test_the_scale_has_few_and_round_numbers(highest: float) -> None:
    scale = list(_demo_report._grid(highest))
    assert scale[0] == 0
    assert 2 <= len(scale) <= 6
    assert scale[-1] <= highest < scale[-1] + scale[1]
    assert str(scale[1]).rstrip("0") in ("1", "2", "5")


def test_charts_without_data_do_not_fail() -> None:
    assert "none" in rate_chart([], KILLS)
    assert svg(partition_chart(replace(GOOD, by_partition=Counter()), 1)).findall("rect") == []


def test_each_partition_has_its_bar_and_its_number() -> None:
    chart = svg(partition_chart(GOOD, 1000))
    assert len(chart.findall("rect")) == 2
    assert [text.text for text in chart.findall("text")] == ["orders, 0", "1,000", "orders, 1", "960"]


def test_bars_of_all_topics_share_one_scale() -> None:
    few = replace(GOOD, topic="dead", by_partition=Counter({0: 500, 1: 1, 2: 0}))
    charts = [svg(chart) for chart in re.findall(r"<svg.*?</svg>", partition_charts([GOOD, few]))]
    many, less = [[float(bar.get("width", "")) for bar in chart.findall("rect")] for chart in charts]
    assert less[0] == pytest.approx(many[0] / 2)
    assert less[1:] == [1.0, 0.0]  # a line that can be seen, and nothing
    assert "on one scale for all topics" in report_page(outcome(GOOD, few))
    assert partition_charts([]) == ""
