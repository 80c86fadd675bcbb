# SPDX-License-Identifier: Apache-2.0
"""A short run of the simulator, and of the mistakes that it must find. `make simulate` runs many more seeds."""

from __future__ import annotations

import pytest

from simulation.bugs import BUGS, planted
from simulation.plan import RECORDS_WANTED
from simulation.run import simulate

pytestmark = pytest.mark.slow

FIRST = 1_000
SEEDS = 60
# Where each planted bug shows itself soon; `python -m simulation --bugs` looks for it from a random start.
CAUGHT_AT: dict[str, int] = {
    "sequence-not-rewound": 10,
    "batch-freed-in-flight": 29,
    "callback-called-twice": 1,
    "muting-forgotten": 584,
    "epoch-renumbers-too-much": 32,
    "end-sent-too-early": 3,
    "given-up-ticket-loses-memory": 20,
    "second-look-left-out": 2,
}


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
    with planted(bug):
        assert simulate(CAUGHT_AT[bug]).problems
    assert not simulate(CAUGHT_AT[bug]).problems
