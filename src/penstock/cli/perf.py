# SPDX-License-Identifier: Apache-2.0
"""`penstock perf`: how fast records go, and how long each takes, in the manner of Kafka's own producer test."""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock import _compiled
from penstock._counted import counted
from penstock._redaction import shown_option
from penstock.cli import lines, progress, reach
from penstock.cli.load import LatencyHistogram, LatencySummary, Load, Pacer, Stats, SystemPacer, send_all
from penstock.cli.options import (
    CommandError,
    OpenProducer,
    add_producer_arguments,
    add_watch_argument,
    close_producer,
    producer_config,
    tell_pages,
)
from penstock.cli.values import at_least, rate
from penstock.errors import KafkaError

if TYPE_CHECKING:
    from penstock.cli.options import SubParsers

MIB = 1 << 20
SAMPLE_EVERY = 100
POOL_BYTES = 4 * MIB  # of random payloads: enough variety for the compressor, made before the clock starts
REPORT_INTERVAL = 5.0  # seconds between two lines where no terminal shows the progress

_EPILOG = """
examples:
  penstock perf --topic test --num-records 1000000 --record-size 100
  penstock perf --topic test --num-records 50000 --record-size 100 --throughput 1000 -X linger.ms=0
  penstock perf --topic test --num-records 1000000 --payload-file lines.txt --warmup 100000 --json
  penstock perf --topic test --num-records 1000000 --record-size 100 -X batch.size=131072 -X acks=all

Rates count acknowledged records from the first send to the last acknowledgement; MB are 1,048,576 bytes of values.
Latency is the time from the call of send to the acknowledgement.
"""


