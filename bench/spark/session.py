# SPDX-License-Identifier: Apache-2.0
"""A Spark application that is measured: starts it, gives it jobs, and tells what each one cost."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.model import BenchError
from bench.process import ROOT
from bench.spark import processes
from bench.spark.application import ANSWER
from bench.spark.sinks import Sink

START_SECONDS = 120.0
JOB_SECONDS = 300.0
_NOT_OURS = ("SPARK_HOME", "SPARK_CONF_DIR", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
_SETTINGS = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.log.level": "ERROR",
}


@dataclass(frozen=True)
class JobCost:
    """What one job took.

    Attributes:
        seconds: from before the write until it returned.
        cpu_seconds: user and system time of the whole application meanwhile: driver, JVM, Python workers.
        worker_peak: most memory that a Python worker ever had, in bytes; 0 without one.
    """

    seconds: float
    cpu_seconds: float
    worker_peak: int


class SparkApplication:
    """One session of one sink. A context manager: leaving it stops Spark.

    Args:
        python: the interpreter that has Spark.
        jars: the connector's, for a sink that needs them.
    """

    def __init__(self, python: Path, sink: Sink, jars: list[Path]) -> None:
        self._sink = sink
        settings = {**_SETTINGS}
        if sink.needs_jars:
            settings["spark.jars"] = ",".join(map(str, jars))
        told = {"settings": settings, "sink": {"format": sink.format, "options": dict(sink.options)}}
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-bench-spark-")
        self._errors = Path(self._folder.name) / "errors.txt"
        with open(self._errors, "w", encoding="utf-8") as errors:
            self._process = subprocess.Popen(
                [str(python), "-m", "bench.spark.application", json.dumps(told)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=ROOT,
                env=_environment(python, Path(self._folder.name)),
            )
        try:
            self.spark_version = str(self._read_answer(START_SECONDS)["spark"])
        except BaseException:
            self.close()
            raise

    def run(self, rows: int, options: Mapping[str, str]) -> JobCost:
        """Write so many rows.

        Raises:
            BenchError: the job failed, or took too long.
        """
        before = processes.cpu_seconds(self._process.pid)
        try:
            _pipe(self._process.stdin).write(json.dumps({"rows": rows, "options": dict(options)}) + "\n")
            _pipe(self._process.stdin).flush()
        except OSError as error:
            raise BenchError(self._why()) from error
        answer = self._read_answer(JOB_SECONDS)
        pid = self._process.pid
        return JobCost(
            float(answer["seconds"]), processes.cpu_seconds(pid) - before, processes.python_workers_peak(pid)
        )

    def close(self) -> None:
        """Stop Spark, and remove what it wrote. May be called twice."""
        below = [one.pid for one in processes.tree(self._process.pid)[1:]]
        try:
            self._process.communicate(timeout=30)
        except (subprocess.TimeoutExpired, ValueError):
            self._process.kill()
            self._process.wait()
        for pid in below:
            _end_if_ours(pid, self._folder.name)
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read_answer(self, timeout: float) -> dict[str, Any]:
        alarm = threading.Timer(timeout, self._process.kill)
        alarm.start()
        try:
            for line in _pipe(self._process.stdout):
                if line.startswith(ANSWER):
                    found: dict[str, Any] = json.loads(line.removeprefix(ANSWER))
                    return found
        finally:
            alarm.cancel()
        raise BenchError(self._why())

    def _why(self) -> str:
        self._process.wait()
        tail = self._errors.read_text(encoding="utf-8", errors="replace")[-4000:]
        return f"the Spark application of {self._sink.name} ended with {self._process.returncode}:\n{tail}"


def _environment(python: Path, folder: Path) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in _NOT_OURS and not name.startswith("PYSPARK_")
    }
    # Workers look for `python3` on the PATH unless they are told.
    return {
        **kept,
        "PYSPARK_PYTHON": str(python),
        "PYTHONPATH": str(ROOT),
        "SPARK_LOCAL_DIRS": str(folder),
        "TMPDIR": str(folder),
        "PYTHONWARNINGS": "ignore",
    }


def _pipe(stream: Any) -> Any:
    if stream is None:
        raise BenchError("the Spark application has no pipe")
    return stream


def _end_if_ours(pid: int, folder: str) -> None:
    """End a process that still runs after its application has ended, if it is still the one that was seen there."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        if folder.encode() in environment:
            os.kill(pid, 9)
    except OSError:
        return
