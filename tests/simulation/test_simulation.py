# SPDX-License-Identifier: Apache-2.0
"""A short run of the simulator, and of the mistakes that it must find. `make simulate` runs many more seeds."""

from __future__ import annotations

import itertools

import pytest

from simulation.bugs import BUGS, planted, worth_a_look
from simulation.plan import RECORDS_WANTED
from simulation.run import plan_of, simulate

pytestmark = pytest.mark.slow

FIRST = 1_000
SEEDS = 60
LOOKS = 200  # seeds in which a planted bug is looked for, of those in which it may well be seen


@pytest.mark.parametrize("chunk", range(6))
def test_seeds_hold(chunk):
    size = SEEDS // 6
    for seed in range(FIRST + chunk * size, FIRST + (chunk + 1) * size):
        report = simulate(seed)
        assert not report.problems, f"make simulate SEED={seed}: {report.problems[0]}"
        assert report.records >= RECORDS_WANTED
        assert report.faults >= 3


@pytest.mark.parametrize("seed", [FIRST, FIRST + 1, FIRST + 2])
def test_the_same_seed_gives_the_same_trace(seed):
    first, second = simulate(seed, traced=True), simulate(seed, traced=True)
    assert first.trace == second.trace
    assert len(first.trace) > RECORDS_WANTED


def test_a_trace_changes_nothing():
    plain, traced = simulate(FIRST), simulate(FIRST, traced=True)
    assert (plain.turns, plain.records, plain.virtual_seconds) == (
        traced.turns, traced.records, traced.virtual_seconds
    )  # fmt: skip


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug):
    worth = (seed for seed in itertools.count(FIRST) if worth_a_look(bug, plan_of(seed)))
    assert any(_shows(bug, seed) and not simulate(seed).problems for seed in itertools.islice(worth, LOOKS))


def _shows(bug, seed):
    with planted(bug):
        return bool(simulate(seed).problems)
