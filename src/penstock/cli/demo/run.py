# SPDX-License-Identifier: Apache-2.0
"""How `penstock demo` runs its pipeline: through both kills, on one checkpoint, until all events are written.

The pipeline is a process of its own. How far it has come is read from Spark's checkpoint: a micro-batch has begun when
its file is in `offsets`, and is done when its file is in `commits`. That holds whatever becomes of the process.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from penstock._counted import counted
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
from penstock.cli.demo.report import BatchTime, RunLog
from penstock.cli.options import CommandError

if TYPE_CHECKING:
    from penstock.sink import DecisionState

PIPELINE = Path(__file__).with_name("orders.toml")
WORKER_BATCH = 1
DRIVER_BATCH = 3

_LOG_TAIL = 15  # lines
_STATE_SECONDS = 20.0  # to find the decision of a dead driver
_HOOK_VARIABLE = "PENSTOCK_SINK_HOOK"

LOOK_SECONDS = 0.1  # between two looks at the checkpoint
_FOLLOW_SECONDS = 10.0  # that Java and its Python processes have to follow the pipeline
_PR_SET_PDEATHSIG = 1
_MARK_VARIABLE = "PENSTOCK_DEMO_DRIVER"


def planned_kills(*, exactly_once: bool) -> list[PlannedKill]:
    """A worker when half of a batch is written, and the driver when all of another is, but Spark does not know.

    Exactly once has a point there that is the most critical: the batch is decided, and nothing of it is committed. At
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
        run_log: is told what happens.
        log: the file for the output of Spark.
        program: the command line's beginning; tests have another one.
    """

    folder: Path
    servers: str
    events: int
    exactly_once: bool
    run_log: RunLog
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
            self.run_log.say("starting the driver again, on the same checkpoint")
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
                since = self.run_log.since_start
                events = len(self.batches.numbers(batch))
                self.times.append(BatchTime(batch, events, since(begun.get(batch, at)), since(at)))
                news.append((since(at), self.times[-1]))
        for victim in (WORKER, DRIVER):
            if not self._killed(victim) and (kill := try_read_kill(self._kills, victim)) is not None:
                self.kills.append(kill)
                news.append((self.run_log.since_start(kill.at), kill))
        for at, what in sorted(news, key=lambda item: item[0]):
            self.run_log.say(self._words(what), at)
        running = [batch for batch in begun if batch not in done]
        self.run_log.wait_for(
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
            self.run_log.wait_for("looking for what the driver has decided")
            time.sleep(LOOK_SECONDS)
        still_open = sum(handle.is_open for handle in decision.handles)
        self.run_log.say(
            f"found in Kafka: micro-batch {decision.batch_id} is decided, {decision.rows:,} records; "
            f"{still_open} of its {counted(len(decision.handles), 'transaction')} "
            f"{'is' if still_open == 1 else 'are'} still open"
        )

    def _try_find_decision(self) -> DecisionState | None:
        """The decision that is not carried out; none at first, because a commit is answered before it is visible."""
        from penstock.sink import inspect_sinks

        found = (state.decision for state in inspect_sinks({"bootstrap.servers": self.servers}))
        return next((decision for decision in found if decision is not None and not decision.done), None)

    def _failure(self, what: str) -> CommandError:
        """The error to raise, after the end of what Spark had to say was shown."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        self.run_log.show([line for line in lines if line.strip()][-_LOG_TAIL:])
        return CommandError(f"{what}; all that Spark said is in {self.log}")


def _kill_words(kill: Kill, *, exactly_once: bool) -> str:
    pids = " ".join(map(str, kill.pids))
    if kill.victim == WORKER:
        return f"kill -9 {pids}: a Python worker, in the middle of micro-batch {kill.batch}; its rows were written"
    state = "is decided, nothing of it is committed" if exactly_once else "is written, Spark does not know it"
    return f"kill -9 {pids}: the driver, Python and Java; micro-batch {kill.batch} {state}"


# ---- the process, seen from outside


class Checkpoint:
    """The files of a streaming query's checkpoint, as they appear."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def begun(self) -> dict[int, float]:
        """The micro-batches that have begun, and when."""
        return self._files("offsets")

    def done(self) -> dict[int, float]:
        """The micro-batches that are done, and when."""
        return self._files("commits")

    def _files(self, name: str) -> dict[int, float]:
        found = {}
        try:
            for entry in os.scandir(self._folder / name):
                # Others are checksums, and files that are being written.
                if entry.name.isdecimal():
                    found[int(entry.name)] = entry.stat().st_mtime
        except FileNotFoundError:
            pass  # not made yet; or a file was renamed between listing and looking, and is seen at the next look
        return dict(sorted(found.items()))


class DriverProcess:
    """A process that runs the pipeline. At the end of the `with` block it has gone, and so has all that it started.

    Args:
        command: the command line.
        environment: variables beyond those of this process.
        folder: where it runs, and has its temporary files: what is killed cannot clean up.
        log: where its output goes, behind what is there already.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], folder: Path, log: Path
    ) -> None:
        # Spark's processes are of several sessions and groups, and lose their parents when these are killed. But all
        # of them inherit the environment, so they are known by this.
        self._mark = f"{_MARK_VARIABLE}={os.getpid()}-{time.monotonic_ns()}"
        name, _, value = self._mark.partition("=")
        self._log = log.open("ab")
        self._process = subprocess.Popen(  # noqa: S603 -- our own command line
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**os.environ, **_temporary_files_in(folder), **environment, name: value},
            # A session of its own: Ctrl-C at the terminal reaches the demo alone, which then ends all of this.
            start_new_session=True,
            preexec_fn=_die_with_parent,  # noqa: PLW1509 -- the demo has one thread
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    @property
    def pid(self) -> int:
        return self._process.pid

    def try_wait(self, seconds: float) -> int | None:
        """Wait for a while; the exit code, or None when it still runs."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def end(self) -> None:
        """Kill what is left of it, and wait until all of it has gone."""
        try:
            # After a good end the rest is about to go, too; else nothing is worth waiting for.
            patience = time.monotonic() + (_FOLLOW_SECONDS if self._process.poll() == 0 else 0)
            self._process.kill()
            self._process.wait()
            while left := _pids_with(self._mark):
                if time.monotonic() >= patience:
                    for pid in left:
                        _kill(pid)
                time.sleep(LOOK_SECONDS / 2)
        finally:
            self._log.close()


def _die_with_parent() -> None:
    """Let the system kill this process when its parent is killed, where it can; Java ends when its Python has."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):
        pass  # not Linux: then the pipeline goes on until it finds that there is no Kafka any more


def _temporary_files_in(folder: Path) -> dict[str, str]:
    """Variables that make Python, Java and Spark keep their temporary files there."""
    return {
        "TMPDIR": str(folder),
        "SPARK_LOCAL_DIRS": str(folder),
        "JAVA_TOOL_OPTIONS": f"{os.environ.get('JAVA_TOOL_OPTIONS', '')} -Djava.io.tmpdir={folder} -XX:-UsePerfData",
    }


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it has ended by itself


def _pids_with(mark: str) -> set[int]:
    """The living processes with this setting in their environment; none where the system does not tell."""
    wanted = mark.encode("ascii")
    found = set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if wanted in path.read_bytes().split(b"\0"):
                found.add(int(path.parent.name))
        except OSError:
            continue  # it ended meanwhile, or is somebody else's
    return found
