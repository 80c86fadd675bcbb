# SPDX-License-Identifier: Apache-2.0
"""Ten million rows from Spark to Kafka: Penstock exactly once against Spark's own connector, which is at least once.

Warm: every sink has one session that stays, and the sinks take turns; the first rounds are not counted. Cold: the
first job of a new session, as in a program that is started for one write. After each job the rows are counted at the
broker: committed ones only, without the markers of transactions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from bench.budget import Plan
from bench.counting import create_topic, delete_topics, end_offsets
from bench.machine import OthersWatch
from bench.model import BenchError, Case, Run, Sample
from bench.runner import address, last_line, line_of
from bench.spark import environment, sinks
from bench.spark.committed import count_committed
from bench.spark.session import SparkApplication
from bench.spark.sinks import Sink
from bench.studies import Context

WARM_ROWS = 10_000_000
COLD_ROWS = 2_000_000
WAKE_ROWS = 100_000
WARM_UP_JOBS = 3  # the connector's JVM code needs as many to become fast
PARTITIONS = 6
START_SECONDS = 7.0  # of a session, and its end
GUESSED_RATE = 900_000  # rows a second, over all sinks, counting included
GUESSED_COLD_SECONDS = 6.0
_TOPIC = "bench-spark"
# A run must be there until it is counted: 220 MB a partition.
_TOPIC_CONFIG = {"segment.bytes": 64 << 20, "retention.bytes": 600 << 20, "file.delete.delay.ms": 1000}
_MB = 1_000_000

RACE = (sinks.PENSTOCK, sinks.CONNECTOR)
# What is looked at besides, when there is time: what the connector does untuned, and what limits any sink in Python.
BESIDES = (sinks.CONNECTOR_DEFAULT, sinks.AT_LEAST_ONCE, sinks.COUNTING)


def _case(name: str, title: str) -> Case:
    names = tuple(one.name for one in (*RACE, *BESIDES))
    return Case(name, title, name, names, sinks.TUNED, partitions=PARTITIONS, keys=True)


WARM = _case("spark", "rows from Spark, 7-byte keys, 100-byte values, 4 tasks on local[2], warm session")
COLD = _case("spark-first", "the same, the first job of a new session")


class Spark:
    """The sinks in turns, warm and cold."""

    name = "spark"
    title = f"rows from Spark {sinks.SPARK_VERSION} to Kafka, against its own connector"
    only_by_name = False
    needs_broker = True

    def missing(self) -> str | None:
        return environment.missing()

    def seconds(self, plan: Plan) -> float:
        chosen = _sinks(plan)
        warm_rows = WARM_UP_JOBS * _warm_up_rows(plan) + plan.rounds * _rows(plan, WARM_ROWS)
        warm = START_SECONDS + warm_rows / GUESSED_RATE
        cold = plan.rounds * (START_SECONDS + GUESSED_COLD_SECONDS)
        return len(chosen) * warm + len(RACE) * cold

    def run(self, context: Context) -> None:
        results = context.results
        chosen = _sinks(context.plan)
        results.cases = [*results.cases, WARM, COLD]
        results.contenders = [*results.contenders, *chosen]
        server = address(context.cluster)
        create_topic(server, _TOPIC, PARTITIONS, _TOPIC_CONFIG)
        try:
            _Race(context).warm(chosen)
            _Race(context).cold(RACE)
        finally:
            delete_topics(server, [_TOPIC])


class _Race:
    """Makes the jobs, and keeps what they cost."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._python = environment.python()
        self._jars = sinks.connector_jars()

    def warm(self, chosen: Sequence[Sink]) -> None:
        """One session for each, in turns."""
        plan = self._context.plan
        with contextlib.ExitStack() as stack:
            sessions: dict[str, SparkApplication] = {}
            for sink in chosen:
                with self._blame(WARM, sink):
                    sessions[sink.name] = stack.enter_context(self._session(sink))
            for number in range(1 - WARM_UP_JOBS, plan.rounds + 1):
                rows = _rows(plan, WARM_ROWS) if number > 0 else _warm_up_rows(plan)
                for sink in _turned(chosen, number):
                    if (WARM.name, sink.name) not in self._context.results.failures:
                        with self._blame(WARM, sink):
                            self._wake(sessions[sink.name], sink)
                            self._job(sessions[sink.name], sink, WARM, max(0, number), rows)

    def cold(self, chosen: Sequence[Sink]) -> None:
        """A new session for every job."""
        plan = self._context.plan
        for number in range(1, plan.rounds + 1):
            for sink in _turned(chosen, number):
                if (COLD.name, sink.name) not in self._context.results.failures:
                    with self._blame(COLD, sink), self._session(sink) as session:
                        self._job(session, sink, COLD, number, _rows(plan, COLD_ROWS))

    def _session(self, sink: Sink) -> SparkApplication:
        return SparkApplication(self._python, sink, self._jars)

    @contextlib.contextmanager
    def _blame(self, case: Case, sink: Sink) -> Iterator[None]:
        """What goes wrong is this sink's row, and the others go on."""
        try:
            yield
        except (BenchError, OSError) as error:
            self._context.results.failures[case.name, sink.name] = last_line(error)
            self._context.tell(f"  {case.name:<14} {sink.name:<16} FAILED: {error}")

    def _wake(self, session: SparkApplication, sink: Sink) -> None:
        """A small job, not counted: Spark ends Python workers that had nothing to do for a minute."""
        rows = min(WAKE_ROWS, _rows(self._context.plan, WAKE_ROWS))
        session.run(rows, self._options(sink, rows))

    def _options(self, sink: Sink, rows: int) -> dict[str, str]:
        if not sink.counts_at_broker:
            return {"rows": str(rows)}
        return {"topic": _TOPIC, "kafka.bootstrap.servers": self._context.cluster.bootstrap_servers}

    def _job(self, session: SparkApplication, sink: Sink, case: Case, number: int, rows: int) -> None:
        cluster, results = self._context.cluster, self._context.results
        server = address(cluster)
        start = end_offsets(server, _TOPIC, PARTITIONS)
        others = OthersWatch(node.pid for node in cluster.nodes if node.pid is not None)
        cost = session.run(rows, self._options(sink, rows))
        share = others.share(cost.cpu_seconds)
        # The sink that only counts has compared the number itself.
        arrived = count_committed(server, _TOPIC, start).committed if sink.counts_at_broker else rows
        run = Run(
            *(case.name, sink.name, number, rows, arrived),
            *(cost.seconds, cost.cpu_seconds, cost.worker_peak, share),
        )
        self._context.tell(line_of(run))
        if number:
            results.runs.append(run)
            if sink.format == "penstock":
                above = (cost.worker_peak - sinks.BUFFER_MEMORY) / _MB
                results.samples.append(Sample(case.name, sink.name, number, "above_mb", above))


def _sinks(plan: Plan) -> Sequence[Sink]:
    """Beside the other benchmarks there is time for the race only."""
    return RACE if plan.cases else (*RACE, *BESIDES)


def _rows(plan: Plan, usual: int) -> int:
    return plan.records or usual


def _warm_up_rows(plan: Plan) -> int:
    return _rows(plan, WARM_ROWS // 2 if plan.cases else WARM_ROWS)


def _turned(chosen: Sequence[Sink], number: int) -> Sequence[Sink]:
    first = (number - 1) % len(chosen)
    return (*chosen[first:], *chosen[:first])
