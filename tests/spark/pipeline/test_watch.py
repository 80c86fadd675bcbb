# SPDX-License-Identifier: Apache-2.0
"""A write does not go on when the run that watches it has ended, whatever it has ended by."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.cli.main import describe_error
from penstock.errors import PipelineError
from penstock.spark.pipeline import run as running
from penstock.spark.pipeline.check import load_pipeline
from penstock.spark.pipeline.run import PipelineRun, StopSignals
from penstock.spark.pipeline.stats import RunStats, SinkLines
from penstock.spark.pipeline.view import NoView

DEFINITION: dict[str, Any] = {
    "pipeline": {"name": "orders"},
    "source": {"format": "rate", "streaming": True},
    "sink": {"topic": "orders", "checkpoint": "c", "options": {"kafka.bootstrap.servers": "h:1"}},
}


class Write:
    """A write that runs until it is interrupted; each of its calls can fail."""

    def __init__(self, *, ends_at: int = 1, **failing: BaseException) -> None:
        self._failing = failing
        self._ends_at = ends_at  # which interruption
        self.running = False
        self.interrupted = 0

    def _maybe_fail(self, call: str) -> None:
        if call in self._failing:
            raise self._failing[call]

    def start(self) -> None:
        self._maybe_fail("start")
        self.running = True

    def is_running(self) -> bool:
        self._maybe_fail("is_running")
        return self.running

    def is_busy(self) -> bool:
        return self.running

    def look(self, now: float) -> None:
        del now
        self._maybe_fail("look")

    def words(self) -> str:
        return ""

    def interrupt(self) -> None:
        self.interrupted += 1
        self._maybe_fail("interrupt")
        self.running = self.interrupted < self._ends_at

    def finish(self) -> None:
        self._maybe_fail("finish")


class Raises(NoView):
    """A view of the user's that fails at each look."""

    def __init__(self, error: BaseException, stop: StopSignals | None = None) -> None:
        self._error, self._stop = error, stop

    def update(self, stats: RunStats, now: float, words: str) -> None:
        if self._stop is not None and not self._stop.wanted:
            self._stop.request()
            return
        raise self._error


@pytest.fixture(autouse=True)
def look_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_LOOK_EVERY", 0.001)


def watched(write: Write, view: NoView, stop: StopSignals | None = None) -> RunStats:
    spark: Any = None
    run = PipelineRun(load_pipeline(DEFINITION), spark, stop or StopSignals(), view)
    watch: Any = run._watch
    watch(write, SinkLines(Path("/no/such/file")))
    return run.stats


@pytest.mark.parametrize("error", [ValueError("of the view"), BrokenPipeError(32, "Broken pipe")])
def test_a_view_that_fails_ends_the_write(error: Exception) -> None:
    write = Write()
    with pytest.raises(PipelineError) as caught:
        watched(write, Raises(error))
    assert caught.value.__cause__ is error
    assert (write.running, write.interrupted) == (False, 1)


def test_a_look_that_fails_ends_the_write() -> None:
    write = Write(look=ValueError("of Spark"))
    with pytest.raises(PipelineError, match="of Spark") as caught:
        watched(write, NoView())
    assert write.interrupted == 1
    assert caught.value.__notes__ == ["the last counts could not be shown: of Spark"]


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_whatever_the_watch_is_left_by_the_write_ends(error: BaseException) -> None:
    write = Write()
    with pytest.raises(type(error)) as caught:
        watched(write, Raises(error))
    assert caught.value is error
    assert (write.running, write.interrupted) == (False, 1)


def test_a_view_that_fails_while_the_run_is_stopped_ends_the_write() -> None:
    write, stop = Write(), StopSignals()
    stats = watched(write, Raises(ValueError("of the view"), stop), stop)
    assert stats.outcome == "stopped"
    assert (write.running, write.interrupted) == (False, 1)


def test_a_write_that_has_ended_or_never_began_is_left_alone() -> None:
    write = Write(start=ValueError("refused"))
    with pytest.raises(PipelineError, match="refused"):
        watched(write, NoView())
    assert write.interrupted == 0


def test_a_write_that_cannot_be_stopped_is_told() -> None:
    write, stop = Write(interrupt=ValueError("no rights")), StopSignals()
    with pytest.raises(PipelineError, match="of the view") as caught:
        watched(write, Raises(ValueError("of the view")))
    assert "the write could not be stopped, and may go on: no rights" in caught.value.__notes__
    left = SystemExit(3)
    with pytest.raises(SystemExit):
        watched(write, Raises(left))
    assert left.__notes__ == ["the write could not be stopped, and may go on: no rights"]
    with pytest.raises(PipelineError):  # it has not stopped
        watched(write, Raises(ValueError("of the view"), stop), stop)


def test_of_a_spark_that_is_gone_nothing_is_asked() -> None:
    lost = ConnectionRefusedError(111, "Connection refused")
    with pytest.raises(PipelineError, match="Spark's driver has ended") as caught:
        watched(Write(is_running=lost), NoView())
    assert not hasattr(caught.value, "__notes__")


def test_a_batch_job_is_interrupted_also_while_spark_plans_it() -> None:
    """Spark cancels the jobs that it has: the first calls find none."""
    calls: list[str] = []
    cancelled = threading.Event()

    def cancel(group: str) -> None:
        calls.append(group)
        if len(calls) == 3:
            cancelled.set()

    write: Any = running._BatchWrite.__new__(running._BatchWrite)
    write._spark = SimpleNamespace(sparkContext=SimpleNamespace(cancelJobGroup=cancel))
    write._tag = "penstock-1"
    write._thread = threading.Thread(target=cancelled.wait, args=(60,))
    write._thread.start()
    write.interrupt()
    cancelled.set()
    write._thread.join()
    assert calls[:3] == ["penstock-1"] * 3


def test_a_write_that_spark_does_not_end_in_time_is_told() -> None:
    with pytest.raises(PipelineError, match="of the view") as caught:
        watched(Write(ends_at=2), Raises(ValueError("of the view")))
    [note] = caught.value.__notes__[:1]
    assert note == "the write could not be stopped, and may go on: Spark has not ended it yet"
    assert describe_error(caught.value).count(note) == 1


def test_a_stop_waits_until_the_write_has_ended() -> None:
    write, stop = Write(ends_at=3), StopSignals()
    stop.request()
    stop.request()
    assert watched(write, NoView(), stop).outcome == "stopped"
    assert (write.running, write.interrupted) == (False, 3)
