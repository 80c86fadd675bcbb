# SPDX-License-Identifier: Apache-2.0
"""Reads what tests/run_results.py has written during a run of pytest: what failed, and how to repeat it."""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NO_TESTS = 5  # pytest's exit code
PYTEST = ".venv/bin/python -m pytest"


@dataclass
class Run:
    """One run of pytest. A test that passed and whose teardown failed is a failure alone."""

    name: str
    seed: int | None = None
    implementation: str | None = None  # None: it has not come to its start
    passed: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    running: str | None = None
    exit_code: int | None = None  # None: it has not come to its end

    @property
    def tests(self) -> int:
        """How many have passed or failed."""
        return len(self.passed) + len(self.failed)

    @property
    def trouble(self) -> str | None:
        """What went wrong beside tests that failed."""
        if self.implementation is None:
            return "did not start"
        if self.exit_code is None:
            return f"the process died in {self.running or 'no test'}"
        if self.exit_code == NO_TESTS:
            return "found no tests"
        if self.exit_code and not self.failed:
            return f"exit code {self.exit_code} of pytest"
        return None

    def command(self, *arguments: str) -> str:
        """What to type to run these tests again with the seed of this run."""
        pure = "PENSTOCK_PURE=1 " if self.implementation == "pure" else ""
        tests = shlex.join(arguments)
        return f"{pure}PENSTOCK_EXPECT={self.implementation} {PYTEST} --randomly-seed={self.seed} {tests}"


def read(path: Path) -> Run:
    """The run that has written, or writes, this file."""
    run = Run(path.stem)
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.endswith("\n"):  # the last line of a run that was killed may be torn
            ((event, value),) = json.loads(line).items()
            _apply(run, event, value)
    return run


def _apply(run: Run, event: str, value: Any) -> None:
    match event:
        case "seed":
            run.seed = value
        case "implementation":
            run.implementation = value
        case "started":
            run.running = value
        case "ended":
            run.running = None
        case "passed":
            run.passed.add(value)
        case "failed":
            run.passed.discard(value)
            run.failed.add(value)
        case "exit":
            run.exit_code = value


def closing_lines(lanes: dict[str, tuple[int, list[Run]]]) -> tuple[list[str], bool]:
    """What is said last of lanes (command: exit code, runs of pytest), and whether all is well."""
    runs = [run for _, lane in lanes.values() for run in lane]
    total, failed = sum(run.tests for run in runs), sum(len(run.failed) for run in runs)
    lines = [line for run in runs if run.failed or run.trouble for line in _told(run)]
    for name, (code, lane) in lanes.items():
        if code or not lane:
            without = "" if lane else " without running a test"
            lines.append(f"==> ended with exit code {code}{without}: {name}")
    if lines:
        return [*lines, f"==> {failed} of {total} tests failed, not all is well"], False
    counts = ", ".join(f"{run.name} {run.tests}" for run in runs)
    return [f"==> all {total} tests passed: {counts}"], True


def _told(run: Run) -> list[str]:
    """A run that went wrong."""
    told = [f"{len(run.failed)} of {run.tests} tests failed"] if run.failed else []
    told += [run.trouble] if run.trouble else []
    arguments = f"{os.environ.get('PYTEST_ARGS', '')} --randomly-seed={run.seed}".strip()
    again = f"make {run.name} PYTEST_ARGS={shlex.quote(arguments)}"
    lines = [f"==> {run.name}, seed {run.seed}: {', '.join(told)}; all of it again: {again}"]
    died = {run.running} if run.running else set()
    for test in sorted(run.failed | died):
        lines += [f"    failed: {test}", f"        {run.command(test)}"]
    return lines
