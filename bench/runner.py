# SPDX-License-Identifier: Apache-2.0
"""Makes the runs: all contenders in turns, round by round, on one broker and one topic for each case.

Rules:
1. A round has every contender once, and each round begins with another one, so that nobody always follows the same.
2. A first, shorter round warms up the broker and is not counted.
3. Records are counted at the broker after every run.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.counting import count_records, wait_until_counted
from bench.machine import OthersWatch, describe_machine
from bench.model import BenchError, Case, Contender, Job, Results, Run
from bench.process import run_measured
from penstock.devbroker import DevCluster

WARM_UP_SHARE = 4  # the first round sends one record in so many
DIFFERENT_VALUES = 1024
RUN_TIMEOUT_SECONDS = 180.0
# Old segments go while the next runs are made, so that a measurement does not fill the disk.
TOPIC_CONFIG = {"segment.bytes": 64 << 20, "retention.bytes": 256 << 20}


@dataclass(frozen=True)
class Plan:
    """What shall be measured.

    Attributes:
        records: sent in one run; None: as many as the case says.
    """

    cases: Sequence[Case]
    contenders: Sequence[Contender]
    rounds: int = 3
    records: int | None = None
    warm_up: bool = True


def measure(plan: Plan, cluster: DevCluster, tell: Callable[[str], None]) -> Results:
    """Make all runs of a plan.

    Raises:
        BenchError: a contender failed.
    """
    skipped = {one.name: why for one in plan.contenders if (why := one.missing())}
    contenders = [one for one in plan.contenders if one.name not in skipped]
    if not contenders or not plan.cases:
        raise BenchError("there is nothing to measure")
    runs: list[Run] = []
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        for number, case in enumerate(plan.cases):
            tell(f"\n{case.name}: {case.title}")
            job = _prepare(
                case, cluster, Path(folder), plan.records or case.records, f"bench-{number}-{case.name}"
            )
            runs += _rounds(plan, job, contenders, tell)
    return Results(plan.cases, contenders, runs, describe_machine(), skipped)


def _prepare(case: Case, cluster: DevCluster, folder: Path, records: int, topic: str) -> Job:
    cluster.create_topic(topic, case.partitions, config=TOPIC_CONFIG)
    wait_until_counted(_address(cluster), topic, case.partitions)
    payloads = folder / f"{case.name}.txt"
    payloads.write_bytes(b"\n".join(make_values(case.record_size)))
    return Job(case, cluster, topic, payloads, records)


def make_values(size: int) -> list[bytes]:
    """The values that everybody sends in turn: letters, the same in every measurement."""
    generator = random.Random(0)
    letters = bytes(65 + value % 26 for value in range(256))
    return [generator.randbytes(size).translate(letters) for _ in range(DIFFERENT_VALUES)]


def _rounds(plan: Plan, job: Job, contenders: Sequence[Contender], tell: Callable[[str], None]) -> list[Run]:
    runs = []
    if plan.warm_up:
        short = Job(job.case, job.cluster, job.topic, job.payload_file, max(1, job.records // WARM_UP_SHARE))
        for contender in contenders:
            run_once(short, contender, 0)
    for number in range(1, plan.rounds + 1):
        first = (number - 1) % len(contenders)
        for contender in (*contenders[first:], *contenders[:first]):
            run = run_once(job, contender, number)
            runs.append(run)
            lost = "" if run.complete else f"  BUT {run.arrived:,} of {run.sent:,} ARRIVED"
            tell(
                f"  round {number}  {contender.name:<16} {run.rate / 1e6:6.3f} M records/s  "
                f"{run.cpu_us:6.3f} us CPU/record  {run.peak_rss >> 20:5d} MiB{lost}"
            )
    return runs


def run_once(job: Job, contender: Contender, number: int) -> Run:
    """Let one contender do one job, and count what arrived."""
    server = _address(job.cluster)
    before = count_records(server, job.topic, job.case.partitions)
    others = OthersWatch(node.pid for node in job.cluster.nodes if node.pid is not None)
    finished = run_measured(contender.command(job), RUN_TIMEOUT_SECONDS)
    others_share = others.share(finished.cpu_seconds)
    arrived = count_records(server, job.topic, job.case.partitions) - before
    timing = contender.read_timing(job, finished.output)
    return Run(
        job.case.name,
        contender.name,
        number,
        job.records,
        arrived,
        timing.seconds,
        finished.cpu_seconds,
        timing.peak_rss or finished.peak_rss,
        others_share,
        timing.warm_up_records,
    )


def _address(cluster: DevCluster) -> str:
    return cluster.bootstrap_servers.split(",")[0]
