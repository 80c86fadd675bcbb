# SPDX-License-Identifier: Apache-2.0
"""Starts the user's program, gives it jobs, and starts it again when it was killed."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spark.faults.processes import is_alive, kill_session
from spark.faults.rules import FOLDER_VARIABLE, Marks, killed_mark

import penstock

TESTS = Path(__file__).parents[2]
SOURCES = Path(penstock.__file__).parents[1]
# Seconds on a machine that is free; limits are for one that is not.
START_SECONDS = 180.0
JOB_SECONDS = 400.0


@dataclass(frozen=True)
class Ending:
    """How a job ended: `error` is what the user's program got, and `killed` that its Java process was gone."""

    error: str | None
    killed: bool

    @property
    def well(self) -> bool:
        return self.error is None and not self.killed


@dataclass
class SparkDriver:
    """One user's program at a time.

    Attributes:
        master: where the tasks run.
        marks: what goes wrong in them.
        log: what Spark writes.
        settings: of Spark, besides those that all jobs have.
    """

    master: str
    marks: Marks
    log: Path
    settings: dict[str, str] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = None
    _java: int = 0

    def run(self, job: dict[str, Any]) -> Ending:
        """Run a job in the program that is there, or in a new one."""
        self.begin(job)
        return self.finish()

    def begin(self, job: dict[str, Any]) -> None:
        """Start a job; `finish` waits for its end."""
        process = self._process or self.start()
        assert process.stdin is not None
        process.stdin.write((json.dumps(job) + "\n").encode())
        process.stdin.flush()

    def finish(self) -> Ending:
        """How the job ended."""
        answer = self._answer(JOB_SECONDS)
        killed = answer is None or self.marks.has(killed_mark(self._java)) or not is_alive(self._java)
        if killed:
            self.stop()
        return Ending(None if answer is None else answer["error"], killed)

    def start(self) -> subprocess.Popen[bytes]:
        """Start the program; returns when Spark is there."""
        env = os.environ | environment(self.marks) | {"SPARK_LOCAL_IP": "127.0.0.1"}
        env["PYSPARK_SUBMIT_ARGS"] = "--driver-memory 700m pyspark-shell"
        settings = {f"spark.executorEnv.{name}": value for name, value in environment(self.marks).items()}
        settings |= {"spark.sql.warehouse.dir": str(self.log.parent / "warehouse")} | self.settings
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "spark.faults.server", self.master, json.dumps(settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=env,
                cwd=self.log.parent,
                bufsize=0,
                start_new_session=True,
            )
        answer = self._answer(START_SECONDS)
        assert answer is not None, f"Spark did not start; {self.log} says why"
        self._java = answer["java"]
        return self._process

    def stop(self) -> None:
        """End the program and everything that it has started."""
        process, self._process = self._process, None
        if process is None:
            return
        kill_session(process.pid)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()

    def _answer(self, seconds: float) -> dict[str, Any] | None:
        """The next line of the program; None when it has ended."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        text = b""
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while not text.endswith(b"\n"):
                if not selector.select(seconds):
                    raise TimeoutError(f"no word of the job in {seconds:.0f} s; its log is {self.log}")
                chunk = os.read(process.stdout.fileno(), 65536)
                if not chunk:
                    return None
                text += chunk
        return json.loads(text)  # type: ignore[no-any-return]


def environment(marks: Marks) -> dict[str, str]:
    """What every process of a job must know."""
    return {
        "PENSTOCK_SINK_HOOK": "spark.faults.hook:at_step",
        FOLDER_VARIABLE: str(marks.folder),
        "PYTHONPATH": os.pathsep.join((str(TESTS), str(SOURCES))),
        "PYSPARK_PYTHON": sys.executable,
    }
