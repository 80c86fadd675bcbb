# SPDX-License-Identifier: Apache-2.0
"""The benchmarks: figures are computed as the report says, losses are seen, and a short run on a real broker works."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parent.parent
if not (ROOT / "bench").is_dir():
    pytest.skip("the benchmarks are part of the source tree only", allow_module_level=True)
sys.path.append(str(ROOT))  # it is no part of the package, so nothing has installed it

from bench import chart, report  # noqa: E402
from bench.__main__ import main  # noqa: E402
from bench.cases import all_cases  # noqa: E402
from bench.contenders import all_contenders  # noqa: E402
from bench.counting import count_records  # noqa: E402
from bench.figures import ratios, rows  # noqa: E402
from bench.model import BenchError, Results, Run  # noqa: E402
from bench.process import run_measured  # noqa: E402
from bench.runner import Plan, measure  # noqa: E402
from penstock.devbroker import DevCluster  # noqa: E402

CASE = all_cases()[0]
OURS, JAVA = (next(one for one in all_contenders() if one.name == name) for name in ("penstock", "java"))


def a_run(contender: str, number: int, seconds: float, cpu_seconds: float = 1.0, arrived: int = 1000) -> Run:
    return Run(CASE.name, contender, number, 1000, arrived, seconds, cpu_seconds, 1 << 20, 0.25)


def some_results(*runs: Run) -> Results:
    return Results([CASE], [OURS, JAVA], runs, {"cores": 2}, {"confluent": "not installed"})


@pytest.fixture
def results() -> Results:
    ours = [a_run("penstock", number, seconds) for number, seconds in ((1, 1.0), (2, 2.0), (3, 10.0))]
    java = [a_run("java", number, seconds, 4.0) for number, seconds in ((1, 4.0), (2, 4.0), (3, 5.0))]
    return some_results(*ours, *java)


def test_a_ratio_compares_medians_and_its_spread_is_that_of_the_rounds(results: Results) -> None:
    (ratio,) = ratios(results)
    assert (ratio.ours, ratio.other) == ("penstock", "java")
    assert ratio.rate.median == pytest.approx(2.0)  # 1000/2 against 1000/4
    assert (ratio.rate.low, ratio.rate.high) == (pytest.approx(0.5), pytest.approx(4.0))
    assert ratio.cpu.median == pytest.approx(0.25)


def test_who_lost_a_record_is_compared_with_nobody(results: Results) -> None:
    first, *others = results.runs
    lossy = replace(results, runs=[replace(first, arrived=999), *others])
    assert ratios(lossy) == []
    assert [row.lost for row in rows(lossy)] == [1, 0]
    assert "NOT VALID: 1 records" in report.table(lossy)
    assert "not valid" in chart.svg(lossy)


def test_the_report_has_every_figure(results: Results) -> None:
    text = report.table(results)
    assert "penstock / java: 2.00 (0.50-4.00) x the records/s, 0.25 (0.25-0.25) x the CPU per record" in text
    assert "left out: confluent: not installed" in text
    assert "Other programs used 25 % of the machine" in text
    found = json.loads(report.as_json(results))
    assert len(found["runs"]) == 6
    assert found["ratios"][0]["rate"]["median"] == pytest.approx(2.0)


def test_the_chart_is_a_drawing_with_a_bar_for_each_contender(results: Results) -> None:
    drawing = ElementTree.fromstring(chart.svg(results))
    bars = [one for one in drawing.iter("{http://www.w3.org/2000/svg}rect") if one.get("x")]
    assert len(bars) == 2
    assert float(bars[0].get("width", 0)) == pytest.approx(2 * float(bars[1].get("width", 0)), rel=0.01)


def test_names_are_unique_and_can_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    names = [case.name for case in all_cases()] + [one.name for one in all_contenders()]
    assert len(set(names)) == len(names)
    assert main(["--list", "--only", "batch-128k,java"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["batch-128k", "java"]


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "jav"]) == 1
    assert "jav" in capsys.readouterr().err


def test_a_failing_program_is_an_error_with_what_it_said() -> None:
    with pytest.raises(BenchError, match=r"(?s)ended with 3.*out of luck"):
        run_measured([sys.executable, "-c", "import sys; print('out of luck'); sys.exit(3)"], 30)


@pytest.mark.slow
def test_the_cost_of_a_program_is_its_own() -> None:
    work = "import time\nwhile time.process_time() < 0.2: pass\nprint('done')"
    finished = run_measured([sys.executable, "-c", work], 30)
    assert finished.output == "done\n"
    assert 0.2 <= finished.cpu_seconds < 2.0


def test_the_warm_up_of_java_is_counted_but_not_timed() -> None:
    output = (
        "2000 records sent, 100.0 records/sec (0.05 MB/sec), 1.00 ms avg latency, 30.00 ms max latency, 1 ms 50th, "
        "2 ms 95th, 3 ms 99th, 4 ms 99.9th.\n"
        "1000 steady state records sent, 500.0 records/sec (0.05 MB/sec), 1.00 ms avg latency, 30.00 ms max latency, "
        "1 ms 50th, 2 ms 95th, 3 ms 99th, 4 ms 99.9th.\n"
    )
    job = SimpleNamespace(records=1000)
    timing = JAVA.read_timing(job, output)
    assert (timing.seconds, timing.warm_up_records) == (pytest.approx(2.0), 1000)
    with pytest.raises(BenchError):
        JAVA.read_timing(job, output.splitlines()[0])
    run = replace(a_run("java", 1, timing.seconds, cpu_seconds=4.0, arrived=2000), warm_up_records=1000)
    assert run.complete
    assert (run.rate, run.cpu_us) == (pytest.approx(500), pytest.approx(2000))


@pytest.mark.broker
@pytest.mark.slow
def test_a_short_measurement_counts_what_arrived(dev_cluster: DevCluster) -> None:
    contenders = [one for one in all_contenders() if one.name.startswith("penstock")]
    told: list[str] = []
    plan = Plan([CASE], contenders, rounds=1, records=2000, warm_up=False)
    results = measure(plan, dev_cluster, told.append)
    assert [run.arrived for run in results.runs] == [2000, 2000]
    assert all(run.seconds > 0 and run.cpu_seconds > 0 and run.peak_rss > 1 << 20 for run in results.runs)
    assert count_records(dev_cluster.bootstrap_servers, f"bench-0-{CASE.name}", CASE.partitions) == 4000
    assert all(run.others_share is None or 0 <= run.others_share <= 1 for run in results.runs)
    assert len([line for line in told if "round 1" in line]) == 2
