# SPDX-License-Identifier: Apache-2.0
"""The charts show what happened: rates add up to the rows, bands are as thick as their share."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.pipeline.report import Share, flow_chart, rates
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
