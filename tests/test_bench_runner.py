# SPDX-License-Identifier: Apache-2.0
"""How benchmarks are run: in turns, for the same time, and one that fails does not end the others."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from fix_bench import CASES, CONTENDERS, a_run

from bench import runner
from bench.budget import Plan
from bench.model import BenchError, Contender, Job, Results, Run
from bench.process import run_measured

NAMES = ("penstock", "confluent", "java")
FAR = 1e9  # a deadline


class Stage:
    """Stands for broker and processes: notes who was called, and answers with a rate for each contender."""

    def __init__(self, rates: dict[str, float]) -> None:
        self.rates = rates
        self.warm_up_rates: dict[str, float] = {}  # where they differ from the later ones
        self.most_records = sys.maxsize  # of one run
        self.lost = 0  # of each run
        self.calls: list[tuple[int, str, int]] = []  # round, contender, records

    def run_once(self, job: Job, contender: Contender, number: int) -> Run:
        self.calls.append((number, contender.name, job.records))
        rates = self.rates if number else self.rates | self.warm_up_rates
        rate = rates[contender.name]
        if not rate:
            raise BenchError("it fell\nout of the window")
        run = a_run(job.case.name, contender.name, number)
        records = min(job.records, self.most_records)
        told = {"records": records, "arrived": records - self.lost, "seconds": records / rate}
        return Run(**{**vars(run), **told})


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    stage = Stage({"penstock": 3e6, "confluent": 7e5, "java": 1e6})
    monkeypatch.setattr(runner, "run_once", stage.run_once)
    monkeypatch.setattr(runner, "create_topic", lambda *_: None)
    monkeypatch.setattr(runner, "delete_topics", lambda *_: None)
    return stage


def run(plan: Plan, deadline: float = FAR) -> Results:
    results = Results(plan.cases, plan.contenders)
    cluster: Any = SimpleNamespace(bootstrap_servers="127.0.0.1:9")
    runner.run_groups(plan, cluster, results, lambda line: None, deadline)
    return results


def a_plan(**options: Any) -> Plan:
    return Plan([CASES["batch-128k"]], [CONTENDERS[name] for name in NAMES], **options)


def test_each_round_has_everybody_once_and_begins_with_another(stage: Stage) -> None:
    run(a_plan(rounds=3))
    rounds = [[name for number, name, _ in stage.calls if number == wanted] for wanted in (1, 2, 3)]
    assert all(sorted(names) == sorted(NAMES) for names in rounds)
    assert [names[0] for names in rounds] == list(NAMES)


def test_the_first_round_is_not_counted(stage: Stage) -> None:
    results = run(a_plan(rounds=2))
    assert len(stage.calls) == 9
    assert sorted(run.round for run in results.runs) == [1, 1, 1, 2, 2, 2]


def test_everybody_sends_for_the_same_time_however_fast(stage: Stage) -> None:
    results = run(a_plan(rounds=1, seconds=2.0))
    assert [run.seconds for run in results.runs] == pytest.approx([2.0] * 3, rel=0.01)


def test_a_run_after_a_slow_warm_up_is_made_again_until_it_is_long_enough(stage: Stage) -> None:
    stage.warm_up_rates["penstock"] = 1e5
    results = run(a_plan(rounds=2, seconds=2.0))
    assert [run.seconds for run in results.runs] == pytest.approx([2.0] * 6, rel=0.01)
    assert [number for number, name, _ in stage.calls if name == "penstock"] == [0, 1, 1, 2]


def test_a_short_run_that_has_lost_a_record_is_told(stage: Stage) -> None:
    stage.warm_up_rates["penstock"] = 1e5
    stage.lost = 1
    results = run(a_plan(rounds=1, seconds=2.0))
    assert [number for number, name, _ in stage.calls if name == "penstock"] == [0, 1]
    assert not results.sound("batch-128k", "penstock")


def test_who_fails_fails_alone_and_once(stage: Stage) -> None:
    stage.rates["java"] = 0.0
    results = run(a_plan(rounds=3))
    assert results.failures == {("batch-128k", "java"): "out of the window"}
    assert [name for _, name, _ in stage.calls].count("java") == 1
    assert {run.contender for run in results.runs} == {"penstock", "confluent"}


# ------------------------------------------------------------------------------------------------ processes


def test_a_failing_program_is_an_error_with_what_it_said() -> None:
    with pytest.raises(BenchError, match=r"(?s)ended with 3.*out of luck"):
        run_measured([sys.executable, "-c", "import sys; print('out of luck'); sys.exit(3)"], 30)
