# SPDX-License-Identifier: Apache-2.0
"""`penstock produce`: lines of a file or of standard input become records of a topic."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from penstock._counted import counted
from penstock.cli import lines, progress, reach
from penstock.cli.options import (
    CommandError,
    OpenProducer,
    ProducerLike,
    add_producer_arguments,
    add_watch_argument,
    close_producer,
    producer_config,
    tell_pages,
)
from penstock.cli.values import at_least
from penstock.errors import KafkaError, RecordTooLargeError, SerializationError

if TYPE_CHECKING:
    from penstock.cli.options import SubParsers

_EPILOG = r"""
examples:
  echo hello | penstock produce greetings
  penstock produce users users.tsv --key-separator '\t' --null-marker NULL
  penstock produce orders orders.jsonl --format json --key-field id
  penstock produce events events.jsonl --format json --key-field k --value-field v --headers-field h
  tail -f app.log | penstock produce logs -X linger.ms=100 -X compression.type=zstd --header host=web1

exit codes:
  0    every record was acknowledged (lines skipped on request do not count)
  1    a record was not, or the command could not do its work
  2    the command line, or an option of the producer, is wrong
  130  Ctrl-C, and 143 SIGTERM: what was accepted is delivered first, for at most 5 seconds
"""


def add_parser(subparsers: SubParsers) -> None:
    """Add the `produce` command."""
    parser = subparsers.add_parser(
        "produce",
        help="send lines or JSON lines to a topic",
        description="Send each line of a file, or of standard input, to a topic as one record.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument(
        "file", metavar="FILE", nargs="?", type=Path, help="what to read (default: standard input)"
    )
    add_producer_arguments(parser)
    add_watch_argument(parser)
    _add_format_arguments(parser)
    record = parser.add_argument_group("every record")
    record.add_argument(
        "--header",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        type=parse_header,
        help="a header on every record, before those of the line; may be repeated",
    )
    record.add_argument(
        "--partition", type=at_least(0), metavar="N", help="the partition, where the line names none"
    )
    parser.add_argument(
        "--on-bad-line",
        choices=("fail", "skip"),
        default="fail",
        help="a malformed line ends the command (default), or is counted and passed over",
    )
    parser.add_argument(
        "-q", "--quiet", action="store_true", help="no progress and no summary; errors are still told"
    )
    parser.set_defaults(func=run)


def _add_format_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("input")
    group.add_argument(
        "--format", choices=("lines", "json"), default="lines", help="plain lines (default), or JSON lines"
    )
    group.add_argument(
        "--key-separator", metavar="SEP", help=r"lines: the key ends at the first SEP; \t, \0, \xNN work"
    )
    group.add_argument(
        "--headers-separator",
        metavar="SEP",
        help="lines: name:value,name:value headers stand first and end at SEP",
    )
    group.add_argument(
        "--null-marker", metavar="TEXT", help="lines: a key, value or header that is exactly TEXT is null"
    )
    for name, what in (
        ("key", "the key (null, text, or any JSON)"),
        ("value", "the value (default: the whole line)"),
        ("headers", "an object of headers"),
        ("partition", "the partition"),
        ("timestamp", "the timestamp, in ms since 1970"),
    ):
        group.add_argument(f"--{name}-field", metavar="FIELD", help=f"json: the field with {what}")


def parse_header(text: str) -> tuple[str, bytes]:
    """Split the NAME=VALUE of --header."""
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise argparse.ArgumentTypeError(f"it must be NAME=VALUE, for example host=web1, not {text!r}")
    return name, value.encode()


def line_format(args: argparse.Namespace) -> lines.LineFormat:
    """How the lines are to be read, from the command line.

    Raises:
        ValueError: an option does not fit the format.
    """
    text_options = ("key_separator", "headers_separator", "null_marker")
    json_options = ("key_field", "value_field", "headers_field", "partition_field", "timestamp_field")
    unfit = json_options if args.format == "lines" else text_options
    for name in unfit:
        if getattr(args, name) is not None:
            other = "json" if args.format == "lines" else "lines"
            raise ValueError(f"--{name.replace('_', '-')} needs --format {other}")
    if args.format == "json":
        return lines.JsonLines(**{name: getattr(args, name) for name in json_options})
    given = {name: getattr(args, name) for name in text_options}
    if "" in (given["key_separator"], given["headers_separator"]):
        raise ValueError("a separator must not be empty")
    return lines.TextLines(
        **{name: None if text is None else lines.unescape(text) for name, text in given.items()}
    )


class Failures:
    """Records that were not delivered, by the class of their error. Each instance is written by one thread."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.first: dict[str, str] = {}

    def add(self, line: int, error: BaseException) -> None:
        """Count the record of a line."""
        name = type(error).__name__
        self.first.setdefault(name, f"{name}: {error} (first: line {line})")
        self.counts[name] += 1

    def report(self, what: str) -> Iterator[str]:
        """A line for each kind of error."""
        for name, count in self.counts.most_common():
            yield f"{counted(count, 'record')} {what}: {self.first[name]}"


