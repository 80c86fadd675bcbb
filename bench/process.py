# SPDX-License-Identifier: Apache-2.0
"""Runs one program to its end and tells what it cost: the operating system's own account of that very process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.model import BenchError

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Finished:
    """A program that has ended well.

    Attributes:
        output: its standard output.
        cpu_seconds: user and system time of the process and of the children it waited for, start-up included.
        peak_rss: bytes, as the operating system has it. A new process inherits the figure of its parent, so it is never
            smaller than what this process had: good for a large program, too coarse for a small one.
    """

    output: str
    cpu_seconds: float
    peak_rss: int


def run_measured(
    command: Sequence[str], timeout: float, environment: Mapping[str, str] | None = None
) -> Finished:
    """Run a command in the project's folder, with some variables besides those of this process.

    Raises:
        BenchError: it failed, or took longer than `timeout` seconds and was killed.
    """
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
        )
        alarm = threading.Timer(timeout, process.kill)
        alarm.start()
        try:
            # wait4, and not RUSAGE_CHILDREN: that one has the largest memory of all children so far.
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            process.kill()
            process.wait()
            raise
        finally:
            alarm.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)  # or Popen would wait for it once more
        output.seek(0)
        errors.seek(0)
        if process.returncode != 0:
            tail = errors.read()[-2000:] or output.read()[-2000:]
            raise BenchError(f"{command[0]} ended with {process.returncode}:\n{tail}")
        return Finished(output.read(), usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


class Program:
    """A Python program that writes lines of JSON, and reads when it shall go on, and that it shall end.

    Args:
        timeout: seconds after which it is killed.

    Raises:
        BenchError: it ended before it had said what was expected.
    """

    def __init__(self, module: str, *arguments: str, timeout: float) -> None:
        self._module = module
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self._alarm = threading.Timer(timeout, self._process.kill)
        self._alarm.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._alarm.cancel()
        with self._process:  # waits, and closes the pipes
            self._process.kill()

    @property
    def pid(self) -> int:
        return self._process.pid

    def hear(self) -> dict[str, Any]:
        """Read the next line of the program."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise BenchError(f"{self._module} ended with {self._process.wait()}")
        found: dict[str, Any] = json.loads(line)
        return found

    def say_go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def end(self) -> dict[str, Any]:
        """The last line, which comes after the end of the input."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self.hear()
