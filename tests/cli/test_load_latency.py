# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.load import LatencyHistogram


def filled(*milliseconds: float) -> LatencyHistogram:
    histogram = LatencyHistogram()
    for value in milliseconds:
        histogram.add(value / 1000)
    return histogram


def test_nothing_counted() -> None:
    assert filled().summary() == (0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


def test_percentiles_of_a_known_spread() -> None:
    found = filled(*range(1, 1001)).summary()
    assert found.samples == 1000
    assert found.avg == pytest.approx(500.5)
    assert found.p50 == pytest.approx(500, rel=0.01)
    assert found.p95 == pytest.approx(950, rel=0.01)
    assert found.p99 == pytest.approx(990, rel=0.01)
    assert found.p99_9 == pytest.approx(999, rel=0.01)
    assert found.max == pytest.approx(1000)


def test_one_slow_record_shows_in_the_maximum_alone() -> None:
    found = filled(*[1.0] * 2000, 5000.0).summary()
    assert found.p99_9 == pytest.approx(1.0, rel=0.01)
    assert found.max == pytest.approx(5000)


def test_values_outside_the_range_are_counted_at_its_ends() -> None:
    found = filled(-5.0, 1e12).summary()
    assert found.samples == 2
    assert found.p50 == 0.0
    assert found.max < 1e9


@given(st.lists(st.floats(min_value=0, max_value=1e6), min_size=1, max_size=200))
def test_percentiles_stay_within_one_percent(milliseconds: list[float]) -> None:
    found = filled(*milliseconds).summary()
    ordered = sorted(milliseconds)
    for share, shown in ((500, found.p50), (950, found.p95), (990, found.p99), (999, found.p99_9)):
        exact = ordered[-(-len(ordered) * share // 1000) - 1]
        assert shown == pytest.approx(exact, rel=0.01, abs=0.002)
