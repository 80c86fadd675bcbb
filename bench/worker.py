# SPDX-License-Identifier: Apache-2.0
"""What the contenders written in Python share: how a run is told what to do, and how it answers.

A contender's module is run as a program, in a process of its own, with the job as JSON in its only argument. It prints
its figures as JSON.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.model import BenchError, Job, Timing
from bench.words import counted

FIRST_SECONDS = 30.0  # for the first record, at most
RUN_OVERHEAD_SECONDS = 1.3  # start-up, counting, and looking at the outcomes afterwards


class Task(NamedTuple):
    """A job as the process that does it sees it. With a rate, `warm_up` records are sent before those that count."""

    settings: Mapping[str, str]
    topic: str
    values: list[bytes]
    records: int
    partitions: int = 1
    rate: int = 0
    warm_up: int = 0
    threads: int = 1
    tasks: int = 0
    keys: bool = False


class Answer(NamedTuple):
    """What a run took, up to the moment its clock stopped.

    Attributes:
        warm_up: records that were sent before it started.
        latencies: seconds from send to acknowledgement.
    """

    seconds: float
    cpu_seconds: float
    peak_rss: int | None
    warm_up: int
    latencies: Sequence[float] = ()


class PythonContender:
    """A contender whose module is the program.

    Args:
        module: the program; one of bench.contenders.
        packages: what must be installed, as it is imported.
        variant: which of the program's functions to run.
    """

    def __init__(
        self,
        name: str,
        title: str,
        guess: int,
        *,
        module: str,
        packages: tuple[str, ...] = (),
        variant: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.title = title
        self.guess = guess
        self.environment = environment or {}
        self._module = module
        self._packages = packages
        self._variant = variant

    def missing(self) -> str | None:
        """Whether the packages are installed."""
        for package in self._packages:
            if not importlib.util.find_spec(package):
                return f"the package {package} is not installed"
        return None

    def run_seconds(self, clock_seconds: float) -> float:
        """The clock, and what is around it."""
        return clock_seconds + RUN_OVERHEAD_SECONDS

    def command(self, job: Job) -> list[str]:
        """The command line that runs the module."""
        return [sys.executable, "-m", f"bench.contenders.{self._module}", self._told(job)]

    def _told(self, job: Job) -> str:
        told = {
            "variant": "latency" if job.case.rate else self._variant,
            "payload_file": str(job.payload_file),
            "task": {
                "settings": job.settings(),
                "topic": job.topic,
                "records": job.records,
                "partitions": job.case.partitions,
                "rate": job.case.rate,
                "warm_up": job.warm_up_records,
                "threads": job.case.threads,
                "tasks": job.case.tasks,
                "keys": job.case.keys,
            },
        }
        return json.dumps(told)

    def read_timing(self, job: Job, output: str) -> Timing:
        """Read what `work` printed."""
        del job
        try:
            told = json.loads(output.splitlines()[-1])
            return Timing(
                float(told["seconds"]),
                told["cpu_seconds"],
                told["peak_rss"],
                told["warm_up"],
                told["latency_ms"],
            )
        except (IndexError, KeyError, ValueError) as error:
            raise BenchError(f"no figures in {output!r}") from error


def work(variants: Mapping[str, Callable[[Task], Answer]]) -> None:
    """Do the job in the argument, and print what it took."""
    told = json.loads(sys.argv[1])
    values = Path(told["payload_file"]).read_bytes().split(b"\n")
    answer = variants[told["variant"]](Task(values=values, **told["task"]))
    figures = {
        "seconds": answer.seconds,
        "cpu_seconds": answer.cpu_seconds,
        "peak_rss": answer.peak_rss,
        "warm_up": answer.warm_up,
        "latency_ms": percentiles_ms(answer.latencies),
    }
    print(json.dumps(figures))


def clock_stopped(started: float, warm_up: int = 1, latencies: Sequence[float] = ()) -> Answer:
    """The figures of a run that has just had its last acknowledgement.

    Args:
        started: time.perf_counter() from before the first send.
        warm_up: records before that. One, where everybody sends as fast as possible: connecting, metadata and getting
            a producer id take up to half a second, and a run is to tell what comes after.
        latencies: seconds from send to acknowledgement.
    """
    seconds = time.perf_counter() - started
    return Answer(seconds, time.process_time(), peak_rss(), warm_up, latencies)


def expect(acknowledged: int, wanted: int, failed: int = 0) -> None:
    """See that every record was acknowledged.

    Raises:
        BenchError: one was not.
    """
    if failed or acknowledged != wanted:
        raise BenchError(f"{acknowledged} of {counted(wanted, 'record')} acknowledged, {failed} failed")


def in_threads(task: Task, send: Callable[[int], None]) -> None:
    """Call send(records) in each of the task's threads, and wait for all; with one thread, in this one.

    Raises:
        BenchError: one of them raised.
    """
    if task.threads == 1:
        send(task.records)
        return
    errors: list[Exception] = []

    def run(records: int) -> None:
        try:
            send(records)
        except Exception as error:
            errors.append(error)

    share, rest = divmod(task.records, task.threads)
    threads = [threading.Thread(target=run, args=(share + (one < rest),)) for one in range(task.threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise BenchError("a thread could not send") from errors[0]


def percentiles_ms(latencies: Sequence[float]) -> dict[str, float]:
    """The percentiles people ask for, in milliseconds: the smallest latency that so many do not exceed."""
    if not latencies:
        return {}
    ordered = sorted(latencies)
    found = {}
    for name, thousandths in (("p50", 500), ("p95", 950), ("p99", 990), ("p99.9", 999)):
        rank = -(-len(ordered) * thousandths // 1000)  # rounded up
        found[name] = 1000 * ordered[rank - 1]
    return found


def peak_rss() -> int | None:
    """Most memory this process ever had, in bytes; None where the system does not say it (only Linux does)."""
    if not os.path.exists("/proc/self/status"):
        return None
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return None
