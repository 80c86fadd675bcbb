# SPDX-License-Identifier: Apache-2.0
"""`penstock demo`: a real Kafka, a million records with every codec, and proof that each of them arrived unchanged.

The proof does not rest on this package: Kafka's own console consumer reads the records back, its output is digested
partition by partition, and the digests are compared with those of what was sent and acknowledged.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.cli._demo_data import (
    PartitionDigest,
    demo_records,
    differences,
    digest_acknowledged,
)
from penstock.cli._demo_read import end_offsets, read_topic
from penstock.cli.options import CommandError
from penstock.cli.progress import INTERVAL, open_progress
from penstock.devbroker import DevBrokerError, DevCluster, kafka_jars
from penstock.devbroker.paths import KAFKA_VERSION

if TYPE_CHECKING:
    from penstock.cli.options import SubParsers

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PARTITIONS = 6
# Large batches compress better, and a short linger fills them; all else is as it comes.
OPTIONS = {"linger.ms": "20", "batch.size": "65536"}

_CHUNK = 1000  # records between two looks at the clock
_DESCRIPTION = f"""\
Start a real Apache Kafka {KAFKA_VERSION} on this machine, send records with keys and headers through the producer, with
each codec in turn, read them back with Kafka's own console consumer, and compare the counts and the SHA-256 of every
partition with what was sent. The exit code is 0 when they agree and 1 when they do not.

The first run fetches Kafka's jars (about 46 MB); later ones need no network. Nothing stays behind but those.
"""

Say = Callable[[str], None]


def add_parser(subparsers: SubParsers) -> None:
    """Add the `demo` command."""
    parser = subparsers.add_parser(
        "demo",
        help="send a million records to a real Kafka and prove that they arrived",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--records",
        type=_positive,
        default=1_000_000,
        metavar="N",
        help="how many in all, at least (default: 1000000)",
    )
    parser.add_argument(
        "--keep", action="store_true", help="keep the broker up afterwards, until Ctrl-C, to look around"
    )
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Do what the command line asks. Return the exit code: 0 when all records arrived unchanged, else 1."""
    try:
        kafka_jars()  # before the clock starts: it shows its own progress, and only the first run fetches anything
        started = time.monotonic()
        _say(f"starting Apache Kafka {KAFKA_VERSION} ...")
        with DevCluster() as cluster:
            _say(f"it runs at {cluster.bootstrap_servers}, {time.monotonic() - started:.1f} s")
            runs = run_on(cluster, args.records, _say)
            seconds = time.monotonic() - started
            print(table(runs))
            print(verdict(runs, seconds))
            if args.keep:
                _wait_for_interrupt(cluster)
    except DevBrokerError as error:
        raise CommandError(str(error)) from error
    return 0 if all(run.arrived for run in runs) else 1


@dataclass
class CodecRun:
    """What became of the records of one codec, in a topic of their own."""

    codec: str
    count: int
    megabytes: float = 0.0  # keys, values and headers
    seconds: float = 0.0  # from the first send to the last acknowledgement
    disk_megabytes: float = 0.0  # of the broker's log files
    sent: dict[int, PartitionDigest] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def topic(self) -> str:
        """Its topic."""
        return f"demo-{self.codec}"

    @property
    def arrived(self) -> bool:
        """Whether what was read is what was sent."""
        return bool(self.sent) and not self.problems


