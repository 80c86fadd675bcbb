# SPDX-License-Identifier: Apache-2.0
"""How benchmarks are run: in turns, for the same time, within a limit, and one that fails does not end the others."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest
from fix_bench import CASES, CONTENDERS, a_run

from bench import runner
from bench.__main__ import MINUTES
from bench.budget import CLOCK_SECONDS, SHORTEST_SECONDS, Plan, choose_seconds, group_seconds, minutes
from bench.model import BenchError, Contender, Job, Results, Run
from bench.process import run_measured
from bench.studies import all_studies

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


def test_a_run_that_stays_short_counts_in_the_end(stage: Stage) -> None:
    stage.rates["penstock"] = 1e9
    stage.most_records = 4_000_000  # it sends no more, whatever it was told
    results = run(a_plan(rounds=1, seconds=2.0))
    assert [number for number, name, _ in stage.calls if name == "penstock"] == [0, 1, 1, 1]
    assert len([run for run in results.runs if run.contender == "penstock"]) == 1


def test_a_short_run_that_has_lost_a_record_is_told(stage: Stage) -> None:
    stage.warm_up_rates["penstock"] = 1e5
    stage.lost = 1
    results = run(a_plan(rounds=1, seconds=2.0))
    assert [number for number, name, _ in stage.calls if name == "penstock"] == [0, 1]
    assert not results.sound("batch-128k", "penstock")


def test_the_number_of_records_can_be_given(stage: Stage) -> None:
    run(a_plan(rounds=1, records=4000))
    assert {(number, records) for number, _, records in stage.calls} == {(0, 2000), (1, 4000)}


def test_who_fails_fails_alone_and_once(stage: Stage) -> None:
    stage.rates["java"] = 0.0
    results = run(a_plan(rounds=3))
    assert results.failures == {("batch-128k", "java"): "out of the window"}
    assert [name for _, name, _ in stage.calls].count("java") == 1
    assert {run.contender for run in results.runs} == {"penstock", "confluent"}


def test_a_group_that_cannot_be_prepared_costs_no_other(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def create_topic(server: str, name: str, *_: object) -> None:
        if name == "bench-pure":
            raise BenchError("no topic")

    monkeypatch.setattr(runner, "create_topic", create_topic)
    stage.rates |= {"penstock-pure": 1e5}
    contenders = [CONTENDERS["penstock"], CONTENDERS["penstock-pure"]]
    results = run(Plan([CASES["pure"], CASES["default"]], contenders, rounds=1))
    assert results.skipped == {"pure": "failed: no topic"}
    assert [run.case for run in results.runs] == ["default"]


def test_a_group_may_have_a_broker_of_another_release(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    made: list[str] = []
    removed: list[str] = []

    class Cluster:
        bootstrap_servers = "127.0.0.1:8"

        def __init__(self, *, kafka: str, **_: object) -> None:
            started.append(kafka)

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            started.append("ended")

        def create_topic(self, name: str, *_: object, **__: object) -> None:
            made.append(name)

    monkeypatch.setattr(runner, "DevCluster", Cluster)
    monkeypatch.setattr(runner, "delete_topics", lambda server, names: removed.extend(names))
    results = run(
        Plan([CASES["old-128k"], CASES["default"]], [CONTENDERS["penstock"]], rounds=1, warm_up=False)
    )
    assert started == ["0.10.2.2", "ended"]
    assert made == ["bench-old-128k"]
    assert removed == ["bench-default"]
    assert [run.case for run in results.runs] == ["old-128k", "default"]


def test_cases_of_a_group_want_one_release(stage: Stage) -> None:
    mixed = replace(CASES["default"], group="old")
    results = run(Plan([CASES["old-128k"], mixed], [CONTENDERS["penstock"]], rounds=1))
    assert "different releases" in results.skipped["old"]


def test_large_records_begin_with_few(stage: Stage) -> None:
    run(Plan([CASES["size-10k"]], [CONTENDERS["penstock"]], rounds=1))
    assert stage.calls[0][2] * 10_000 < 200e6


def test_tasks_that_wait_begin_with_few_records_and_have_the_same_number_each(stage: Stage) -> None:
    stage.rates["aiokafka-asyncio"] = 250
    run(Plan([CASES["asyncio-100"]], [CONTENDERS["aiokafka-asyncio"]], rounds=1, seconds=3.0))
    assert [records for _, _, records in stage.calls] == [45_000, 700]


def test_at_a_rate_nobody_needs_to_be_tried_first(stage: Stage) -> None:
    run(Plan([CASES["latency-1000"]], [CONTENDERS["penstock"]], rounds=2))
    assert [number for number, _, _ in stage.calls] == [1, 2, 3, 4, 5, 6]  # three for one of others
    assert stage.calls[0][2] == 2000


def test_a_case_of_a_group_may_have_more_rounds_than_another(stage: Stage) -> None:
    cases = [CASES["threads-1"], replace(CASES["threads-8"], often=("penstock",))]
    run(Plan(cases, [CONTENDERS["penstock"]], rounds=1, warm_up=False))
    assert [number for number, _, _ in stage.calls] == [1, 1, 2, 3]


def test_cases_of_a_group_take_turns(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[tuple[int, str]] = []

    def run_once(job: Job, contender: Contender, number: int) -> Run:
        order.append((number, job.case.name))
        return stage.run_once(job, contender, number)

    monkeypatch.setattr(runner, "run_once", run_once)
    cases = [CASES["threads-1"], CASES["threads-8"]]
    run(Plan(cases, [CONTENDERS["penstock"]], rounds=2, warm_up=False))
    assert order == [(1, "threads-1"), (1, "threads-8"), (2, "threads-8"), (2, "threads-1")]


def test_a_group_for_which_there_is_no_time_is_left_out(stage: Stage) -> None:
    results = run(a_plan(), deadline=0.0)
    assert stage.calls == []
    assert "no time" in results.skipped["throughput"]


def test_everything_fits_into_the_time_it_may_take() -> None:
    def total(seconds: float) -> float:
        plan = Plan(list(CASES.values()), list(CONTENDERS.values()), seconds=seconds)
        groups = sum(group_seconds(plan, entries) for entries in plan.groups().values())
        return groups + sum(study.seconds(plan) for study in all_studies() if not study.only_by_name)

    seconds = choose_seconds(total, 0.9 * 60 * MINUTES)
    assert seconds >= 2.0  # shorter runs would mean little
    assert total(seconds) <= 0.9 * 60 * MINUTES


def test_runs_become_shorter_where_time_is_short_but_not_too_short() -> None:
    assert choose_seconds(lambda seconds: 100 * seconds, 1000) == CLOCK_SECONDS
    assert choose_seconds(lambda seconds: 100 * seconds, 200) == 2.0
    assert choose_seconds(lambda seconds: 100 * seconds, 10) == SHORTEST_SECONDS
    assert minutes(245) == "4:05"


# ------------------------------------------------------------------------------------------------ processes


def test_a_failing_program_is_an_error_with_what_it_said() -> None:
    with pytest.raises(BenchError, match=r"(?s)ended with 3.*out of luck"):
        run_measured([sys.executable, "-c", "import sys; print('out of luck'); sys.exit(3)"], 30)


@pytest.mark.slow
def test_the_cost_of_a_program_is_its_own() -> None:
    work = "import os, time\nwhile time.process_time() < 0.2: pass\nprint(os.environ['MARK'])"
    finished = run_measured([sys.executable, "-c", work], 30, {"MARK": "done"})
    assert finished.output == "done\n"
    assert 0.2 <= finished.cpu_seconds < 2.0


def test_every_source_of_the_benchmarks_names_its_licence() -> None:
    for source in Path(runner.__file__).parent.rglob("*.py"):
        assert source.read_text(encoding="utf-8").startswith("# SPDX-License-Identifier: Apache-2.0\n"), (
            source
        )
