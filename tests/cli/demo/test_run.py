# SPDX-License-Identifier: Apache-2.0
"""How the demo runs its pipeline: killed and restarted, followed through its checkpoint, ended with all it started.

A small program stands in for the pipeline and leaves the same files; Spark itself is in tests/integration.
"""

from __future__ import annotations

import io
import os
import re
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.cli.demo import kills as _demo_kills
from penstock.cli.demo.kills import DRIVER, WORKER, PlannedKill, try_read_kill, write_plan
from penstock.cli.demo.report import RunLog
from penstock.cli.demo.run import Checkpoint, DriverProcess, PipelineRun
from penstock.cli.options import CommandError

# Writes the checkpoint of five batches; comes to steps as the sink does, and goes on where it was killed.
STAND_IN = """
import enum, os, pathlib, sys
from penstock.cli.demo import kills as _demo_kills

values = dict(word.split("=", 1) for word in sys.argv if "=" in word)
assert pathlib.Path(values["input"]).is_dir() and sys.argv[1] == "run" and sys.argv[2].endswith("orders.toml")
class Step(enum.Enum):
    TASK_FLUSHED = 1
    AFTER_DECISION = 2
    COMMITTING = 3
_demo_kills.driver_pids = lambda pid: ()
checkpoint = pathlib.Path(values["checkpoint"])
for name in ("offsets", "commits"):
    (checkpoint / name).mkdir(parents=True, exist_ok=True)
for batch in range(5):
    if (checkpoint / "commits" / str(batch)).exists():
        continue
    (checkpoint / "offsets" / str(batch)).touch()
    for task in range(4):
        if os.fork() == 0:  # a worker
            _demo_kills.hook(Step.TASK_FLUSHED, {"batch_id": batch})
            os._exit(0)
        os.wait()
    _demo_kills.hook(Step.COMMITTING, {"batch_id": batch})
    if values["delivery"] == "exactly-once":
        _demo_kills.hook(Step.AFTER_DECISION, {"batch_id": batch})
    (checkpoint / "commits" / str(batch)).touch()
print("rows went out")
sys.exit(int(os.environ.get("STAND_IN_CODE", "0")))
"""


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., PipelineRun]:
    script = tmp_path / "stand_in.py"
    script.write_text(STAND_IN, encoding="ascii")

    def make(program: str | None = None, *, exactly_once: bool = True) -> PipelineRun:
        if program is not None:
            script.write_text(program, encoding="ascii")
        log = tmp_path / "log"
        run = PipelineRun(tmp_path, "127.0.0.1:1", 1000, exactly_once, RunLog(io.StringIO()), log)
        run.program = (sys.executable, str(script))
        return run

    return make


def shown(run: PipelineRun) -> str:
    stream = run.run_log._stream
    assert isinstance(stream, io.StringIO)
    return stream.getvalue()