def add_parser(subparsers: SubParsers) -> None:
    """Add the `perf` command."""
    parser = subparsers.add_parser(
        "perf",
        help="measure throughput and latency",
        description="Send many records to a topic, and measure throughput and latency.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--topic", required=True)
    parser.add_argument("--num-records", required=True, type=at_least(1), metavar="N")
    payload = parser.add_mutually_exclusive_group(required=True)
    payload.add_argument(
        "--record-size", type=at_least(1), metavar="BYTES", help="random values of that size"
    )
    payload.add_argument(
        "--payload-file", type=Path, metavar="FILE", help="the lines of a file, in turn, as values"
    )
    parser.add_argument(
        "--throughput",
        type=rate,
        default=-1.0,
        metavar="R",
        help="at most R records a second (default: no limit)",
    )
    parser.add_argument(
        "--warmup", type=at_least(0), default=0, metavar="N", help="records sent first, and not counted"
    )
    parser.add_argument(
        "--latency",
        choices=("all", "sample", "none"),
        help=f"measure every record, one in {SAMPLE_EVERY}, or none (default: all with --throughput, else sample)",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument(
        "--print-metrics", action="store_true", help="print the producer's metrics at the end"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="only the result")
    add_producer_arguments(parser)
    add_watch_argument(parser)
    parser.set_defaults(func=run)


class Reporter:
    """Shows how it goes while it goes: on a terminal a live line, elsewhere a line every few seconds."""

    def __init__(self, total: int, *, quiet: bool, now: float) -> None:
        self._display = progress.open_progress(total, wanted=not quiet)
        self._live = not isinstance(self._display, progress.NoProgress)
        self._quiet = quiet
        self._interval = progress.INTERVAL * 5 if self._live else REPORT_INTERVAL
        self._last = now
        self._last_sent = 0

    def restart(self, now: float) -> None:
        """Begin the first interval now."""
        self._last = now

    def maybe_report(self, stats: Stats, now: float) -> None:
        """Show a line when it is time for one."""
        elapsed = now - self._last
        if self._quiet or elapsed < self._interval:
            return
        window, stats.window = stats.window.summary(), LatencyHistogram()
        count = stats.sent - self._last_sent
        rate = count / elapsed
        megabytes = rate * stats.bytes / max(stats.sent, 1) / MIB
        if self._live:
            self._display.update(stats.sent, live_text(rate, megabytes, window))
        else:
            text = f"{counted(count, 'record')} sent, {rate:,.1f} records/sec ({megabytes:.2f} MB/sec)"
            print(f"{text}{latency_text(window)}.", file=sys.stderr)
        self._last, self._last_sent = now, stats.sent

    def finish(self) -> None:
        """Remove the live line."""
        self._display.finish()


class Result(NamedTuple):
    """What a run has shown."""

    acknowledged: int
    failed: dict[str, int]
    seconds: float
    records_per_second: float
    mb_per_second: float
    cpu_us_per_record: float  # user and system time of this process
    latency: LatencySummary


def result_of(stats: Stats, seconds: float, cpu_seconds: float) -> Result:
    """The figures of a phase that took that long."""
    done = stats.acknowledged
    size = stats.bytes / stats.sent if stats.sent else 0.0
    rate = done / seconds if seconds > 0 else 0.0
    return Result(
        acknowledged=done,
        failed=dict(stats.failed),
        seconds=seconds,
        records_per_second=rate,
        mb_per_second=rate * size / MIB,
        cpu_us_per_record=1e6 * cpu_seconds / stats.sent if stats.sent else 0.0,
        latency=stats.latency.summary(),
    )


def result_text(result: Result) -> str:
    """One line, in the words of Kafka's tool."""
    rate, megabytes = result.records_per_second, result.mb_per_second
    noun = "record" if result.acknowledged == 1 else "records"
    text = f"{result.acknowledged} {noun} sent, {rate:.1f} records/sec ({megabytes:.2f} MB/sec)"
    return f"{text}{latency_text(result.latency)}."


def latency_text(found: LatencySummary) -> str:
    """The latencies in the words of Kafka's tool; nothing when none was measured."""
    if not found.samples:
        return ""
    return (
        f", {found.avg:.2f} ms avg latency, {found.max:.2f} ms max latency, {found.p50:.2f} ms 50th, "
        f"{found.p95:.2f} ms 95th, {found.p99:.2f} ms 99th, {found.p99_9:.2f} ms 99.9th"
    )


def live_text(rate: float, megabytes: float, found: LatencySummary) -> str:
    """The same for a terminal, where there is room for fewer words."""
    text = f"{rate:,.0f}/s {megabytes:.1f} MB/s"
    if found.samples:
        text += f" ms: avg {found.avg:.1f} p50 {found.p50:.1f} p95 {found.p95:.1f} p99 {found.p99:.1f}"
        text += f" p99.9 {found.p99_9:.1f} max {found.max:.1f}"
    return text


def result_json(result: Result, config: dict[str, str]) -> str:
    """The figures, the settings and what ran, as one JSON object."""
    figures = result._asdict() | {"latency_ms": result.latency._asdict()}
    del figures["latency"]
    # Only names that cannot hold a secret: options may carry passwords.
    shown = {
        name: shown_option(name, value)
        for name, value in config.items()
        if not name.startswith(("sasl.", "ssl."))
    }
    return json.dumps({**figures, "implementation": _compiled.describe(), "config": shown}, indent=2)


def run(
    args: argparse.Namespace, open_producer: OpenProducer | None = None, pacer: Pacer | None = None
) -> int:
    """Measure; 0 when every record was acknowledged.

    Args:
        args: the command line.
        open_producer: makes the producer; without it, a real one whose cluster has the topic.
        pacer: the time; without it, the system's.
    """
    pacer = pacer or SystemPacer()
    load = Load(args.topic, payloads_of(args), args.throughput, sample_every(args))
    config = producer_config(args)
    producer = (open_producer or partial(reach.open_producer, topic=load.topic))(config)
    if args.watch:
        tell_pages()
    stats, problem, interrupted = Stats(), None, False
    started, cpu = pacer.now(), _cpu_seconds()
    reporter = Reporter(args.num_records, quiet=args.quiet, now=started)
    try:
        if args.warmup:
            send_all(load, args.warmup, producer, Stats(), pacer, lambda stats, now: None)
            started, cpu = pacer.now(), _cpu_seconds()
            reporter.restart(started)
        send_all(load, args.num_records, producer, stats, pacer, reporter.maybe_report)
    except KeyboardInterrupt:
        interrupted = True
    except KafkaError as error:
        problem = error
    finally:
        seconds, cpu = pacer.now() - started, _cpu_seconds() - cpu
        reporter.finish()
        metrics = producer.metrics() if args.print_metrics else {}
        interrupted = close_producer(producer, interrupted=interrupted)
    result = result_of(stats, seconds, cpu)
    print(result_json(result, config) if args.json else result_text(result))
    for name, count in result.failed.items():
        print(f"{counted(count, 'record')} failed: {name}: {stats.first_errors[name]}", file=sys.stderr)
    for line in metric_lines(metrics):
        print(line, file=sys.stderr if args.json else sys.stdout)
    if interrupted:
        return 130
    if problem is not None:
        raise problem
    return 1 if result.failed or result.acknowledged < args.num_records else 0


def sample_every(args: argparse.Namespace) -> int:
    """Of how many records one is measured; 0 for none."""
    chosen = args.latency or ("all" if args.throughput > 0 else "sample")
    return {"all": 1, "sample": SAMPLE_EVERY, "none": 0}[chosen]


def payloads_of(args: argparse.Namespace) -> list[bytes]:
    """The values to send in turn.

    Raises:
        CommandError: the payload file cannot be read, or has no lines.
    """
    if args.payload_file is None:
        generator = random.Random(0)  # the same payloads in every run, so that runs can be compared
        count = max(1, min(1024, POOL_BYTES // args.record_size))
        letters = bytes(65 + value % 26 for value in range(256))
        return [generator.randbytes(args.record_size).translate(letters) for _ in range(count)]
    name = repr(str(args.payload_file))
    try:
        with args.payload_file.open("rb") as stream:
            found = [line for line in lines.read_lines(stream) if line]
    except OSError as error:
        raise CommandError(
            f"cannot read the payload file {name}: {error.strerror}. Check its name; --record-size sends random values"
        ) from error
    if not found:
        raise CommandError(
            f"the payload file {name} has no lines to send (name a file with one payload a line)"
        )
    return found


def metric_lines(metrics: Any, prefix: str = "") -> Iterator[str]:
    """The metrics, one a line, as group:tag:name = value."""
    for name, value in sorted(metrics.items()):
        if isinstance(value, dict):
            yield from metric_lines(value, f"{prefix}{name}:")
        else:
            yield f"{prefix}{name} = {value:.3f}" if isinstance(value, float) else f"{prefix}{name} = {value}"


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system
