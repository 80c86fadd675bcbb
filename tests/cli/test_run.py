# SPDX-License-Identifier: Apache-2.0
"""`penstock run` without Spark: what is wrong before it starts, and the summary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock._json_fields import Fields
from penstock.cli import main as cli
from penstock.cli.run import summary_lines, watched
from penstock.errors import ExpectationFailedError
from penstock.spark.pipeline import session
from penstock.spark.pipeline.check import load_pipeline
from penstock.spark.pipeline.stats import BatchCounts, RunStats

DEFINITION: dict[str, Any] = {
    "pipeline": {"name": "orders"},
    "source": {"format": "rate", "streaming": True},
    "expectations": [{"name": "positive", "condition": "amount > 0", "action": "dead-letter"}],
    "sink": {
        "topic": "orders",
        "dead_letter_topic": "dead",
        "checkpoint": "c",
        "options": {"kafka.bootstrap.servers": "h:1"},
    },
}


def test_a_bad_definition_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "p.toml"
    path.write_text("[source]\nformat = 'csv'\n\n[sinc]\n")
    assert cli.main(["run", str(path)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"penstock run: {path}:4: [sinc]: there is no such table")
    assert shown.err.count("\n") == 1


def test_a_row_that_fails_an_expectation_is_one_line_and_exit_code_3(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> int:
        raise ExpectationFailedError("orders: the expectation 'positive' is not met by a row")

    monkeypatch.setattr("penstock.cli.run._run", fail)
    assert cli.main(["run", "orders.toml"]) == 3
    told = "penstock run: orders: the expectation 'positive' is not met by a row\n"
    assert capsys.readouterr() == ("", told)


def test_a_variable_must_be_name_and_value(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["run", "p.toml", "--var", "day"])
    assert caught.value.code == 2
    assert "NAME=VALUE" in capsys.readouterr().err


def test_no_file_is_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run"]) == 2
    assert "name the pipeline's file" in capsys.readouterr().err
    assert cli.main(["run", "gone.toml"]) == 2
    assert "cannot read the pipeline file 'gone.toml'" in capsys.readouterr().err


def test_a_report_that_could_not_be_written_is_refused_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "p.toml"
    path.write_text(
        "source.sql = 'SELECT 1'\nsink.topic = 't'\nsink.options.kafka.bootstrap.servers = 'h:1'\n"
    )
    assert cli.main(["run", str(path), "--report", str(tmp_path / "gone" / "r.html")]) == 2
    assert "--report: there is no folder" in capsys.readouterr().err
    assert cli.main(["run", str(path), "--report", str(tmp_path)]) == 2
    assert f"--report: {str(tmp_path)!r} is a folder; name a file in it" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        cli.main(["run", str(path), "--report", f"{tmp_path}/gone/"])
    assert ended.value.code == 2
    assert f"'{tmp_path}/gone/' is the name of a folder; name a file in it" in capsys.readouterr().err


def test_without_pyspark_it_is_said_before_a_broker_is_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "p.toml"
    path.write_text(
        "source.sql = 'SELECT 1'\nsink.topic = 't'\nsink.options.kafka.bootstrap.servers = '127.0.0.1:1'\n"
    )
    monkeypatch.setattr(session, "find_spec", lambda name: None)
    assert cli.main(["run", str(path)]) == 1
    assert "PySpark is not installed: pip install" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["kafka.glass.box", "kafka.glass_box", "Kafka.Glass.Box"])
def test_watch_wins_over_the_definition(name: str) -> None:
    given = {"kafka.linger.ms": "7", "kafka.glass.box.token": "t", name: "127.0.0.1:1"}
    assert watched(given) == {
        "kafka.linger.ms": "7",
        "kafka.glass.box.token": "t",
        "kafka.glass.box": "127.0.0.1:0",
    }


def test_the_program_for_spark_submit_is_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "--print-app"]) == 0
    path = Path(capsys.readouterr().out.strip())
    assert path.is_absolute()
    assert path.parts[-3:] == ("spark", "pipeline", "app.py")
    assert path.is_file()


def test_the_summary_has_all_figures() -> None:
    stats = RunStats(pipeline=load_pipeline(DEFINITION), started=100.0, finished=110.0, outcome="done")
    stats.add_batch(0, 5.0, 1.0, BatchCounts(2000, {"rows": 1900, "dead": 40, "dropped": 10, "failed_0": 40}))
    partitions = {"orders": {"0": {"rows": 1850, "endOffset": 9000}}, "dead": {"0": {"rows": 40}}}
    stats.add_sink_line(Fields({"batchId": 0, "bytes": 123_456, "partitions": partitions}))
    stats.add_sink_line(Fields({"batchId": 1, "skipped": True, "rows": 77}))
    assert "\n".join(summary_lines(stats)) == (
        "orders: done after 10.0 s, 1 micro-batch\n"
        "  rows in                 2,000\n"
        "  rows out                1,850  to orders\n"
        "  dead letters               40  to dead\n"
        "  dropped                    10\n"
        "  there already              77  not written again\n"
        "  bytes                123.5 kB\n"
        "  rate                      185  rows/s\n"
        "  expectation                40  failed: positive (dead-letter)\n"
        "  dead-0                     40  rows\n"
        "  orders-0                1,850  rows, last offset 8,999"
    )


def test_one_row_of_a_partition_is_told_as_one() -> None:
    stats = RunStats(pipeline=load_pipeline(DEFINITION), started=100.0, finished=110.0, outcome="done")
    stats.add_sink_line(Fields({"batchId": 0, "partitions": {"orders": {"0": {"rows": 1, "endOffset": 1}}}}))
    assert "  orders-0                    1  row, last offset 0" in list(summary_lines(stats))


def test_the_summary_has_columns_also_with_long_names() -> None:
    stats = RunStats(pipeline=load_pipeline(DEFINITION), started=100.0, finished=110.0, outcome="done")
    topics = ("orders", "orders-rejected", "x" * 100)
    stats.add_sink_line(
        Fields({"batchId": 0, "partitions": {topic: {"0": {"rows": 1850}} for topic in topics}})
    )
    *others, last = (line for line in summary_lines(stats) if line.startswith("  "))
    assert len(others) > 5
    assert {len(line[:34].rstrip()) for line in others if not line.startswith("  nothing")} == {34}
    assert last == f"  {'x' * 100}-0          1,850  rows"


def test_the_summary_says_why_there_was_nothing_to_do() -> None:
    reason = "  nothing new since the checkpoint c; delete it to start over"
    stats = RunStats(pipeline=load_pipeline(DEFINITION), started=100.0, finished=110.0, outcome="done")
    assert reason in summary_lines(stats)
    stats.outcome = "stopped"
    assert reason not in summary_lines(stats)
    stats.outcome = "done"
    stats.add_batch(0, 5.0, 1.0, BatchCounts(20, {"rows": 20}))
    assert reason not in summary_lines(stats)


def test_the_summary_does_not_call_zero_what_was_not_counted() -> None:
    definition = {
        **DEFINITION,
        "source": {"sql": "SELECT 1 AS amount"},
        "expectations": [
            {"name": "positive", "condition": "amount > 0", "action": "fail"},
            {"name": "even", "condition": "amount % 2 = 0", "action": "drop"},
        ],
        "sink": {"topic": "orders", "options": {"kafka.bootstrap.servers": "h:1"}},
    }
    stats = RunStats(pipeline=load_pipeline(definition), started=100.0, finished=110.0, outcome="failed")
    stats.stopped_by = "positive"
    lines = list(summary_lines(stats))
    assert "  rows in                     -" in lines
    assert "  expectation                 -  failed: positive (the run was stopped)" in lines
    assert "  expectation                 -  failed: even (drop)" in lines


def test_the_summary_counts_the_batches_before_the_one_that_failed() -> None:
    stats = RunStats(pipeline=load_pipeline(DEFINITION), started=100.0, finished=110.0, outcome="failed")
    for number in range(2):
        stats.add_batch(number, 5.0, 1.0, BatchCounts(20, {"rows": 20}))
    lines = list(summary_lines(stats))
    assert lines[0] == "orders: failed after 10.0 s, 2 micro-batches"
    assert "  rows in                    40" in lines
    assert "  expectation                 0  failed: positive (dead-letter)" in lines
