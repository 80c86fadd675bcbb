# SPDX-License-Identifier: Apache-2.0
"""The first part of a plan: from the source through the steps to the rows that become records."""

from __future__ import annotations

import importlib
import re
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import PipelineDefinitionError
from penstock.spark.pipeline.failure import is_lost, spark_words
from penstock.spark.pipeline.file import Definition, KeyPath
from penstock.spark.pipeline.model import PREVIOUS, Pipeline, Source, Step
from penstock.spark.pipeline.table import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SOURCE_METRICS = "penstock_source"

_NO_SUCH_PATH = "[PATH_NOT_FOUND]"  # Spark's name for it
_RELATIVE = "A relative path begins in the folder in which the run is started."


def checked(definition: Definition, path: KeyPath, make: Callable[[], DataFrame]) -> DataFrame:
    """What `make` gives, analysed now: Spark Connect would find errors only when it runs.

    Raises:
        PipelineDefinitionError: Spark refuses it; names the line at the path.
    """
    try:
        frame = make()
        _ = frame.schema
    except PipelineDefinitionError:
        raise
    except Exception as error:  # noqa: BLE001  # raised again, in words
        words = spark_words(error, definition.hide)
        raise definition.refusal(path, words) from definition.cause(error)
    return frame


class Steps:
    """Applies the steps of a pipeline, each to the rows of the one before.

    SQL finds the rows of earlier steps as temporary views. Their names are this run's own, so that two pipelines in one
    session do not meet; a step's SQL is given the plain names in front of it.
    """

    def __init__(self, pipeline: Pipeline, spark: SparkSession) -> None:
        self._definition = pipeline.definition
        self._spark = spark
        self._prefix = f"penstock_{uuid.uuid4().hex[:12]}"
        self._views: dict[str, str] = {}  # the name of each that SQL may use: the view behind it
        self._made: list[str] = []

    def close(self) -> None:
        """Take the views away; where Spark is gone, they are too."""
        views, self._made = self._made, []
        try:
            for view in views:
                self._spark.catalog.dropTempView(view)
        except Exception as error:
            if not is_lost(error):
                raise

    def apply(self, position: int, step: Step, rows: DataFrame) -> DataFrame:
        """The rows after the step."""
        path: KeyPath = ("steps", position)
        self._show(rows, PREVIOUS)
        if step.sql is not None:
            sql = self._with_names(step.sql)
            after = checked(self._definition, (*path, "sql"), lambda: self._spark.sql(sql))
        else:
            function = self._function((*path, "python"), str(step.python))
            after = checked(self._definition, (*path, "python"), lambda: self._called(path, function, rows))
        if step.name is not None:
            self._show(after, step.name)
        return after

    def show_source(self, rows: DataFrame) -> None:
        """Let SQL steps call the rows of the source by that name."""
        self._show(rows, "source")

    def _show(self, rows: DataFrame, name: str) -> None:
        view = f"{self._prefix}_{len(self._made)}"
        rows.createOrReplaceTempView(view)
        self._made.append(view)
        self._views[name] = view

    def _with_names(self, sql: str) -> str:
        used = [name for name in self._views if re.search(rf"\b{name}\b", sql, re.IGNORECASE)]
        body = sql.strip().rstrip(";")
        if not used:
            return body
        # The user's SQL is the user's own; names were checked, and the last line may end with a comment.
        names = ", ".join(f"`{name}` AS (SELECT * FROM {self._views[name]})" for name in used)  # noqa: S608
        return f"WITH {names} SELECT * FROM (\n{body}\n)"  # noqa: S608

    def _function(self, path: KeyPath, name: str) -> Callable[[DataFrame], Any]:
        module_name, _, function_name = name.partition(":")
        folder = str(self._definition.folder)
        if folder not in sys.path:
            sys.path.insert(0, folder)
        try:
            module = importlib.import_module(module_name)
        except Exception as error:  # noqa: BLE001  # raised again, in words
            problem = f"cannot import {module_name!r} ({type(error).__name__}: {error}); it is looked for in"
            raise self._definition.refusal(
                path, f"{problem} {folder} and on Python's path"
            ) from self._definition.cause(error)
        found = getattr(module, function_name, None)
        if not callable(found):
            self._definition.refuse(path, f"the module {module_name!r} has no function {function_name!r}")
        _travel_by_value(module, self._definition.folder)
        function: Callable[[DataFrame], Any] = found
        return function

    def _called(self, path: KeyPath, function: Callable[[DataFrame], Any], rows: DataFrame) -> DataFrame:
        try:
            after = function(rows)
        except Exception as error:  # noqa: BLE001  # raised again, in words
            problem = f"raised {type(error).__name__}: {spark_words(error, self._definition.hide)}"
            raise self._definition.refusal((*path, "python"), problem) from self._definition.cause(error)
        if not (hasattr(after, "schema") and hasattr(after, "createOrReplaceTempView")):
            self._definition.refuse(
                (*path, "python"), f"gave {type(after).__name__}; a step takes a DataFrame and returns one"
            )
        frame: DataFrame = after
        return frame


def _travel_by_value(module: Any, folder: Path) -> None:
    """Let workers get functions of a module beside the definition with the job: they do not have its file."""
    from pyspark import cloudpickle as pickler

    file = getattr(module, "__file__", None)
    if file is not None and Path(file).resolve().is_relative_to(folder):
        by_value: Any = pickler.register_pickle_by_value
        by_value(module)


def read_source(pipeline: Pipeline, spark: SparkSession) -> DataFrame:
    """The rows of the source.

    Raises:
        PipelineDefinitionError: Spark refuses it, or it does not stream as the definition says.
    """
    source = pipeline.source
    key = next(key for key in ("format", "sql", "table") if getattr(source, key) is not None)
    try:
        rows = checked(pipeline.definition, ("source", key), lambda: _read(source, spark))
    except PipelineDefinitionError as error:
        path = _path_key(pipeline)
        if path is None or error.__cause__ is None or _NO_SUCH_PATH not in str(error):
            raise
        words = f"{spark_words(error.__cause__, pipeline.hide)} {_RELATIVE}"
        raise pipeline.definition.refusal(path, words) from error.__cause__
    if rows.isStreaming != source.streaming:
        is_now = "is a stream" if rows.isStreaming else "is no stream"
        wanted = str(rows.isStreaming).lower()
        pipeline.definition.refuse(
            ("source", "streaming"), f"the source {is_now}: write streaming = {wanted}"
        )
    return rows


def _path_key(pipeline: Pipeline) -> KeyPath | None:
    """Where the definition has the path of its source, if it has one."""
    table = Table(pipeline.definition, ("source",))
    return ("source", "path") if table.has("path") else table.option_path("path")


def _read(source: Source, spark: SparkSession) -> DataFrame:
    if source.sql is not None:
        return spark.sql(source.sql.strip().rstrip(";"))
    reader: Any = spark.readStream if source.streaming else spark.read
    reader = reader.options(**source.options)
    if source.table is not None:
        table: DataFrame = reader.table(source.table)
        return table
    reader = reader.format(source.format)
    if source.schema is not None:
        reader = reader.schema(source.schema)
    frame: DataFrame = reader.load()
    return frame
