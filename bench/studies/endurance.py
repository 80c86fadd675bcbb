# SPDX-License-Identifier: Apache-2.0
"""A hundred million records through one producer: does the last tenth go as fast as the first, in the same memory?

The rate is that of producer and broker together, where they share the cores. The broker keeps its log in memory where
the system has a folder for that: it writes every segment to disk when it begins the next one, eleven gigabytes in a
round, and a disk that slows down after a minute would be taken for a producer that does. The CPU time of the producer
for a record is told, too: that does not depend on what the broker happens to do meanwhile. Both depend on the machine,
which may be part of a larger one with other work: so a piece of work that never changes is timed again and again in
between.

This module is also the program that sends; see `main`.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import chart
from bench.budget import Plan
from bench.counting import count_records, create_topic, delete_topics
from bench.model import BenchError
from bench.process import run_measured
from bench.runner import BROKER_HEAP_MB, BROKER_PROPERTIES, TOPIC_CONFIG, address
from bench.studies import Context
from bench.values import make_values
from penstock.devbroker import DevCluster

if TYPE_CHECKING:
    from penstock import Delivery

RECORDS = 100_000_000
PARTITIONS = 6
PARTS = 10
TIMEOUT_SECONDS = 3600.0
_GUESSED_RATE = 700_000
_CHUNK = 1000  # records between two looks at the oldest Deliveries
_PIECES = 10  # of fixed work in each tenth
_PIECE = 100_000  # what such a piece has to add up
_TOPIC = "bench-endurance"
_ROOM = 3 << 30
# So little that what is in memory stays below _ROOM.
_TOPIC_CONFIG = {**TOPIC_CONFIG, "segment.bytes": 16 << 20, "retention.bytes": 32 << 20}


class Endurance:
    """Rate and memory of every tenth; each Delivery is looked at, and the records are counted at the broker."""

    name = "endurance"
    title = "100 million records through one producer, in each round: rate and memory of each tenth (only when named)"
    only_by_name = True
    needs_broker = True

    def missing(self) -> str | None:
        return (
            None if Path("/proc/self/statm").exists() else "this system does not tell the memory of a process"
        )

    def seconds(self, plan: Plan) -> float:
        return plan.rounds * (plan.records or RECORDS) / _GUESSED_RATE

    def run(self, context: Context) -> None:
        records = context.plan.records or RECORDS
        rounds = []
        with _steady_cluster(context) as cluster:
            where = "on disk" if cluster is context.cluster else "in memory"
            context.results.notes.append(f"endurance: the broker's log was {where}")
            for number in range(1, context.plan.rounds + 1):
                rounds.append(_send_all(cluster, records))
                context.tell(f"round {number}: {compare(rounds[-1:])}")
        for number, parts in enumerate(rounds, 1):
            context.results.notes += [f"endurance, round {number}", *describe(parts)]
        context.results.notes += [compare(rounds), f"endurance: all of {records:,} records arrived each time"]
        report: dict[str, Any] = {
            "machine": dict(context.results.machine),
            "records": records,
            "log": where,
            "rounds": rounds,
        }
        context.out.mkdir(parents=True, exist_ok=True)
        (context.out / "endurance.json").write_text(json.dumps(report, indent=2), encoding="utf-8")
        (context.out / "endurance.svg").write_text(draw(records, rounds), encoding="utf-8")


@contextmanager
def _steady_cluster(context: Context) -> Iterator[DevCluster]:
    """A cluster of its own whose log is in memory; the one that is there, where there is no room for that."""
    memory = memory_folder()
    if memory is None:
        yield context.cluster
        return
    with (
        tempfile.TemporaryDirectory(prefix="penstock-endurance-", dir=memory) as folder,
        DevCluster(data_dir=folder, heap_mb=BROKER_HEAP_MB, properties=BROKER_PROPERTIES) as cluster,
    ):
        yield cluster


def memory_folder(candidate: Path = Path("/dev/shm")) -> Path | None:  # noqa: S108 - a folder of our own is made in it
    """Where files are kept in memory; None where there is no such folder, or little room."""
    if not os.path.ismount(candidate) or not os.access(candidate, os.W_OK):
        return None
    return candidate if shutil.disk_usage(candidate).free >= _ROOM else None


def _send_all(cluster: DevCluster, records: int) -> list[dict[str, float]]:
    """One round; the figures of each tenth."""
    server = address(cluster)
    create_topic(server, _TOPIC, PARTITIONS, _TOPIC_CONFIG)
    told = json.dumps({"servers": cluster.bootstrap_servers, "records": records})
    finished = run_measured([sys.executable, "-m", "bench.studies.endurance", told], TIMEOUT_SECONDS)
    arrived = count_records(server, _TOPIC, PARTITIONS)
    delete_topics(server, [_TOPIC])
    if arrived != records:
        raise BenchError(f"{arrived:,} of {records:,} records arrived")
    parts: list[dict[str, float]] = json.loads(finished.output)
    return parts


def draw(records: int, rounds: Sequence[Sequence[dict[str, float]]]) -> str:
    """A chart of the medians."""
    lines = {"million records/s": ("rate", 1e6), "RSS, MiB": ("rss_mib", 1)}
    medians = {
        name: [statistics.median(part[key] for part in parts) / unit for parts in zip(*rounds, strict=True)]
        for name, (key, unit) in lines.items()
    }
    title = f"{records:,} records through one producer, by tenths"
    return chart.lines(f"{title}; medians of {len(rounds)}" if len(rounds) > 1 else title, medians)


def compare(rounds: Sequence[Sequence[dict[str, float]]]) -> str:
    """The last tenth of each round beside the second; and both at the same speed of the machine."""
    ratios = [parts[-1]["rate"] / parts[1]["rate"] for parts in rounds]
    steady = [
        ratio * parts[-1]["host_ms"] / parts[1]["host_ms"]
        for ratio, parts in zip(ratios, rounds, strict=True)
    ]
    grown = [parts[-1]["rss_mib"] - parts[1]["rss_mib"] for parts in rounds]
    return (
        f"endurance: rate of the last tenth / that of the second {_told(ratios)}; with the machine's speed taken out "
        f"{_told(steady)}; memory {max(grown):+.1f} MiB at most"
    )


def _told(ratios: Sequence[float]) -> str:
    """A median, and the values."""
    return f"{statistics.median(ratios):.2f} ({', '.join(f'{ratio:.2f}' for ratio in ratios)})"


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
            pieces = Pieces()
            for sent in range(0, records, _CHUNK):
                if sent * _PIECES // records >= len(pieces.seconds):
                    pieces.do_one()
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
                    "rate": records / (time.perf_counter() - started - pieces.elapsed),
                    "cpu_us": 1e6 * (time.process_time() - used - sum(pieces.seconds)) / records,
                    "rss_mib": _rss() / (1 << 20),
                    "host_ms": 1e3 * statistics.mean(pieces.seconds),
                }
            )
    print(json.dumps(found))


class Pieces:
    """Pieces of work that never change.

    Attributes:
        seconds: of CPU that each has taken.
        elapsed: seconds that all have taken.
    """

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.elapsed = 0.0

    def do_one(self) -> None:
        """Compute the next piece, and note its time."""
        started, used = time.perf_counter(), time.thread_time()
        total = 0
        for number in range(_PIECE):
            total += number * number
        self.seconds.append(time.thread_time() - used)
        self.elapsed += time.perf_counter() - started


def _check(delivery: Delivery) -> None:
    error = delivery.exception(0)
    if error is not None:
        raise BenchError("a record was not acknowledged") from error


def _rss() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main(sys.argv[1:])