def run_on(cluster: DevCluster, records: int, say: Say, codecs: Sequence[str] = CODECS) -> list[CodecRun]:
    """Send at least `records` records to a running cluster, read them back and compare."""
    runs = [CodecRun(codec, -(-records // len(codecs))) for codec in codecs]
    say(f"creating {len(runs)} topics of {PARTITIONS} partitions ...")
    for run in runs:
        cluster.create_topic(run.topic, PARTITIONS)
    for run in runs:
        _send(cluster, run)
        rate = run.count / run.seconds
        say(f"sent {run.count:,} records with codec {run.codec}: {rate:,.0f} records/s")
    counted = end_offsets(cluster, f"({'|'.join(run.topic for run in runs)}):0-")
    for run in runs:
        run.problems += _count_problems(run, counted.get(run.topic, {}))
        run.problems += differences(run.sent, _read(cluster, run))
        run.disk_megabytes = _disk_megabytes(cluster, run.topic)
        say(f"read {run.topic} with Kafka's console consumer: {'same' if run.arrived else 'DIFFERENT'}")
    return runs


def _send(cluster: DevCluster, run: CodecRun) -> None:
    """Send the records of one codec and digest what was acknowledged.

    Raises:
        KafkaError: a record was not delivered.
    """
    from penstock import Producer

    progress = open_progress(run.count)
    # Made before the clock starts: what is measured is the producer.
    records = list(demo_records(run.codec, run.count))
    run.megabytes = sum(record.size for record in records) / 1e6
    config = {"bootstrap.servers": cluster.bootstrap_servers, "compression.type": run.codec, **OPTIONS}
    deliveries = []
    try:
        with Producer(config) as producer:
            started = shown = time.monotonic()
            for number, (key, value, headers) in enumerate(records):
                deliveries.append(producer.send(run.topic, value, key, headers=headers))
                if number % _CHUNK == 0 and (now := time.monotonic()) - shown >= INTERVAL:
                    shown = now
                    rate = number / (now - started)
                    progress.update(number, f"{run.codec}: {number:,} sent, {rate:,.0f} records/s")
            producer.flush()
            run.seconds = time.monotonic() - started
    finally:
        progress.finish()
    places = ((found.partition, found.offset) for found in (delivery.result(0) for delivery in deliveries))
    run.sent = digest_acknowledged(places, records)


def _read(cluster: DevCluster, run: CodecRun) -> dict[int, PartitionDigest]:
    progress = open_progress(run.count)
    try:
        return read_topic(
            cluster,
            run.topic,
            run.count,
            lambda number: progress.update(number, f"{run.topic}: {number:,} read back"),
        )
    finally:
        progress.finish()


def _count_problems(run: CodecRun, counted: dict[int, int]) -> list[str]:
    """Compare with the broker's own count: the consumer stops after as many as were sent, so more would not show."""
    return [
        f"partition {partition}: {expected:,} records acknowledged, {there:,} in the log"
        for partition in range(PARTITIONS)
        if (expected := run.sent[partition].records if partition in run.sent else 0)
        != (there := counted.get(partition, 0))
    ]


def _disk_megabytes(cluster: DevCluster, topic: str) -> float:
    files = [name for path in cluster.log_dirs().values() for name in path.glob(f"{topic}-[0-9]*/*.log")]
    return sum(name.stat().st_size for name in files) / 1e6


def table(runs: Sequence[CodecRun]) -> str:
    """The outcome, a line for each codec."""
    head = f"\n{'codec':<7} {'records':>10} {'MB':>8} {'records/s':>10} {'MB/s':>7} {'MB on disk':>11} {'ratio':>6}  "
    lines = [head + "read back with Kafka's consumer"]
    for run in runs:
        seconds = run.seconds or float("inf")
        ratio = run.disk_megabytes / run.megabytes if run.megabytes else 0.0
        outcome = f"identical, {len(run.sent)} SHA-256 agree" if run.arrived else "DIFFERENT"
        lines.append(
            f"{run.codec:<7} {run.count:>10,} {run.megabytes:>8.1f} {run.count / seconds:>10,.0f} "
            f"{run.megabytes / seconds:>7.1f} {run.disk_megabytes:>11.1f} {ratio:>6.2f}  {outcome}"
        )
        lines += [f"        {problem}" for problem in run.problems]
    return "\n".join(lines)


def verdict(runs: Sequence[CodecRun], seconds: float) -> str:
    """The outcome in one line."""
    total = sum(run.count for run in runs)
    wrong = [run.codec for run in runs if not run.arrived]
    if wrong:
        return (
            f"\nFAILED: what was read is not what was sent, with codec {', '.join(wrong)} ({seconds:.0f} s)"
        )
    return f"\nOK: {total:,} records sent, acknowledged and read back unchanged, in {seconds:.0f} s"


def _wait_for_interrupt(cluster: DevCluster) -> None:
    """Let the user look around."""
    print(f"\nThe broker stays up at {cluster.bootstrap_servers} until Ctrl-C.", flush=True)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        _say("stopping the broker")


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def _positive(text: str) -> int:
    number = int(text.replace("_", "").replace(",", ""))
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number