class Outcomes:
    """What became of the lines."""

    def __init__(self) -> None:
        # Written by the thread that reads the lines.
        self.lines = 0
        self.bytes = 0
        self.accepted = 0
        self.skipped = 0
        self.first_skipped = ""
        self.refused = Failures()  # `send` did not accept them
        # Written by the producer's I/O thread.
        self.acknowledged = 0
        self.failed = Failures()  # accepted, but not delivered

    @property
    def sent(self) -> int:
        """How many records were accepted. Ctrl-C may come when one is, and before it is counted."""
        return max(self.accepted, self.acknowledged + self.failed.counts.total())

    @property
    def any_failed(self) -> bool:
        """Whether a record did not arrive."""
        return self.sent > self.acknowledged or bool(self.refused.counts)

    def on_delivery(self, line: int, metadata: Any, error: BaseException | None) -> None:
        """Note the outcome of an accepted record; runs on the I/O thread."""
        del metadata
        if error is None:
            self.acknowledged += 1
        else:
            self.failed.add(line, error)

    def skip(self, reason: str) -> None:
        """Count a malformed line."""
        self.skipped += 1
        self.first_skipped = self.first_skipped or reason

    def summary(self, topic: str, seconds: float) -> Iterator[str]:
        """The lines of the report at the end."""
        rate = self.acknowledged / seconds if seconds > 0 else 0.0
        yield (
            f"{counted(self.acknowledged, 'record')} acknowledged by {topic} in {seconds:.1f} s"
            f" ({rate:,.0f} records/s, {self.bytes / 1e6:.1f} MB read)"
        )
        if self.skipped:
            yield f"{counted(self.skipped, 'malformed line')} skipped; first: {self.first_skipped}"
        yield from self.refused.report("refused")
        yield from self.failed.report("failed")
        unknown = self.sent - self.acknowledged - self.failed.counts.total()
        if unknown > 0:
            yield f"{counted(unknown, 'record')} given up, outcome unknown"


@dataclass(frozen=True, slots=True)
class Job:
    """One run: what is read, how, and where it goes."""

    topic: str
    format: lines.LineFormat
    headers: tuple[tuple[str, bytes], ...]
    partition: int | None
    skip_bad_lines: bool


