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
# Seeds in which a planted bug shows itself soon. A change of the producer shifts what happens in a seed, so there are
# several; when none is left, `python -m simulation --bugs` finds others.
SOON = range(FIRST, FIRST + 30)
RARE = {
    "muting-forgotten": (1356, 1437, 1563, 1651, 2079, 2083, 2099, 2152, 2169, 2249),
    "epoch-renumbers-too-much": (1084, 1218, 1232, 1276, 1336, 1342, 1353, 1365, 1409, 1555),
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
    assert any(_shows(bug, seed) and not simulate(seed).problems for seed in RARE.get(bug, SOON))


def _shows(bug, seed):
    with planted(bug):
        return bool(simulate(seed).problems)
