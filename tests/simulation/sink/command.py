# SPDX-License-Identifier: Apache-2.0
"""`python -m simulation --sink`: seeds of the sink, many on all cores or one with its trace.

python -m simulation --sink --seeds 1000           from a start chosen at random, and printed
python -m simulation --sink --seed 7               one seed, with everything that happened
python -m simulation --sink --bugs                 how soon each planted bug is found
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import os
import random
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed

from simulation.sink.bugs import BUGS, planted
from simulation.sink.run import SinkReport, simulate
from simulation.telling import chunks, say, show_failure, tell_replay

_CHUNK = 25  # seeds that a worker takes at once
_HANGS_AFTER = 120  # real seconds for one seed
_TELL_EVERY = 15.0
LIMIT = 600  # seeds within which a planted bug must be found


def main() -> int:
    arguments = _arguments()
    start = random.SystemRandom().randrange(10**9) if arguments.start is None else arguments.start
    if arguments.seed is not None:
        return _replay(arguments.seed, arguments.bug)
    if arguments.bugs:
        return _find_bugs(start, arguments.jobs)
    return _run_many(start, arguments.seeds, arguments.jobs, arguments.bug)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="simulation --sink", description="Simulate the exactly-once sink.")
    parser.add_argument("--sink", action="store_true", help="the sink, in place of the producer")
    parser.add_argument("--seeds", type=int, default=300, help="how many seeds (300)")
    parser.add_argument("--start", type=int, help="the first one; chosen at random by default")
    parser.add_argument("--seed", type=int, help="replay this one, and print what happened")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="worker processes")
    parser.add_argument("--bug", choices=BUGS, help="with this bug planted")
    parser.add_argument("--bugs", action="store_true", help=f"find every planted bug within {LIMIT} seeds")
    return parser.parse_args()


def _replay(seed: int, bug: str | None) -> int:
    with planted(bug):
        report = simulate(seed, traced=True)
    return tell_replay(report, _summary(report))


def _summary(report: SinkReport) -> str:
    failures = ", ".join(f"{count} {name}" for name, count in sorted(report.failures.items()))
    return (
        f"{report.drivers} driver(s), {report.batches} batch(es), {report.rows} rows, {report.faults} fault(s), "
        f"{report.turns} turns, {report.virtual_seconds:.0f} virtual seconds, failures: {failures or 'none'}; "
        f"{len(report.problems)} problem(s)"
    )


def _run_chunk(seeds: range, bug: str | None) -> tuple[list[SinkReport], float]:
    reports = []
    began = time.process_time()
    gc.disable()
    with planted(bug):
        for seed in seeds:
            faulthandler.dump_traceback_later(_HANGS_AFTER, exit=True)
            reports.append(simulate(seed))
            if reports[-1].problems:
                break
    faulthandler.cancel_dump_traceback_later()
    gc.collect()
    return reports, time.process_time() - began


def _run_many(start: int, count: int, jobs: int, bug: str | None) -> int:
    say(f"{count} seeds of the sink from {start}, {jobs} at a time")
    began = told_at = time.monotonic()
    sums: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    failed: list[int] = []
    busy = 0.0
    with ProcessPoolExecutor(jobs) as pool:
        for future in as_completed(
            [pool.submit(_run_chunk, chunk, bug) for chunk in chunks(start, count, _CHUNK)]
        ):
            reports, spent = future.result()
            busy += spent
            for report in reports:
                sums["seeds"] += 1
                for name in ("drivers", "batches", "rows", "faults", "turns", "losses", "repairs"):
                    sums[name] += getattr(report, name)
                failures.update(report.failures)
                if report.problems:
                    failed.append(report.seed)
                    say(f"seed {report.seed} FAILS: {report.problems[0]}")
            if failed:
                pool.shutdown(cancel_futures=True)
                break
            if time.monotonic() - told_at > _TELL_EVERY:
                told_at = time.monotonic()
                say(f"{sums['seeds']} seeds hold")
    say(", ".join(f"{number} {name}" for name, number in sums.items()))
    say("drivers failed with: " + ", ".join(f"{number} {name}" for name, number in failures.most_common()))
    seconds = time.monotonic() - began
    say(f"{seconds:.0f} s in all, {busy / sums['seeds'] * 1000:.0f} ms of processor time a seed")
    if not failed:
        say(f"all {count} seeds hold")
        return 0
    return show_failure(failed[0], lambda: _replay(failed[0], bug), "make simulate SINK=1")


def find_bug(name: str, start: int, limit: int = LIMIT) -> SinkReport | None:
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
                say(f"  {name}: NOT FOUND in {LIMIT} seeds")
            else:
                say(f"  {name}: after {report.seed - start + 1} seed(s); {report.seed}: {report.problems[0]}")
    return 1 if hidden else 0
