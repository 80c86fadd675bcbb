# SPDX-License-Identifier: Apache-2.0
"""The Spark session of a pipeline: the one given, the one that is there, or a new one by the definition's [spark]."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from penstock._extras import how_to_install
from penstock.errors import PipelineError
from penstock.spark.pipeline.failure import is_lost, spark_words
from penstock.spark.pipeline.model import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# PySpark writes every error in a query to these, as a long line of JSON, before it raises it.
_QUERY_ERROR_LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
_HIDDEN_SETTINGS = (
    "(?i)secret|passw|passphrase|token|credential|jaas"
    "|(access|account|api|private|shared)[._-]?key|[._-]sas([._-]|$)|ssl[._].*key([._]pem)?$"
)
_REDACTION = "spark.redaction.regex"
# What the start of Spark's JVM needs to be told.
_AT_START = ("spark.driver.", "spark.jars", "spark.submit.")
_INSTALL = f"PySpark is not installed: {how_to_install('spark', 'pyspark', 'pyarrow')}"


def require_pyspark() -> None:
    """Refuse to go on without PySpark, before anything else takes its time.

    Raises:
        PipelineError: it is not installed.
    """
    if find_spec("pyspark") is None:
        raise PipelineError(_INSTALL)


@contextmanager
def pipeline_session(
    pipeline: Pipeline, spark: SparkSession | None, *, verbose: bool = False
) -> Iterator[SparkSession]:
    """The session to run in; a new one is stopped at the end, any other is left as it was.

    Raises:
        PipelineError: PySpark is not installed, or Spark cannot be started or reached.
    """
    if spark is not None:
        yield spark
        return
    session, is_new = _open_session(pipeline, verbose=verbose)
    try:
        yield session
    finally:
        if is_new:
            _stop(session)


def _stop(session: SparkSession) -> None:
    try:
        session.stop()
    except Exception as error:
        if not is_lost(error):  # it has stopped by itself, and that has been told
            raise


def silence_query_errors() -> None:
    """Keep PySpark from logging errors of queries: the code that catches them reports them. For the whole process."""
    from pyspark.logger import PySparkLogger

    for name in _QUERY_ERROR_LOGGERS:
        # PySpark needs loggers of its own kind, so it has to make them.
        PySparkLogger.getLogger(name).disabled = True


def is_remote(spark: SparkSession) -> bool:
    """Whether the session is one of Spark Connect: its driver may be another machine."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def is_driver_here(pipeline: Pipeline) -> bool:
    """Whether a session made for this pipeline would have its driver in this process, or next to it."""
    return pipeline.spark.remote is None and "SPARK_REMOTE" not in os.environ


def _open_session(pipeline: Pipeline, *, verbose: bool) -> tuple[SparkSession, bool]:
    set_worker_python(os.environ)
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise PipelineError(_INSTALL) from error
    active = SparkSession.getActiveSession()
    builder: Any = SparkSession.builder
    asked = pipeline.spark
    if asked.remote is not None:
        builder = builder.remote(asked.remote)
    elif active is None:
        builder = builder.appName(pipeline.name)
        if not _submitted():  # on the command line of spark-submit stands what this run is to use
            builder = builder.master(asked.master or "local[*]")
    settings = _settings(asked.settings, remote=asked.remote is not None, verbose=verbose)
    for name, value in settings.items():
        builder = builder.config(name, value)
    try:
        if active is None and asked.remote is None and not _submitted():
            _start_context(pipeline, settings)
        session: SparkSession = builder.getOrCreate()
    except Exception as error:  # noqa: BLE001  # raised again, in words
        words = spark_words(error, pipeline.hide)
        raise PipelineError(f"cannot start Spark: {words}") from pipeline.definition.cause(error)
    return session, active is None


def _start_context(pipeline: Pipeline, settings: Mapping[str, str]) -> None:
    """Start Spark's JVM out of reach of the terminal's Ctrl-C, and without secrets in the list of processes.

    The JVM ignores Ctrl-C, but its Python workers do not: they would die in the middle of the batch that the pipeline
    wants to finish before it stops. PySpark starts the JVM with all settings on its command line; secret ones can wait.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    if getattr(SparkContext, "_gateway", None) is not None:
        return  # there is a JVM already, from a session before
    master = pipeline.spark.master or "local[*]"
    first = SparkConf().setAppName(pipeline.title).setMaster(master)
    first.setAll([(name, value) for name, value in settings.items() if _may_be_seen(pipeline, name, value)])
    whole = SparkConf().setAppName(pipeline.name).setMaster(master).setAll(list(settings.items()))
    start: Any = launch_gateway
    SparkContext(conf=whole, gateway=start(first, {"start_new_session": True}))


def _may_be_seen(pipeline: Pipeline, name: str, value: str) -> bool:
    """Whether a setting may stand on a command line, or has to."""
    return name.startswith(_AT_START) or pipeline.definition.hide.option(name, value) == value


def set_worker_python(environment: Any) -> None:
    """Let workers run this interpreter: Spark would start the first `python3` on the PATH, which lacks our packages."""
    if "PYSPARK_PYTHON" not in environment:
        environment["PYSPARK_PYTHON"] = sys.executable
        environment.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def _submitted() -> bool:
    # spark-submit starts the JVM first, and tells its Python program where that listens.
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _settings(wanted: Mapping[str, str], *, remote: bool, verbose: bool) -> dict[str, str]:
    settings = dict(wanted)
    if remote:
        return settings
    # What Spark hides by itself, in its log and on its page, and more names of secrets.
    settings.setdefault(_REDACTION, hidden_settings())
    if _submitted():
        return {name: value for name, value in settings.items() if not _was_submitted(name)}
    # What fails is told in one line, with its cause. Spark's loggers would tell it again, with Java's stack for every
    # attempt of every task; and that they were stopped when a dry run stops its query, as if something had failed.
    settings.setdefault("spark.log.level", "WARN" if verbose else "OFF")
    settings.setdefault("spark.ui.showConsoleProgress", "false")
    return settings


def _was_submitted(setting: str) -> bool:
    """Whether spark-submit was told it: only its JVM knows that before there is a context."""
    from pyspark import SparkContext

    return SparkContext.getSystemProperty(setting) is not None


def hidden_settings() -> str:
    """A pattern, in the form that Java and Python share, for the names of settings whose values Spark must not show."""
    from penstock.config.secrets import secret_names

    return "|".join((_HIDDEN_SETTINGS, *(name.replace(".", "[._]") for name in secret_names())))
