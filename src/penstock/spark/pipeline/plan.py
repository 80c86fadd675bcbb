# SPDX-License-Identifier: Apache-2.0
"""What Spark will do for a pipeline: source, steps, expectations, records, as DataFrames that have not run yet.

Expectations are judged before records are made, so that a row that is dropped need not have a key or a value. Good
rows and dead letters leave in one write: they become visible together, or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.spark.pipeline.failure import CUT_MARK, EXPECTATION_MARK, LONGEST_ROW
from penstock.spark.pipeline.model import Action, Expectation, Pipeline
from penstock.spark.pipeline.records import RecordColumns, met
from penstock.spark.pipeline.source import SOURCE_METRICS, Steps, checked, read_source

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

ROW_METRICS = "penstock_rows"

_VERDICT = "__penstock_verdict"
_KEEP, _DROP, _DEAD = "keep", "drop", "dead-letter"


@dataclass(frozen=True)
class Plan:
    """DataFrames that have been analysed, and what watches them when they run."""

    rows: DataFrame  # after the last step
    records: DataFrame  # as the sink takes them
    topic_option: str | None  # where all records go, if to one topic
    observations: Mapping[
        str, Any
    ]  # of a batch job: name to pyspark.sql.Observation; a stream has them in its progress
    steps: Steps

    def close(self) -> None:
        """Take away what was put into the session."""
        self.steps.close()


def make_plan(pipeline: Pipeline, spark: SparkSession, *, watched: bool = True) -> Plan:
    """Plan a pipeline.

    Args:
        pipeline: what to plan.
        spark: the session.
        watched: whether rows are counted on their way; a dry run needs no counts.

    Raises:
        PipelineDefinitionError: Spark refuses a part of it; names the line.
    """
    steps = Steps(pipeline, spark)
    try:
        return _plan(pipeline, spark, steps, _Watch(streaming=pipeline.source.streaming, wanted=watched))
    except BaseException:
        steps.close()
        raise


def _plan(pipeline: Pipeline, spark: SparkSession, steps: Steps, watch: _Watch) -> Plan:
    rows = read_source(pipeline, spark)
    if not pipeline.source.streaming and pipeline.source.count_rows:
        rows = watch.count(rows, SOURCE_METRICS)
    steps.show_source(rows)
    for position, step in enumerate(pipeline.steps):
        rows = steps.apply(position, step, rows)
    makes = RecordColumns(pipeline, rows)
    records = _judged(pipeline, rows, watch).select(*makes.columns())
    return Plan(
        rows=rows,
        records=checked(pipeline.definition, ("sink", "value"), lambda: records),
        topic_option=pipeline.sink.record.topic.name if makes.topic_is_fixed else None,
        observations=watch.observations,
        steps=steps,
    )


class _Watch:
    """Counts rows on their way."""

    def __init__(self, *, streaming: bool, wanted: bool) -> None:
        self._streaming = streaming
        self._wanted = wanted
        self.observations: dict[str, Any] = {}

    def count(self, rows: DataFrame, name: str, **more: Column) -> DataFrame:
        from pyspark.sql import Observation
        from pyspark.sql import functions as sf

        if not self._wanted:
            return rows
        counts = [sf.count(sf.lit(1)).alias("rows")]
        counts += [column.alias(alias) for alias, column in more.items()]
        if self._streaming:
            return rows.observe(name, *counts)
        self.observations[name] = Observation(name)
        return rows.observe(self.observations[name], *counts)


# ---- expectations


def _judged(pipeline: Pipeline, rows: DataFrame, watch: _Watch) -> DataFrame:
    """The rows that become records; a row that must not be there fails its task."""
    from pyspark.sql import functions as sf

    if not pipeline.expectations:
        return watch.count(rows, ROW_METRICS)
    for position, expectation in enumerate(pipeline.expectations):
        _check_condition(pipeline, position, expectation, rows)
    verdict = _verdict(pipeline.expectations, rows, pipeline.definition.hide.longest)
    judged = rows.select("*", verdict.alias(_VERDICT))
    counts = {
        f"failed_{position}": sf.count_if(~met(expectation))
        for position, expectation in enumerate(pipeline.expectations)
    }
    counts["dead"] = sf.count_if(sf.col(_VERDICT) == _DEAD)
    counts["dropped"] = sf.count_if(sf.col(_VERDICT) == _DROP)
    return watch.count(judged, ROW_METRICS, **counts).where(sf.col(_VERDICT) != _DROP).drop(_VERDICT)


def _check_condition(pipeline: Pipeline, position: int, expectation: Expectation, rows: DataFrame) -> None:
    from pyspark.sql import functions as sf

    path = ("expectations", position, "condition")
    text = expectation.condition
    frame = checked(pipeline.definition, path, lambda: rows.select(sf.expr(text)))
    kind = frame.schema.fields[0].dataType.simpleString()
    if kind != "boolean":
        pipeline.definition.refuse(path, f"`{text}` is {kind}; a condition is true or false, like amount > 0")


def _verdict(expectations: tuple[Expectation, ...], rows: DataFrame, spare: int) -> Column:
    """What becomes of a row. To fail goes first; a dead letter before a drop, because it keeps the row."""
    from pyspark.sql import functions as sf

    shown = _shown_row(rows, spare)
    verdict: Any = sf
    for expectation in expectations:
        if expectation.action is Action.FAIL:
            words = sf.concat(sf.lit(f"{EXPECTATION_MARK} {expectation.name} | "), shown, sf.lit(" [end]"))
            verdict = verdict.when(~met(expectation), sf.raise_error(words).cast("string"))
    for action, word in ((Action.DEAD_LETTER, _DEAD), (Action.DROP, _DROP)):
        for expectation in expectations:
            if expectation.action is action:
                verdict = verdict.when(~met(expectation), sf.lit(word))
    column: Column = verdict.otherwise(sf.lit(_KEEP))
    return column


def _shown_row(rows: DataFrame, spare: int) -> Column:
    """A row in an error's text, or nothing where a column cannot be shown.

    A long one is cut behind what is shown of it, with as much to spare as a secret takes: only a whole one is known.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as sf

    json = sf.to_json(sf.struct("*"))
    cut = sf.concat(sf.substring(json, 1, LONGEST_ROW + spare), sf.lit(CUT_MARK.format(spare)))
    shown = sf.when(sf.length(json) > LONGEST_ROW, cut).otherwise(json)
    try:
        _ = rows.select(shown).schema
    except PySparkException:
        return sf.lit("")
    return shown
