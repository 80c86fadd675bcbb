# SPDX-License-Identifier: Apache-2.0
"""Makes the runs: all contenders of a group of cases in turns, round by round, on one broker.

Rules:
1. A round has every contender once in every case, and each round begins with another one, so that nobody always
   follows the same.
2. A first, shorter round warms up the broker and is not counted. Its rate, or a later and higher one, says how many
   records the next run sends: everybody sends for about the same time, however fast.
3. A run that is over in less than half of its time is not counted: the rate before it was too low, for instance because
   the broker was still creating the logs of many partitions. The run is made again, with the rate that it has shown.
4. Records are counted at the broker after every run.
5. A run that fails costs its contender that case, and nobody anything else.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path

from bench.budget import (
    LATENCY_SECONDS,
    LATENCY_WARM_UP_SECONDS,
    WARM_UP_SHARE,
    Plan,
    group_seconds,
    minutes,
)
from bench.counting import count_records, create_topic, delete_topics, write_everywhere
from bench.fake_brokers import FakeBrokers
from bench.machine import OthersWatch
from bench.model import BenchError, Case, Contender, Job, Results, Run
from bench.process import run_measured
from bench.values import make_values
from penstock.devbroker import DevCluster

RUN_TIMEOUT_SECONDS = 90.0
SHORTEST_SHARE = 0.5  # of a run's time; a shorter run is made again
MOST_TRIES = 3  # of one run
FIRST_BYTES_PER_SECOND = 100_000_000  # nobody is taken to be faster before it has shown it
FIRST_WAITS_PER_SECOND = 300  # likewise of a task that waits for each of its records
# Old segments go while the next runs are made, so that a measurement does not fill the disk.
BROKER_HEAP_MB = 1024
BROKER_PROPERTIES = {"log.retention.check.interval.ms": 1_000, "log.segment.delete.delay.ms": 1_000}
TOPIC_CONFIG = {"segment.bytes": 64 << 20, "retention.bytes": 128 << 20, "file.delete.delay.ms": 1000}
Tell = Callable[[str], None]
Entries = Sequence[tuple[Case, Contender]]


class GroupRunner:
    """Makes the runs of one group.

    Args:
        results: where runs and failures go.
        tell: called with lines of progress.
    """

    def __init__(self, plan: Plan, cluster: DevCluster, results: Results, tell: Tell) -> None:
        self._plan = plan
        self._cluster = cluster
        self._results = results
        self._tell = tell
        self._rates: dict[tuple[str, str], float] = {}  # the best so far

    def run(self, name: str, entries: Entries) -> None:
        """Make all runs of a group, in topics of their own that are removed afterwards."""
        cases = list({case.name: case for case, _ in entries}.values())
        with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder, ExitStack() as stack:
            jobs = {case.name: self._prepare(case, Path(folder), stack) for case in cases}
            try:
                self._rounds(jobs, entries)
            finally:
                # A broker of another release ends with its group, and its topics with it.
                shared = [job.topic for job in jobs.values() if not (job.case.kafka or job.fake)]
                if shared:
                    delete_topics(address(self._cluster), shared)
        self._tell(f"  {name} is done")

    def _prepare(self, case: Case, folder: Path, stack: ExitStack) -> Job:
        topic, fake = f"bench-{case.name}", None
        if case.brokers:
            fake = stack.enter_context(FakeBrokers(case.brokers, topic, case.partitions))
        elif case.kafka:  # by the tools of the release: it does not know the request
            self._cluster.create_topic(topic, case.partitions, config=TOPIC_CONFIG)
        else:
            create_topic(address(self._cluster), topic, case.partitions, TOPIC_CONFIG)
            if case.group == "scale":
                write_everywhere(address(self._cluster), topic, case.partitions)
        payloads = folder / f"{case.name}.txt"
        payloads.write_bytes(b"\n".join(make_values(case.values, case.record_size)))
        return Job(case, self._cluster, topic, payloads, 1, fake=fake)

    def _rounds(self, jobs: dict[str, Job], entries: Entries) -> None:
        plan = self._plan
        last = max(plan.rounds_of(case, contender) for case, contender in entries)
        for number in range(0 if plan.warm_up else 1, last + 1):
            first = (number - 1) % len(entries)
            for case, contender in (*entries[first:], *entries[:first]):
                if (case.name, contender.name) in self._results.failures or (number == 0 and case.rate):
                    continue  # where there is a rate, every run has its own warm-up
                if number > plan.rounds_of(case, contender):
                    continue
                self._turn(number, jobs[case.name], contender)

    def _turn(self, number: int, job: Job, contender: Contender) -> None:
        case = job.case
        for left in reversed(range(MOST_TRIES)):
            records, warm_up = self._size(number, case, contender)
            sized = dataclasses.replace(job, records=records, warm_up_records=warm_up)
            try:
                run = run_once(sized, contender, number)
            except Exception as error:  # whatever it is, it is this contender's row, and the others go on
                self._results.failures[case.name, contender.name] = last_line(error)
                self._tell(f"  {case.name:<14} {contender.name:<16} FAILED: {error}")
                return
            key = (case.name, contender.name)
            self._rates[key] = max(run.rate, self._rates.get(key, 0.0))
            if not (left and self._too_short(run, case)):
                break
            self._tell(f"{line_of(run)}  too short: once more")
        if number:
            self._results.runs.append(run)
        self._tell(line_of(run))

    def _too_short(self, run: Run, case: Case) -> bool:
        """Whether a run had too few records. One that has lost or doubled a record counts, however short."""
        if not (run.round and self._plan.warm_up) or case.rate or self._plan.records:
            return False
        return run.complete and run.seconds < SHORTEST_SHARE * self._plan.seconds

    def _size(self, number: int, case: Case, contender: Contender) -> tuple[int, int]:
        """How many records to send, and how many before them."""
        plan = self._plan
        share = 1 if number else WARM_UP_SHARE
        if case.rate:
            records = plan.records or int(case.rate * LATENCY_SECONDS)
            return records, min(records, int(case.rate * LATENCY_WARM_UP_SECONDS))
        if plan.records:
            return max(1, plan.records // share), 0
        guess = min(contender.guess, FIRST_BYTES_PER_SECOND / case.record_size)
        step = 1000
        if case.tasks:
            guess = min(guess, FIRST_WAITS_PER_SECOND * case.tasks)
            step = case.tasks  # the same for each of them
        rate = self._rates.get((case.name, contender.name), guess)
        return max(step, int(rate * plan.seconds / share) // step * step), 0


def broker_for(group: Entries, shared: DevCluster | None) -> AbstractContextManager[DevCluster]:
    """The broker that the cases of a group want: the shared one, or one of another release, which is started.

    Raises:
        BenchError: they want different ones, or the shared one is wanted and there is none.
    """
    releases = {case.kafka for case, _ in group}
    if len(releases) > 1:
        raise BenchError("the cases of a group take turns on one broker, and want different releases")
    (release,) = releases
    if release:
        return DevCluster(kafka=release, heap_mb=BROKER_HEAP_MB, properties=BROKER_PROPERTIES)
    if shared is None:
        raise BenchError("no broker was started")
    return nullcontext(shared)


def run_groups(plan: Plan, cluster: DevCluster | None, results: Results, tell: Tell, deadline: float) -> None:
    """Make all runs of a plan; a group that would not be over by the deadline is left out.

    Args:
        cluster: for the groups that want no release of their own; None where all do.
    """
    for name, entries in plan.groups().items():
        expected = group_seconds(plan, entries)
        if time.monotonic() + 0.7 * expected > deadline:  # estimates are on the safe side
            results.skipped[name] = "there was no time left for it"
            continue
        tell(f"\n{name}: about {minutes(expected)} of {minutes(deadline - time.monotonic())} left")
        try:
            with broker_for(entries, cluster) as broker:
                GroupRunner(plan, broker, results, tell).run(name, entries)
        except Exception as error:  # no topic, say: the next group may succeed
            results.skipped[name] = f"failed: {last_line(error)}"
            tell(f"  FAILED: {error}")


def run_once(job: Job, contender: Contender, number: int) -> Run:
    """Let one contender do one job, and count what arrived.

    Raises:
        BenchError: it failed.
    """
    before = _records_at(job)
    others = OthersWatch(_broker_pids(job))
    finished = run_measured(contender.command(job), RUN_TIMEOUT_SECONDS, contender.environment)
    others_share = others.share(finished.cpu_seconds)
    arrived = _records_at(job) - before
    timing = contender.read_timing(job, finished.output)
    return Run(
        job.case.name,
        contender.name,
        number,
        job.records,
        arrived,
        timing.seconds,
        finished.cpu_seconds if timing.cpu_seconds is None else timing.cpu_seconds,
        timing.peak_rss or finished.peak_rss,
        others_share,
        timing.warm_up_records,
        timing.latency_ms,
    )


def _records_at(job: Job) -> int:
    """How many records the brokers of a job have taken so far."""
    if job.fake is not None:
        return job.fake.records()
    return count_records(address(job.cluster), job.topic, job.case.partitions)


def _broker_pids(job: Job) -> Iterable[int]:
    if job.fake is not None:
        return [job.fake.pid]
    return [node.pid for node in job.cluster.nodes if node.pid is not None]


def line_of(run: Run) -> str:
    """A run, for people who watch."""
    what = f"round {run.round}" if run.round else "warm-up"
    lost = "" if run.complete else f"  BUT {run.arrived:,} of {run.sent:,} ARRIVED"
    if run.latency_ms:
        percentiles = "  ".join(f"{name} {value:.2f} ms" for name, value in run.latency_ms.items())
        figures = f"{run.rate:9,.0f} records/s  {percentiles}"
    else:
        figures = f"{run.rate / 1e6:6.3f} M records/s  {run.cpu_us:6.3f} us CPU  {run.peak_rss >> 20:5d} MiB"
    return f"  {what:<8} {run.case:<14} {run.contender:<16} {run.seconds:5.1f} s  {figures}{lost}"


def last_line(error: Exception) -> str:
    """What an error says in the end: of a program's traceback, its last line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def address(cluster: DevCluster) -> str:
    """Where the broker is, host:port."""
    return cluster.bootstrap_servers.split(",")[0]
