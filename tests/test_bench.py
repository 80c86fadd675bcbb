# SPDX-License-Identifier: Apache-2.0
"""The benchmarks: figures are computed as the report says, bars are judged, and a short run on a real broker works."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from fix_bench import CASES, CONTENDERS, a_run, some_results

from bench import chart, report
from bench.__main__ import main
from bench.bars import BARS, Bar
from bench.budget import Plan
from bench.figures import judge, ratios, rows
from bench.model import Results, Run, Sample
from bench.runner import run_groups
from bench.studies.spark import COLD, RACE, WARM
from bench.studies.tracing import CASES as TRACED
from bench.studies.tracing import INJECT, PENSTOCK
from bench.studies.watching import CASE as WATCHING
from penstock.devbroker import DevCluster

FAR = 1e9  # a deadline
SVG = "{http://www.w3.org/2000/svg}"
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


def test_who_failed_once_is_compared_with_nobody(results: Results) -> None:
    results.failures["default", "java"] = "out of memory"
    results.failures["endurance", "penstock"] = "out of time"
    assert ratios(results) == []
    assert "failed: out of memory" in report.table(results)
    assert "failed: endurance: out of time" in report.table(results)


def test_the_report_has_every_figure(results: Results) -> None:
    results.skipped["confluent"] = "not installed"
    text = report.table(results)
    assert "penstock / java: 2.00 (0.50-4.00) x the records/s, 0.25 (0.25-0.25) x the CPU per record" in text
    assert "left out: confluent: not installed" in text
    assert "Other programs used 25 % of the machine" in text
    found = json.loads(report.as_json(results))
    assert len(found["runs"]) == 6
    assert found["ratios"][0]["rate"]["median"] == pytest.approx(2.0)
    assert len(found["bars"]) == len(BARS)


def test_latency_is_reported_by_percentile() -> None:
    figures = {"p50": 0.5, "p95": 1.0, "p99": 2.0, "p99.9": 3.0}
    text = report.table(some_results(a_run("latency-1000", "penstock", 1, latency_ms=figures)))
    assert "p99, ms" in text
    assert "2.00 (2.00-2.00)" in text


def test_tasks_that_wait_have_a_rate_and_percentiles() -> None:
    figures = {"p50": 0.5, "p95": 1.0, "p99": 2.0, "p99.9": 3.0}
    ours = a_run("asyncio-100", "penstock-asyncio", 1, seconds=0.1, latency_ms=figures)
    theirs = a_run("asyncio-100", "aiokafka-asyncio", 1, seconds=0.4, latency_ms={**figures, "p99": 4.0})
    found = some_results(ours, theirs)
    text = report.table(found)
    assert re.search(r"K records/s +CPU us/record +p50, ms +p99, ms\n", text)
    assert re.search(r"10\.00 \(10\.00-10\.00\) .* 0\.50 \(0\.50-0\.50\) +2\.00 \(2\.00-2\.00\)\n", text)
    words = {
        bar.measure: judge(found, bar).word for bar in BARS if bar.ours == ("asyncio-100", "penstock-asyncio")
    }
    assert words == {"rate": "passes", "p99": "passes"}


# ------------------------------------------------------------------------------------------------ bars


@pytest.mark.parametrize("bar", BARS, ids=lambda bar: bar.what)
def test_a_bar_speaks_of_runs_that_are_made(bar: Bar) -> None:
    for case, contender in (bar.ours, *bar.against):
        if bar.measure == "above_mb":
            studied = {("memory-1k", "penstock"), ("memory-10b", "penstock"), ("spark", "penstock-spark")}
            assert (case, contender) in studied
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


def test_memory_stands_for_itself() -> None:
    found = some_results(a_run("default", "penstock", 1))
    assert judge(found, bar_of("above_mb", "memory-1k")).word == "not measured"
    found.samples += [
        Sample("memory-1k", "penstock", number, "above_mb", 30.0 + number) for number in (1, 2, 3)
    ]
    verdict = judge(found, bar_of("above_mb", "memory-1k"))
    assert verdict.figure is not None
    assert (verdict.figure.median, verdict.word, verdict.reaches_aim) == (32.0, "passes", False)


@pytest.mark.parametrize(("made_us", "word"), [(-0.01, "passes"), (0.0, "passes"), (0.6, "falls short")])
def test_what_takes_no_time_at_all_is_measured(made_us: float, word: str) -> None:
    found = some_results()
    for number in (1, 2, 3):
        for contender, value in ((PENSTOCK, made_us), (INJECT, 2.0)):
            found.samples.append(Sample("tracing-shared-span", contender, number, "cpu_us", value))
    verdict = judge(found, bar_of("cpu_us", "tracing-shared-span"))
    assert verdict.figure is not None
    assert (verdict.figure.median, verdict.word) == (pytest.approx(made_us / 2), word)
    (line,) = (line for line in report.table(found).splitlines() if "one span for all" in line)
    assert word in line


def test_growth_compares_two_cases_of_one_contender() -> None:
    found = some_results(
        a_run("threads-1", "penstock", 1, cpu_seconds=1.0), a_run("threads-8", "penstock", 1, cpu_seconds=2.0)
    )
    verdict = judge(found, bar_of("cpu_us", "threads-8"))
    assert verdict.figure is not None
    assert (verdict.figure.median, verdict.word) == (pytest.approx(2.0), "falls short")


def test_the_table_says_what_became_of_every_bar(results: Results) -> None:
    text = report.table(results)
    (line,) = (line for line in text.splitlines() if line.startswith("send, default settings / Java"))
    assert "2.00 (0.50-4.00)" in line
    assert line.endswith("passes")
    assert "CPU per record, threads" not in text  # that case was not chosen
    reached = sum(judge(results, bar).word == "passes" for bar in BARS)
    unknown = sum(judge(results, bar).word == "not measured" for bar in BARS)
    assert (reached, unknown) == (1, len(BARS) - 1)
    assert f"of {len(BARS)} bars 1 are reached, 0 are not, {unknown} were not measured" in text


# ------------------------------------------------------------------------------------------------ charts


def test_the_chart_is_a_drawing_with_a_bar_for_each_contender(results: Results) -> None:
    drawing = ElementTree.fromstring(chart.svg(results))
    bars = [one for one in drawing.iter(f"{SVG}rect") if one.get("x")]
    assert len(bars) == 2
    assert float(bars[0].get("width", 0)) == pytest.approx(2 * float(bars[1].get("width", 0)), rel=0.01)


def test_the_chart_shows_what_matters_most_or_else_what_there_is() -> None:
    threads = a_run("threads-1", "penstock", 1)
    assert "threads-1" in chart.svg(some_results(threads))
    assert "threads-1" not in chart.svg(some_results(threads, a_run("default", "penstock", 1)))
    ElementTree.fromstring(chart.svg(some_results(latencies("penstock", 1.0))))  # none to draw


def test_lines_are_drawn_from_zero_to_the_largest() -> None:
    drawing = ElementTree.fromstring(chart.lines("over time", {"rate": [1.0, 2.0, 0.0]}))
    heights = [float(one.get("cy", 0)) for one in drawing.iter(f"{SVG}circle")]
    assert heights[1] < heights[0] < heights[2]
    assert heights[0] == pytest.approx((heights[1] + heights[2]) / 2)


# ------------------------------------------------------------------------------------------------ the command


def test_names_are_unique_and_can_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    assert not set(CASES) & set(CONTENDERS)
    assert main(["--list", "--only", "batch-128k,java"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["batch-128k", "java"]


def test_a_group_can_be_chosen_and_a_study(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "--only", "latency,penstock"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert names == ["latency-1000", "latency-10000", "penstock"]
    assert main(["--list", "--only", "endurance"]) == 0
    listed = capsys.readouterr().out
    assert "endurance" in listed
    assert "batch-128k" not in listed


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
def test_a_short_measurement_of_latency(dev_cluster: DevCluster) -> None:
    case = replace(CASES["latency-10000"], rate=2000, often=())
    plan = Plan([case], [CONTENDERS["penstock"]], 1, records=200)
    found = Results(plan.cases, plan.contenders)
    run_groups(plan, dev_cluster, found, lambda line: None, FAR)
    assert found.failures == {}
    (run,) = found.runs
    assert run.arrived == run.sent == 400
    assert 0 < run.latency_ms["p50"] <= run.latency_ms["p99"] <= run.latency_ms["p99.9"]
    # 200 records, the last 0.0995 s behind the first; how much longer it takes is the machine's business.
    assert 0.09 <= run.seconds < FAR


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
