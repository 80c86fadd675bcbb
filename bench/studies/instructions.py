# SPDX-License-Identifier: Apache-2.0
"""How many machine instructions one record takes, counted by valgrind's callgrind.

Each program (`bench.counted`) has the producer, its I/O and a broker in memory on one thread, so that the same things
happen in the same order in every run: no broker, no socket, no second thread, a clock of its own. Besides, the order of
sets and dicts is fixed (PYTHONHASHSEED, no address randomization) and the environment is. What is left is the system's
time in the records' timestamps, a byte more or less. Only the records count, not the start of the program.

What was found is compared with bench/instructions.json, by kind of interpreter; more than LIMIT times that fails.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.budget import Plan
from bench.counted import CHUNKS, COUNTED_FUNCTION
from bench.model import BenchError, Sample
from bench.process import ROOT, run_measured
from bench.studies import Context

RECORDED = ROOT / "bench" / "instructions.json"
LIMIT = 1.01  # times what was recorded
RECORDS = {program: 90_000 if "arrow" in program else 20_000 for program in CHUNKS}
RUN_SECONDS = 15.0
RUN_TIMEOUT_SECONDS = 600.0
_AT_A_TIME = 2  # counts do not depend on what else runs
_TOTALS = re.compile(r"^totals: (\d+)", re.MULTILINE)
_ENVIRONMENT = {
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    "ARROW_DEFAULT_MEMORY_POOL": "system",  # the others have threads of their own
    "LANG": "C.UTF-8",
}
_KEPT_VARIABLES = ("PATH", "HOME", "PENSTOCK_PURE")


class Instructions:
    """Instructions per record, against those that were recorded."""

    name = "instructions"
    title = "machine instructions per record, by callgrind, against bench/instructions.json"
    only_by_name = False
    needs_broker = False

    def missing(self) -> str | None:
        missing = [program for program in ("valgrind", "setarch") if not shutil.which(program)]
        if not missing:
            return None
        packages = {"valgrind": "valgrind", "setarch": "util-linux"}
        named = " and ".join(f"{program} (Debian package {packages[program]})" for program in missing)
        return f"{named} is not installed"

    def seconds(self, plan: Plan) -> float:
        del plan  # once is enough: there is hardly a spread
        return RUN_SECONDS * len(RECORDS) / _AT_A_TIME

    def run(self, context: Context) -> None:
        programs = {program: context.plan.records or records for program, records in RECORDS.items()}
        with ThreadPoolExecutor(_AT_A_TIME) as pool:
            futures = {program: pool.submit(count, program, records) for program, records in programs.items()}
        found: dict[str, float] = {}
        for program, future in futures.items():
            case = f"instructions-{program}"
            try:
                found[program] = round(future.result(), 1)
            except BenchError as error:
                context.results.failures[case, "penstock"] = str(error).splitlines()[-1]
                context.tell(f"  {program:<16} FAILED: {error}")
                continue
            context.results.samples.append(Sample(case, "penstock", 1, "instructions", found[program]))
            context.tell(f"  {program:<16} {found[program]:,.1f} instructions per record")
        recorded = read_recorded()
        context.results.notes += compare_with_recorded(found, recorded)
        if context.keep is not None:
            recorded[kind()] = {"commit": _commit(), "why": context.keep, "per_record": found}
            RECORDED.write_text(json.dumps(recorded, indent=2) + "\n", encoding="utf-8")
            context.tell(f"  recorded in {RECORDED.relative_to(ROOT)}")
            return
        for program in beyond_limit(found, recorded):
            context.results.failures[f"instructions-{program}", "penstock"] = (
                f"more than {100 * (LIMIT - 1):.0f} % above what was recorded"
            )


def compare_with_recorded(found: Mapping[str, float], recorded: Mapping[str, Any]) -> list[str]:
    """Say for each program how many instructions it took, and how that compares with what was recorded."""
    before = recorded.get(kind(), {}).get("per_record", {})
    too_many = set(beyond_limit(found, recorded))
    lines = []
    for program, value in found.items():
        line = f"instructions per record, {program}: {value:,.1f}"
        if program not in before:
            lines.append(f"{line} (NOT COMPARED: nothing is recorded for {kind()})")
            continue
        grown = 100 * (value / before[program] - 1)
        word = f"GREW beyond {100 * (LIMIT - 1):.0f} %" if program in too_many else "within its limit"
        lines.append(f"{line} ({word}: {before[program]:,.1f} recorded, {grown:+.2f} %)")
    return lines


def beyond_limit(found: Mapping[str, float], recorded: Mapping[str, Any]) -> Iterable[str]:
    """The programs that take more than they may."""
    before = recorded.get(kind(), {}).get("per_record", {})
    return [program for program, value in found.items() if value > LIMIT * before.get(program, float("inf"))]


def count(program: str, records: int) -> float:
    """Instructions per record of one program.

    Raises:
        BenchError: it failed, or nothing was counted.
    """
    chunk = CHUNKS[program]
    records = -(-records // chunk) * chunk
    worker = [sys.executable, "-m", "bench.counted", program, str(records)]
    environment = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ} | _ENVIRONMENT
    run_measured(worker, RUN_TIMEOUT_SECONDS, {"PYTHONDONTWRITEBYTECODE": ""})  # leaves bytecode behind
    with tempfile.TemporaryDirectory(prefix="penstock-callgrind-") as folder:
        out = Path(folder) / "callgrind.out"
        command = ["valgrind", "--quiet", "--tool=callgrind", f"--toggle-collect={COUNTED_FUNCTION}"]
        command = ["setarch", "--addr-no-randomize", *command, f"--callgrind-out-file={out}", *worker]
        run_measured(
            ["env", "-i", *(f"{name}={value}" for name, value in environment.items()), *command],
            RUN_TIMEOUT_SECONDS,
        )
        total = _TOTALS.search(out.read_text(encoding="utf-8", errors="replace")) if out.exists() else None
    if total is None or int(total[1]) == 0:
        raise BenchError(
            f"callgrind counted nothing: is {COUNTED_FUNCTION} in the symbols of {sys.executable}?"
        )
    return int(total[1]) / records


def kind() -> str:
    """What counts can be compared: interpreter, compiler, processor, and whether ours is compiled."""
    from penstock import _compiled

    ours = _compiled.describe().partition(",")[0]
    python = f"{platform.python_implementation()} {platform.python_version()} ({platform.python_compiler()})"
    return f"{python}, {platform.machine()}, {ours}"


def read_recorded() -> dict[str, Any]:
    """By kind of interpreter: commit, reason, and instructions per record of each program."""
    if not RECORDED.exists():
        return {}
    recorded: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return recorded


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
