# SPDX-License-Identifier: Apache-2.0
"""The operator of a job, or a cluster manager: starts drivers one after the other, also while the one before is there.

Between two drivers it stays away for a while, deletes the checkpoint, restores an older one, or one that has lost the
last batch, so that this is planned anew.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.errors import (
    DecidedDataLostError,
    DecisionRefusedError,
    KafkaError,
    RestoredCheckpointError,
    SinkError,
)
from simulation.sink.actors import Process
from simulation.sink.driver import Application, Checkpoint, DriverFault
from simulation.sink.ledger import COPIED
from simulation.sink.plan import COPY_TOPIC, TOPIC, SinkPlan, Theme

if TYPE_CHECKING:
    from simulation.sink.run import SinkSimulation

_CALM_TRIES = 8
_PATIENCE_IN_PEACE = 5000.0
# The steps that matter most, and every effect.
_POINTS = (
    "PREPARED", "BEFORE_DECISION", "BEFORE_DECISION", "AFTER_DECISION", "AFTER_DECISION", "AFTER_DECISION",
    "AFTER_FIRST_END", "AFTER_FIRST_END", "AFTER_ALL_ENDS", "ABORTED",
    *(
        f"{when} {effect}"
        for when in ("before", "after")
        for effect in (
            "ReadLog", "InitProducer", "JoinLog", "AppendInTransaction", "EndTransaction", "AppendFacts", "Describe",
            "FenceAll", "EndAll",
        )
    ),
)  # fmt: skip


@dataclass
class SinkState:
    """One sink, as its operator knows it.

    Attributes:
        prefix: of the names of its queries.
        lost: a driver has said that rows are lost.
        copied: queries of which a copy of the checkpoint was used.
    """

    plan: SinkPlan
    prefix: str
    checkpoint: Checkpoint
    applications: list[Application] = field(default_factory=list)
    checkpoints: int = 1
    lost: bool = False
    copied: set[str] = field(default_factory=set)


def _asks_for_checkpoint(error: BaseException | None) -> bool:
    """Whether an error says that the rows of a batch are not those that were decided."""
    if isinstance(error, DecisionRefusedError):
        return "cannot be repaired" in str(error)
    return isinstance(error, RestoredCheckpointError)


class Operator:
    """Runs one job.

    Args:
        sim: the seed.
        state: the sink.
    """

    def __init__(self, sim: SinkSimulation, state: SinkState, rng: random.Random) -> None:
        self.sim = sim
        self.state = state
        self.rng = rng

    def supervise(self) -> None:
        """Start drivers while things go wrong, until the job is done or faults end."""
        rng, state = self.rng, self.state
        for _ in range(state.plan.lives):
            # Mostly not all batches at once: each driver that comes to its end hands over to another one.
            app = self._start(self._fault(), state.checkpoint.next_batch + rng.randint(1, 2))
            self._wait_for(app, rng.choice((5.0, 60.0, 300.0, 2000.0, 2000.0)))
            if not app.ended:
                if rng.random() < 0.6:
                    self.sim.note("%s is taken for dead, and is not", app.name)
                else:
                    app.kill(orphans=rng.random() < 0.3)
            elif app.succeeded and state.checkpoint.next_batch >= state.plan.goal:
                return
            self._maybe_repair_checkpoint(app)
            self._stay_away()
            if state.lost or rng.random() < 0.15:
                self._recover()
            if state.plan.run_id is None:
                self._maybe_touch_checkpoint()

    def finish(self) -> None:
        """Without faults: bring the job to its end."""
        error: BaseException | None = None
        if self.state.plan.one_off:
            self._finish_one_off()
            return
        for _ in range(_CALM_TRIES):
            if self.state.lost:
                self._recover()
            app = self._start(None, max(self.state.plan.goal, self._last_batch()) + 1)
            self._wait_for(app, _PATIENCE_IN_PEACE)
            if app.succeeded:
                return
            if not app.ended:
                self.sim.violate(f"{app.name} did not come to its end in peace")
                return
            error = app.error
            self._maybe_repair_checkpoint(app)
            self.sim.stage.sleep(60.0)
        self.sim.violate(f"no driver came to its end in peace, the last failed with {error!r}")

    def _finish_one_off(self) -> None:
        """Nobody starts it again: if it was decided, `penstock recover` finishes it."""
        (app,) = self.state.applications
        self._wait_for(app, _PATIENCE_IN_PEACE)
        if not app.ended:
            self.sim.violate(f"{app.name} did not come to its end in peace")
            return
        if app.succeeded or not self.sim.was_decided(app):
            return
        for _ in range(_CALM_TRIES):
            self.sim.stage.sleep(60.0)  # until markers that are on their way are in the log
            error = self._recover()
            if error is None or type(error) is SinkError:  # the log does not know it any more
                return
            if isinstance(error, DecidedDataLostError):
                self.sim.on_lost(app, error)
        self.sim.violate(f"penstock recover did not come to its end in peace: {error!r}")

    def _last_batch(self) -> int:
        """The last batch that Spark has to run, whatever the goal.

        Spark runs a batch again that it has planned and not noted as committed. If the checkpoint has lost the batch,
        the source still has its rows, so Spark plans it anew.
        """
        checkpoint = self.state.checkpoint
        known = [
            batch.number
            for batch in self.sim.ledger.batches.values()
            if batch.query_id == checkpoint.query_id
        ]
        return max([*checkpoint.planned, *known], default=0)

    def _start(
        self, fault: DriverFault | None, goal: int, checkpoint: Checkpoint | None = None, topic: str = TOPIC
    ) -> Application:
        state = self.state
        rng = random.Random(self.rng.random())
        app = Application(self.sim, state.plan, checkpoint or state.checkpoint, goal, fault, rng, topic)
        state.applications.append(app)
        app.start()
        return app

    def _wait_for(self, app: Application, seconds: float) -> None:
        self.sim.stage.wait_for(lambda: app.ended, seconds)

    def _fault(self) -> DriverFault | None:
        rng = self.rng
        if rng.random() < 0.1:
            return None
        if rng.random() < 0.8 and (fault := self._fault_by_theme()) is not None:
            return fault
        fault = DriverFault(
            kills=rng.choices(("driver", "planner", "committer"), (6, 2, 2))[0], orphans=rng.random() < 0.3
        )
        if rng.random() < 0.35:
            fault.frozen = rng.choice((3.0, 31.0, 45.0, 70.0, 100.0))
        if rng.random() < 0.6:
            fault.at_point = rng.choice(_POINTS)
            fault.occurrence = rng.choice((1, 1, 2, 3))
        else:
            fault.at_turn = rng.randint(1, 150)
        return fault

    def _fault_by_theme(self) -> DriverFault | None:
        rng, theme = self.rng, self.sim.plan.theme
        if theme is Theme.HELD_LOG:
            if self.state is self.sim.sinks[0]:
                return DriverFault(
                    at_point="AFTER_DECISION", occurrence=rng.choice((1, 2, 2)), kills="committer"
                )
            return DriverFault(at_point="BEFORE_DECISION", frozen=45.0)
        if theme is Theme.LATE_INIT:
            return DriverFault(at_point=rng.choice(("AFTER_DECISION", "AFTER_FIRST_END")))
        if theme is Theme.LONG_ABSENCE:
            if rng.random() < 0.4:
                return DriverFault(at_point=rng.choice(("AFTER_DECISION", "AFTER_FIRST_END")))
            # The first such effects of a driver make it the owner; it decides with later ones.
            point = rng.choice(("before JoinLog", "before AppendInTransaction", rng.choice(_POINTS)))
            return DriverFault(
                at_point=point, occurrence=rng.choice((1, 2, 2, 3)), frozen=rng.choice((400.0, 1000.0))
            )
        return None

    def _stay_away(self) -> None:
        seconds = self.rng.choice((0.0, 0.0, 0.1, 2.0, 15.0, 40.0))
        if self.sim.plan.theme is Theme.LONG_ABSENCE and self.rng.random() < 0.4:
            seconds = self.rng.choice((700.0, 1200.0))
        self.sim.stage.sleep(seconds)

    def _recover(self) -> BaseException | None:
        """Run `penstock recover`, perhaps while a driver is at work; where rows are lost, say that they may be."""
        process = Process(self.sim.stage, "penstock recover")
        accept_loss, self.state.lost = self.state.lost, False
        work = process.spawn(
            self.state.prefix,
            lambda: self.sim.protocol.recover(process, self.state.plan, accept_loss=accept_loss),
        )
        self.sim.stage.join([work])
        if work.error is not None and not isinstance(work.error, KafkaError):
            self.sim.violate(f"{work.name} raised {work.error!r}")
        self.sim.note("penstock recover: %r", work.error or work.result)
        return work.error

    # ---- checkpoints

    def _maybe_touch_checkpoint(self) -> None:
        """Now and then somebody deletes the checkpoint, or restores an older one."""
        choice, state = self.rng.random(), self.state
        old = state.checkpoint
        if choice < 0.12:
            self._delete_checkpoint()
        elif choice < 0.2 and old.commits:
            kept = {number for number in old.commits if number < max(old.commits) - self.rng.randrange(2)}
            state.checkpoint = Checkpoint(old.query_id, dict(old.planned), kept)
            self.sim.note("an older checkpoint is restored, with the commits %s", sorted(kept))
        elif choice < 0.34 and old.planned:
            lost = max(old.planned)
            planned = {number: rows for number, rows in old.planned.items() if number != lost}
            state.checkpoint = Checkpoint(old.query_id, planned, old.commits - {lost})
            self.sim.note("the checkpoint has lost batch %s: it will be planned anew", lost)
        elif choice < 0.42 and old.query_id not in state.copied:
            self._use_copy(old)

    def _delete_checkpoint(self) -> None:
        state = self.state
        state.checkpoints += 1
        state.checkpoint = Checkpoint(f"{state.prefix}q{state.checkpoints}")
        self.sim.note("the checkpoint is deleted: the query is now %s", state.checkpoint.query_id)

    def _use_copy(self, old: Checkpoint) -> None:
        """Somebody tries the query with a copy of its checkpoint and another topic; the source is the same."""
        self.state.copied.add(old.query_id)
        copy = Checkpoint(old.query_id + COPIED, old.planned, set(old.commits))
        self.sim.note("a copy of the checkpoint is used for another topic")
        app = self._start(None, copy.next_batch + self.rng.randint(1, 2), copy, COPY_TOPIC)
        self._wait_for(app, 300.0)
        app.kill()

    def _maybe_repair_checkpoint(self, app: Application) -> None:
        """What the error asks for: go on with the newest checkpoint, which has what was decided."""
        if app.error is None or not any(
            _asks_for_checkpoint(each) for each in (app.error, app.error.__cause__)
        ):
            return
        checkpoint = self.state.checkpoint
        if checkpoint.query_id in self.state.copied:
            # What the sink knows of the query may be the copy's: begin anew rather than find out.
            self._delete_checkpoint()
            return
        for batch in self.sim.ledger.batches.values():
            if batch.query_id != checkpoint.query_id:
                continue
            if batch.decided is not None:
                checkpoint.planned[batch.number] = batch.decided
            if batch.taken is not None or (batch.lost and batch.offered):
                checkpoint.commits.add(batch.number)
        self.sim.note("the newest checkpoint is back, with the commits %s", sorted(checkpoint.commits))
