# SPDX-License-Identifier: Apache-2.0
"""One seed of the sink: drivers that come and go, faults, then a time without faults, and the checks.

For each sink an operator starts drivers one after the other (`supervision.py`). Then faults end, one
more driver per sink brings the job to its end, and time passes until every transaction that anybody left open is over.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import (
    DecidedDataLostError,
    KafkaError,
    RestoredCheckpointError,
    SinkLogLostError,
    SinkSupersededError,
)
from penstock.records.reader import RecordBatch
from penstock.sink import BatchPlan, Step, Written, hooks
from penstock.sink.identity import coordinator_id, parse_task_id
from penstock.sink.log.view import LogContents
from penstock.testing.cluster import FakeCluster
from penstock.testing.settings import ClusterSettings
from simulation.plan import stream
from simulation.sink.actors import Actor, Process, Stage, Stuck
from simulation.sink.chaos import Chaos
from simulation.sink.driver import Application, Checkpoint
from simulation.sink.ledger import Ledger, PlannedBatch, open_transactions
from simulation.sink.plan import COPY_TOPIC, LOG_TOPIC, TOPIC, Plan, SinkPlan, Theme, make_plan
from simulation.sink.protocol import Protocol
from simulation.sink.supervision import Operator, SinkState
from simulation.sink.world import SinkWorld
from simulation.tracing import broker_side
from simulation.wire import EPOCH, sim_clock

_LONGEST_TIMEOUT = 900.0
_LONGEST = 40_000.0  # virtual seconds of a seed


@dataclass
class SinkReport:
    """What came of a seed."""

    seed: int
    drivers: int = 0
    batches: int = 0
    rows: int = 0
    faults: int = 0
    turns: int = 0
    losses: int = 0
    repairs: int = 0
    virtual_seconds: float = 0.0
    failures: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)


class SinkSimulation:
    """The run of one seed."""

    def __init__(self, seed: int, *, traced: bool = False) -> None:
        self.seed = seed
        self.traced = traced
        self.report = SinkReport(seed)
        self.plan: Plan = make_plan(stream(seed, "plan"))
        self.clock = sim_clock()
        self.cluster = self._make_cluster()
        self.world = SinkWorld(self.cluster, self.clock, stream(seed, "network"))
        self.world.slowest = self.plan.slowest
        self.world.latest = self.plan.latest
        self.world.lost_inits = 0.5 if self.plan.theme is Theme.LATE_INIT else 0.0
        if traced:
            self.world.note = self._trace
            self.note = self._trace
        self.stage = Stage(self.world, stream(seed, "schedule"), self.note)
        self.stage.on_turn = self._on_turn
        self.chaos = Chaos(self.world, stream(seed, "faults"), self.note)
        self.ledger = Ledger(self.cluster, LOG_TOPIC, self.violate)
        self.protocol = Protocol(self)
        self.driver_numbers = itertools.count(1)
        self.worker_numbers = itertools.count(1)
        self.sinks = [_state(plan, index) for index, plan in enumerate(self.plan.sinks)]
        self._faults_at = list(reversed(self.plan.faults_at))

    @property
    def calm(self) -> bool:
        """Whether nothing goes wrong any more."""
        return self.chaos.calm

    def note(self, text: str, *args: Any) -> None:
        """Say what happens; nobody listens unless the seed is traced."""

    def _trace(self, text: str, *args: Any) -> None:
        who = self.stage.current.name if hasattr(self, "stage") and self.stage.current is not None else ""
        self.report.trace.append(
            f"{self.clock.time - 1000:10.3f}  {who:<28.28} {text % args if args else text}"
        )

    def violate(self, problem: str) -> None:
        """Something does not hold."""
        self.note("VIOLATION: %s", problem)
        self.report.problems.append(problem)

    def _make_cluster(self) -> FakeCluster:
        plan = self.plan
        cluster = FakeCluster(
            plan.brokers,
            release=plan.release,
            features=plan.features,
            settings=ClusterSettings(
                marker_delay=plan.marker_delay, default_replication=plan.brokers, auto_create_topics=False
            ),
            clock=lambda: self.clock.time + EPOCH,
            rng=stream(self.seed, "cluster"),
        )
        for topic in (TOPIC, COPY_TOPIC):
            cluster.create_topic(topic, plan.partitions)
        return cluster

    # ---------------------------------------------------------------------------------------------- the run

    def run(self) -> SinkReport:
        report = self.report
        self.note(self.plan.describe())
        self.ledger.watch()
        office = Process(self.stage, "operator")
        operators = [
            Operator(self, state, stream(self.seed, f"operator of {state.prefix}")) for state in self.sinks
        ]
        try:
            with _hook(self._on_step), listening(self._on_log):
                self._run_all([office.spawn(each.state.prefix, each.supervise) for each in operators])
                self.note("the cluster is left in peace")
                self.chaos.calm_down()
                self._run_all([office.spawn(each.state.prefix, each.finish) for each in operators])
                self._settle()
                if report.problems:
                    return report
                self.ledger.check_end()
                self._check_rest()
        except Stuck as stuck:
            self.violate(str(stuck))
        finally:
            self.stage.on_turn = lambda actor: None
            self.stage.close()
            self._fill(report)
        return report

    def _fill(self, report: SinkReport) -> None:
        report.drivers = next(self.driver_numbers) - 1
        report.batches = len(self.ledger.batches)
        report.rows = self.ledger.decided_rows
        report.faults = self.chaos.happened
        report.turns = self.stage.turns
        report.virtual_seconds = self.clock.time - 1000

    def _run_all(self, programs: list[Actor]) -> None:
        self.stage.run(
            lambda: bool(self.report.problems) or all(each.ended for each in programs),
            self.clock.time + _LONGEST,
        )
        for program in programs:
            if program.error is not None and not self.report.problems:
                raise program.error

    def _settle(self) -> None:
        """Let the last zombies come to their end, and the last time-outs pass."""
        if self.report.problems:
            return
        self.stage.run(lambda: not self.stage.actors, self.clock.time + _LONGEST)
        until = self.clock.time + _LONGEST_TIMEOUT + 60
        while (moment := self.world.next_at()) <= until:
            self.world.happen(moment, until)

    def _check_rest(self) -> None:
        for txn in open_transactions(self.cluster, "ps."):
            self.violate(f"{txn.transactional_id} is still {txn.state}")
        for partition in self.cluster.topics.partitions():
            if partition.key.topic == LOG_TOPIC:
                self._check_log(partition.log.batches)

    def _check_log(self, batches: Iterable[RecordBatch]) -> None:
        """In the end `penstock recover` shows nothing that is still to be done, or that does not count."""
        contents = LogContents()
        for batch in batches:
            contents.on_batch(batch)
        for key in contents.sink_keys():
            undone = contents.view(key).undone
            if undone is not None:
                self.violate(
                    f"the log says in the end that execution {undone.execution} of {key} is not done"
                )
        for stray in contents.strays:
            self.violate(f"a record of the log does not count: {stray}")

    # ---------------------------------------------------------------------------------------------- what is told

    def state_of(self, app: Application) -> SinkState:
        return next(state for state in self.sinks if app in state.applications)

    def on_prepared(self, app: Application, begun_at: float, plan: BatchPlan) -> None:
        state = self.state_of(app)
        self.ledger.on_execution(self._coordinator(app), plan.execution, begun_at, self.clock.time)
        owner = self.ledger.replaced(self._coordinator(app), app.number, begun_at)
        if owner is not None:
            self.violate(f"{app.name} may go on, although driver {owner} has taken over")
        if plan.repair is not None:
            self.report.repairs += 1  # until it is done, part of a batch is visible
        elif self.ledger.replaced(self._coordinator(app), app.number, self.clock.time) is None:
            self.ledger.check_whole(
                lambda batch: batch.query_id.startswith(state.prefix), f"after {app.name} has prepared"
            )

    def on_refused(self, app: Application, error: BaseException) -> None:
        if self.ledger.is_owner(self._coordinator(app), app.number):
            self.violate(f"{app.name} is refused, although nobody has taken over from it: {error}")

    def was_decided(self, app: Application) -> bool:
        """Whether a decision was made for its sink, by anybody."""
        return self._coordinator(app) in self.ledger.decided_at

    def is_driver_alive(self, number: int) -> bool:
        apps = [app for state in self.sinks for app in state.applications]
        return any(app.number == number and app.jvm.alive for app in apps)

    def on_fence(self, names: tuple[str, ...]) -> None:
        """Somebody is about to end open transactions: not those of another sink whose driver runs."""
        actor = self.stage.current
        app = None if actor is None else self._owner(actor.process)
        own = None if app is None else self._coordinator(app)
        for name in names:
            parts = parse_task_id(name)
            coordinator = "" if parts is None else coordinator_id(parts.sink_key)
            owner = self.ledger.present_owner(coordinator)
            if parts is None or own in (None, coordinator) or owner is None:
                continue
            if owner.generation == parts.generation and self.is_driver_alive(owner.driver):
                self.violate(f"{name} is to be ended from outside, although driver {owner.driver} lives")

    def on_offered(self, app: Application, plan: BatchPlan, batch: PlannedBatch) -> None:
        self.ledger.on_offered(self._coordinator(app), plan.execution, batch)

    def on_committed(
        self, app: Application, batch: PlannedBatch, begun_at: float, messages: list[Any]
    ) -> None:
        owner = self.ledger.replaced(self._coordinator(app), app.number, begun_at)
        if owner is not None and any(isinstance(message, Written) for message in messages):
            self.violate(f"{app.name} commits {batch}, although driver {owner} has taken over")
        missing = [row for row in batch.rows if not self.ledger.committed[row]]
        if missing and not batch.entry.lost:
            self.violate(f"commit() of {batch} returned, and {len(missing)} of its rows are not committed")

    def _coordinator(self, app: Application) -> str:
        return coordinator_id(self.protocol.settings(app.sink).sink_key)

    def on_failure(self, app: Application, error: BaseException) -> None:
        self.note("%s fails: %r", app.name, error)
        name = type(error).__name__
        self.report.failures[name] = self.report.failures.get(name, 0) + 1
        self.check_log_is_read(app, error)
        for each in (error, error.__cause__):
            if isinstance(each, DecidedDataLostError):
                self.on_lost(app, each)

    def check_log_is_read(self, app: Application, error: BaseException) -> None:
        """Nobody deletes records of the log here, so that no driver may miss one."""
        for each in (error, error.__cause__):
            if isinstance(each, SinkLogLostError):
                self.violate(f"{app.name} says that the log is damaged, which it is not: {each}")

    def on_lost(self, app: Application, error: KafkaError) -> None:
        """Somebody says that rows which the driver decided are lost."""
        state = self.state_of(app)
        state.lost = True
        self.report.losses += 1
        settings = self.protocol.settings(app.sink)
        decided_at = self.ledger.last_decision_before(self._coordinator(app), app.number)
        if self.clock.time - decided_at < settings.recovery_time_ms / 1000:
            self.violate(f"{app.name} says that rows are lost, although it was there in time: {error}")
        for batch in self.ledger.batches.values():
            if batch.query_id.startswith(state.prefix):
                batch.lost = True

    def is_final(self, error: BaseException) -> bool:
        """Whether another attempt of the task could not end otherwise; saves turns."""
        return isinstance(error, RestoredCheckpointError | SinkSupersededError | DecidedDataLostError)

    def _on_turn(self, actor: Actor) -> None:
        if self._faults_at and self.stage.turns >= self._faults_at[-1]:
            self._faults_at.pop()
            self.chaos.strike()
        app = self._owner(actor.process)
        if app is not None:
            app.on_turn()

    def _on_step(self, step: Step, facts: Any) -> None:
        if self.stage.current is not None:
            self.note("reaches %s %s", step.name, facts or "")
            self.on_point(step.name)

    def on_point(self, point: str) -> None:
        """A process is at a point of the protocol where its driver can be killed or frozen."""
        actor = self.stage.current
        app = None if actor is None else self._owner(actor.process)
        if actor is None or app is None:
            return
        app.on_point(point)
        if actor.killed or actor.frozen_until > self.clock.time:
            self.stage.sleep(0.0)

    def _on_log(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR and record.exc_info and record.exc_info[1] is not None:
            self.violate(f"{record.getMessage()}: {record.exc_info[1]!r}")
        elif self.traced:
            self.note("  log: %s", record.getMessage())

    def _owner(self, process: Process) -> Application | None:
        for state in self.sinks:
            for app in reversed(state.applications):
                if app.owns(process):
                    return app
        return None


@contextmanager
def listening(tell: Callable[[logging.LogRecord], None]) -> Iterator[None]:
    """Collect what the library logs, and keep it from other handlers."""
    handler = logging.Handler()
    handler.emit = tell  # type: ignore[method-assign]
    logger = logging.getLogger("penstock")
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


@contextmanager
def _hook(function: Any) -> Iterator[None]:
    """Note every step that the sink reaches."""
    pid = os.getpid()
    before = hooks._hooks.get(pid)
    hooks._hooks[pid] = function
    try:
        yield
    finally:
        hooks._hooks[pid] = before


def _state(plan: SinkPlan, index: int) -> SinkState:
    prefix = f"{plan.sink_id}{index}-"
    return SinkState(plan, prefix, Checkpoint(f"{prefix}q1"))


def plan_of(seed: int) -> Plan:
    """What a seed decides before anything runs."""
    return make_plan(stream(seed, "plan"))


def simulate(seed: int, *, traced: bool = False) -> SinkReport:
    """Run one seed, and return its report."""
    simulation = SinkSimulation(seed, traced=traced)
    with broker_side(simulation.note) if traced else nullcontext():
        return simulation.run()
