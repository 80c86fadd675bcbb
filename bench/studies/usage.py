# SPDX-License-Identifier: Apache-2.0
"""What the ways cost that programs use, beyond `send` of bytes and the user's own functions; and a migrated program.

b is the CPU of `send` with the same records as bytes, f that of the user's function alone in a loop. Both are taken in
the turns of the way's own process (`bench.usage`), so that the extra, CPU - b - f, is told in units of b.

The migrated program is the one of docs/migrate/confluent-kafka.md, before and after, with more records: the CPU of the
whole process.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from statistics import median

from bench.budget import TOPIC_SECONDS, Plan
from bench.cases.common import BATCH_128K
from bench.counting import count_records, create_topic, delete_topics
from bench.model import BenchError, Results, Sample
from bench.process import ROOT, run_measured
from bench.runner import TOPIC_CONFIG, address, last_line
from bench.studies import Context
from bench.usage import ALONE, BASE, CONFLUENT, OURS, PARTITIONS, TOPIC, WAYS, missing, their_name

MIGRATED = "usage-migrated"
MIGRATED_RECORDS = 2_000_000
PAGE = ROOT / "docs" / "migrate" / "confluent-kafka.md"
PROGRAMS = {CONFLUENT: "before.py", OURS: "after.py"}
RUN_SECONDS = 3.5  # of one process
RUN_TIMEOUT_SECONDS = 120.0
_MIGRATED_SECONDS = 8.0  # of both programs


class Usage:
    """CPU per record of each way, in every round."""

    name = "usage"
    title = (
        "CPU per record of the ways that programs use, against send of bytes and the user's functions alone"
    )
    only_by_name = False
    needs_broker = True

    def missing(self) -> str | None:
        return None

    def seconds(self, plan: Plan) -> float:
        return TOPIC_SECONDS + plan.rounds * (RUN_SECONDS * (len(WAYS) + 1) + _MIGRATED_SECONDS)

    def run(self, context: Context) -> None:
        server = address(context.cluster)
        create_topic(server, TOPIC, PARTITIONS, TOPIC_CONFIG)
        try:
            for number in range(1, context.plan.rounds + 1):
                for way in WAYS:
                    self._try(context, way, number, self._way)
                if any(one.name == CONFLUENT for one in context.plan.contenders):
                    self._try(context, CONFLUENT, number, self._theirs)
                    self._try(context, "migrated", number, self._migrated)
        finally:
            delete_topics(server, [TOPIC])
        context.results.notes.extend(summary(context.results))

    def _try(
        self, context: Context, what: str, number: int, take: Callable[[Context, str, int], list[Sample]]
    ) -> None:
        """Take the figures of a round; what fails is its own row, and the others go on."""
        results = context.results
        if (f"usage-{what}", OURS) in results.failures or f"usage-{what}" in results.skipped:
            return
        why = missing(what)
        if why is not None:
            results.skipped[f"usage-{what}"] = why
            return
        try:
            found = take(context, what, number)
        except (BenchError, OSError, ValueError) as error:
            results.failures[f"usage-{what}", OURS] = last_line(error)
            context.tell(f"  {what:<14} FAILED: {error}")
            return
        results.samples.extend(found)
        figures = ", ".join(
            f"{one.case.removeprefix('usage-') if what == CONFLUENT else one.contender} {one.value:.2f}"
            for one in found
            if one.measure == "cpu_us"
        )
        context.tell(f"  round {number}  {what:<14} {figures}")

    def _way(self, context: Context, way: str, number: int) -> list[Sample]:
        return samples(way, number, _turns(context, way))

    def _theirs(self, context: Context, _: str, number: int) -> list[Sample]:
        turns = _turns(context, None)
        return [
            Sample(f"usage-{name}", CONFLUENT, number, "cpu_us", median(turns[their_name(way.theirs)]))
            for name, way in WAYS.items()
            if way.theirs is not None
        ]

    def _migrated(self, context: Context, _: str, number: int) -> list[Sample]:
        records = context.plan.records or MIGRATED_RECORDS
        server = address(context.cluster)
        found = []
        for who, program in migrated(PAGE.read_text(encoding="utf-8"), server, records).items():
            before = count_records(server, TOPIC, PARTITIONS)
            finished = run_measured([sys.executable, "-c", program], RUN_TIMEOUT_SECONDS)
            arrived = count_records(server, TOPIC, PARTITIONS) - before
            if arrived != records:
                raise BenchError(f"{PROGRAMS[who]}: {arrived:,} of {records:,} records arrived")
            found.append(Sample(MIGRATED, who, number, "cpu_us", 1e6 * finished.cpu_seconds / records))
        return found


def _turns(context: Context, way: str | None) -> Mapping[str, Sequence[float]]:
    """Let a process take the turns of a way, or of all that confluent-kafka does; microseconds by who took them."""
    server = address(context.cluster)
    settings = {"bootstrap.servers": context.cluster.bootstrap_servers, **BATCH_128K}
    told = json.dumps({"way": way, "settings": settings, "records": context.plan.records})
    before = count_records(server, TOPIC, PARTITIONS)
    answer = json.loads(run_measured([sys.executable, "-m", "bench.usage", told], RUN_TIMEOUT_SECONDS).output)
    arrived = count_records(server, TOPIC, PARTITIONS) - before
    if arrived != answer["sent"]:
        raise BenchError(f"{arrived:,} of {answer['sent']:,} records arrived")
    turns: Mapping[str, Sequence[float]] = answer["turns"]
    return turns


def samples(way: str, number: int, turns: Mapping[str, Sequence[float]]) -> list[Sample]:
    """The medians of a process, and that of the extra: each turn's CPU is compared with what was taken beside it."""
    case, alone = f"usage-{way}", turns.get(ALONE) or [0.0] * len(turns[OURS])
    extra = [(all_ - b - f) / b for all_, b, f in zip(turns[OURS], turns[BASE], alone, strict=True)]
    return [
        *(Sample(case, who, number, "cpu_us", median(values)) for who, values in turns.items()),
        Sample(case, OURS, number, "extra", median(extra)),
    ]


