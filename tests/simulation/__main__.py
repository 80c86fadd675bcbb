# SPDX-License-Identifier: Apache-2.0
"""Runs seeds: many of them on all cores, or one with its trace.

python -m simulation --seeds 10000          from a start chosen at random, and printed
python -m simulation --seeds 100 --start 7  from a known start
python -m simulation --seed 7               one seed, with everything that happened
python -m simulation --guarded ...          brokers that authenticate clients, see guard.py
python -m simulation --frozen ...           brokers that are frozen when a producer comes for the first time
python -m simulation --old ...              brokers of Kafka 0.9 to 2.8, which are upgraded and downgraded
python -m simulation --awaited ...          tasks in event loops in place of threads, see loops.py
python -m simulation --bugs --starts 5      how soon each planted bug is found, from five starts
python -m simulation --bugs --note          the same from one start; the seeds are written into seeds.py
python -m simulation --noted                each planted bug at the seed that is noted for it
python -m simulation --sink ...             the exactly-once sink in place of the producer, see sink/command.py
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import os
import random
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import NoReturn

from penstock import _compiled
from simulation import coverage, seeds
from simulation.bugs import BUGS, planted
from simulation.plan import RECORDS_WANTED
from simulation.planting import Misfit
from simulation.run import Report, simulate
from simulation.sink import command
from simulation.telling import chunks, say, show_failure, tell_replay

_CHUNK = 50  # seeds that a worker takes at once
_HANGS_AFTER = 120  # real seconds for one seed; a lock that is taken twice would hang for ever
_TELL_EVERY = 15.0  # seconds
_LIMIT = 2000  # seeds within which a planted bug must be found
# A leader must move while it owes five answers, and more must follow: one seed in a thousand.
_RARE = {"too-many-numbered": 5000}
_FAULTS_WANTED = 3
_NOTE_FROM = 1000


def main() -> int:
    # The order of a set of strings is part of what a seed means.
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "simulation", *sys.argv[1:]])
    say(f"penstock: {_compiled.describe()}")
    if "--sink" in sys.argv:
        return command.main()
    arguments = _arguments()
    if arguments.bug is not None and BUGS[arguments.bug].needs_sources:
        _go_on_with_sources()
    if arguments.seed is not None:
        return _replay(arguments.seed, arguments.bug, _how(arguments))
    if arguments.bugs or arguments.noted:
        return _look_for_bugs(arguments)
    return _run_many(_start(arguments.start), arguments.seeds, arguments.jobs, arguments.bug, _how(arguments))


def _start(chosen: int | None, index: int = 0) -> int:
    return random.SystemRandom().randrange(10**9) if chosen is None else chosen + index * _LIMIT


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="simulation", description="Simulate producers, brokers and faults.")
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds (1000)")
    parser.add_argument("--start", type=int, help="the first one; chosen at random by default")
    parser.add_argument("--seed", type=int, help="replay this one, and print what happened")
    parser.add_argument("--guarded", action="store_true", help="with brokers that authenticate clients")
    parser.add_argument("--frozen", action="store_true", help="with brokers that are frozen at first contact")
    parser.add_argument("--old", action="store_true", help="with brokers of old releases, which change")
    parser.add_argument(
        "--awaited", action="store_true", help="with tasks in event loops in place of threads"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="worker processes")
    parser.add_argument("--bug", choices=BUGS, help="with this bug planted")
    parser.add_argument("--bugs", action="store_true", help=f"find every planted bug within {_LIMIT} seeds")
    parser.add_argument(
        "--noted", action="store_true", help="replay every planted bug at the seed noted for it"
    )
    parser.add_argument("--note", action="store_true", help="with --bugs: write the seeds into seeds.py")
    parser.add_argument(
        "--only", type=lambda names: names.split(","), help="of the planted bugs these: a,b,..."
    )
    parser.add_argument("--starts", type=int, default=1, help="from so many starts, for a median (1)")
    arguments = parser.parse_args()
    if unknown := set(arguments.only or ()) - set(BUGS):
        parser.error(f"no such planted bug: {', '.join(sorted(unknown))}")
    if arguments.note and arguments.start is None:
        arguments.start = _NOTE_FROM
    return arguments


def _go_on_with_sources() -> NoReturn:
    """Begin again in this process with the Python sources: what is compiled cannot be changed."""
    os.environ[_compiled.PURE_SWITCH] = "1"
    os.execv(sys.executable, [sys.executable, "-m", "simulation", *sys.argv[1:]])


def _how(arguments: argparse.Namespace) -> dict[str, bool]:
    names = ("guarded", "frozen", "old", "awaited")
    return {name: getattr(arguments, name) for name in names}


def _replay(seed: int, bug: str | None, how: dict[str, bool]) -> int:
    with planted(bug):
        report = simulate(seed, traced=True, **how)
    return tell_replay(report, _summary(report))


def _summary(report: Report) -> str:
    return (
        f"{report.mode}, {report.records} records, {report.faults} faults, {report.turns} turns, {report.lives} "
        f"producer(s), {report.virtual_seconds:.1f} virtual seconds, {len(report.problems)} problem(s)"
    )


# ------------------------------------------------------------------------------------------------ many


def _run_chunk(
    seeds: range, bug: str | None, how: dict[str, bool]
) -> tuple[list[Report], coverage.Rows, float]:
    rows: coverage.Rows = Counter()
    reports = []
    began = time.process_time()
    # Collecting while a seed runs finds nothing that could not wait for the end of the chunk.
    gc.disable()
    with coverage.counted(rows), planted(bug):
        for seed in seeds:
            faulthandler.dump_traceback_later(_HANGS_AFTER, exit=True)
            reports.append(simulate(seed, **how))
            if reports[-1].problems:
                break
    faulthandler.cancel_dump_traceback_later()
    gc.collect()
    return reports, rows, time.process_time() - began


def _run_many(start: int, count: int, jobs: int, bug: str | None, how: dict[str, bool]) -> int:
    say(f"{count} seeds from {start}, {jobs} at a time")
    began = time.monotonic()
    rows: coverage.Rows = Counter()
    totals = _Totals()
    progress = _Progress(count, began)
    busy = 0.0
    with ProcessPoolExecutor(jobs) as pool:
        work = [pool.submit(_run_chunk, chunk, bug, how) for chunk in chunks(start, count, _CHUNK)]
        for future in as_completed(work):
            reports, used, spent = future.result()
            busy += spent
            rows.update(used)
            totals.add(reports)
            progress.maybe_tell(totals.seeds, time.monotonic())
            if totals.failed:
                pool.shutdown(cancel_futures=True)
                break
    say("\n".join(coverage.describe(rows)))
    say(totals.describe())
    seconds = time.monotonic() - began
    say(f"{seconds:.0f} s in all, {busy / totals.seeds * 1000:.0f} ms of processor time a seed")
    if totals.failed:
        seed = totals.failed[0]
        return show_failure(seed, lambda: _replay(seed, bug, how), "make simulate")
    say(f"all {count} seeds hold")
    return 0


class _Progress:
    """Tells from time to time how far it is."""

    def __init__(self, count: int, now: float) -> None:
        self._count = count
        self._began = self._told_at = now

    def maybe_tell(self, done: int, now: float) -> None:
        if now - self._told_at >= _TELL_EVERY and done < self._count:
            self._told_at = now
            left = (now - self._began) / done * (self._count - done)
            say(f"{done} seeds hold, about {left:.0f} s to go")


class _Totals:
    """Sums over many seeds."""

    def __init__(self) -> None:
        self.seeds = 0
        self.modes: Counter[str] = Counter()
        self.sums: Counter[str] = Counter()
        self.small: list[int] = []
        self.failed: list[int] = []

    def add(self, reports: Iterable[Report]) -> None:
        for report in reports:
            self.seeds += 1
            self.modes[report.mode] += 1
            for name in (
                "records",
                "faults",
                "turns",
                "lives",
                "late_arrivals",
                "late_losses",
                "conversions",
            ):
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


def _look_for_bugs(arguments: argparse.Namespace) -> int:
    """Look for planted bugs, for those in compiled classes in a process that runs the Python sources."""
    names = arguments.only or list(BUGS)
    elsewhere = [name for name in names if BUGS[name].needs_sources]
    here = [name for name in names if name not in elsewhere]
    failed = False
    if here and arguments.noted:
        failed = _replay_noted(here)
    elif here:
        starts = [_start(arguments.start, index) for index in range(arguments.starts)]
        failed = _find_bugs(here, starts, arguments.jobs, note=arguments.note)
    if elsewhere:
        command = [sys.executable, "-m", "simulation", *sys.argv[1:], "--only", ",".join(elsewhere)]
        failed |= (
            subprocess.run(command, env=os.environ | {_compiled.PURE_SWITCH: "1"}, check=False).returncode
            != 0
        )
    return 1 if failed else 0


def _replay_noted(names: Iterable[str]) -> bool:
    """Replay each bug at its seed, and the seed without it; whether one was not found."""
    known: dict[tuple[int, bool], list[str]] = {}  # problems without a bug
    lost = False
    for name in names:
        seed = seeds.SEEDS.get(name)
        if seed is None:
            why = "no seed is noted for it"
        else:
            awaited = BUGS[name].awaited
            if (seed, awaited) not in known:
                known[seed, awaited] = simulate(seed, awaited=awaited).problems
            sound = known[seed, awaited]
            try:
                with planted(name):
                    problems = simulate(seed, awaited=awaited).problems
                if problems and not sound:
                    say(f"  found {name} at {seed}: {problems[0]}")
                    continue
                why = f"seed {seed} fails without it: {sound[0]}" if sound else f"seed {seed} holds with it"
            except Misfit as misfit:
                why = str(misfit)
        lost = True
        say(f"  LOST {name}: {why}")
    if lost:
        say(
            f"find other seeds with: python -m simulation --bugs --note --start {_NOTE_FROM} --only name,name"
        )
    return lost


def find_bug(name: str, start: int, limit: int = _LIMIT) -> Report | None:
    """The first seed in which a planted bug shows itself; None when it stays hidden."""
    limit = _RARE.get(name, limit)
    for seed in range(start, start + limit):
        with planted(name):
            report = simulate(seed, awaited=BUGS[name].awaited)
        if report.problems and not simulate(seed, awaited=BUGS[name].awaited).problems:
            return report
    return None


def _find_bugs(names: list[str], starts: list[int], jobs: int, *, note: bool) -> bool:
    """Look for each bug from each start; whether one was not found."""
    say(f"planted bugs, from seed {', '.join(map(str, starts))}")
    hidden = False
    with ProcessPoolExecutor(jobs) as pool:
        work = [(name, [pool.submit(find_bug, name, start) for start in starts]) for name in names]
        for name, futures in work:
            reports = [future.result() for future in futures]
            found = [
                report.seed - start + 1
                for start, report in zip(starts, reports, strict=True)
                if report is not None
            ]
            if len(found) < len(starts):
                hidden = True
                say(
                    f"  {name}: NOT FOUND in {_RARE.get(name, _LIMIT)} seeds from {len(starts) - len(found)} start(s)"
                )
                continue
            last = next(report for report in reports if report is not None)
            say(f"  {name}: after {_spread(found)} seed(s); {last.seed}: {last.problems[0]}")
            if note:
                seeds.SEEDS[name] = last.seed
    if note:
        _write_seeds()
    return hidden


def _write_seeds() -> None:
    path = Path(seeds.__file__)
    head = path.read_text().partition("SEEDS")[0]
    rows = "".join(f'    "{name}": {seeds.SEEDS[name]},\n' for name in BUGS if name in seeds.SEEDS)
    path.write_text(f"{head}SEEDS: dict[str, int] = {{\n{rows}}}\n")


def _spread(counts: list[int]) -> str:
    if len(counts) == 1:
        return str(counts[0])
    return f"{statistics.median(counts):.0f} (median) to {max(counts)} (worst)"


if __name__ == "__main__":
    sys.exit(main())
