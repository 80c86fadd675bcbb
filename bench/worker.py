# SPDX-License-Identifier: Apache-2.0
"""What the contenders written in Python share: how a run is told what to do, and how it answers.

A contender's module is run as a program, in a process of its own, with the job as JSON in its only argument. It prints
its figures as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from bench.model import BenchError, Job, Timing


class Task(NamedTuple):
    """A job as the process that does it sees it."""

    settings: Mapping[str, str]
    topic: str
    values: list[bytes]
    records: int


def python_command(module: str, job: Job, variant: str = "") -> list[str]:
    """The command line that runs a contender's module."""
    told = {
        "settings": job.settings(),
        "topic": job.topic,
        "payload_file": str(job.payload_file),
        "records": job.records,
        "variant": variant,
    }
    return [sys.executable, "-m", module, json.dumps(told)]


def work(variants: Mapping[str, Callable[[Task], float]]) -> None:
    """Do the job in the argument, and print what it took. Each function returns seconds."""
    told = json.loads(sys.argv[1])
    values = Path(told["payload_file"]).read_bytes().split()
    task = Task(told["settings"], told["topic"], values, told["records"])
    seconds = variants[told["variant"]](task)
    print(json.dumps({"seconds": seconds, "peak_rss": _peak_rss()}))


def read_answer(output: str) -> Timing:
    """Read what `work` printed.

    Raises:
        BenchError: it is not that.
    """
    try:
        told = json.loads(output.splitlines()[-1])
        return Timing(float(told["seconds"]), told["peak_rss"])
    except (IndexError, KeyError, ValueError) as error:
        raise BenchError(f"no figures in {output!r}") from error


def _peak_rss() -> int | None:
    """Most memory this process ever had, in bytes; None where the system does not say it (only Linux does)."""
    if not os.path.exists("/proc/self/status"):
        return None
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return None
