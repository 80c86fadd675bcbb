# SPDX-License-Identifier: Apache-2.0
"""Runs a pipeline: starts the write, watches it, stops it when asked, and counts what it did.

Ctrl-C is a wish that the run looks at between two steps, not an exception in the middle of one: PySpark's own handler
raises KeyboardInterrupt wherever Python is, also inside a call to the JVM.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Self

from penstock._counted import counted
from penstock._escaping import with_notes
from penstock._locks import Latch
from penstock.errors import ExpectationFailedError, PipelineError
from penstock.spark import activate_session
from penstock.spark.pipeline.check import AVAILABLE_NOW, load_pipeline
from penstock.spark.pipeline.failure import is_lost, pipeline_failure, spark_words
from penstock.spark.pipeline.model import Pipeline
from penstock.spark.pipeline.plan import ROW_METRICS, Plan, make_plan
from penstock.spark.pipeline.session import is_driver_here, is_remote, pipeline_session
from penstock.spark.pipeline.sink import check_sink, sink_options
from penstock.spark.pipeline.source import SOURCE_METRICS
from penstock.spark.pipeline.stats import BatchCounts, ProgressReader, RunStats, SinkLines
from penstock.spark.pipeline.view import NoView, View

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMAT = "penstock"

_LOOK_EVERY = 0.25  # seconds between two looks at what Spark has done
_GRACE = 30.0  # seconds that the batch in hand has left after the first Ctrl-C


def run_pipeline(
    definition: str | os.PathLike[str] | Mapping[str, Any],
    spark: SparkSession | None = None,
    *,
    variables: Mapping[str, str] | None = None,
    report: str | os.PathLike[str] | None = None,
    view: View | None = None,
) -> RunStats:
    """Run a pipeline to its end: of the data for a batch or `available-now`, else until it is stopped.

    Args:
        definition: a TOML file, or a dict with the same tables.
        spark: the session to run in; by default the active one, or a new one by the definition's [spark].
        variables: values for `${name}` in the definition.
        report: an HTML file to write about the run, also when it fails.
        view: shown while it runs; by default nothing is.

    Returns:
        What it did.

    Raises:
        PipelineDefinitionError: the definition cannot work; names file, line and key.
        ExpectationFailedError: a row did not meet an expectation whose action is `fail`.
        PipelineError: it failed for another reason.
        KeyboardInterrupt: after Ctrl-C, when the pipeline has stopped.
    """
    pipeline = load_pipeline(definition, variables)
    check_sink(pipeline, on_driver=is_driver_here(pipeline) if spark is None else not is_remote(spark))
    with pipeline_session(pipeline, spark) as session, StopSignals() as stop:
        run = PipelineRun(pipeline, session, stop, view or NoView())
        try:
            run.run()
        finally:
            write_report(run.stats, report)
        if stop.wanted:
            raise KeyboardInterrupt
        return run.stats


def write_report(stats: RunStats, path: str | os.PathLike[str] | None) -> None:
    """Write the report, where one is wanted."""
    if path is not None:
        from penstock.spark.pipeline.report import render_report

        Path(path).write_text(render_report(stats), encoding="utf-8")


class PipelineRun:
    """One run of a pipeline. Everything happens on the thread that calls `run`, but for the write of a batch job."""

    def __init__(self, pipeline: Pipeline, spark: SparkSession, stop: StopSignals, view: View) -> None:
        self.pipeline = pipeline
        self.stats = RunStats(pipeline=pipeline, started=time.monotonic())
        self._spark = spark
        self._stop = stop
        self._view = view

    def run(self) -> None:
        """Run it to its end; see `run_pipeline` for what it raises."""
        self.stats.started = time.monotonic()
        folder = None if is_remote(self._spark) else tempfile.mkdtemp(prefix="penstock-run-")
        lines = None if folder is None else SinkLines(Path(folder) / "progress.jsonl")
        try:
            if not is_remote(self._spark):
                activate_session(self._spark)  # the caller's thread may be any
            plan = make_plan(self.pipeline, self._spark)
            try:
                if self._stop.wanted:  # while it was planned
                    self.stats.outcome = "stopped"
                else:
                    kind = _StreamWrite if self.pipeline.source.streaming else _BatchWrite
                    self._watch(kind(self, plan, lines), lines)
            finally:
                plan.close()
        except PipelineError as error:
            self.stats.outcome, self.stats.error = "failed", with_notes(error)
            if isinstance(error, ExpectationFailedError):
                self.stats.stopped_by = error.expectation
            raise
        finally:
            self.stats.finished = time.monotonic()
            self._view.finish(self.stats)
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)

    def _watch(self, write: _StreamWrite | _BatchWrite, lines: SinkLines | None) -> None:
        self._view.start(self.stats)
        try:
            write.start()
            while write.is_running() and not self._stop.wait(_LOOK_EVERY):
                self._look(write, lines)
            if self._stop.wanted and write.is_running():
                self._bring_to_stop(write, lines)
            write.finish()
        except BaseException as error:
            # The view may have failed, and not the write: it does not go on without a view.
            notes = self._attempt(lambda: self._end(write), "the write could not be stopped, and may go on")
            runs_on = bool(notes)
            if not isinstance(error, Exception):
                _add_notes(error, notes)
                raise
            if not is_lost(error):
                notes += self._attempt(lambda: self._look(write, lines), "the last counts could not be shown")
            if self._stop.wanted and not runs_on:  # what a stop breaks off is no failure
                self.stats.outcome = "stopped"
                return
            failure = pipeline_failure(error, self.pipeline.title, self.pipeline.hide)
            _add_notes(failure, notes)
            raise failure from self.pipeline.definition.cause(error)
        self._look(write, lines)
        self.stats.outcome = "stopped" if self._stop.wanted else "done"

    def _end(self, write: _StreamWrite | _BatchWrite) -> None:
        if write.is_running():
            write.interrupt()
            if write.is_running():
                raise PipelineError("Spark has not ended it yet")

    def _attempt(self, call: Callable[[], None], what: str) -> list[str]:
        """Do what may fail as well when a run fails; a note for the error of the run if it did."""
        try:
            call()
        except Exception as failure:  # noqa: BLE001  # it is told with the error of the run
            if not is_lost(failure):
                return [f"{what}: {spark_words(failure, self.pipeline.hide)}"]
        return []

    def _look(self, write: _StreamWrite | _BatchWrite, lines: SinkLines | None) -> None:
        now = time.monotonic()
        write.look(now)
        if lines is not None:
            lines.read(self.stats)
        self._view.update(self.stats, now, self.pipeline.hide(write.words()))

    def _bring_to_stop(self, write: _StreamWrite | _BatchWrite, lines: SinkLines | None) -> None:
        """Let the batch in hand finish, unless asked again or it takes too long; its rows come again otherwise."""
        deadline = time.monotonic() + _GRACE
        batches = len(self.stats.batches)
        while write.is_busy() and self._stop.count < 2 and time.monotonic() < deadline:
            time.sleep(_LOOK_EVERY)
            self._look(write, lines)
            if len(self.stats.batches) > batches:
                break
        while write.is_running():  # still: a batch job that Spark has not planned yet cannot be cancelled
            write.interrupt()


def _add_notes(error: BaseException, notes: list[str]) -> None:
    for note in notes:
        error.add_note(note)


def _options(pipeline: Pipeline, plan: Plan, lines: SinkLines | None) -> dict[str, str]:
    return sink_options(pipeline, plan.topic_option, None if lines is None else lines.path)


class _StreamWrite:
    """The write of a streaming pipeline: a query."""

    def __init__(self, run: PipelineRun, plan: Plan, lines: SinkLines | None) -> None:
        sink = run.pipeline.sink
        writer = plan.records.writeStream.format(FORMAT).outputMode(sink.output_mode)
        writer = writer.queryName(run.pipeline.name).options(**_options(run.pipeline, plan, lines))
        if sink.trigger == AVAILABLE_NOW:
            writer = writer.trigger(availableNow=True)
        elif sink.trigger is not None:
            writer = writer.trigger(processingTime=sink.trigger)
        self._writer = writer
        self._spark = plan.records.sparkSession
        self._progress = ProgressReader(run.stats)
        self._query: Any = None

    def start(self) -> None:
        self._query = self._writer.start()

    def is_running(self) -> bool:
        return self._query is not None and bool(self._query.isActive)

    def is_busy(self) -> bool:
        """Whether a batch is in hand."""
        return bool(self._query.isActive and self._query.status["isTriggerActive"])

    def interrupt(self) -> None:
        self._query.stop()

    def finish(self) -> None:
        """Raise what ended the query, if it was an error."""
        error = self._query.exception()
        if error is not None:
            raise error

    def look(self, now: float) -> None:
        if self._query is not None:
            self._progress.read(self._query, now)

    def words(self) -> str:
        if self._query is None:
            return "starting"
        return ", ".join(filter(None, (str(self._query.status["message"]), tasks_text(self._spark))))


class _BatchWrite:
    """The write of a batch job. It blocks, so it has a thread of its own."""

    def __init__(self, run: PipelineRun, plan: Plan, lines: SinkLines | None) -> None:
        self._run = run
        self._plan = plan
        writer = plan.records.write.format(FORMAT).options(**_options(run.pipeline, plan, lines))
        self._writer = writer.mode("append")
        self._tag = f"penstock-{uuid.uuid4().hex[:12]}"
        self._spark = plan.records.sparkSession
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._write, name="penstock-pipeline", daemon=True)
        self._counted = False

    def _write(self) -> None:
        try:
            self._prepare_thread()
            self._writer.save()
        except BaseException as error:  # noqa: BLE001  # raised again by finish(), on the thread that waits
            self._error = error

    def _prepare_thread(self) -> None:
        """Make what this thread starts Spark's to find and ours to stop."""
        if is_remote(self._spark):
            self._spark.addTag(self._tag)
            return
        activate_session(self._spark)
        # A tag would not do: tasks that wait for a slow source end only when their threads are interrupted.
        self._spark.sparkContext.setJobGroup(self._tag, self._run.pipeline.name, interruptOnCancel=True)

    def start(self) -> None:
        self._thread.start()

    def is_running(self) -> bool:
        return self._thread.is_alive()

    def is_busy(self) -> bool:
        """A batch job has no place at which it could stop and go on later."""
        return False

    def interrupt(self) -> None:
        # Again and again: Spark cancels the jobs that it has, and while it plans the write there is none yet.
        deadline = time.monotonic() + _GRACE
        while self._thread.is_alive() and time.monotonic() < deadline:
            if is_remote(self._spark):
                self._spark.interruptTag(self._tag)
            else:
                self._spark.sparkContext.cancelJobGroup(self._tag)
            self._thread.join(_LOOK_EVERY)

    def finish(self) -> None:
        """Wait for the end, and raise what the write raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error

    def look(self, now: float) -> None:
        """Take the counts, which are there when the write has succeeded."""
        if self._thread.is_alive() or self._counted or self._error is not None:
            return
        self._counted = True
        observed = {name: each.get for name, each in self._plan.observations.items()}
        counts = BatchCounts(
            rows_in=observed.get(SOURCE_METRICS, {}).get("rows"), metrics=observed.get(ROW_METRICS, {})
        )
        seconds = now - self._run.stats.started
        self._run.stats.add_batch(0, seconds, seconds, counts)

    def words(self) -> str:
        """What Spark is doing; empty when it is done."""
        if is_remote(self._spark) or not self._thread.is_alive():
            return ""
        return tasks_text(self._spark) or "planning"


def tasks_text(spark: SparkSession) -> str:
    """How many tasks of the running stages are done, and the rows that they have read; Spark Connect does not tell."""
    from py4j.protocol import Py4JError

    # What PySpark makes of it knows no rows. None: the context has been stopped.
    context = None if is_remote(spark) else getattr(spark.sparkContext, "_jsc", None)
    if context is None:
        return ""
    try:
        active = context.sc().statusStore().activeStages()
        stages = [active.apply(number) for number in range(active.size())]
        total = sum(stage.numTasks() for stage in stages)
        rows = sum(stage.inputRecords() + stage.shuffleReadRecords() for stage in stages)
        done = f"{sum(stage.numCompleteTasks() for stage in stages)} of {counted(total, 'task')}"
    except Py4JError:  # the context is being stopped, or does not allow the call: a run does not end by this
        return ""
    read = f", {counted(rows, 'row')} read" if rows else ""  # not known at once
    return f"{done}{read}" if total else ""


class StopSignals:
    """While it is entered, signals are noted instead of handled.

    Outside of the main thread, where Python delivers no signals, it notes nothing.
    """

    def __init__(self, signals: tuple[signal.Signals, ...] = (signal.SIGINT,)) -> None:
        self._signals = signals
        self._before: dict[signal.Signals, Any] = {}
        # A Latch: the handler runs on the thread that waits, and an Event would wait for the lock of that wait.
        self._stop = Latch()
        self.received: signal.Signals | None = None
        self.count = 0  # the second one means: at once

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in self._signals:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def wait(self, seconds: float) -> bool:
        """Wait at most so long; whether to stop."""
        return self._stop.wait(seconds)

    def request(self) -> None:
        """Ask for a stop without a signal."""
        self.count += 1
        self._stop.set()

    @property
    def wanted(self) -> bool:
        return self._stop.is_set()

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.received = signal.Signals(number)
        self.request()