def summary(results: Results) -> list[str]:
    """One line for each way: the medians of the rounds."""
    lines = []
    for name, title in [
        *((name, way.title) for name, way in WAYS.items()),
        ("migrated", "a migrated program"),
    ]:
        case = f"usage-{name}"
        costs = {
            who: median(values)
            for who in (OURS, BASE, ALONE, CONFLUENT)
            if (values := results.values(case, who, "cpu_us").values())
        }
        if OURS not in costs:
            continue
        words = {OURS: "", BASE: "b ", ALONE: "f ", CONFLUENT: "confluent-kafka "}
        extra = results.values(case, OURS, "extra").values()
        beyond = [f"extra {median(extra):.2f} b"] if extra else []
        told = ", ".join([*(f"{words[who]}{cost:.2f} us" for who, cost in costs.items()), *beyond])
        lines.append(f"usage, {title}: {told}")
    return lines


def migrated(page: str, server: str, records: int) -> dict[str, str]:
    """The programs of the page, for this broker and this topic, with so many records.

    Raises:
        BenchError: the page does not have them as expected.
    """
    changes = {"localhost:9092": server, '"orders"': f'"{TOPIC}"', "range(1000)": f"range({records})"}
    found = {}
    for who, name in PROGRAMS.items():
        block = re.search(rf"`{re.escape(name)}`:\n\n```python\n(.*?)```", page, re.DOTALL)
        program = block[1] if block else ""
        for old, new in changes.items():
            if old not in program:
                raise BenchError(f"{PAGE.name} has no {name} with {old}")
            program = program.replace(old, new)
        found[who] = program
    return found
