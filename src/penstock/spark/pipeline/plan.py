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
from penstock.spark.pipeline.file import KeyPath
from penstock.spark.pipeline.model import Action, Encoding, Expectation, Pipeline
from penstock.spark.pipeline.source import SOURCE_METRICS, Steps, checked, read_source

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

ROW_METRICS = "penstock_rows"

_VERDICT = "__penstock_verdict"
_KEEP, _DROP, _DEAD = "keep", "drop", "dead-letter"

HEADER_EXPECTATION = "penstock.expectation"
HEADER_TOPIC = "penstock.topic"

_HEADERS = "array<struct<key:string,value:binary>>"
_NESTED = ("array", "map", "struct", "variant")
_WHOLE_NUMBERS = ("tinyint", "smallint", "int", "bigint")
_TIMES = ("timestamp", "timestamp_ntz", "date")


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


# ---- records


def met(expectation: Expectation) -> Column:
    """Whether a row meets it; null does not."""
    from pyspark.sql import functions as sf

    return sf.coalesce(sf.expr(expectation.condition), sf.lit(False))


class RecordColumns:
    """Makes the columns that the sink takes (value, key, headers, topic ...) from the rows of the last step.

    Every expression of [sink] is analysed by itself first, so that an error names its line and its type can be judged.
    """

    def __init__(self, pipeline: Pipeline, rows: DataFrame) -> None:
        self._pipeline = pipeline
        self._shape = pipeline.sink.record
        self._rows = rows
        self._dead_letters = [
            expectation for expectation in pipeline.expectations if expectation.action is Action.DEAD_LETTER
        ]

    @property
    def topic_is_fixed(self) -> bool:
        """Whether all records go to one topic, so that no column has to name it."""
        return self._shape.topic.name is not None and not self._dead_letters

    def columns(self) -> list[Column]:
        """What to select, in the order of Kafka's documentation of a record."""
        good: dict[str, Column] = {}
        if not self.topic_is_fixed:
            good["topic"] = self._topic()
        if self._shape.partition is not None:
            good["partition"] = self._partition(self._shape.partition)
        if self._shape.timestamp is not None:
            good["timestamp"] = self._timestamp(self._shape.timestamp)
        if self._shape.headers is not None:
            good["headers"] = self._headers()
        if self._shape.key is not None:
            good["key"] = self._text_or_bytes(("sink", "key"), self._shape.key)
        good["value"] = self._value()
        if self._dead_letters:
            good = self._with_dead_letters(good)
        return [column.alias(name) for name, column in good.items()]

    def _with_dead_letters(self, good: dict[str, Column]) -> dict[str, Column]:
        """Rows that fail such an expectation keep key and value, and say in headers what they are."""
        from pyspark.sql import functions as sf

        all_met = sf.lit(True)
        for expectation in self._dead_letters:
            all_met = all_met & met(expectation)
        names = sf.concat_ws(", ", *(sf.when(~met(each), sf.lit(each.name)) for each in self._dead_letters))
        no_headers = sf.expr(f"CAST(array() AS {_HEADERS})")
        headers = good.get("headers", sf.lit(None).cast(_HEADERS))
        told = sf.array(_header(HEADER_EXPECTATION, names), _header(HEADER_TOPIC, good["topic"]))
        columns = dict(good)
        columns["topic"] = sf.when(all_met, good["topic"]).otherwise(
            sf.lit(self._pipeline.sink.dead_letter_topic)
        )
        if "partition" in good:  # the other topic may have fewer
            columns["partition"] = sf.when(all_met, good["partition"])
        dead_headers = sf.concat(sf.coalesce(headers, no_headers), told).cast(_HEADERS)
        columns["headers"] = sf.when(all_met, headers).otherwise(dead_headers)
        return columns

    # ---- one column each

    def _topic(self) -> Column:
        from pyspark.sql import functions as sf

        if self._shape.topic.sql is None:
            return sf.lit(self._shape.topic.name)
        path: KeyPath = ("sink", "topic", "sql")
        self._want(path, self._shape.topic.sql, ("string",), "a topic's name is a string")
        return sf.expr(self._shape.topic.sql)

    def _partition(self, text: str) -> Column:
        from pyspark.sql import functions as sf

        self._want(("sink", "partition"), text, _WHOLE_NUMBERS, "a partition is a whole number")
        return sf.expr(text).cast("int")

    def _timestamp(self, text: str) -> Column:
        from pyspark.sql import functions as sf

        way_out = "write timestamp_millis(...) or timestamp_seconds(...) around a number, to_timestamp(...) around text"
        self._want(("sink", "timestamp"), text, _TIMES, way_out)
        return sf.expr(text).cast("timestamp")

    def _headers(self) -> Column:
        from pyspark.sql import functions as sf

        headers = self._shape.headers
        if isinstance(headers, str):
            kind = self._type(("sink", "headers"), headers)
            if kind.replace(" not null", "") not in (_HEADERS, _HEADERS.replace("binary", "string")):
                self._refuse(
                    ("sink", "headers"), f"is {kind}, and must be {_HEADERS}; or write a table of names"
                )
            return sf.expr(headers).cast(_HEADERS)
        each = [
            _header(name, self._text_or_bytes(("sink", "headers", name), text))
            for name, text in (headers or {}).items()
        ]
        return sf.array(*each).cast(_HEADERS)

    def _value(self) -> Column:
        from pyspark.sql import functions as sf

        value = self._shape.value
        path: KeyPath = ("sink", "value")
        if value.encoding is Encoding.JSON and not value.expressions:
            return sf.to_json(sf.struct("*"))
        if value.is_list:
            for position, text in enumerate(value.expressions):
                self._type((*path, position), text)
            return sf.to_json(sf.struct(*(sf.expr(text) for text in value.expressions)))
        (text,) = value.expressions
        if value.encoding is Encoding.JSON:
            way_out = (
                "JSON is made from a struct, a map or an array: write a list, like value = ['a', 'b AS c']; "
            )
            self._want(path, text, _NESTED, way_out + "for text that is JSON already, encoding = 'raw'")
            return sf.to_json(sf.expr(text))
        if value.encoding is Encoding.RAW:
            kind = self._type(path, text)
            if kind == "binary" or kind.startswith(_NESTED):
                better = "binary" if kind == "binary" else "json"
                self._refuse(
                    path, f"is {kind}, and encoding = 'raw' is for text: write encoding = '{better}'"
                )
            return sf.expr(text).cast("string")
        self._want(
            path, text, ("binary",), "encoding = 'binary' takes bytes: write CAST(... AS BINARY), or to_avro"
        )
        if value.schema_id is None:
            return sf.expr(text)
        # A schema registry's frame: a zero byte, and the schema's number in four.
        return sf.concat(sf.expr(f"X'00{value.schema_id:08X}'"), sf.expr(text))

    def _text_or_bytes(self, path: KeyPath, text: str) -> Column:
        """Strings and bytes as they are, nested values as JSON, all others as text."""
        from pyspark.sql import functions as sf

        kind = self._type(path, text)
        if kind in ("binary", "string"):
            return sf.expr(text)
        return sf.to_json(sf.expr(text)) if kind.startswith(_NESTED) else sf.expr(text).cast("string")

    # ---- types

    def _want(self, path: KeyPath, text: str, kinds: tuple[str, ...], way_out: str) -> None:
        kind = self._type(path, text)
        if not kind.startswith(kinds):
            self._refuse(path, f"`{text}` is {kind}: {way_out}")

    def _type(self, path: KeyPath, text: str) -> str:
        """The type of an expression, in SQL's words."""
        from pyspark.sql import functions as sf

        frame = checked(self._pipeline.definition, path, lambda: self._rows.select(sf.expr(text)))
        kind: str = frame.schema.fields[0].dataType.simpleString()
        return kind

    def _refuse(self, path: KeyPath, problem: str) -> None:
        self._pipeline.definition.refuse(path, problem)


def _header(name: str, value: Any) -> Column:
    from pyspark.sql import functions as sf

    return sf.struct(sf.lit(name).alias("key"), value.cast("binary").alias("value"))
