# SPDX-License-Identifier: Apache-2.0
"""A hundred million records through one producer: does the last tenth go as fast as the first, in the same memory?

The rate is that of producer and broker together, where they share the cores. The CPU time of the producer for a record
is told, too: that does not depend on what the broker happens to do meanwhile.

This module is also the program that sends; see `main`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import chart
from bench.budget import Plan
from bench.counting import count_records, create_topic, delete_topics
from bench.model import BenchError
from bench.process import run_measured
from bench.runner import TOPIC_CONFIG, address
from bench.studies import Context
from bench.values import make_values

if TYPE_CHECKING:
    from penstock import Delivery

RECORDS = 100_000_000
PARTITIONS = 6
PARTS = 10
TIMEOUT_SECONDS = 3600.0
_GUESSED_RATE = 700_000
_CHUNK = 1000  # records between two looks at the oldest Deliveries
_TOPIC = "bench-endurance"
# So little that it is deleted before the system writes it to disk: otherwise that begins after some gigabytes, in the
# middle of the run, and takes its part of the cores from then on.
_TOPIC_CONFIG = {**TOPIC_CONFIG, "segment.bytes": 16 << 20, "retention.bytes": 32 << 20}


class Endurance:
    """Rate and memory of every tenth; each Delivery is looked at, and the records are counted at the broker."""

    name = "endurance"
    title = "100 million records through one producer: rate and memory of each tenth (only when named)"
    only_by_name = True

    def missing(self) -> str | None:
        return (
            None if Path("/proc/self/statm").exists() else "this system does not tell the memory of a process"
        )

    def seconds(self, plan: Plan) -> float:
        return (plan.records or RECORDS) / _GUESSED_RATE

    def run(self, context: Context) -> None:
        records = context.plan.records or RECORDS
        server = address(context.cluster)
        create_topic(server, _TOPIC, PARTITIONS, _TOPIC_CONFIG)
        told = json.dumps({"servers": context.cluster.bootstrap_servers, "records": records})
        command = [sys.executable, "-m", "bench.studies.endurance", told]
        finished = run_measured(command, TIMEOUT_SECONDS)
        parts: list[dict[str, float]] = json.loads(finished.output)
        arrived = count_records(server, _TOPIC, PARTITIONS)
        delete_topics(server, [_TOPIC])
        context.results.notes += [*describe(parts), f"endurance: {arrived:,} of {records:,} records arrived"]
        report: dict[str, Any] = {
            "machine": dict(context.results.machine),
            "records": records,
            "arrived": arrived,
            "cpu_us_per_record": 1e6 * finished.cpu_seconds / records,
            "parts": parts,
        }
        context.out.mkdir(parents=True, exist_ok=True)
        (context.out / "endurance.json").write_text(json.dumps(report, indent=2), encoding="utf-8")
        rates = [part["rate"] / 1e6 for part in parts]
        memory = [part["rss_mib"] for part in parts]
        title = f"{records:,} records through one producer, by tenths"
        drawing = chart.lines(title, {"million records/s": rates, "RSS, MiB": memory})
        (context.out / "endurance.svg").write_text(drawing, encoding="utf-8")
        if arrived != records:
            raise BenchError(f"{arrived:,} of {records:,} records arrived")


def describe(parts: Sequence[dict[str, float]]) -> list[str]:
    """One line for each tenth."""
    return [
        f"endurance, tenth {number}: {part['rate'] / 1e6:.3f} M records/s, {part['cpu_us']:.3f} us of CPU each, "
        f"{part['rss_mib']:.0f} MiB"
        for number, part in enumerate(parts, 1)
    ]


def main(arguments: Sequence[str]) -> None:
    """Send all records in ten parts, look at every Delivery, and print the figures of each part."""
    from penstock import Producer

    told = json.loads(arguments[0])
    values = cycle(make_values("letters", 100))
    deliveries: deque[Delivery] = deque()
    found = []
    with Producer({"bootstrap.servers": told["servers"]}) as producer:
        for part in range(PARTS):
            records = told["records"] * (part + 1) // PARTS - told["records"] * part // PARTS
            started, used = time.perf_counter(), time.process_time()
            for sent in range(0, records, _CHUNK):
                for value in islice(values, min(_CHUNK, records - sent)):
                    deliveries.append(producer.send(_TOPIC, value))
                while deliveries and deliveries[0].done():
                    _check(deliveries.popleft())
            if part == PARTS - 1:
                producer.flush()
                while deliveries:
                    _check(deliveries.popleft())
            found.append(
                {
                    "rate": records / (time.perf_counter() - started),
                    "cpu_us": 1e6 * (time.process_time() - used) / records,
                    "rss_mib": _rss() / (1 << 20),
                }
            )
    print(json.dumps(found))


def _check(delivery: Delivery) -> None:
    error = delivery.exception(0)
    if error is not None:
        raise BenchError("a record was not acknowledged") from error


def _rss() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main(sys.argv[1:])
