# SPDX-License-Identifier: Apache-2.0
"""A short run of the simulator, and of the mistakes that it must find. `make simulate` runs many more seeds."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from penstock.network._connection_cy import Connection, is_compiled
from penstock.network.handshake import ApiVersionsHandshake
from penstock.network.old_brokers import OpeningMode
from penstock.network.states import READY, REAUTHENTICATING
from penstock.producer.guarantee.idempotent import IdempotentGate
from penstock.producer.guarantee.response_policy import Action, Decision
from penstock.producer.io import _outcomes_cy
from penstock.types import TopicPartition
from simulation.bugs import BUGS
from simulation.checks import check_order
from simulation.plan import PLAIN, RECORDS_WANTED
from simulation.run import simulate

pytestmark = pytest.mark.slow

FIRST = 1_000
SEEDS = 60


@pytest.mark.parametrize("chunk", range(6))
def test_seeds_hold(chunk):
    size = SEEDS // 6
    for seed in range(FIRST + chunk * size, FIRST + (chunk + 1) * size):
        report = simulate(seed)
        assert not report.problems, f"make simulate SEED={seed}: {report.problems[0]}"
        assert report.records >= RECORDS_WANTED
        assert report.faults >= 3


@pytest.mark.parametrize("chunk", range(2))
def test_seeds_hold_where_brokers_want_to_know_who_is_there(chunk):
    renewals = refusals = 0
    for seed in range(FIRST + chunk * 30, FIRST + chunk * 30 + 30):
        report = simulate(seed, guarded=True)
        assert not report.problems, f"python -m simulation --guarded --seed {seed}: {report.problems[0]}"
        assert report.records >= RECORDS_WANTED
        renewals += report.renewals
        refusals += report.refusals
    assert renewals > 22
    assert refusals > 15


def test_seeds_hold_where_tasks_in_event_loops_take_the_place_of_threads():
    for seed in range(FIRST, FIRST + 30):
        report = simulate(seed, awaited=True)
        assert not report.problems, f"python -m simulation --awaited --seed {seed}: {report.problems[0]}"
        assert report.records >= RECORDS_WANTED


def test_seeds_hold_where_brokers_are_frozen_when_a_producer_comes():
    """Nothing is lost, nobody is taken for an old broker, and all batches are numbered that should be."""
    for seed in range(FIRST, FIRST + 20):
        report = simulate(seed, frozen=True)
        assert not report.problems, f"python -m simulation --frozen --seed {seed}: {report.problems[0]}"
        assert report.records >= RECORDS_WANTED


def test_a_frozen_broker_that_is_taken_for_an_old_one_is_found(monkeypatch):
    def believe(handshake: ApiVersionsHandshake) -> None:
        """Take a missing answer for a proof."""
        handshake.result = handshake._old_brokers.on_dropped(handshake._node, OpeningMode.PROBE)

    monkeypatch.setattr(ApiVersionsHandshake, "on_silence", believe)
    problems = [
        problem for seed in range(FIRST, FIRST + 4) for problem in simulate(seed, frozen=True).problems
    ]
    assert any("is taken for Kafka 0.9.0" in problem for problem in problems)


def test_seeds_hold_where_brokers_are_old_and_change():
    conversions = 0
    for seed in range(FIRST, FIRST + 30):
        report = simulate(seed, old=True)
        assert not report.problems, f"python -m simulation --old --seed {seed}: {report.problems[0]}"
        assert report.records >= RECORDS_WANTED
        conversions += report.conversions
    assert conversions > 500


def test_more_in_flight_than_a_broker_of_0_11_remembers_is_found(monkeypatch):
    monkeypatch.setattr(IdempotentGate, "expect_memory", lambda gate, batches: None)
    seeds = (1005, 1081, 1140, 1146, 1200, 1203, 1204)  # of Kafka 0.11
    problems = [problem for seed in seeds for problem in simulate(seed, old=True).problems]
    assert any("is in the log 2 times" in problem for problem in problems)


def test_a_refused_batch_that_ends_the_producer_is_found(monkeypatch):
    """Brokers of Kafka 2.0 do not know zstd, those of 2.1 do."""
    seeds = (1149, 1161, 1335, 1370, 1577)
    reports = [simulate(seed, old=True) for seed in seeds]
    assert not [problem for report in reports for problem in report.problems]
    assert sum(report.refused for report in reports) > 20
    monkeypatch.setattr(_outcomes_cy, "decide_unsent", lambda _: Decision(Action.FAIL, fatal=True))
    problems = [problem for seed in seeds for problem in simulate(seed, old=True).problems]
    assert any("has ended the producer" in problem for problem in problems)


def test_a_request_that_is_written_while_the_client_authenticates_anew_is_found(monkeypatch):
    can_send = Connection.can_send

    def too_early(connection: Connection, now: float, most: int) -> bool:
        known = connection.known
        before, known.state = known.state, READY if known.state is REAUTHENTICATING else known.state
        connection.renew_at, ends_at = math.inf, connection.renew_at
        try:
            return can_send(connection, now, most)
        finally:
            known.state, connection.renew_at = before, ends_at

    if is_compiled():
        pytest.skip("a method of a compiled class cannot be replaced")
    monkeypatch.setattr(Connection, "can_send", too_early)
    problems = [
        problem for seed in range(FIRST, FIRST + 20) for problem in simulate(seed, guarded=True).problems
    ]
    assert any("while it waits for SASL" in problem for problem in problems)


def test_a_record_that_was_lost_after_acks_1_and_comes_late_is_not_out_of_order():
    """Its broker lost it with the log of a leader that failed, and then got what a cut connection still held."""
    report = simulate(667668510, traced=True)
    assert any("a request (API 0) of a cut connection reaches" in line for line in report.trace)
    assert not report.problems


@pytest.mark.parametrize(("at", "out_of_order"), [(7, True), (8, False)])
def test_only_the_place_that_was_acknowledged_counts_where_records_come_late(at, out_of_order):
    first, second = (
        SimpleNamespace(number=number, sender=1, acknowledged=True, topic="a", partition=0, offset=offset)
        for number, offset in ((0, at), (1, 3))
    )
    place = TopicPartition("a", 0)
    plan = SimpleNamespace(ordered=True, acks="1", mode=PLAIN)
    found = {0: [(place, 7)], 1: [(place, 3)]}
    ledger = SimpleNamespace(entries=[first, second])
    assert bool(list(check_order(plan, ledger, found, late=True, loses=True))) is out_of_order
    assert list(check_order(plan, ledger, found, late=True, loses=False))
    assert list(check_order(plan, ledger, found, late=False, loses=True))


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


@pytest.fixture(scope="module")
def noted():
    """What came of replaying each planted bug at its seed, and the seed without it.

    In processes of their own, where the order of sets is what it was when the seeds were noted, and where what is
    compiled can be changed.
    """
    done = subprocess.run(
        [sys.executable, "-m", "simulation", "--noted"],
        cwd=Path(__file__).parents[1],
        env=os.environ | {"PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    found = {
        name: line
        for line, name in re.findall(r"^  ((?:found|LOST) ([a-z-]+).*)$", done.stdout, re.MULTILINE)
    }
    assert set(found) == set(BUGS), done.stdout + done.stderr
    return found


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug, noted):
    assert noted[bug].startswith("found"), f"{noted[bug]} (tests/simulation/seeds.py)"