def run(args: argparse.Namespace, open_producer: OpenProducer | None = None) -> int:
    """Send the input; 0 when all of it was acknowledged.

    Args:
        args: the command line.
        open_producer: makes the producer; without it, a real one whose cluster has the topic.
    """
    try:
        job = Job(
            args.topic, line_format(args), tuple(args.header), args.partition, args.on_bad_line == "skip"
        )
    except ValueError as error:
        print(f"penstock produce: {error}", file=sys.stderr)
        return 2
    open_producer = open_producer or partial(reach.open_producer, topic=job.topic, partition=job.partition)
    outcomes = Outcomes()
    started = time.monotonic()
    interrupted = False
    problem: Exception | None = None
    with _input(args.file) as stream:
        producer = open_producer(producer_config(args))
        if args.watch:
            tell_pages()
        display = progress.open_progress(_size(stream), wanted=not args.quiet)
        try:
            send_lines(job, stream, producer, outcomes, display)
            producer.flush()
        except KeyboardInterrupt:
            interrupted = True
        except (KafkaError, CommandError) as error:
            problem = error
        finally:
            display.finish()
            # Also after a problem: what was accepted before it is still delivered, or told as failed.
            interrupted = close_producer(producer, interrupted=interrupted)
    if interrupted:
        print(
            f"penstock produce: interrupted after {counted(outcomes.lines, 'line')}; "
            f"{counted(outcomes.sent, 'record')} sent, {outcomes.acknowledged:,} of them acknowledged",
            file=sys.stderr,
        )
    if outcomes.any_failed or not args.quiet:
        for line in outcomes.summary(job.topic, time.monotonic() - started):
            print(line, file=sys.stderr)
    if interrupted:
        return 130
    if problem is not None:
        raise problem
    return 1 if outcomes.any_failed else 0


def send_lines(
    job: Job, stream: BinaryIO, producer: ProducerLike, outcomes: Outcomes, display: progress.Progress
) -> None:
    """Send each line.

    Raises:
        CommandError: a line is malformed, and is not to be skipped.
        KafkaError: nothing more can be sent.
    """
    next_update = 0.0
    for line in lines.read_lines(stream):
        outcomes.lines += 1
        outcomes.bytes += len(line or b"") + 1
        number = outcomes.lines
        record = _parse(job, line, number, outcomes)
        if record is not None:
            _send(job, record, number, producer, outcomes)
        now = time.monotonic()
        if now >= next_update:
            display.update(
                outcomes.bytes, f"{outcomes.accepted:,} sent, {outcomes.acknowledged:,} acknowledged"
            )
            next_update = now + progress.INTERVAL


def _parse(job: Job, line: bytes | None, number: int, outcomes: Outcomes) -> lines.LineRecord | None:
    try:
        if line is None:
            raise lines.BadLine(f"longer than {lines.MAX_LINE_BYTES >> 20} MiB")
        return job.format.parse(line)
    except lines.BadLine as error:
        reason = f"line {number}: {error}"
        if not job.skip_bad_lines:
            raise CommandError(f"{reason} (--on-bad-line skip passes over such lines)") from None
        outcomes.skip(reason)
        return None


def _send(
    job: Job, record: lines.LineRecord, number: int, producer: ProducerLike, outcomes: Outcomes
) -> None:
    try:
        producer.send(
            job.topic,
            record.value,
            record.key,
            headers=(*job.headers, *record.headers) or None,
            partition=job.partition if record.partition is None else record.partition,
            timestamp_ms=record.timestamp_ms,
            on_delivery=partial(outcomes.on_delivery, number),
        )
        outcomes.accepted += 1
    except (RecordTooLargeError, SerializationError) as error:
        # This record alone is at fault, the next one may go; any other error would meet every record.
        outcomes.refused.add(number, error)


@contextmanager
def _input(path: Path | None) -> Iterator[BinaryIO]:
    if path is None or str(path) == "-":
        yield sys.stdin.buffer
    else:
        try:
            opened = path.open("rb")
        except OSError as error:
            raise type(error)(
                f"cannot read the file {str(path)!r}: {error.strerror}. Check its name; - or no file name reads "
                "standard input"
            ) from error
        with opened as stream:
            yield stream


def _size(stream: BinaryIO) -> int | None:
    try:
        return os.fstat(stream.fileno()).st_size or None
    except (OSError, ValueError):  # not a real file
        return None
