# SPDX-License-Identifier: Apache-2.0
"""A short run of what `make chaos` does for minutes: some of each fault, and nothing lost, twice, late or torn."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from chaos.run import ChaosPlan, run_chaos
from chaos.schedule import _filled

SECONDS = 22.0


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_promises_are_kept_while_things_break() -> None:
    pytest.importorskip("confluent_kafka", reason="what was written is read back with confluent-kafka")
    seed = random.SystemRandom().randrange(1_000_000)
    plan = ChaosPlan(SECONDS, seed, "both", rate=3000, plain=2, transactional=2)
    lines: list[str] = []
    report = run_chaos(plan, lines.append)
    text = "\n".join([*lines, report.text()])
    assert report.passed, text
    assert report.counted >= 5, text
    assert report.findings.records > 10_000, text
    assert report.findings.transactions > 0, text


@pytest.mark.parametrize("lane", ["brokers", "connections", "producers"])
def test_a_seed_decides_the_faults(lane: str) -> None:
    def faults(seed: int) -> list[Callable[..., None]]:
        rng = random.Random(seed)
        return [fault for _ in range(5) for fault in _filled(lane, rng)]

    assert faults(1) == faults(1)
    assert lane == "producers" or any(faults(seed) != faults(1) for seed in range(2, 6))
