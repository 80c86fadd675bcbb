# SPDX-License-Identifier: Apache-2.0
"""Buckets and percentiles, and the time of a thread; in virtual time."""

from __future__ import annotations

import math

import pytest

from penstock._stats_cy import ACTIVITIES, CALLBACKS, OTHER, READING, WAITING, WRITING, Histogram, TimeBudget

START = 1_000.0


def test_values_are_counted_in_the_bucket_up_to_whose_bound_they_are():
    histogram = Histogram((1.0, 2.0, 4.0), 2, 30_000)
    for value in (0.0, 1.0, 1.5, 4.0, 4.1, 1e9):
        histogram.add(value, START)
    assert histogram.counts() == [2, 1, 1, 2]
    assert histogram.count == 6
    assert histogram.sum == pytest.approx(0.0 + 1.0 + 1.5 + 4.0 + 4.1 + 1e9)
    assert histogram.bounds == (1.0, 2.0, 4.0)


def test_a_percentile_is_within_the_bucket_of_its_value():
    histogram = Histogram(tuple(float(bound) for bound in range(1, 41)), 2, 30_000)
    for value in range(40):
        histogram.add(value + 0.5, START)
    assert histogram.percentile(0.5, START) == pytest.approx(20)
    assert histogram.percentile(0.95, START) == pytest.approx(38)
    assert histogram.percentile(1.0, START) == pytest.approx(40)


def test_above_the_last_bound_a_percentile_is_that_bound():
    histogram = Histogram((1.0, 2.0), 2, 30_000)
    histogram.add(50.0, START)
    assert histogram.percentile(0.5, START) == 2.0


def test_percentiles_are_over_the_last_windows_and_counts_since_the_beginning():
    histogram = Histogram((10.0, 100.0), 2, 30_000)
    assert math.isnan(histogram.percentile(0.5, START))
    for _ in range(9):
        histogram.add(5.0, START)
    histogram.add(50.0, START + 31)
    assert histogram.percentile(0.5, START + 31) < 10
    histogram.add(50.0, START + 62)  # the first window is gone
    assert histogram.percentile(0.5, START + 62) > 10
    assert histogram.counts() == [9, 2, 0]
    assert math.isnan(histogram.percentile(0.5, START + 62 + 60))


def test_a_window_that_is_too_old_is_left_out_also_when_nothing_is_recorded():
    histogram = Histogram((10.0, 100.0), 2, 30_000)
    histogram.add(5.0, START)
    histogram.add(50.0, START + 40)
    assert histogram.percentile(0.4, START + 41) < 10
    assert histogram.percentile(0.4, START + 99) < 10
    assert math.isnan(histogram.percentile(0.4, START + 101))


def test_one_window_is_enough():
    histogram = Histogram((10.0,), 1, 1000)
    histogram.add(5.0, START)
    histogram.add(5.0, START + 2)
    assert histogram.percentile(0.5, START + 2) == pytest.approx(5)


@pytest.mark.parametrize("bounds", [(), (1.0, 1.0), (2.0, 1.0), tuple(float(n) for n in range(49))])
def test_bounds_that_cannot_be_are_refused(bounds):
    with pytest.raises(ValueError, match="ascending bounds"):
        Histogram(bounds, 2, 30_000)


def test_what_begins_ends_what_was_before():
    budget = TimeBudget()
    assert all(budget.seconds(activity, START) == 0 for activity in range(len(ACTIVITIES)))
    budget.enter(WAITING, START)
    budget.enter(READING, START + 2)
    budget.relabel(WRITING)
    budget.enter(OTHER, START + 5)
    assert budget.seconds(WAITING, START + 9) == 2
    assert budget.seconds(READING, START + 9) == 0
    assert budget.seconds(WRITING, START + 9) == 3
    assert budget.seconds(OTHER, START + 9) == 4
    assert (budget.activity, budget.since) == (OTHER, START + 5)


def test_a_clock_that_goes_back_takes_no_time_away():
    budget = TimeBudget()
    budget.enter(CALLBACKS, START)
    budget.enter(OTHER, START - 1)
    assert budget.seconds(CALLBACKS, START) == 0


def test_an_activity_that_is_none_is_refused():
    with pytest.raises(ValueError, match="no activity"):
        TimeBudget().seconds(6, START)
