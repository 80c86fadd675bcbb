# SPDX-License-Identifier: Apache-2.0
"""Deadlines, and the time between retries."""

from __future__ import annotations

import math
import random

import pytest

from penstock._time import FOREVER, Deadline, ExponentialBackoff, SystemClock


def test_deadline_counts_down_to_zero_and_no_further() -> None:
    deadline = Deadline.after(100.0, 2.5)
    assert deadline.remaining(100.0) == 2.5
    assert not deadline.passed(102.4)
    assert deadline.passed(102.5)
    assert deadline.remaining(200.0) == 0.0


def test_no_deadline_is_never() -> None:
    deadline = Deadline.after(100.0, None)
    assert deadline.at == FOREVER
    assert deadline.remaining(1e12) == math.inf
    assert not deadline.passed(1e12)


def test_backoff_doubles_within_its_jitter_up_to_the_maximum() -> None:
    backoff = ExponentialBackoff(100, 1_000)
    rng = random.Random(3)
    for attempts in range(12):
        middle = 0.1 * 2**attempts
        draws = [backoff.seconds(attempts, rng) for _ in range(200)]
        assert min(draws) >= min(1.0, 0.8 * middle)
        assert max(draws) <= min(1.0, 1.2 * middle)
        if middle < 0.8:
            assert max(draws) - min(draws) > 0.2 * middle  # many clients do not come back at once


def test_backoff_survives_any_number_of_attempts() -> None:
    assert ExponentialBackoff(100, 1_000).seconds(10**9, random.Random(1)) == 1.0


@pytest.mark.parametrize(
    ("initial_ms", "max_ms", "expected"), [(100, 100, 0.1), (100, 50, 0.05), (0, 1_000, 0.0), (0, 0, 0.0)]
)
def test_backoff_is_constant_when_the_maximum_is_not_larger(
    initial_ms: float, max_ms: float, expected: float
) -> None:
    backoff = ExponentialBackoff(initial_ms, max_ms)
    assert {backoff.seconds(attempts, random.Random(attempts)) for attempts in range(5)} == {expected}


def test_system_clock_moves_forward_and_knows_the_date() -> None:
    clock = SystemClock()
    assert clock.now() <= clock.now()
    assert clock.wall_ms() > 1_700_000_000_000
