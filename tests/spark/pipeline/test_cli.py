# SPDX-License-Identifier: Apache-2.0
"""`penstock run` as people start it: in a process of its own, with its own Spark, and by spark-submit."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import IO

import psutil
import pytest
from fix_broker import MakeTopic
from fix_spark import ReadBack, shell_environment

from penstock.devbroker import DevCluster

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(600)]

LIMIT = 300.0  # seconds for a process to come to its end; it takes ten when nothing else is going on

STREAM = """\
[variables]
rows = 50
servers = ""
[pipeline]
name = "ticks"
[source]
format = "rate-micro-batch"
streaming = true
options = { rowsPerBatch = "${rows}", numPartitions = 1 }
[[steps]]
sql = "SELECT value AS id FROM input"
[sink]
topic = "${topic}"
checkpoint = "${folder}/checkpoint"
trigger = "1 second"
options.kafka.bootstrap.servers = "${servers}"
[spark]
master = "local[2]"
settings.spark.ui.enabled = false
settings.spark.driver.memory = "1g"
"""
BATCH = """\
source.sql = "SELECT id FROM range(100)"
expectations = [{ name = "below", condition = "id < ${below}", action = "fail" }]
[sink]
topic = "${topic}"
options.kafka.bootstrap.servers = "${servers}"
[spark.settings]
spark.ui.enabled = false
"""


def variables(cluster: DevCluster, topic: str, folder: Path | None = None, **more: object) -> list[str]:
    values = {"topic": topic, "servers": cluster.bootstrap_servers, **more}
    if folder is not None:
        values["folder"] = folder
    return [word for name, value in values.items() for word in ("--var", f"{name}={value}")]


def ids(records: list[object]) -> list[int]:
    return sorted(json.loads(record.value)["id"] for record in records)  # type: ignore[attr-defined]


def read_until(stream: IO[str], words: str) -> str:
    """Read lines up to the one that has these words; the test's own time limit ends a wait without a result."""
    text = ""
    for line in stream:
        text += line
        if words in line:
            return text
    raise AssertionError(f"{words!r} did not come:\n{text}")


def test_ctrl_c_stops_cleanly(
    dev_cluster: DevCluster, topic: MakeTopic, read_back: ReadBack, tmp_path: Path
) -> None:
    """To the whole group, as a terminal does: the pipeline's workers must not die of it."""
    name = topic(1)
    definition, report = tmp_path / "ticks.toml", tmp_path / "report.html"
    definition.write_text(STREAM)
    command = [sys.executable, "-m", "penstock", "run", str(definition), "--report", str(report)]
    process = subprocess.Popen(
        [*command, *variables(dev_cluster, name, tmp_path)],
        env=shell_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    try:
        log = read_until(process.stderr, "batch 1")
        children = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGINT)
        summary, more = process.communicate(timeout=LIMIT)
    finally:
        process.kill()
        process.communicate()
    log += more
    assert process.returncode == 130, log
    assert summary.startswith("ticks: stopped after "), summary
    assert f"{name}-0" in summary
    assert "Traceback" not in log
    found = ids(read_back(name))
    assert found == list(range(len(found)))
    assert len(found) >= 100
    assert "<svg" in report.read_text()
    _, alive = psutil.wait_procs(children, timeout=LIMIT)
    assert alive == []


def test_spark_submit_runs_the_program_that_is_printed(
    dev_cluster: DevCluster, topic: MakeTopic, read_back: ReadBack, tmp_path: Path
) -> None:
    name = topic(1)
    definition = tmp_path / "numbers.toml"
    definition.write_text(BATCH + 'spark.app.name = "not this"\n')
    printed = subprocess.run(
        [sys.executable, "-m", "penstock", "run", "--print-app"],
        env=shell_environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT,
    )
    submit = Path(sysconfig.get_path("scripts")) / "spark-submit"
    done = subprocess.run(
        [
            *(submit, "--master", "local[2]", "--conf", "spark.ui.enabled=false", printed.stdout.strip()),
            *(definition, *variables(dev_cluster, name, below=1000)),
        ],
        env={**shell_environment(), "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
    )
    assert done.returncode == 0, done.stderr
    assert "numbers: done after " in done.stdout
    assert ids(read_back(name)) == list(range(100))


OVER_CONNECT = """\
import sys
from pyspark.sql import SparkSession
from penstock.spark import run_pipeline

servers, topic, dead, folder = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
sink = {
    "topic": topic, "dead_letter_topic": dead, "key": "id", "options": {"kafka.bootstrap.servers": servers},
}
definition = {
    "source": {"sql": "SELECT id FROM range(100)"},
    "steps": [{"name": "first", "sql": "SELECT * FROM input WHERE id < 60"}, {"sql": "SELECT * FROM first"}],
    "expectations": [{"name": "below", "condition": "id < 50", "action": "dead-letter"}],
    "sink": sink,
}
for each in (definition, definition | {
    "source": {"format": "rate-micro-batch", "streaming": True, "options": {"rowsPerBatch": 10}},
    "steps": [{"sql": "SELECT value AS id FROM input"}],
    "sink": sink | {"checkpoint": folder, "trigger": "available-now"},
}):
    stats = run_pipeline(each, spark)
    print("counted", stats.outcome, stats.rows_in, stats.rows_out, stats.dead_letters, stats.bytes)
spark.stop()
"""


def test_pipelines_run_over_spark_connect(
    dev_cluster: DevCluster, topic: MakeTopic, read_back: ReadBack, tmp_path: Path
) -> None:
    """The driver may be far away there, so bytes and offsets, and rows in of a batch with steps, are not known."""
    name, dead = topic(1), topic(1)
    program = tmp_path / "program.py"
    program.write_text(OVER_CONNECT)
    done = subprocess.run(
        [sys.executable, program, dev_cluster.bootstrap_servers, name, dead, tmp_path / "checkpoint"],
        env={**shell_environment(), "PYSPARK_PYTHON": sys.executable},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    batch, stream = re.findall(r"^counted (.*)$", done.stdout, re.MULTILINE)
    assert batch == "done None 50 10 None"
    outcome, rows_in, rows_out, dead_letters, _ = stream.split()
    assert outcome == "done"
    assert int(rows_in) == int(rows_out) + int(dead_letters) > 0
    assert len(read_back(name)) == 50 + int(rows_out)
    assert len(read_back(dead)) == 10 + int(dead_letters)
