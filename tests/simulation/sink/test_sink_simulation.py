# SPDX-License-Identifier: Apache-2.0
"""A short run of the sink's simulator, and of the mistakes that it must find. `make simulate SINK=1` runs many more."""

from __future__ import annotations

import itertools

import pytest

from simulation.sink.bugs import BUGS, planted
from simulation.sink.run import plan_of, simulate

pytestmark = pytest.mark.slow

FIRST = 1_000
SEEDS = 30
LOOKS = 150  # seeds in which a planted bug is looked for, of those in which it may well be seen


@pytest.mark.parametrize("chunk", range(6))
def test_seeds_hold(chunk):
    size = SEEDS // 6
    for seed in range(FIRST + chunk * size, FIRST + (chunk + 1) * size):
        report = simulate(seed)
        assert not report.problems, f"make simulate SINK=1 SEED={seed}: {report.problems[0]}"
        assert report.drivers >= (1 if all(sink.one_off for sink in plan_of(seed).sinks) else 2)


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


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name):
    bug = BUGS[name]
    worth = (seed for seed in itertools.count(bug.seed) if bug.theme in (None, plan_of(seed).theme))
    assert any(_shows(name, seed) and not simulate(seed).problems for seed in itertools.islice(worth, LOOKS))


def _shows(name, seed):
    with planted(name):
        return bool(simulate(seed).problems)
