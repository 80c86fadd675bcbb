# SPDX-License-Identifier: Apache-2.0
"""Runs seeds: many of them on all cores, or one with its trace.

python -m simulation --seeds 10000          from a start chosen at random, and printed
python -m simulation --seeds 100 --start 7  from a known start
python -m simulation --seed 7               one seed, with everything that happened
python -m simulation --bugs                 how soon each planted bug is found
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed

from penstock import _compiled
from simulation import coverage
from simulation.bugs import BUGS, planted
from simulation.plan import RECORDS_WANTED
from simulation.run import Report, simulate

_CHUNK = 50  # seeds that a worker takes at once
_HANGS_AFTER = 120  # real seconds for one seed; a lock that is taken twice would hang for ever
_LIMIT = 2000  # seeds within which a planted bug must be found
_FAULTS_WANTED = 3


def say(text: str) -> None:
    """A line for the person at the terminal."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    arguments = _arguments()
    # The order of a set of strings is part of what a seed means.
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "simulation", *sys.argv[1:]])
    say(f"penstock: {_compiled.describe()}")
    if arguments.seed is not None:
        return _replay(arguments.seed, arguments.bug)
    start = random.SystemRandom().randrange(10**9) if arguments.start is None else arguments.start
    if arguments.bugs:
        return _find_bugs(start, arguments.jobs)
    return _run_many(start, arguments.seeds, arguments.jobs, arguments.bug)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="simulation", description="Simulate producers, brokers and faults.")
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds (1000)")
    parser.add_argument("--start", type=int, help="the first one; chosen at random by default")
    parser.add_argument("--seed", type=int, help="replay this one, and print what happened")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="worker processes")
    parser.add_argument("--bug", choices=BUGS, help="with this bug planted")
    parser.add_argument("--bugs", action="store_true", help=f"find every planted bug within {_LIMIT} seeds")
    return parser.parse_args()


def _replay(seed: int, bug: str | None) -> int:
    with planted(bug):
        report = simulate(seed, traced=True)
    say("\n".join(report.trace))
    say(f"\nseed {seed}: {_summary(report)}")
    for problem in report.problems:
        say(f"  {problem}")
    return 1 if report.problems else 0


def _summary(report: Report) -> str:
    return (
        f"{report.mode}, {report.records} records, {report.faults} faults, {report.turns} turns, {report.lives} "
        f"producer(s), {report.virtual_seconds:.1f} virtual seconds, {len(report.problems)} problem(s)"
    )


# ------------------------------------------------------------------------------------------------ many


def _run_chunk(seeds: range, bug: str | None) -> tuple[list[Report], coverage.Rows, float]:
    rows: coverage.Rows = Counter()
    reports = []
    began = time.process_time()
    # Collecting while a seed runs finds nothing that could not wait for the end of the chunk.
    gc.disable()
    with coverage.counted(rows), planted(bug):
        for seed in seeds:
            faulthandler.dump_traceback_later(_HANGS_AFTER, exit=True)
            reports.append(simulate(seed))
    faulthandler.cancel_dump_traceback_later()
    gc.collect()
    return reports, rows, time.process_time() - began


def _chunks(start: int, count: int) -> Iterator[range]:
    for first in range(start, start + count, _CHUNK):
        yield range(first, min(first + _CHUNK, start + count))


def _run_many(start: int, count: int, jobs: int, bug: str | None) -> int:
    say(f"{count} seeds from {start}, {jobs} at a time")
    began = time.monotonic()
    rows: coverage.Rows = Counter()
    totals = _Totals()
    busy = 0.0
    with ProcessPoolExecutor(jobs) as pool:
        work = [pool.submit(_run_chunk, chunk, bug) for chunk in _chunks(start, count)]
        for future in as_completed(work):
            reports, used, spent = future.result()
            busy += spent
            rows.update(used)
            totals.add(reports)
    seconds = time.monotonic() - began
    say("\n".join(coverage.describe(rows)))
    say(totals.describe())
    say(f"{seconds:.0f} s in all, {busy / count * 1000:.0f} ms of processor time a seed")
    if totals.failed:
        say(
            f"FAILED: {len(totals.failed)} of {count} seeds; see one with: make simulate SEED={totals.failed[0]}"
        )
        return 1
    say(f"all {count} seeds hold")
    return 0


class _Totals:
    """Sums over many seeds."""

    def __init__(self) -> None:
        self.modes: Counter[str] = Counter()
        self.sums: Counter[str] = Counter()
        self.small: list[int] = []
        self.failed: list[int] = []

    def add(self, reports: Iterable[Report]) -> None:
        for report in reports:
            self.modes[report.mode] += 1
            for name in ("records", "faults", "turns", "lives", "late_arrivals"):
                self.sums[name] += getattr(report, name)
            if report.records < RECORDS_WANTED or report.faults < _FAULTS_WANTED:
                self.small.append(report.seed)
            if report.problems:
                self.failed.append(report.seed)
                say(f"seed {report.seed} FAILS ({report.mode}): {report.problems[0]}")

    def describe(self) -> str:
        modes = ", ".join(f"{count} {mode}" for mode, count in sorted(self.modes.items()))
        sums = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in self.sums.items())
        small = f"; below {RECORDS_WANTED} records or {_FAULTS_WANTED} faults: seeds {self.small[:10]}"
        return f"{modes}: {sums}{small if self.small else ''}"


# ------------------------------------------------------------------------------------------------ planted bugs


def find_bug(name: str, start: int, limit: int = _LIMIT) -> Report | None:
    """The first seed in which a planted bug shows itself; None when it stays hidden."""
    for seed in range(start, start + limit):
        with planted(name):
            report = simulate(seed)
        if report.problems and not simulate(seed).problems:
            return report
    return None


def _find_bugs(start: int, jobs: int) -> int:
    say(f"planted bugs, from seed {start}")
    hidden = 0
    with ProcessPoolExecutor(jobs) as pool:
        for name, future in [(name, pool.submit(find_bug, name, start)) for name in BUGS]:
            report = future.result()
            if report is None:
                hidden += 1
                say(f"  {name}: NOT FOUND in {_LIMIT} seeds")
            else:
                say(f"  {name}: seed {report.seed}, number {report.seed - start + 1}: {report.problems[0]}")
    return 1 if hidden else 0


if __name__ == "__main__":
    sys.exit(main())
