# SPDX-License-Identifier: Apache-2.0
"""`penstock run PIPELINE.toml`: a pipeline on Spark, from the command line or as the application of spark-submit.

Exit codes for scripts: 0 it came to its end; 2 the definition or the command line is wrong; 3 a row did not meet an
expectation whose action is `fail`; 1 anything else went wrong; 130 Ctrl-C, and 143 for SIGTERM, after a clean stop.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock._redaction import is_secret_name
from penstock.cli.options import WATCH_ADDRESS, parse_option
from penstock.cli.reach import quiet_network
from penstock.cli.values import file_name, why_no_report
from penstock.errors import ExpectationFailedError, PipelineDefinitionError

if TYPE_CHECKING:
    from penstock.cli.options import SubParsers
    from penstock.spark.pipeline.model import Pipeline
    from penstock.spark.pipeline.stats import RunStats

EXIT_BAD_DEFINITION = 2
EXIT_EXPECTATION = 3
_WIDEST_LABEL = 40
_GLASS_BOX = "kafka.glass.box"

_DESCRIPTION = """\
Run a pipeline: rows from any Spark source, through SQL and Python steps, to Kafka, exactly once.
The file describes it; docs/pipeline.md has every key. Needs the extra `spark`, and Java 17 or later.
"""
_EPILOG = """\
exit codes: 0 done; 2 the definition is wrong; 3 an expectation failed; 1 other failures; 130 Ctrl-C

examples:
  penstock run orders.toml --dry-run                  what would happen, and ten sample records
  penstock run orders.toml --var servers=broker:9092 --report orders.html
  spark-submit --master spark://host:7077 "$(penstock run --print-app)" orders.toml
"""


def add_parser(subparsers: SubParsers) -> None:
    """Add the `run` command."""
    parser = subparsers.add_parser(
        "run",
        help="run a pipeline on Spark",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("pipeline", nargs="?", metavar="PIPELINE.toml", type=Path, help="the definition")
    parser.add_argument(
        "--var",
        dest="variables",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        type=partial(parse_option, example="servers=broker:9092"),
        help="a value for ${NAME} in the definition; may be repeated",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="show the resolved plan, the schema and ten sample records; write nothing",
    )
    parser.add_argument(
        "--report", metavar="FILE", type=file_name, help="write an HTML page about the run, with charts"
    )
    parser.add_argument("--quiet", action="store_true", help="show nothing while it runs")
    parser.add_argument(
        "--watch",
        action="store_true",
        help="let each Python worker of Spark show its producers on a live page; `penstock top` lists them",
    )
    parser.add_argument(
        "--print-app",
        action="store_true",
        help="print the path of the program to give to spark-submit, and exit",
    )
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Do what the command line asks, and give the exit code."""
    if args.print_app:
        from penstock.spark.pipeline import app as pipeline_app

        print(pipeline_app.__file__)
        return 0
    if args.pipeline is None:
        print(
            "penstock run: name the pipeline's file, for example: penstock run orders.toml", file=sys.stderr
        )
        return EXIT_BAD_DEFINITION
    try:
        return _run(args)
    except PipelineDefinitionError as error:
        print(f"penstock run: {error}", file=sys.stderr)
        return EXIT_BAD_DEFINITION
    except ExpectationFailedError as error:
        print(f"penstock run: {error}", file=sys.stderr)
        return EXIT_EXPECTATION


def watched(options: Mapping[str, str]) -> dict[str, str]:
    """The options of a sink with a page of --watch, which wins over the definition, however that spells it."""
    others = {name: value for name, value in options.items() if name.lower().replace("_", ".") != _GLASS_BOX}
    return {**others, _GLASS_BOX: WATCH_ADDRESS}


def _run(args: argparse.Namespace) -> int:
    from penstock.spark.pipeline.check import load_pipeline
    from penstock.spark.pipeline.session import (
        is_driver_here,
        pipeline_session,
        require_pyspark,
        silence_query_errors,
    )
    from penstock.spark.pipeline.sink import check_sink

    for name, _ in args.variables:
        if is_secret_name(name):
            print(
                f"penstock run: --var {name}=...: others can see it in the list of processes; write ${{env:NAME}} or "
                "${file:PATH} in the definition instead",
                file=sys.stderr,
            )
    pipeline = load_pipeline(args.pipeline, dict(args.variables))
    if args.watch:
        pipeline = replace(pipeline, sink=replace(pipeline.sink, options=watched(pipeline.sink.options)))
        print(
            "penstock run: while records are sent, `penstock top` lists the pages of Spark's workers",
            file=sys.stderr,
        )
    if (trouble := why_no_report(args.report)) is not None:
        print(f"penstock run: --report: {trouble}", file=sys.stderr)
        return EXIT_BAD_DEFINITION
    require_pyspark()
    with quiet_network():
        check_sink(pipeline, on_driver=is_driver_here(pipeline), from_here=not args.dry_run)
    verbose = bool(getattr(args, "debug", False))
    with pipeline_session(pipeline, None, verbose=verbose) as spark:
        if not verbose:
            silence_query_errors()
        if args.dry_run:
            from penstock.spark.pipeline.dry_run import dry_run

            for line in dry_run(pipeline, spark):
                print(line)
            return 0
        return _run_watched(args, pipeline, spark)


