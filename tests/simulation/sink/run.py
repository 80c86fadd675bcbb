# SPDX-License-Identifier: Apache-2.0
"""One seed of the sink: drivers that come and go, faults, then peace, and the checks.

For each sink a supervisor starts drivers one after the other, as an operator or a cluster manager would: also while the
one before is still there. Then the cluster is left in peace, one more driver per sink brings the job to its end, and
time passes until every transaction that anybody left open is over.
"""

from __future__ import annotations

import itertools
import math
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import DecidedDataLostError, KafkaError, RestoredCheckpointError, SinkSupersededError
from penstock.sink import Step, seam
from penstock.testing.cluster import FakeCluster
from penstock.testing.settings import ClusterSettings
from simulation.sink.actors import Actor, Process, Stage, Stuck
from simulation.sink.chaos import Chaos
from simulation.sink.driver import Application, Checkpoint, Fate
from simulation.sink.ledger import BatchEntry, Ledger, open_transactions
from simulation.sink.plan import LOG_TOPIC, TOPIC, Plan, SinkPlan, make_plan
from simulation.sink.protocol import Protocol
from simulation.sink.world import SinkWorld
from simulation.wire import EPOCH, SimClock

_CALM_TRIES = 8
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
    virtual_seconds: float = 0.0
    failures: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)


@dataclass
class SinkState:
    """One sink, as its supervisor knows it."""

    plan: SinkPlan
    checkpoint: Checkpoint
    applications: list[Application] = field(default_factory=list)
    checkpoints: int = 1
    newest: Application | None = None  # whose prepare() returned last
    newest_at: float = -math.inf
    lost: bool = False


