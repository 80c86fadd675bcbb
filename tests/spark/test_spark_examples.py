# SPDX-License-Identifier: Apache-2.0
"""The examples that use Spark run as they are, and what they write arrives."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from fix_broker import MakeTopic
from fix_spark import SOURCES, ReadBack, shell_environment

from penstock.devbroker import DevCluster

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(600)]

EXAMPLES = SOURCES.parent / "examples"
LIMIT = 300.0  # seconds for an example; it takes fifteen when nothing else is going on


def run(*command: str, cwd: Path, **more: str) -> str:
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**shell_environment(), "TMPDIR": str(cwd), **more},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return done.stdout


@pytest.mark.parametrize(
    ("name", "said", "count"),
    [
        ("csv_to_kafka.py", "3 orders are in ", 3),
        ("files_to_kafka.py", "2 new readings are in ", 2),
        ("connect_notebook.py", "1000 readings are in ", 1000),
    ],
)
def test_an_example_writes_what_it_says(
    dev_cluster: DevCluster,
    topic: MakeTopic,
    read_back: ReadBack,
    tmp_path: Path,
    name: str,
    said: str,
    count: int,
) -> None:
    target = topic(1)
    output = run(sys.executable, str(EXAMPLES / name), dev_cluster.bootstrap_servers, target, cwd=tmp_path)
    assert f"{said}{target}" in output
    assert len(read_back(target)) == count


def test_a_declarative_pipeline_writes_through_the_sink(
    dev_cluster: DevCluster, topic: MakeTopic, read_back: ReadBack, tmp_path: Path
) -> None:
    pytest.importorskip("pyspark.pipelines", reason="Declarative Pipelines are in Spark 4.1 and later")
    target = topic(1)
    shutil.copy(EXAMPLES / "declarative_sink.py", tmp_path)
    (tmp_path / "readings.yml").write_text(
        f"name: readings\nstorage: file://{tmp_path}/storage\n"
        "libraries:\n  - glob:\n      include: declarative_sink.py\n"
    )
    command = Path(sysconfig.get_path("scripts")) / "spark-pipelines"
    settings = {"SERVERS": dev_cluster.bootstrap_servers, "TOPIC": target, "PYSPARK_PYTHON": sys.executable}
    run(str(command), "run", "--spec", "readings.yml", cwd=tmp_path, **settings)
    values = [json.loads(record.value or b"")["value"] for record in read_back(target)]
    assert sorted(values) == list(range(len(values)))
    assert len(values) >= 100