def _run_watched(args: argparse.Namespace, pipeline: Pipeline, spark: Any) -> int:
    from penstock.spark.pipeline.run import PipelineRun, StopSignals, write_report
    from penstock.spark.pipeline.view import open_view

    view = open_view(sys.stderr, wanted=not args.quiet)
    with StopSignals((signal.SIGINT, signal.SIGTERM)) as stop:
        job = PipelineRun(pipeline, spark, stop, view)
        try:
            job.run()
        finally:
            if job.stats.outcome != "running":  # a definition that was refused has nothing to sum up
                for line in summary_lines(job.stats):
                    print(line)
                write_report(job.stats, args.report)
                if args.report is not None:
                    print(f"  report         {args.report}")
    return 0 if stop.received is None else 128 + stop.received


def summary_lines(stats: RunStats) -> Iterator[str]:
    """What the run did, for people."""
    from penstock.spark.pipeline.producers import advice, producer_rows
    from penstock.spark.pipeline.stats import (
        batches_text,
        bytes_text,
        count_text,
        destination,
        failed_text,
        sorted_partitions,
    )

    now = time.monotonic()
    partitions = [(f"{topic}-{number}", facts) for topic, number, facts in sorted_partitions(stats)]
    # Partitions stand in one column with the other labels, unless the name of a topic is very long.
    width = max((len(name) for name, _ in partitions if len(name) <= _WIDEST_LABEL), default=0)

    def line(label: str, value: str, note: str = "") -> str:
        return f"  {label:<{max(14, width)}} {value:>14}  {note}".rstrip()

    batches = f", {batches_text(len(stats.batches))}" if stats.pipeline.source.streaming else ""
    yield f"{stats.pipeline.title}: {stats.outcome} after {stats.seconds(now):.1f} s{batches}"
    if _has_found_nothing(stats):
        place = stats.pipeline.hide(str(stats.pipeline.sink.checkpoint))
        yield f"  nothing new since the checkpoint {place}; delete it to start over"
    yield line("rows in", count_text(stats.rows_in))
    yield line("rows out", count_text(stats.rows_out), f"to {destination(stats.pipeline)}")
    dead = stats.dead_letters + stats.bad_rows
    dead_letter_topic = stats.pipeline.sink.dead_letter_topic
    if dead_letter_topic is not None:
        yield line("dead letters", count_text(dead), f"to {stats.pipeline.hide(dead_letter_topic)}")
    if stats.dropped:
        yield line("dropped", count_text(stats.dropped))
    if stats.skipped_rows:
        yield line("there already", count_text(stats.skipped_rows), "not written again")
    if stats.bytes is not None:
        yield line("bytes", bytes_text(stats.bytes))
    yield line("rate", f"{stats.rate(now):,.0f}", "rows/s")
    for expectation, count in stats.failed:
        then = failed_text(stats, expectation)
        yield line(
            "expectation", count_text(count), f"failed: {stats.pipeline.hide(expectation.name)} ({then})"
        )
    for name, facts in partitions:
        offset = "" if facts.last_offset is None else f", last offset {facts.last_offset:,}"
        yield line(name, count_text(facts.rows), f"{'row' if facts.rows == 1 else 'rows'}{offset}")
    rows = producer_rows(stats)
    if rows:
        yield "producers of all tasks that ended well:"
    for row in rows:
        yield line(row.label, row.value, row.note)
    said = advice(stats)
    if said is not None:
        yield f"  {said}"


def _has_found_nothing(stats: RunStats) -> bool:
    """Whether it ended well without a micro-batch: the checkpoint has everything that the source has."""
    pipeline = stats.pipeline
    return (
        stats.outcome == "done"
        and pipeline.source.streaming
        and pipeline.sink.checkpoint is not None
        and not stats.batches
    )
