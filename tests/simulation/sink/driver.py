# SPDX-License-Identifier: Apache-2.0
"""A model of a Spark driver: its checkpoint, its Python processes, and the order in which it calls the sink.

As Spark does: offsets are written down, the writer is prepared in a planner process, tasks run, commit() runs in
another process, and only then the batch is written down as committed. After a failed commit(), or a task that failed
too often, abort() gets the messages there are, and the query stops.

There are two planner processes, which take turns at random as in an application with two queries. One may die between
plan and commit, and one may go on for a moment with a plan that nobody waits for, as the query was stopped meanwhile.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.errors import KafkaError, SinkSupersededError
from simulation.sink.actors import Actor, Killed, Process
from simulation.sink.ledger import RowRange
from simulation.sink.plan import TOPIC, SinkPlan
from simulation.sink.tasks import JobFailed, Stage, Worker

if TYPE_CHECKING:
    from simulation.sink.run import SinkSimulation

_ROWS_OFTEN_NONE = 0.08
_PLANNERS = 2
_PLANNER_DIES = 0.1
_PLANNER_ABANDONED = 0.06


class ProcessDied(Exception):
    """A Python process of the driver is gone."""


@dataclass
class Checkpoint:
    """What a query knows after a restart. A batch job has one, too: what its caller knows.

    Attributes:
        query_id: with `ledger.COPIED` at its end in a copy of the checkpoint, which the sink takes for the same query.
        planned: rows of each batch that was begun; a replay gets the same, unless they are lost.
        commits: batches that Spark took as committed.
    """

    query_id: str
    planned: dict[int, RowRange] = field(default_factory=dict)
    commits: set[int] = field(default_factory=set)

    @property
    def next_batch(self) -> int:
        return max(self.commits, default=-1) + 1


@dataclass
class DriverFault:
    """What goes wrong with a driver.

    Attributes:
        at_turn: after so many turns of its processes, or
        at_point: when the protocol comes to this step, or to before or after this effect, the `occurrence`-th time.
        kills: the driver is killed; else it is frozen for `frozen` seconds.
        orphans: its Python processes go on for a while, not knowing that it is gone.
    """

    at_turn: int = -1
    at_point: str = ""
    occurrence: int = 1
    kills: str = "driver"
    frozen: float = 0.0
    orphans: bool = False


class Application:
    """One driver, from its start to its end.

    Args:
        sim: the seed.
        sink: what it writes to.
        checkpoint: what it goes on from.
        goal: it stops before the batch with this number.
        fault: what goes wrong with it; None lets it come to its end.
        topic: where it writes.
    """

    def __init__(
        self,
        sim: SinkSimulation,
        sink: SinkPlan,
        checkpoint: Checkpoint,
        goal: int,
        fault: DriverFault | None,
        rng: random.Random,
        topic: str = TOPIC,
    ) -> None:
        self.sim = sim
        self.stage = sim.stage
        self.sink = sink
        self.checkpoint = checkpoint
        self.goal = goal
        self.fault = fault
        self.rng = rng
        self.topic = topic
        self.number = next(sim.driver_numbers)
        self.name = f"driver {self.number}"
        self.jvm = Process(sim.stage, self.name)
        self.pids = 0
        self.planner: Process | None = None  # the one that plans, or has planned last
        self.planners: list[Process] = []
        self.committer: Process | None = None
        self.workers: list[Worker] = []
        self.turns = 0
        self.error: BaseException | None = None
        self.succeeded = False
        self.main: Actor | None = None

    # ---- life and death

    def start(self) -> None:
        self.sim.note("%s starts for %s, %s", self.name, self.sink.sink_id, self.checkpoint)
        self.sim.note("%s", self.fault)
        self.main = self.jvm.spawn("main", self._run)

    @property
    def ended(self) -> bool:
        return self.main is not None and self.main.ended

    def processes(self) -> list[Process]:
        return [self.jvm, *self.planners, *([] if self.committer is None else [self.committer])]

    def owns(self, process: Process) -> bool:
        return process in self.processes()

    def on_turn(self) -> None:
        """One of its own processes is about to go on."""
        self.turns += 1
        if self.fault is not None and self.turns == self.fault.at_turn:
            self.meet_fate()

    def on_point(self, point: str) -> None:
        """One of its processes has come to a point of the protocol."""
        fault = self.fault
        if fault is None or fault.at_point != point:
            return
        fault.occurrence -= 1
        if fault.occurrence == 0:
            self.meet_fate()

    def meet_fate(self) -> None:
        fault, self.fault = self.fault, None
        if fault is None or self.sim.calm:
            return
        if fault.frozen:
            self.sim.note("%s is frozen for %s s", self.name, fault.frozen)
            for process in self.processes():
                process.freeze(fault.frozen)
        elif fault.kills == "planner" and self.planner is not None:
            self.planner.kill()
        elif fault.kills == "committer" and self.committer is not None:
            self.committer.kill()
        else:
            self.kill(orphans=fault.orphans)

    def kill(self, *, orphans: bool = False) -> None:
        self.jvm.kill()
        for process in () if orphans else self.processes():
            process.kill()
        for worker in self.workers:
            if self.rng.random() >= self.sim.plan.zombies:
                worker.process.kill()

    # ---- the query

    def _run(self) -> None:
        while True:
            try:
                self._run_query()
            except (KafkaError, JobFailed, ProcessDied) as error:
                self.error = error
                self.sim.on_failure(self, error)
                if isinstance(error, SinkSupersededError) or self.sink.one_off or self.rng.random() < 0.5:
                    return
                self.sim.note("%s starts the query anew", self.name)
            else:
                self.succeeded = True
                return

    def _run_query(self) -> None:
        if self.sink.run_id is not None:
            self._batch(0)
            return
        while self.checkpoint.next_batch < self.goal:
            self._batch(self.checkpoint.next_batch)
            self.stage.sleep(self.rng.choice((0.0, 0.01, 0.5, 70.0)))

    def _batch(self, number: int) -> None:
        sim, checkpoint = self.sim, self.checkpoint
        if number not in checkpoint.planned:
            checkpoint.planned[number] = self._plan_rows(number)
        # Who wants old batches rewritten wants it of every driver that comes with an old checkpoint, also of one that
        # slept before it ever owned the sink.
        batch = sim.ledger.batch(
            checkpoint.query_id, number, checkpoint.planned[number], may_repeat=self.sink.rewrites
        )
        plan = self._prepare()
        stage = Stage(self, plan, batch, random.Random(self.rng.random()))
        try:
            messages = stage.run()
        except JobFailed as failure:
            self._abort(failure.messages, number)
            raise
        sim.on_offered(self, plan, batch)
        try:
            begun_at = sim.clock.time
            self._call(
                "committer", "commit", lambda process: sim.protocol.commit(process, self, messages, number)
            )
        except (KafkaError, ProcessDied) as error:
            sim.note("%s: commit of %s failed: %r", self.name, batch, error)
            self._abort(messages, number)
            raise
        sim.on_committed(self, batch, begun_at, messages)
        checkpoint.commits.add(number)
        batch.entry.taken = batch.planned
        sim.note("%s: %s is committed", self.name, batch)

    def _plan_rows(self, number: int) -> RowRange:
        """What Spark puts into a batch: what the source has. If the checkpoint has lost the batch, that may be more."""
        before = self.sim.ledger.try_last_plan(self.checkpoint.query_id, number)
        if before is None:
            empty = self.rng.random() < _ROWS_OFTEN_NONE
            return RowRange(0, 0 if empty else self.rng.randint(1, self.sim.plan.rows_at_most))
        first, count = before
        again = self.rng.choice(
            (RowRange(first, count + self.rng.randint(1, 3)), RowRange(first + 1, count),
             RowRange(first, count // 2), before)
        )  # fmt: skip
        self.sim.note("batch %s is planned anew: %s instead of %s", number, again, before)
        return again

    def _prepare(self) -> Any:
        sim = self.sim
        self.planners = [process for process in self.planners if process.alive]
        if len(self.planners) == _PLANNERS:
            self.planner = self.rng.choice(self.planners)
        else:
            self.planner = None
        if self.planner is not None and not sim.calm and self.rng.random() < _PLANNER_ABANDONED:
            self._abandon(self.planner)
        begun_at = sim.clock.time
        try:
            plan = self._call("planner", "prepare", lambda process: sim.protocol.prepare(process, self))
        except SinkSupersededError as error:
            sim.on_refused(self, error)
            raise
        sim.on_prepared(self, begun_at, plan)
        if self.planner is not None and not sim.calm and self.rng.random() < _PLANNER_DIES:
            self.planner.kill()
        return plan

    def _abandon(self, planner: Process) -> None:
        """The query is stopped while it is planned: Spark kills the planner, which goes on until the signal comes."""
        self.planners.remove(planner)
        planner.spawn("prepare, unwanted", lambda: self.sim.protocol.prepare(planner, self))
        self.stage.sleep(self.rng.random() * 0.3)
        self.stage.after(self.rng.random() * 3, planner.kill)
        raise ProcessDied(f"the query was stopped while {planner.name} was planning")

    def _abort(self, messages: list[Any], number: int) -> None:
        """Spark calls it after a failure, and only writes down what it raises."""
        try:
            self._call(
                "committer", "abort", lambda process: self.sim.protocol.abort(process, self, messages, number)
            )
        except (KafkaError, ProcessDied) as error:
            self.sim.note("%s: abort failed: %r", self.name, error)
            self.sim.check_log_is_read(self, error)

    def _call(self, where: str, name: str, work: Callable[[Process], Any]) -> Any:
        """Run a call of the sink in one of the driver's Python processes, and wait for it."""
        process: Process | None = getattr(self, where)
        if process is None or not process.alive or self.rng.random() < 0.1:
            self.pids += 1
            process = Process(self.stage, f"{self.name} {where} {self.pids}")
            process.memory["pid"] = self.pids
            setattr(self, where, process)
            if where == "planner":
                self.planners.append(process)
        serving = process
        actor = serving.spawn(name, lambda: work(serving))
        self.stage.join([actor])
        if actor.error is None:
            return actor.result
        setattr(self, where, None)  # Spark starts another one after an exception
        if isinstance(actor.error, Killed):
            raise ProcessDied(f"{serving.name} died in {name}")
        if not isinstance(actor.error, KafkaError):
            self.sim.violate(f"{actor.name} raised {actor.error!r}")
            raise ProcessDied(f"{serving.name} failed in {name}") from actor.error
        raise actor.error