class SinkSimulation:
    """One seed."""

    def __init__(self, seed: int, *, traced: bool = False) -> None:
        self.seed = seed
        self.traced = traced
        self.report = SinkReport(seed)
        self.plan: Plan = make_plan(_stream(seed, "plan"))
        self.clock = SimClock()
        self.cluster = self._make_cluster()
        self.world = SinkWorld(self.cluster, self.clock, _stream(seed, "network"))
        self.world.slowest = self.plan.slowest
        if traced:
            self.world.note = self._trace
            self.note = self._trace
        self.stage = Stage(self.world, _stream(seed, "schedule"), self.note)
        self.stage.on_turn = self._on_turn
        self.chaos = Chaos(self.world, _stream(seed, "faults"), self.note)
        self.ledger = Ledger(self.cluster, LOG_TOPIC, self.violate)
        self.protocol = Protocol(self)
        self.driver_numbers = itertools.count(1)
        self.worker_numbers = itertools.count(1)
        self.sinks = [self._sink_state(plan, index) for index, plan in enumerate(self.plan.sinks)]
        self._faults_at = list(reversed(self.plan.faults_at))
        self._rng = _stream(seed, "operator")

    @property
    def calm(self) -> bool:
        """Whether nothing goes wrong any more."""
        return self.chaos.calm

    def note(self, text: str, *args: Any) -> None:
        """Say what happens; nobody listens unless the seed is traced."""

    def _trace(self, text: str, *args: Any) -> None:
        who = self.stage.current.name if hasattr(self, "stage") and self.stage.current is not None else ""
        self.report.trace.append(f"{self.clock.time - 1000:10.3f}  {who:<28.28} {text % args if args else text}")

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
            rng=_stream(self.seed, "cluster"),
        )
        cluster.create_topic(TOPIC, plan.partitions)
        return cluster

    def _sink_state(self, plan: SinkPlan, index: int) -> SinkState:
        return SinkState(plan, Checkpoint(self._query_id(plan, index, 1)))

    def _query_id(self, plan: SinkPlan, index: int, number: int) -> str:
        # A batch job's query is called the same in every run; rows are told apart by the run.
        return f"{plan.sink_id}{index}-q{number}"

    # ---------------------------------------------------------------------------------------------- the run

    def run(self) -> SinkReport:
        report = self.report
        self.note(self.plan.describe())
        self.ledger.watch()
        operator = Process(self.stage, "operator")
        try:
            with _hook(self._on_step):
                programs = [operator.spawn(state.plan.sink_id, lambda s=state: self._supervise(s)) for state in self.sinks]  # type: ignore[misc]
                self._run_until_ended(programs)
                self.note("the cluster is left in peace")
                self.chaos.calm_down()
                programs = [operator.spawn(state.plan.sink_id, lambda s=state: self._finish(s)) for state in self.sinks]  # type: ignore[misc]
                self._run_until_ended(programs)
                self._settle()
                self.ledger.check_end(calm=not self._any_lost)
                for txn in open_transactions(self.cluster, "ps."):
                    self.violate(f"{txn.transactional_id} is still {txn.state}")
        except Stuck as stuck:
            self.violate(str(stuck))
        finally:
            self.stage.on_turn = lambda actor: None
            self.stage.close()
        report.drivers = next(self.driver_numbers) - 1
        report.batches = len(self.ledger.batches)
        report.rows = self.ledger.decided_rows
        report.faults = self.chaos.happened
        report.turns = self.stage.turns
        report.virtual_seconds = self.clock.time - 1000
        return report

    def _run_until_ended(self, programs: list[Actor]) -> None:
        self.stage.run(
            lambda: bool(self.report.problems) or all(each.ended for each in programs), self.clock.time + _LONGEST
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

    @property
    def _any_lost(self) -> bool:
        return any(state.lost for state in self.sinks)

    # ---------------------------------------------------------------------------------------------- the operator

    def _supervise(self, state: SinkState) -> None:
        rng = self._rng
        for _ in range(state.plan.lives):
            app = self._start(state, self._fate(rng))
            patience = rng.choice((5.0, 60.0, 300.0, 2000.0))
            self.stage.wait_for(lambda app=app: app.ended, patience)  # type: ignore[misc]
            if not app.ended:
                if rng.random() < 0.6:
                    self.note("%s is taken for dead, and is not", app.name)
                else:
                    app.kill(orphans=rng.random() < 0.3)
            elif app.succeeded or state.lost:
                return
            self._stay_away(rng)
            if state.plan.run_id is None:
                self._touch_checkpoint(state, rng)

    def _fate(self, rng: random.Random) -> Fate | None:
        choice = rng.random()
        if choice < 0.2:
            return None
        fate = Fate(
            kills=rng.choices(("driver", "planner", "committer"), (6, 2, 2))[0], orphans=rng.random() < 0.3
        )
        if rng.random() < 0.35:
            fate.frozen = rng.choice((3.0, 31.0, 45.0, 100.0, 400.0 if self.plan.long_absence else 70.0))
        if choice < 0.65:
            fate.at_step = rng.choice(
                (Step.PREPARED, Step.BEFORE_DECISION, Step.BEFORE_DECISION, Step.AFTER_DECISION, Step.AFTER_DECISION,
                 Step.AFTER_FIRST_END, Step.AFTER_ALL_ENDS, Step.AFTER_DONE, Step.ABORTED)
            )  # fmt: skip
            fate.at_visit = rng.randint(1, 2)
        else:
            fate.at_turn = rng.randint(1, 200)
        return fate

    def _stay_away(self, rng: random.Random) -> None:
        seconds = rng.choice((0.0, 0.0, 0.1, 2.0, 15.0, 40.0))
        if self.plan.long_absence and rng.random() < 0.4:
            seconds = rng.choice((700.0, 1200.0))
        self.stage.sleep(seconds)

    def _touch_checkpoint(self, state: SinkState, rng: random.Random) -> None:
        choice = rng.random()
        old = state.checkpoint
        if choice < 0.12:
            state.checkpoints += 1
            index = self.sinks.index(state)
            state.checkpoint = Checkpoint(self._query_id(state.plan, index, state.checkpoints))
            self.note("the checkpoint is deleted: the query is now %s", state.checkpoint.query_id)
        elif choice < 0.2 and old.commits:
            kept = {number for number in old.commits if number < max(old.commits) - rng.randrange(2)}
            state.checkpoint = Checkpoint(old.query_id, dict(old.planned), kept)
            self.note("an older checkpoint is restored, with the commits %s", sorted(kept))
            if state.plan.rewrites:
                for batch in self.ledger.batches.values():
                    batch.may_repeat = batch.may_repeat or batch.query_id == old.query_id

    def _start(self, state: SinkState, fate: Fate | None) -> Application:
        app = Application(
            self, state.plan, state.checkpoint, fate, _stream(self.seed, f"driver {len(state.applications)} of {state.plan}")
        )
        state.applications.append(app)
        app.start()
        return app

    def _finish(self, state: SinkState) -> None:
        """In peace: bring the job to its end."""
        for _ in range(_CALM_TRIES):
            if state.lost:
                return
            app = self._start(state, None)
            self.stage.wait_for(lambda app=app: app.ended, 5000.0)  # type: ignore[misc]
            if app.succeeded:
                return
            if not app.ended:
                self.violate(f"{app.name} did not come to its end in peace")
                return
            if isinstance(app.error, RestoredCheckpointError):
                self._repair_checkpoint(state)
            self.stage.sleep(60.0)
        self.violate(f"no driver came to its end in peace, the last failed with {app.error!r}")

    def _repair_checkpoint(self, state: SinkState) -> None:
        """What the error asks for: go on with the newest checkpoint."""
        query_id = state.checkpoint.query_id
        taken = {number for (name, number), batch in self.ledger.batches.items() if name == query_id and batch.taken}
        state.checkpoint.commits |= taken
        self.note("the newest checkpoint is back, with the commits %s", sorted(taken))

    # ---------------------------------------------------------------------------------------------- what is told

    def state_of(self, app: Application) -> SinkState:
        return next(state for state in self.sinks if app in state.applications)

    def on_prepared(self, app: Application, begun_at: float) -> None:
        state = self.state_of(app)
        newest = state.newest
        if newest is not None and newest.number > app.number and begun_at > state.newest_at:
            self.violate(f"{app.name} may go on, although {newest.name} has taken over")
        if newest is None or app.number >= newest.number:
            state.newest, state.newest_at = app, self.clock.time
        name = self._query_prefix(state)
        if newest is None or app.number >= newest.number:
            self.ledger.check_whole(lambda batch: batch.query_id.startswith(name), f"after {app.name} has prepared")

    def _query_prefix(self, state: SinkState) -> str:
        return f"{state.plan.sink_id}{self.sinks.index(state)}-"

    def on_committed(self, app: Application, batch: BatchEntry, begun_at: float, messages: list[Any]) -> None:
        state = self.state_of(app)
        newest = state.newest
        wrote = any(type(message).__name__ == "Written" for message in messages)
        if wrote and newest is not None and newest.number > app.number and begun_at > state.newest_at:
            self.violate(f"{app.name} commits {batch}, although {newest.name} has taken over")
        missing = [row for row in batch.rows if not self.ledger.committed[row]]
        if missing and not batch.lost:
            self.violate(f"commit() of {batch} returned, and {len(missing)} of its rows are not committed")

    def on_failure(self, app: Application, error: BaseException) -> None:
        self.note("%s fails: %r", app.name, error)
        name = type(error).__name__
        self.report.failures[name] = self.report.failures.get(name, 0) + 1
        if isinstance(error, DecidedDataLostError):
            self._on_lost(app, error)

    def _on_lost(self, app: Application, error: KafkaError) -> None:
        state = self.state_of(app)
        state.lost = True
        self.report.losses += 1
        if not self.plan.long_absence:
            self.violate(f"{app.name} says that rows are lost, although nobody stayed away: {error}")
        for batch in self.ledger.batches.values():
            if batch.query_id.startswith(self._query_prefix(state)):
                batch.lost = True

    def is_final(self, error: BaseException) -> bool:
        """Whether another attempt of the task could not end otherwise; saves turns."""
        return isinstance(error, RestoredCheckpointError | SinkSupersededError)

    def _on_turn(self, actor: Actor) -> None:
        if self._faults_at and self.stage.turns >= self._faults_at[-1]:
            self._faults_at.pop()
            self.chaos.strike()
        app = self._owner(actor.process)
        if app is not None:
            app.on_turn()

    def _on_step(self, step: Step, facts: Any) -> None:
        actor = self.stage.current
        if actor is None:
            return
        self.note("reaches %s %s", step.name, facts or "")
        app = self._owner(actor.process)
        if app is not None:
            app.on_step(step)
            if actor.killed or actor.frozen_until > self.clock.time:
                self.stage.sleep(0.0)

    def _owner(self, process: Process) -> Application | None:
        for state in self.sinks:
            for app in reversed(state.applications):
                if app.owns(process):
                    return app
        return None


@contextmanager
def _hook(function: Any) -> Iterator[None]:
    """Hear of every step that the sink reaches."""
    pid = os.getpid()
    before = seam._hooks.get(pid)
    seam._hooks[pid] = function
    try:
        yield
    finally:
        seam._hooks[pid] = before


def _stream(seed: int, name: str) -> random.Random:
    """A random source of its own for each part, so that one part's choices do not shift another's."""
    return random.Random(f"{seed} {name}")


def plan_of(seed: int) -> Plan:
    """What a seed decides before anything runs."""
    return make_plan(_stream(seed, "plan"))


def simulate(seed: int, *, traced: bool = False) -> SinkReport:
    """Run one seed."""
    return SinkSimulation(seed, traced=traced).run()