@pytest.fixture
def _no_sink(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no broker to ask."""
    monkeypatch.setattr(PipelineRun, "_tell_state_after_kill", lambda self: None)


@pytest.mark.slow
@pytest.mark.usefixtures("_no_sink")
def test_both_kills_happen_once_and_the_driver_is_started_again(make_run: Callable[..., PipelineRun]) -> None:
    run = make_run()
    run.run()
    assert [(kill.victim, kill.batch) for kill in run.kills] == [(WORKER, 1), (DRIVER, 3)]
    assert [time.batch for time in run.times] == [0, 1, 2, 3, 4]
    assert sum(time.events for time in run.times) == 1000
    words = [event.text for event in run.run_log.events]
    assert [text.split(":")[0].partition(" is done")[0] for text in words] == [
        "micro-batch 0",
        f"kill -9 {run.kills[0].pids[0]}",
        "micro-batch 1",
        "micro-batch 2",
        f"kill -9 {run.kills[1].pids[0]}",
        "starting the driver again, on the same checkpoint",
        "micro-batch 3",
        "micro-batch 4",
    ]
    assert "in the middle of micro-batch 1" in words[1]
    assert "micro-batch 3 is decided, nothing of it is committed" in words[4]
    assert "carried out as decided, nothing written again" in words[6]
    assert [event.at for event in run.run_log.events] == sorted(event.at for event in run.run_log.events)


@pytest.mark.slow
def test_at_least_once_the_driver_dies_when_all_is_written(make_run: Callable[..., PipelineRun]) -> None:
    run = make_run(exactly_once=False)
    run.run()
    assert [(kill.victim, kill.batch) for kill in run.kills] == [(WORKER, 1), (DRIVER, 3)]
    assert "all written again" in run.run_log.events[-2].text


@pytest.mark.slow
@pytest.mark.usefixtures("_no_sink")
def test_a_pipeline_that_fails_by_itself_is_told_with_the_end_of_its_log(
    make_run: Callable[..., PipelineRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_CODE", "3")
    run = make_run()
    with pytest.raises(
        CommandError, match=rf"exit code 3; all that Spark said is in {re.escape(str(run.log))}"
    ):
        run.run()
    assert shown(run).endswith("    | rows went out\n")


@pytest.mark.slow
def test_a_pipeline_that_was_not_killed_proves_nothing(make_run: Callable[..., PipelineRun]) -> None:
    with pytest.raises(CommandError, match="the worker was not killed as planned"):
        make_run("print('no rows')").run()


def test_of_many_processes_one_kills(tmp_path: Path) -> None:
    write_plan(tmp_path, [PlannedKill(WORKER, "AT", 2, turn=3)])
    program = textwrap.dedent("""
        import enum, sys
        from penstock.cli.demo.kills import hook
        Step = enum.Enum("Step", ["AT", "ELSEWHERE"])
        hook(Step.ELSEWHERE, {"batch_id": 2})
        hook(Step.AT, {"batch_id": 1})
        hook(Step.AT, {})
        hook(Step.AT, {"batch_id": 2})
    """)
    environment = {**os.environ, _demo_kills.KILLS_VARIABLE: str(tmp_path)}
    codes = []
    for _ in range(5):
        assert (try_read_kill(tmp_path, WORKER) is not None) == (-signal.SIGKILL in codes)
        codes.append(subprocess.run([sys.executable, "-c", program], env=environment, check=False).returncode)
    assert codes == [0, 0, -signal.SIGKILL, 0, 0]


def test_a_kill_that_is_half_written_is_not_read(tmp_path: Path) -> None:
    assert try_read_kill(tmp_path, DRIVER) is None
    (tmp_path / "driver.json").write_text('{"victim": "dri', encoding="ascii")
    assert try_read_kill(tmp_path, DRIVER) is None


def test_a_driver_takes_all_that_it_started_with_it(tmp_path: Path) -> None:
    # A grandchild in a session of its own, as Java is, and with a group of its own, as Spark's daemons are.
    program = textwrap.dedent("""
        import os, signal
        if os.fork() == 0:
            os.setsid()
            print(os.getpid(), flush=True)
            signal.pause()
        signal.pause()
    """)
    log = tmp_path / "log"
    with DriverProcess([sys.executable, "-c", program], {}, tmp_path, log) as driver:
        deadline = time.monotonic() + 60
        while not log.read_text().strip() and time.monotonic() < deadline:
            select.select([], [], [], 0.02)
        grandchild = int(log.read_text())
        assert driver.try_wait(0.01) is None
        assert _alive(grandchild)
    assert driver.try_wait(0) == -signal.SIGKILL
    assert not _alive(grandchild)


def test_a_driver_does_not_outlive_a_demo_that_was_killed(tmp_path: Path) -> None:
    program = textwrap.dedent("""
        import pathlib, sys, time
        from penstock.cli.demo.run import DriverProcess
        log = pathlib.Path(sys.argv[1]) / "log"
        command = [sys.executable, "-c", "import os, signal; print(os.getpid(), flush=True); signal.pause()"]
        with DriverProcess(command, {}, log.parent, log) as driver:
            while not log.read_text().strip():
                driver.try_wait(0.02)
            print(driver.pid, flush=True)
            driver.try_wait(60)
    """)
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE) as demo:
        assert demo.stdout is not None
        driver = int(demo.stdout.readline())
        demo.kill()
    deadline = time.monotonic() + 60
    while _alive(driver) and time.monotonic() < deadline:
        select.select([], [], [], 0.02)
    assert not _alive(driver)


def _alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return not stat.rpartition(") ")[2].startswith("Z")  # ended, and waiting for its parent to take notice


def test_a_checkpoint_shows_whole_files_only(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.begun() == checkpoint.done() == {}
    (tmp_path / "offsets").mkdir()
    for name in ("1", "0", ".0.crc", ".2.5f3a.tmp", "10"):
        (tmp_path / "offsets" / name).touch()
    assert list(checkpoint.begun()) == [0, 1, 10]
