# SPDX-License-Identifier: Apache-2.0
"""The benchmark of Spark's sinks: turns, blame, what is counted at the broker, and what a tree of processes cost."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fix_bench import ROOT, a_run
from fix_broker import MakeTopic

from bench import chart, report
from bench.bars import BARS, SPARK_CONNECTOR, SPARK_SINK
from bench.budget import Plan
from bench.figures import judge
from bench.model import BenchError, Results
from bench.spark import environment, processes, sinks
from bench.spark.committed import Batch, Counted, count_committed, read_batches
from bench.spark.session import JobCost
from bench.studies import Context, spark
from penstock import Producer
from penstock.devbroker import DevCluster

BUSY = "import time\nwhile time.process_time() < 0.2: pass\n"


class Sessions:
    """Stands for Spark: notes who did which job, and answers with what it is told to cost."""

    def __init__(self) -> None:
        self.jobs: list[tuple[str, int, int]] = []  # sink, session, rows
        self.open = 0
        self.count = 0
        self.failing = ""
        self.worker_peak = sinks.BUFFER_MEMORY + 90_000_000

    def __call__(self, python: Path, sink: sinks.Sink, jars: list[Path]) -> Sessions._One:
        self.count += 1
        return self._One(self, sink.name, self.count)

    class _One:
        def __init__(self, sessions: Sessions, sink: str, number: int) -> None:
            self._sessions, self._sink, self._number = sessions, sink, number

        def __enter__(self) -> Sessions._One:
            self._sessions.open += 1
            return self

        def __exit__(self, *_: object) -> None:
            self._sessions.open -= 1

        def run(self, rows: int, options: dict[str, str]) -> JobCost:
            if self._sessions.failing == self._sink:
                raise BenchError("many lines\nout of heap")
            self._sessions.jobs.append((self._sink, self._number, rows))
            seconds = 1.0 if self._sink.startswith("penstock") else 2.0
            return JobCost(seconds, seconds / 2, self._sessions.worker_peak)


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> Sessions:
    sessions = Sessions()
    monkeypatch.setattr(spark, "SparkApplication", sessions)
    monkeypatch.setattr(spark, "create_topic", lambda *_: None)
    monkeypatch.setattr(spark, "delete_topics", lambda *_: None)
    monkeypatch.setattr(spark, "end_offsets", lambda *_: {})
    monkeypatch.setattr(
        spark, "count_committed", lambda *_: Counted(sessions.jobs[-1][2], aborted=0, undecided=Counter())
    )
    monkeypatch.setattr(sinks, "connector_jars", list)
    return sessions


def study(plan: Plan) -> Results:
    results = Results(plan.cases, plan.contenders)
    cluster: Any = SimpleNamespace(bootstrap_servers="127.0.0.1:9", nodes=[])
    spark.Spark().run(Context(plan, cluster, results, lambda line: None, Path()))
    return results


def test_warm_sinks_take_turns_in_sessions_that_stay(sessions: Sessions) -> None:
    study(Plan([], [], rounds=2, records=200_000))
    warm = [(sink, number, rows) for sink, number, rows in sessions.jobs if number <= 5]
    names = [one.name for one in (*spark.RACE, *spark.BESIDES)]
    assert len({(sink, number) for sink, number, _ in warm}) == 5  # a sink has one session
    assert [rows for _, _, rows in warm] == [
        100_000,
        200_000,
    ] * 5 * 5  # each job after one that wakes the workers
    turns = [sink for sink, _, rows in warm if rows == 200_000]
    rounds = [turns[at : at + 5] for at in range(0, len(turns), 5)]
    assert all(sorted(one) == sorted(names) for one in rounds)
    assert [one[0] for one in rounds[3:]] == names[:2]  # after three to warm up, and each begins with another
    assert sessions.open == 0


def test_cold_jobs_have_a_session_each(sessions: Sessions) -> None:
    study(Plan([], [], rounds=3, records=1000))
    cold = [number for _, number, _ in sessions.jobs if number > 5]
    assert len(cold) == len(set(cold)) == 2 * 3


def test_the_usual_rows(sessions: Sessions) -> None:
    results = study(Plan([], [], rounds=1))
    assert {(run.case, run.records) for run in results.runs} == {
        ("spark", 10_000_000),
        ("spark-first", 2_000_000),
    }


def test_bars_are_judged_and_shown_with_the_others(sessions: Sessions) -> None:
    results = study(Plan([], [], rounds=3, records=1000))
    ours = [bar for bar in BARS if bar.ours[1] == SPARK_SINK]
    verdicts = {bar.measure: judge(results, bar) for bar in ours}
    assert {name: one.figure and round(one.figure.median, 3) for name, one in verdicts.items()} == {
        "rate": 2.0,
        "cpu_us": 0.5,
        "us": 0.5,
        "above_mb": 90.0,
    }
    assert all(verdict.word == "passes" for verdict in verdicts.values())
    assert "Penstock, exactly once" in report.table(results)
    assert "spark-connector" in report.as_json(results)
    assert "tuned" in chart.svg(results)


def test_who_fails_fails_alone(sessions: Sessions) -> None:
    sessions.failing = SPARK_CONNECTOR
    results = study(Plan([], [], rounds=2, records=1000))
    assert results.failures == {
        ("spark", SPARK_CONNECTOR): "out of heap",
        ("spark-first", SPARK_CONNECTOR): "out of heap",
    }
    assert len(results.of("spark", SPARK_SINK)) == 2
    assert sessions.open == 0


def test_beside_other_cases_only_the_race_is_run_and_it_is_short(sessions: Sessions) -> None:
    some: Any = [a_run]  # any case: it is asked only whether there is one
    beside, alone = Plan(some, []), Plan([], [])
    assert spark.Spark().seconds(beside) < 300 < spark.Spark().seconds(alone)


def test_what_is_missing_is_said_with_the_way_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sinks, "has_penstock", lambda: True)
    monkeypatch.setattr(sinks, "SPARK_VERSION", "1.2.3")
    assert "no environment with Spark 1.2.3; python" in str(environment.missing())
    monkeypatch.setattr(environment, "_tool", lambda: SimpleNamespace(is_made=lambda version, alone: True))
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path))
    assert "jars are not there" in str(environment.missing())
    monkeypatch.setattr(sinks, "jars_there", lambda: True)
    assert environment.missing() is None


# ------------------------------------------------------------------------------------------------ counting


def data(producer: int, records: int, *, transactional: bool = True) -> Batch:
    return Batch((producer, 0), records, 0, transactional, None)


def marker(producer: int, *, commit: bool, epoch: int = 0) -> Batch:
    return Batch((producer, epoch), 1, 0, True, commit)


def counted(*batches: tuple[int, Batch]) -> tuple[int, int, int]:
    found = Counted(0, 0, Counter())
    for partition, batch in batches:
        found.add(partition, batch)
    return found.committed, found.aborted, found.undecided.total()


def test_the_next_marker_says_what_became_of_a_batch() -> None:
    assert counted((0, data(1, 5)), (0, data(1, 6)), (0, marker(1, commit=True))) == (11, 0, 0)
    assert counted((0, data(1, 5)), (0, marker(1, commit=False)), (0, data(1, 6))) == (0, 5, 6)


def test_a_marker_counts_for_its_producer_and_partition_alone() -> None:
    assert counted((0, data(1, 5)), (0, data(2, 7)), (1, data(1, 9)), (0, marker(1, commit=True))) == (
        5,
        0,
        16,
    )


def test_a_dead_producers_transaction_is_ended_with_a_higher_epoch() -> None:
    assert counted((0, data(1, 5)), (0, marker(1, commit=False, epoch=1))) == (0, 5, 0)


def test_without_a_transaction_a_record_counts_at_once() -> None:
    assert counted((0, data(1, 5, transactional=False))) == (5, 0, 0)


def test_a_batch_that_is_cut_off_is_not_read() -> None:
    assert list(read_batches(memoryview(bytes(60)))) == []


@pytest.mark.broker
def test_committed_records_are_counted_on_a_real_broker(dev_cluster: DevCluster, topic: MakeTopic) -> None:
    name = topic(2)
    settings = {"bootstrap.servers": dev_cluster.bootstrap_servers}
    server = dev_cluster.bootstrap_servers.split(",")[0]
    with Producer(settings) as plain:
        for number in range(30):
            plain.send(name, b"before", partition=number % 2)
    with Producer({**settings, "transactional.id": name}) as producer:
        producer.init_transactions()
        for records, commit in ((7, True), (5, False), (11, True)):
            producer.begin_transaction()
            for number in range(records):
                producer.send(name, b"value", partition=number % 2)
            if commit:
                producer.commit_transaction()
            else:
                producer.flush()
                producer.abort_transaction()
    everything = count_committed(server, name, {0: 0, 1: 0})
    assert (everything.committed, everything.aborted) == (48, 5)
    later = count_committed(server, name, {0: 15, 1: 15})
    assert (later.committed, later.aborted) == (18, 5)


# ------------------------------------------------------------------------------------------------ processes


@pytest.fixture
def family() -> Iterator[subprocess.Popen[str]]:
    """A process whose first child has ended, and whose second one waits, until somebody closes its input."""
    child = f"[sys.executable, '-c', {BUSY!r} + 'print(1, flush=True); input()']"
    parent = (
        f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BUSY!r}])\nsubprocess.run({child})"
    )
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.communicate("\n")


@pytest.mark.slow
def test_a_tree_has_the_time_of_its_children_dead_and_alive(family: subprocess.Popen[str]) -> None:
    assert family.stdout is not None
    assert family.stdout.readline() == "1\n"
    assert 0.38 <= processes.cpu_seconds(family.pid) < 3.0
    assert len(processes.tree(family.pid)) == 2
    assert 1 << 20 < processes.python_workers_peak(family.pid) < 100 << 20


# ------------------------------------------------------------------------------------------------ tools


@pytest.fixture
def matrix(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import spark_matrix

    return spark_matrix


def test_the_matrix_counts_what_pytest_wrote(matrix: Any, tmp_path: Path) -> None:
    written = tmp_path / "report.xml"
    assert matrix.junit.read_counts(written) == (0, 0, 0)
    written.write_text(
        '<testsuites><testsuite tests="9" failures="1" errors="1" skipped="2"/></testsuites>',
        encoding="ascii",
    )
    assert matrix.junit.read_counts(written) == (5, 2, 2)


def test_the_matrix_says_which_spark_is_well(matrix: Any) -> None:
    outcomes = [
        matrix.Outcome("4.0.5", 9, 0, 1, 12.0, 0),
        matrix.Outcome("4.1.4", 8, 1, 1, 12.0, 1),
        matrix.Outcome("4.3.0", 0, 0, 0, 2.0, 5),
    ]
    words = [
        line.partition("  ok")[1] or line.split()[-1] for line in matrix.table(outcomes).splitlines()[1:]
    ]
    assert words == ["  ok", "FAILED", "TESTS"]


def test_the_matrix_runs_what_the_pages_say_of_several_sparks(matrix: Any) -> None:
    # docs/security.md: what Spark shows of a secret.
    assert str(ROOT / "tests" / "spark" / "test_event_log.py") in matrix.sink_tests()


def test_an_environment_is_made_anew_when_anything_of_it_differs(
    matrix: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tool = matrix.spark_env
    monkeypatch.setattr(tool, "FOLDER", tmp_path)
    assert not tool.is_made("4.0.5")
    home = tool.interpreter("4.0.5").parent.parent
    home.mkdir()
    stamp = home / "made.json"
    stamp.write_text("{}", encoding="ascii")
    assert not tool.is_made("4.0.5")
    stamp.write_text(tool.json.dumps(tool.wanted("4.0.5")), encoding="utf-8")
    assert tool.is_made("4.0.5")


def test_no_variable_points_to_another_spark(matrix: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPARK_HOME", "PYSPARK_DRIVER_PYTHON", "PYTHONPATH"):
        monkeypatch.setenv(name, "elsewhere")
    assert "elsewhere" not in matrix.spark_env.clean_environment().values()


def test_alone_has_what_the_extra_asks_for_and_the_spark_that_was_named(matrix: Any) -> None:
    packages = matrix.spark_env.wanted("4.0.5", alone=True)["packages"]
    assert "4.0.5" in [package.split("==")[1] for package in packages if package.startswith("pyspark")]
    assert {"pyarrow", "cramjam", "google-crc32c"} <= {package.split("==")[0] for package in packages}
    assert "pytest" not in str(packages)
