# SPDX-License-Identifier: Apache-2.0
"""The benchmarks: figures are computed as the report says, bars are judged, and a short run on a real broker works."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fix_bench import CASES, CONTENDERS, a_run, some_results

from bench import chart, report
from bench.__main__ import main
from bench.bars import BARS, Bar
from bench.budget import Plan
from bench.figures import judge, ratios, rows
from bench.model import BenchError, Results, Run
from bench.runner import run_groups
from bench.studies.memory import CASES as MEMORY_CASES
from bench.studies.metadata import FIRST, NEW, SAME, TOPICS
from bench.studies.spark import COLD, RACE, WARM
from bench.studies.tracing import CASES as TRACED
from bench.studies.tracing import INJECT, PENSTOCK
from bench.studies.usage import PAGE, migrated, samples, summary
from bench.studies.watching import CASE as WATCHING
from bench.usage import ALONE, BASE, CONFLUENT, OURS, WAYS
from penstock.devbroker import DevCluster

FAR = 1e9  # a deadline
FASTER_THAN_JAVA = Bar(
    "faster than Java", ("default", "penstock"), (("default", "java"),), "rate", bar=1.5, aim=3.0
)


@pytest.fixture
def results() -> Results:
    ours = [
        a_run("default", "penstock", number, seconds) for number, seconds in enumerate((1.0, 2.0, 10.0), 1)
    ]
    java = [
        a_run("default", "java", number, seconds, cpu_seconds=4.0)
        for number, seconds in enumerate((4.0, 4.0, 5.0), 1)
    ]
    return some_results(*ours, *java)


def latencies(contender: str, p99: float, number: int = 1) -> Run:
    return a_run("latency-1000", contender, number, latency_ms={"p50": p99 / 2, "p99": p99})


def bar_of(measure: str, case: str) -> Bar:
    return next(bar for bar in BARS if bar.measure == measure and bar.ours[0] == case)


# ------------------------------------------------------------------------------------------------ figures


def test_a_ratio_compares_medians_and_its_spread_is_that_of_the_rounds(results: Results) -> None:
    (ratio,) = ratios(results)
    assert (ratio.ours, ratio.other) == ("penstock", "java")
    assert ratio.rate.median == pytest.approx(2.0)  # 1000/2 against 1000/4
    assert (ratio.rate.low, ratio.rate.high) == (pytest.approx(0.5), pytest.approx(4.0))
    assert ratio.cpu.median == pytest.approx(0.25)


def test_who_lost_a_record_is_compared_with_nobody(results: Results) -> None:
    results.runs[0] = replace(results.runs[0], arrived=999)
    assert ratios(results) == []
    assert judge(results, FASTER_THAN_JAVA).word == "not measured"
    assert [row.lost for row in rows(results)] == [1, 0]
    assert "NOT VALID: 1 record lost" in report.table(results)
    assert "not valid" in chart.svg(results)


# ------------------------------------------------------------------------------------------------ bars


@pytest.mark.parametrize("bar", BARS, ids=lambda bar: bar.what)
def test_a_bar_speaks_of_runs_that_are_made(bar: Bar) -> None:
    for case, contender in (bar.ours, *bar.against):
        if bar.measure == "above_mb":
            studied = {*((one, "penstock") for one in MEMORY_CASES), ("spark", "penstock-spark")}
            assert (case, contender) in studied
        elif case.startswith("usage-"):
            assert case.removeprefix("usage-") in {*WAYS, "migrated"}
            assert contender in {OURS, BASE, CONFLUENT}
        elif case.startswith("metadata-"):
            assert case in {f"metadata-{topics}-{which}" for topics in TOPICS for which in (FIRST, SAME, NEW)}
        elif case.startswith("tracing-"):
            assert case.removeprefix("tracing-") in TRACED
            assert contender in (PENSTOCK, INJECT)
        else:
            known = {**CASES, "spark": WARM, "spark-first": COLD, "watching": WATCHING}
            assert contender in known[case].contenders
            others = {*(sink.name for sink in RACE), *WATCHING.contenders}
            assert contender in CONTENDERS or contender in others
    assert bar.aim >= bar.bar if bar.more_is_better else bar.aim <= bar.bar
    # Figures of cases that do not take turns are not figures of one run.
    assert len({CASES[case].group for case, _ in (bar.ours, *bar.against) if case in CASES}) <= 1


@pytest.mark.parametrize(
    ("seconds", "word", "reaches_aim"),
    [(3.0, "falls short", False), (2.0, "passes", False), (1.0, "passes", True)],
)
def test_a_bar_is_reached_or_not(seconds: float, word: str, reaches_aim: bool) -> None:
    found = some_results(a_run("default", "penstock", 1, seconds), a_run("default", "java", 1, 4.0))
    verdict = judge(found, FASTER_THAN_JAVA)
    assert (verdict.word, verdict.reaches_aim) == (word, reaches_aim)


def test_latency_is_compared_with_the_best_peer_and_less_is_better() -> None:
    found = some_results(latencies("penstock", 0.9), latencies("confluent", 1.0), latencies("aiokafka", 4.0))
    verdict = judge(found, bar_of("p99", "latency-1000"))
    assert (verdict.other, verdict.word) == ("confluent", "passes")
    assert verdict.figure is not None
    assert verdict.figure.median == pytest.approx(0.9)
    slower = some_results(latencies("penstock", 1.1), latencies("confluent", 1.0))
    assert judge(slower, bar_of("p99", "latency-1000")).word == "falls short"


def test_a_peer_that_tells_no_more_than_zero_is_not_the_best() -> None:
    found = some_results(latencies("penstock", 1.0), latencies("java", 0.0), latencies("aiokafka", 4.0))
    assert judge(found, bar_of("p99", "latency-1000")).other == "aiokafka"


def test_the_extra_of_a_way_is_what_is_left_of_its_turns_in_units_of_the_bytes() -> None:
    found = some_results()
    found.samples += samples("str", 1, {OURS: [3.0, 9.0, 4.0], BASE: [1.0, 2.0, 1.0], ALONE: [0.5, 1.0, 0.5]})
    (verdict,) = (judge(found, bar) for bar in BARS if bar.ours[0] == "usage-str")
    assert verdict.figure is not None
    assert (verdict.figure.median, verdict.word) == (pytest.approx(2.5), "falls short")
    assert "extra 2.50 b" in summary(found)[0]


def test_the_migrated_programs_are_those_of_the_page() -> None:
    programs = migrated(PAGE.read_text(encoding="utf-8"), "127.0.0.1:9", 7)
    for program in programs.values():
        compile(program, "program", "exec")
        assert "range(7)" in program
        assert "127.0.0.1:9" in program
    with pytest.raises(BenchError, match=r"before\.py"):
        migrated("nothing", "127.0.0.1:9", 7)


# ------------------------------------------------------------------------------------------------ the command


def test_names_are_unique_and_can_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    assert not set(CASES) & set(CONTENDERS)
    assert main(["--list", "--only", "batch-128k,java"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["batch-128k", "java"]


@pytest.mark.parametrize("arguments", [["--only", "jav"], ["--rounds", "0"], ["--only", "pure,java"]])
def test_what_cannot_be_measured_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 1
    assert capsys.readouterr().err.startswith("bench: ")


# ------------------------------------------------------------------------------------------------ for real


@pytest.mark.broker
@pytest.mark.slow
def test_a_short_measurement_counts_what_arrived(dev_cluster: DevCluster) -> None:
    names = ("penstock", "penstock-checked", "limit")
    # One more than fits evenly into the partitions' batches: nobody may round.
    plan = Plan([CASES["batch-128k"]], [CONTENDERS[name] for name in names], 1, records=2001, warm_up=False)
    found = Results(plan.cases, plan.contenders)
    told: list[str] = []
    run_groups(plan, dev_cluster, found, told.append, FAR)
    assert found.failures == {}
    assert {run.contender: run.arrived for run in found.runs} == {
        "penstock": 2002,  # the first is sent before the clock starts
        "penstock-checked": 2002,
        "limit": 2001,
    }
    assert all(run.complete and run.seconds > 0 and run.cpu_seconds > 0 for run in found.runs)
    assert all(run.peak_rss > 1 << 20 for run in found.runs)
    assert all(run.others_share is None or 0 <= run.others_share <= 1 for run in found.runs)
    assert len([line for line in told if "round 1" in line]) == 3


@pytest.mark.broker
@pytest.mark.slow
def test_a_short_measurement_of_asyncio(dev_cluster: DevCluster) -> None:
    cases = [CASES["asyncio-send"], CASES["asyncio-100"]]
    contenders = [CONTENDERS["penstock-asyncio"], CONTENDERS["aiokafka-asyncio"]]
    plan = Plan(cases, contenders, 1, records=501, warm_up=False)
    found = Results(plan.cases, plan.contenders)
    run_groups(plan, dev_cluster, found, lambda line: None, FAR)
    assert found.failures == {}
    assert [run.arrived for run in found.runs] == [502] * 4  # the first is sent before the clock starts
    assert {run.case for run in found.runs if run.latency_ms} == {"asyncio-100"}


@pytest.mark.slow
def test_a_short_measurement_of_fake_brokers() -> None:
    plan = Plan([CASES["fake-10000-3"]], [CONTENDERS["penstock-keyed"]], 1, records=2001, warm_up=False)
    found = Results(plan.cases, plan.contenders)
    no_cluster: Any = object()
    run_groups(plan, no_cluster, found, lambda line: None, FAR)
    assert found.failures == {}
    assert [run.arrived for run in found.runs] == [2002]  # the first is sent before the clock starts
