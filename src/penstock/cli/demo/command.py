# SPDX-License-Identifier: Apache-2.0
"""`penstock demo`: a Spark pipeline into a real Kafka, killed twice, and proof that every event is there once.

The proof does not rest on this package: Kafka's own console consumer reads the topics, and what it prints is compared
with what each event must be, which is computed apart from the pipeline. The exit code comes from that comparison.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from penstock._counted import counted
from penstock._extras import how_to_install
from penstock._locks import Latch
from penstock.cli.demo.check import TopicFigures, TopicTally, exactly_once, mark_ends, read_topics, table
from penstock.cli.demo.orders import Order
from penstock.cli.demo.report import Outcome, RunLog, report_page
from penstock.cli.demo.run import PIPELINE, PipelineRun
from penstock.cli.options import CommandError, UsageError
from penstock.cli.values import file_name, why_no_report
from penstock.control import create_topic
from penstock.devbroker import DevBrokerError, DevCluster, kafka_jars
from penstock.devbroker.settings import KAFKA_VERSION

if TYPE_CHECKING:
    from penstock.cli.options import SubParsers

# With their partitions; the names are those of orders.toml.
TOPICS = {"demo-orders": 6, "demo-orders-rejected": 2}
_KEPT = {"retention.ms": -1}
DEFAULT_RECORDS = 2_000_000
# Of fewer events some tasks would have none, and could not be killed over them.
_FEWEST_RECORDS = 1000

_DESCRIPTION = f"""\
Start a real Apache Kafka {KAFKA_VERSION} on this machine and run a pipeline on Spark that publishes order events, each
exactly once, in several micro-batches. A Python worker of Spark is killed in the middle of one, and the driver in
another, between its decision and the commit, and started again. Then Kafka's own console consumer reads the topics:
each event must be there once, unchanged, in the partition of its key, the rejected ones in the dead-letter topic. The
exit code is 0 when that is so and 1 when it is not.

The first run fetches Kafka's jars (about 46 MB); later ones need no network. Nothing stays behind but those and the
report page.
"""


def add_parser(subparsers: SubParsers) -> None:
    """Add the `demo` command."""
    parser = subparsers.add_parser(
        "demo",
        help="run a Spark pipeline into a real Kafka, kill it twice, and prove that each event is there once",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--records",
        type=_records,
        default=DEFAULT_RECORDS,
        metavar="N",
        help=f"how many events (default: {DEFAULT_RECORDS})",
    )
    parser.add_argument(
        "--unsafe",
        action="store_true",
        help="write at least once instead, with the same kills, and see the duplicates",
    )
    parser.add_argument(
        "--report",
        type=file_name,
        metavar="FILE",
        help="where to write the report page (default: a new file)",
    )
    parser.add_argument(
        "--keep", action="store_true", help="keep the broker up afterwards, until Ctrl-C, to look around"
    )
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Do what the command line asks. Return the exit code: 0 when every event is there once, else 1."""
    _check_report(args.report)
    if importlib.util.find_spec("pyspark") is None:
        raise CommandError(f"the demo needs Spark: {how_to_install('spark', 'pyspark', 'pyarrow')}")
    kafka_jars()  # before the clock starts: it shows its own progress, and only the first run fetches anything
    try:
        with _end_of_terminal(), closing(RunLog()) as run_log, _log_of_spark() as log:
            run_log.say(f"starting Apache Kafka {KAFKA_VERSION} ...")
            with DevCluster() as cluster, _temporary_folder() as folder:
                run_log.say(f"it runs at {cluster.bootstrap_servers}")
                pipeline = PipelineRun(
                    folder, cluster.bootstrap_servers, args.records, not args.unsafe, run_log, log
                )
                outcome = run_on(cluster, pipeline)
                print(f"\n{table(outcome.topics)}\n\n{verdict(outcome)}")
                print(f"report: {_write_report(args.report, outcome)}", flush=True)
                if args.keep:
                    _wait_for_interrupt(cluster)
    except DevBrokerError as error:
        raise CommandError(str(error)) from error
    return 0 if exactly_once(outcome.topics) else 1


