# SPDX-License-Identifier: Apache-2.0
"""Runs one program to its end and tells what it cost: the operating system's own account of that very process."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

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
