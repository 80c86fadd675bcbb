# SPDX-License-Identifier: Apache-2.0
"""The examples that use Spark run as they are, and what they write arrives."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest
from fix_broker import MakeTopic
from fix_spark import SOURCES, ReadBack, shell_environment

from penstock.devbroker import DevCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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


def test_an_example_over_connect_writes_what_it_says(
    dev_cluster: DevCluster, topic: MakeTopic, read_back: ReadBack, tmp_path: Path
) -> None:
    target = topic(1)
    program = str(EXAMPLES / "connect_notebook.py")
    output = run(sys.executable, program, dev_cluster.bootstrap_servers, target, cwd=tmp_path)
    assert f"1000 readings are in {target}" in output
    assert len(read_back(target)) == 1000


def example(name: str) -> ModuleType:
    """An example as a module: what it does in the session that all tests share."""
    spec = importlib.util.spec_from_file_location(name.removesuffix(".py"), EXAMPLES / name)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "said", "count"),
    [("csv_to_kafka.py", "3 orders are in ", 3), ("files_to_kafka.py", "2 new readings are in ", 2)],
)
def test_an_example_writes_what_it_says(
    spark: SparkSession,
    dev_cluster: DevCluster,
    topic: MakeTopic,
    read_back: ReadBack,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    said: str,
    count: int,
) -> None:
    target = topic(1)
    monkeypatch.setattr(type(spark), "stop", lambda session: None)
    example(name).main(dev_cluster.bootstrap_servers, target)
    assert f"{said}{target}" in capsys.readouterr().out
    assert len(read_back(target)) == count


def test_threads_of_one_driver_write_at_the_same_time_and_once(
    spark: SparkSession, dev_cluster: DevCluster, topic: MakeTopic, read_back: ReadBack
) -> None:
    prefix = topic(1)
    program = example("threads_to_kafka.py")
    for _ in range(2):  # a scheduler that repeats the job
        program.write_all(spark, dev_cluster.bootstrap_servers, prefix)
        counts = {name: len(read_back(f"{prefix}-{name}")) for name in ("orders", "customers", "prices")}
        assert counts == {"orders": 1000, "customers": 100, "prices": 10}


def test_for_each_batch_a_repeated_batch_is_written_once(
    spark: SparkSession, dev_cluster: DevCluster, topic: MakeTopic, read_back: ReadBack, tmp_path: Path
) -> None:
    target = topic(1)
    folder, servers = tmp_path / "in", dev_cluster.bootstrap_servers
    folder.mkdir()
    program = example("running_totals.py")

    def changes() -> list[tuple[bytes | None, int]]:
        return [(each.key, json.loads(each.value or b"")["litres"]) for each in read_back(target)]

    (folder / "a.json").write_text(program.SAMPLE)
    assert program.write_changes(spark, servers, target, str(folder)) == 3
    assert sorted(changes()) == [(b"a", 3), (b"b", 5)]
    (folder / "b.json").write_text('{"sensor": "a", "litres": 4}\n')
    assert program.write_changes(spark, servers, target, str(folder)) == 1
    assert sorted(changes()) == [(b"a", 3), (b"a", 7), (b"b", 5)]
    # As if the driver had died when the last batch was written and Spark had not noted it.
    for left in (tmp_path / "in.checkpoint" / "commits").glob("*1*"):
        left.unlink()
    assert program.write_changes(spark, servers, target, str(folder)) == 1  # it does run again
    assert sorted(changes()) == [(b"a", 3), (b"a", 7), (b"b", 5)]


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
