# SPDX-License-Identifier: Apache-2.0
"""The charts show what happened: rates add up to the rows, bands are as thick as their share."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.pipeline.report import Share, flow_chart, nice_ceiling, rate_chart, rates, short
from penstock.spark.pipeline.stats import BatchFacts


def batch(at: float, seconds: float, rows: int) -> BatchFacts:
    return BatchFacts(number=0, at=at, seconds=seconds, rows_in=rows, rows=rows, dead=0, dropped=0, failed=())


def test_a_batch_is_spread_over_the_time_it_took() -> None:
    assert rates([batch(at=4.0, seconds=2.0, rows=100)], 5.0, bins=5) == pytest.approx([0, 0, 50, 50, 0])


@given(
    st.lists(st.tuples(st.floats(0, 10), st.floats(0, 12), st.integers(0, 1000)), max_size=20),
    st.floats(0.5, 20),
)
def test_rates_add_up_to_the_rows(facts: list[tuple[float, float, int]], seconds: float) -> None:
    batches = [batch(min(at, seconds), took, rows) for at, took, rows in facts if at > 0.1]
    total = sum(rate * seconds / 60 for rate in rates(batches, seconds))
    assert total == pytest.approx(sum(each.rows for each in batches), rel=1e-6, abs=1e-6)


def test_no_time_and_no_rows_have_no_rate() -> None:
    assert rates([batch(1, 1, 5)], 0.0) == []
    assert "no rate" in rate_chart([], 3.0)


def test_the_rate_chart_is_a_drawing() -> None:
    drawing = ElementTree.fromstring(rate_chart([batch(2.0, 1.5, 3000), batch(4.0, 1.0, 1000)], 4.2))
    labels = [text.text for text in drawing.iter("text")]
    assert labels[:5] == ["0", "500", "1k", "1.5k", "2k"]
    assert labels[-1] == "4.2 s"


def test_bands_are_as_thick_as_their_share() -> None:
    shares = [
        Share("orders", 750, "good"),
        Share("dead <letters>", 250, "dead"),
        Share("none", 0, "gone"),
    ]
    drawing = ElementTree.fromstring(flow_chart(1000, shares))
    ends = [float(rect.attrib["height"]) for rect in drawing.iter("rect")]
    assert ends == [170.0, 127.5, 42.5]
    titles = [title.text for title in drawing.iter("title")]
    assert titles == ["orders: 750 rows, 75.00 %", "dead <letters>: 250 rows, 25.00 %"]


def test_a_tiny_share_can_still_be_seen() -> None:
    drawing = flow_chart(None, [Share("a", 10**9, "good"), Share("b", 1, "dead")])
    assert min(float(height) for height in re.findall(r'height="([\d.]+)"', drawing)) >= 1.5


def test_one_row_is_told_as_one() -> None:
    assert ">a: 1 row, 100.00 %</title>" in flow_chart(None, [Share("a", 1, "good")])


def test_no_rows_are_said_in_words() -> None:
    assert flow_chart(0, []).startswith("<p")


@given(st.floats(1e-6, 1e12))
def test_the_top_of_an_axis_is_near(value: float) -> None:
    assert value <= nice_ceiling(value) * 1.00001
    assert nice_ceiling(value) <= value * 2.00001


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (12.5, "12.5"), (1500, "1.5k"), (2e6, "2M"), (3e9, "3G")]
)
def test_numbers_of_an_axis_are_short(value: float, text: str) -> None:
    assert short(value) == text