def run_on(cluster: DevCluster, pipeline: PipelineRun) -> Outcome:
    """Run the pipeline into a running cluster, read what it wrote, and compare."""
    run_log = pipeline.run_log
    for topic, partitions in TOPICS.items():
        # The events are of long ago, as Kafka sees it, and it looks for records to forget every few minutes.
        create_topic(topic, partitions, settings=_KEPT, config={"bootstrap.servers": pipeline.servers})
    run_log.say(
        f"starting {PIPELINE.name} on Spark: {pipeline.events:,} order events in {pipeline.batches.count} "
        f"micro-batches, {'exactly' if pipeline.exactly_once else 'at least'} once"
    )
    pipeline.run()
    run_log.say("the pipeline has ended; Kafka's console consumer reads the topics, read-committed")
    mark_ends(pipeline.servers, TOPICS)
    topics = read_and_compare(cluster, pipeline.events, run_log)
    run_log.say(f"compared {sum(one.read for one in topics):,} records with what the events must be")
    return Outcome(
        events=pipeline.events,
        exactly_once_wanted=pipeline.exactly_once,
        topics=topics,
        batches=pipeline.times,
        kills=[(run_log.since_start(kill.at), kill.victim) for kill in pipeline.kills],
        happened=run_log.events,
        seconds=run_log.seconds,
    )


def read_and_compare(cluster: DevCluster, events: int, run_log: RunLog) -> list[TopicFigures]:
    """Read both topics and count."""
    accepted, rejected = TOPICS
    tallies = [
        TopicTally(accepted, TOPICS[accepted], events, _is_accepted, headers_of),
        TopicTally(rejected, TOPICS[rejected], events, _is_rejected, headers_of_rejected),
    ]
    wanted = [(tally, TOPICS[tally.topic]) for tally in tallies]
    read_topics(cluster, wanted, lambda count: run_log.wait_for(f"{count:,} records read and compared"))
    return [tally.figures() for tally in tallies]


def _is_accepted(found: Order) -> bool:
    return not found.rejected


def _is_rejected(found: Order) -> bool:
    return found.rejected


def headers_of(found: Order) -> str:
    """The headers of an event's record, as the console consumer prints them."""
    return f"trace:{found.trace}"


def headers_of_rejected(found: Order) -> str:
    """Likewise, of an event in the dead-letter topic."""
    accepted, _ = TOPICS
    return f"{headers_of(found)},penstock.expectation:something is ordered,penstock.topic:{accepted}"


def verdict(outcome: Outcome) -> str:
    """The outcome in one line."""
    duplicates = sum(one.duplicates for one in outcome.topics)
    missing = sum(one.missing for one in outcome.topics)
    other = sum(one.strangers + one.misplaced + one.changed for one in outcome.topics)
    kills = counted(len(outcome.kills), "kill")
    if exactly_once(outcome.topics):
        return f"exactly once: yes ({outcome.events:,} events, {kills}, {outcome.seconds:.0f} s)"
    return (
        f"exactly once: no ({counted(duplicates, 'duplicate')}, {missing:,} missing, {other:,} otherwise wrong, "
        f"of {outcome.events:,} events; {kills}, {outcome.seconds:.0f} s)"
    )


def _check_report(path: Path | None) -> None:
    """Say it now, and not after a minute, that the page cannot be written."""
    if (trouble := why_no_report(path)) is not None:
        raise UsageError(f"--report: {trouble}")


def _write_report(path: Path | None, outcome: Outcome) -> Path:
    if path is None:
        handle, name = tempfile.mkstemp(prefix="penstock-demo-", suffix=".html")
        os.close(handle)
        path = Path(name)
    path.write_text(report_page(outcome), encoding="utf-8")
    return path


@contextmanager
def _log_of_spark() -> Iterator[Path]:
    """A file for what Spark has to say, which would cover the screen. It stays only where an error has named it."""
    handle, name = tempfile.mkstemp(prefix="penstock-demo-", suffix=".log")
    os.close(handle)
    path = Path(name)
    try:
        yield path
    except CommandError:
        raise
    except BaseException:
        path.unlink()
        raise
    path.unlink()


@contextmanager
def _end_of_terminal() -> Iterator[None]:
    """Tidy up, too, when the demo is asked to end, or its terminal is closed: Spark has a session of its own."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="penstock-demo-", ignore_cleanup_errors=True) as name:
        yield Path(name)


def _wait_for_interrupt(cluster: DevCluster) -> None:
    """Keep the cluster up until the user presses Ctrl-C."""
    print(f"\nThe broker stays up at {cluster.bootstrap_servers} until Ctrl-C.", flush=True)
    try:
        Latch().wait()
    except KeyboardInterrupt:
        print("stopping the broker", flush=True)


def _records(text: str) -> int:
    try:
        number = int(text.replace("_", "").replace(",", ""))
    except ValueError:
        number = 0
    if number < _FEWEST_RECORDS:
        raise argparse.ArgumentTypeError(
            f"it must be a whole number, at least {_FEWEST_RECORDS} so that each task has events, not {text!r}"
        )
    return number
