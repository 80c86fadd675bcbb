# SPDX-License-Identifier: Apache-2.0
"""A short run of the sink's simulator, and of the mistakes that it must find. `make simulate SINK=1` runs many more."""

from __future__ import annotations

import pytest

from simulation.sink.bugs import BUGS, planted
from simulation.sink.run import simulate

pytestmark = pytest.mark.slow

FIRST = 1_000
SEEDS = 60


@pytest.mark.parametrize("chunk", range(6))
def test_seeds_hold(chunk):
    size = SEEDS // 6
    for seed in range(FIRST + chunk * size, FIRST + (chunk + 1) * size):
        report = simulate(seed)
        assert not report.problems, f"make simulate SINK=1 SEED={seed}: {report.problems[0]}"
        assert report.drivers >= 2


@pytest.mark.parametrize("seed", [FIRST, FIRST + 1, FIRST + 2])
def test_the_same_seed_gives_the_same_trace(seed):
    first, second = simulate(seed, traced=True), simulate(seed, traced=True)
    assert first.trace == second.trace
    assert len(first.trace) > 100


def test_a_trace_changes_nothing():
    plain, traced = simulate(FIRST), simulate(FIRST, traced=True)
    assert (plain.turns, plain.rows, plain.virtual_seconds) == (
        traced.turns, traced.rows, traced.virtual_seconds
    )  # fmt: skip


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug):
    seed = BUGS[bug].seed
    with planted(bug):
        assert simulate(seed).problems, (
            f"seed {seed} does not show it any more: make simulate SINK=1 SIMULATE_ARGS=--bugs"
        )
    assert not simulate(seed).problems
