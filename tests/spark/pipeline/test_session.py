# SPDX-License-Identifier: Apache-2.0
"""Workers run the interpreter of the driver; without PySpark the way out is named."""

from __future__ import annotations

import builtins
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fix_spark import shell_environment

from penstock.config.secrets import secret_names
from penstock.errors import PipelineError
from penstock.spark.pipeline.check import load_pipeline
from penstock.spark.pipeline.session import (
    _settings,
    _start_context,
    hidden_settings,
    pipeline_session,
    set_worker_python,
    silence_query_errors,
)

DEFINITION: dict[str, Any] = {
    "source": {"sql": "SELECT 1"},
    "sink": {"topic": "t", "options": {"kafka.bootstrap.servers": "h:1"}},
}


def test_workers_run_this_interpreter() -> None:
    environment: dict[str, str] = {}
    set_worker_python(environment)
    assert environment == {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}


def test_an_interpreter_that_was_chosen_stays() -> None:
    environment = {"PYSPARK_PYTHON": "/other/python"}
    set_worker_python(environment)
    assert environment == {"PYSPARK_PYTHON": "/other/python"}


def test_a_given_session_is_used_and_left() -> None:
    given: Any = object()
    with pipeline_session(load_pipeline(DEFINITION), given) as session:
        assert session is given


def test_without_pyspark_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_pyspark(name: str, *args: Any) -> Any:
        if name.startswith("pyspark"):
            raise ImportError(name)
        return real_import(name, *args)

    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    real_import = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", without_pyspark)
    with (
        pytest.raises(PipelineError, match=r"PySpark is not installed: pip install pyspark.*'\.\[spark\]'"),
        pipeline_session(load_pipeline(DEFINITION), None),
    ):
        pass


@pytest.mark.parametrize(
    ("asked", "verbose", "level"),
    [({}, False, "OFF"), ({}, True, "WARN"), ({"spark.log.level": "ERROR"}, False, "ERROR")],
    ids=["by default", "with --debug", "as the definition says"],
)
def test_sparks_own_log_is_off_unless_asked_for(
    asked: dict[str, str], verbose: bool, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    assert _settings(asked, remote=False, verbose=verbose)["spark.log.level"] == level


class StartedSpark:
    """In the place of Spark: what its JVM is started with, and what its context is told."""

    command_line: dict[str, str]
    context: dict[str, str]

    def __init__(self, conf: Any, gateway: object) -> None:
        type(self).context = dict(conf.getAll())

    @classmethod
    def launch(cls, conf: Any, _: object) -> None:
        cls.command_line = dict(conf.getAll())


def test_no_secret_is_on_the_command_line_of_sparks_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setattr("pyspark.SparkContext", StartedSpark)
    monkeypatch.setattr("pyspark.java_gateway.launch_gateway", StartedSpark.launch)
    monkeypatch.setenv("PENSTOCK_TEST_SECRET", "hunter-2222")
    settings = {
        "spark.hadoop.fs.s3a.secret.key": "hunter-3333",
        "spark.hadoop.x": "a ${env:PENSTOCK_TEST_SECRET} b",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-Dpassword=it-cannot-be-told-later",
        "spark.sql.shuffle.partitions": "2",
    }
    named = {"pipeline": {"name": "of ${env:PENSTOCK_TEST_SECRET}"}, "spark": {"settings": settings}}
    pipeline = load_pipeline(DEFINITION | named)
    _start_context(pipeline, pipeline.spark.settings)
    seen, told = StartedSpark.command_line, StartedSpark.context
    assert "hunter" not in str(seen)
    assert set(settings) - set(seen) == {"spark.hadoop.fs.s3a.secret.key", "spark.hadoop.x"}
    assert settings | {"spark.hadoop.x": "a hunter-2222 b"} == {name: told[name] for name in settings}
    assert told["spark.app.name"] == "of hunter-2222"


@pytest.mark.spark
@pytest.mark.broker
@pytest.mark.slow
def test_a_task_that_fails_is_told_without_javas_stack(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text(
        """
        source.sql = "SELECT CAST(if(id < 0, '1', 'ann') AS INT) AS id FROM range(4)"
        sink = { topic = "t", options = { "kafka.bootstrap.servers" = "nowhere:1" } }
        spark.settings."spark.ui.enabled" = "false"
        """,
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "penstock", "run", str(path), "--dry-run"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, env=shell_environment()
    )
    assert "No sample: [CAST_INVALID_INPUT] The value 'ann'" in done.stdout, done.stderr
    assert "org.apache.spark.SparkNumberFormatException" not in done.stderr
    assert "\tat org.apache.spark." not in done.stderr


@pytest.mark.parametrize("silenced", [True, False])
def test_errors_in_queries_are_left_to_who_catches_them(silenced: bool) -> None:
    """In a process of its own, for loggers are shared by all tests."""
    program = "from pyspark.logger import PySparkLogger\n"
    if silenced:
        program += (
            f"from {silence_query_errors.__module__} import silence_query_errors\nsilence_query_errors()\n"
        )
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        program += f"PySparkLogger.getLogger({name!r}).exception('no such column', errorClass='X')\n"
    done = subprocess.run(
        [sys.executable, "-c", program], timeout=120, check=True, capture_output=True, text=True
    )
    assert done.stderr.count("no such column") == (0 if silenced else 2)


@pytest.mark.slow
def test_definitions_are_checked_without_pyspark() -> None:
    """Nothing of Spark is imported before it is needed."""
    program = (
        "import sys; from penstock.cli.main import build_parser; build_parser();"
        "import penstock.spark.pipeline.check, penstock.spark.pipeline.run, penstock.spark.pipeline.dry_run;"
        "sys.exit('pyspark' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=300, check=False).returncode == 0


def test_spark_shows_no_secret_of_a_client() -> None:
    hidden = re.compile(hidden_settings())
    for name in secret_names():
        for written in (name, f"kafka.{name}", f"spark.x.{name.replace('.', '_')}", name.upper()):
            assert hidden.search(written), written
    for name in ("spark.sql.shuffle.partitions", "kafka.linger.ms", "kafka.key.serializer", "proxy.user"):
        assert not hidden.search(name), name
    assert _settings({}, remote=False, verbose=False)["spark.redaction.regex"] == hidden_settings()
