# SPDX-License-Identifier: Apache-2.0
"""How `penstock demo` runs its pipeline: through both kills, on one checkpoint, until all events are written."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli.demo.driver import LOOK_SECONDS, Checkpoint, DriverProcess
from penstock.cli.demo.kills import (
    DRIVER,
    HOOK,
    KILLS_VARIABLE,
    WORKER,
    Kill,
    PlannedKill,
    try_read_kill,
    write_plan,
)
from penstock.cli.demo.orders import FILES_PER_BATCH, FIRST_MS, Batches, write_input
from penstock.cli.demo.story import BatchTime, Story
from penstock.cli.options import CommandError

if TYPE_CHECKING:
    from penstock.sink import DecisionState

PIPELINE = Path(__file__).with_name("orders.toml")
WORKER_BATCH = 1
DRIVER_BATCH = 3

_LOG_TAIL = 15  # lines
_STATE_SECONDS = 20.0  # to find the decision of a dead driver
_HOOK_VARIABLE = "PENSTOCK_SINK_HOOK"


def planned_kills(*, exactly_once: bool) -> list[PlannedKill]:
    """A worker when half of a batch is written, and the driver when all of another is, but Spark does not know.

    Exactly once has a point there that is the most delicate: the batch is decided, and nothing of it is committed. At
    least once knows no decision, so it is the begin of the commit.
    """
    return [
        PlannedKill(WORKER, "TASK_FLUSHED", WORKER_BATCH, turn=FILES_PER_BATCH // 2),
        PlannedKill(DRIVER, "AFTER_DECISION" if exactly_once else "COMMITTING", DRIVER_BATCH),
    ]


@dataclass
class PipelineRun:
    """One run of the pipeline, through all its processes.

    Args:
        folder: of the demo, for everything it writes; temporary.
        servers: the brokers.
        events: how many.
        exactly_once: or at least once.
        story: is told what happens.
        log: the file for the output of Spark.
        program: the command line's beginning; tests have another one.
    """

    folder: Path
    servers: str
    events: int
    exactly_once: bool
    story: Story
    log: Path
    program: Sequence[str] = (sys.executable, "-m", "penstock")
    times: list[BatchTime] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.batches = Batches.of(self.events)
        self._checkpoint = Checkpoint(self.folder / "checkpoint")
        self._kills = self.folder / "kills"

    def run(self) -> None:
        """Run it to the end.

        Raises:
            CommandError: it failed by itself, or was not killed as planned.
        """
        write_input(self.folder / "input", self.batches)
        for folder in (self._kills, self.folder / "spark"):
            folder.mkdir()
        write_plan(self._kills, planned_kills(exactly_once=self.exactly_once))
        exit_code = self._run_once()
        if exit_code == -signal.SIGKILL and self._killed(DRIVER):
            self._tell_state_after_kill()
            self.story.say("starting the driver again, on the same checkpoint")
            exit_code = self._run_once()
        if exit_code != 0:
            raise self._failure(f"the pipeline failed with exit code {exit_code}")
        for victim in (WORKER, DRIVER):
            if not self._killed(victim):
                raise self._failure(f"the {victim} was not killed as planned, so nothing is proved")

    def _run_once(self) -> int:
        """Start the driver and follow it to its end; the exit code."""
        command = [*self.program, "run", str(PIPELINE), *self._variables()]
        environment = {
            _HOOK_VARIABLE: HOOK,
            KILLS_VARIABLE: str(self._kills),
            "SPARK_LOCAL_IP": "127.0.0.1",  # nothing of the demo can be reached from outside
        }
        with DriverProcess(command, environment, self.folder / "spark", self.log) as driver:
            while (exit_code := driver.try_wait(LOOK_SECONDS)) is None:
                self._look()
        self._look()
        return exit_code

    def _variables(self) -> list[str]:
        values = {
            "servers": self.servers,
            "input": str(self.folder / "input"),
            "checkpoint": str(self.folder / "checkpoint"),
            "since": str(FIRST_MS),
            "delivery": "exactly-once" if self.exactly_once else "at-least-once",
        }
        return [word for name, value in values.items() for word in ("--var", f"{name}={value}")]

    # ---- what can be seen

    def _look(self) -> None:
        """Tell what has happened since the last look, in the order in which it happened."""
        begun, done = self._checkpoint.begun(), self._checkpoint.done()
        news: list[tuple[float, BatchTime | Kill]] = []
        for batch, at in done.items():
            if batch >= len(self.times) and batch < self.batches.count:
                since = self.story.since_start
                events = len(self.batches.numbers(batch))
                self.times.append(BatchTime(batch, events, since(begun.get(batch, at)), since(at)))
                news.append((since(at), self.times[-1]))
        for victim in (WORKER, DRIVER):
            if not self._killed(victim) and (kill := try_read_kill(self._kills, victim)) is not None:
                self.kills.append(kill)
                news.append((self.story.since_start(kill.at), kill))
        for at, what in sorted(news, key=lambda item: item[0]):
            self.story.say(self._words(what), at)
        running = [batch for batch in begun if batch not in done]
        self.story.wait_for(
            f"micro-batch {running[0]} is being written" if running else "Spark is starting, or planning"
        )

    def _words(self, what: BatchTime | Kill) -> str:
        if isinstance(what, Kill):
            return _kill_words(what, exactly_once=self.exactly_once)
        done = f"micro-batch {what.batch} is done: {what.events:,} events in {what.seconds:.1f} s"
        if self._killed(DRIVER) and what.batch == DRIVER_BATCH:
            how = (
                "carried out as decided, nothing written again" if self.exactly_once else "all written again"
            )
            return f"{done} with the restart, {how}"
        return f"{done}, {what.rate:,.0f} events/s"

    def _killed(self, victim: str) -> bool:
        return any(kill.victim == victim for kill in self.kills)

    def _tell_state_after_kill(self) -> None:
        """Tell what the dead driver has left in Kafka: that is all that the next one has to go by."""
        if not self.exactly_once:
            return
        deadline = time.monotonic() + _STATE_SECONDS
        while (decision := self._try_find_decision()) is None:
            if time.monotonic() > deadline:
                raise self._failure(f"there is no decision of micro-batch {DRIVER_BATCH} in Kafka")
            self.story.wait_for("looking for what the driver has decided")
            time.sleep(LOOK_SECONDS)
        still_open = sum(handle.is_open for handle in decision.handles)
        self.story.say(
            f"found in Kafka: micro-batch {decision.batch_id} is decided, {decision.rows:,} records; "
            f"{still_open} of its {len(decision.handles)} transactions are still open"
        )

    def _try_find_decision(self) -> DecisionState | None:
        """The decision that is not carried out; none at first, because a commit is answered before it is visible."""
        from penstock.sink import inspect_sinks

        found = (state.decision for state in inspect_sinks({"bootstrap.servers": self.servers}))
        return next((decision for decision in found if decision is not None and not decision.done), None)

    def _failure(self, what: str) -> CommandError:
        """The error to raise, after the end of what Spark had to say was shown."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        self.story.show([line for line in lines if line.strip()][-_LOG_TAIL:])
        return CommandError(f"{what}; all that Spark said is in {self.log}")


def _kill_words(kill: Kill, *, exactly_once: bool) -> str:
    pids = " ".join(map(str, kill.pids))
    if kill.victim == WORKER:
        return f"kill -9 {pids}: a Python worker, in the middle of micro-batch {kill.batch}; its rows were written"
    state = "is decided, nothing of it is committed" if exactly_once else "is written, Spark does not know it"
    return f"kill -9 {pids}: the driver, Python and Java; micro-batch {kill.batch} {state}"
