# SPDX-License-Identifier: Apache-2.0
"""From a definition as it was written to a Pipeline, refusing what cannot work before Spark is started.

Every error names file, line, table and key, says what is wrong and what to write instead. What only Spark can judge,
the SQL and the options of its sources, `plan` refuses in the same form.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from penstock._arguments import is_topic_name
from penstock.spark.options import DEFAULT_DELIVERY, Delivery
from penstock.spark.pipeline.file import Definition, nearest, read_definition
from penstock.spark.pipeline.model import (
    PREVIOUS,
    Action,
    Encoding,
    Expectation,
    Pipeline,
    RecordShape,
    Sink,
    Source,
    SparkSettings,
    Step,
    Topic,
    Value,
)
from penstock.spark.pipeline.table import Table, read_tables

_TABLES = ("pipeline", "variables", "source", "steps", "expectations", "sink", "spark")
_SOURCE_KEYS = ("format", "path", "sql", "table", "schema", "streaming", "count_rows", "options")
_SINK_KEYS = (
    *("topic", "key", "value", "headers", "timestamp", "partition", "encoding", "schema_id", "delivery"),
    *("dead_letter_topic", "checkpoint", "trigger", "output_mode", "options"),
)
_OWN_OPTIONS = {  # of the data source, each with the key of [sink] that says it
    "topic": "topic",
    "delivery": "delivery",
    "deadlettertopic": "dead_letter_topic",
    "checkpointlocation": "checkpoint",
}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PYTHON = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_INTERVAL = re.compile(r"\d+(?:\.\d+)? +(?:millisecond|second|minute|hour|day)s?")
_SERVERS = "kafka.bootstrap.servers"
AVAILABLE_NOW = "available-now"


def load_pipeline(
    source: str | os.PathLike[str] | Mapping[str, Any], variables: Mapping[str, str] | None = None
) -> Pipeline:
    """Read and check a definition.

    Raises:
        PipelineDefinitionError: it cannot work; the text names the line and the way out.
    """
    return check_definition(read_definition(source, variables))


def check_definition(definition: Definition) -> Pipeline:
    """Check a definition that was read before; see `load_pipeline`."""
    for name in definition.data:
        if name not in _TABLES:
            definition.refuse(
                (name,), f"there is no such table; a pipeline has {_listed(_TABLES)}{nearest(name, _TABLES)}"
            )
    for name in ("source", "sink"):
        if name not in definition.data:
            definition.refuse((name,), f"is missing; a pipeline needs a [{name}] table")
    source = _source(Table(definition, ("source",)))
    sink = _sink(Table(definition, ("sink",)), streaming=source.streaming)
    return Pipeline(
        name=_pipeline_name(definition),
        source=source,
        steps=_steps(definition),
        expectations=_expectations(definition, sink),
        sink=sink,
        spark=_spark(Table(definition, ("spark",))),
        definition=definition,
    )


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _pipeline_name(definition: Definition) -> str:
    table = Table(definition, ("pipeline",))
    table.refuse_other_keys(("name",))
    default = "pipeline" if definition.file is None else Path(definition.file).stem
    return table.try_text("name") or default


# ---- source and steps


def _source(table: Table) -> Source:
    table.refuse_other_keys(_SOURCE_KEYS)
    origins = [key for key in ("format", "sql", "table") if table.has(key)]
    if len(origins) != 1:
        problem = "has no origin" if not origins else f"has {' and '.join(origins)}"
        table.refuse(
            origins[1] if origins else None,
            f'{problem}: give one of format (like "csv"), sql and table',
        )
    options = dict(table.options("options"))
    path = table.try_text("path")
    for key in ("path", "schema", "options"):
        if origins[0] != "format" and table.has(key):
            table.refuse(key, f"goes with format, not with {origins[0]}")
    if path is not None:
        if "path" in options:
            table.refuse("options", "path is given twice: here and as the key path; remove one")
        options["path"] = path
    return Source(
        format=table.try_text("format"),
        sql=table.try_text("sql"),
        table=table.try_text("table"),
        schema=table.try_text("schema"),
        streaming=table.flag("streaming", default=False),
        count_rows=table.flag("count_rows", default=True),
        options=options,
    )


def _steps(definition: Definition) -> tuple[Step, ...]:
    steps: list[Step] = []
    names = {PREVIOUS, "source"}
    for table in read_tables(definition, "steps"):
        table.refuse_other_keys(("name", "sql", "python"))
        name, sql, python = (table.try_text(key) for key in ("name", "sql", "python"))
        if (sql is None) == (python is None):
            table.refuse(None, 'needs either sql = "SELECT ..." or python = "module:function"')
        if python is not None and not _PYTHON.fullmatch(python):
            table.refuse("python", f'{python!r} is not "module:function"')
        if name is not None:
            if not _NAME.fullmatch(name):
                table.refuse(
                    "name", f"{name!r} cannot be a table's name in SQL: use letters, digits and _ only"
                )
            if name in names:
                table.refuse("name", f"{name!r} is taken already; later steps could not tell which is meant")
            names.add(name)
        steps.append(Step(name=name, sql=sql, python=python))
    return tuple(steps)


def _expectations(definition: Definition, sink: Sink) -> tuple[Expectation, ...]:
    expectations: list[Expectation] = []
    for table in read_tables(definition, "expectations"):
        table.refuse_other_keys(("name", "condition", "action"))
        name = table.text("name", "a few words that say what is expected")
        if name in {other.name for other in expectations}:
            table.refuse("name", f"{name!r} is there twice; give each expectation a name of its own")
        condition = table.text("condition", 'a SQL condition, like "amount > 0"')
        action = Action(table.choice("action", [action.value for action in Action], Action.FAIL.value))
        if action is Action.DEAD_LETTER and sink.dead_letter_topic is None:
            table.refuse(
                "action", 'dead-letter needs a topic: write dead_letter_topic = "..." in [sink], or use drop'
            )
        expectations.append(Expectation(name=name, condition=condition, action=action))
    return tuple(expectations)


# ---- sink


def _sink(table: Table, *, streaming: bool) -> Sink:
    table.refuse_other_keys(_SINK_KEYS)
    options = table.options("options")
    _check_options(table, options)
    dead_letter_topic = table.try_text("dead_letter_topic")
    if dead_letter_topic is not None:
        _check_topic(table, "dead_letter_topic", dead_letter_topic)
    for key in ("checkpoint", "trigger", "output_mode"):
        if not streaming and table.has(key):
            table.refuse(
                key, "is for streaming pipelines: write streaming = true in [source], or take it out"
            )
    checkpoint = table.try_text("checkpoint")
    if streaming and checkpoint is None:
        table.refuse(
            "checkpoint",
            "is missing: a streaming pipeline needs a folder where Spark notes how far it has come, "
            'like checkpoint = "checkpoints/orders"',
        )
    record = _record(table)
    if dead_letter_topic is not None and dead_letter_topic == record.topic.name:
        table.refuse("dead_letter_topic", "is the topic itself: dead letters need one of their own")
    return Sink(
        record=record,
        delivery=table.choice("delivery", get_args(Delivery), DEFAULT_DELIVERY),
        dead_letter_topic=dead_letter_topic,
        checkpoint=checkpoint,
        trigger=_trigger(table),
        output_mode=_output_mode(table),
        options=options,
    )


def _output_mode(table: Table) -> str:
    """Append. The others are refused here, because Spark refuses them late, and without a way out."""
    mode = table.try_text("output_mode")
    if mode in ("update", "complete"):
        table.refuse(
            "output_mode",
            f"{mode!r} is not possible: Spark writes to a data source of Python in the mode append only. With a "
            "watermark an aggregate's rows come in it, once they are final; rows of every change: docs/spark.md, "
            "foreachBatch",
        )
    return table.choice("output_mode", ["append"], "append")


def _check_options(table: Table, options: Mapping[str, str]) -> None:
    for name in options:
        own = _OWN_OPTIONS.get(name.lower())
        if own is not None:
            table.refuse_option(name, f"is said by {own} = ... in [sink]")
    if not any(name.lower() == _SERVERS for name in options):
        table.refuse(
            "options", f'{_SERVERS} is missing: write {_SERVERS} = "host:9092" under [{table.name}.options]'
        )


def _trigger(table: Table) -> str | None:
    trigger = table.try_text("trigger")
    if trigger is not None and trigger.startswith("continuous"):
        table.refuse("trigger", "the continuous trigger has no batches that could be written exactly once")
    if trigger is not None and trigger != AVAILABLE_NOW and not _INTERVAL.fullmatch(trigger.strip()):
        table.refuse("trigger", f'{trigger!r} is neither "{AVAILABLE_NOW}" nor an interval like "10 seconds"')
    return trigger


def _record(table: Table) -> RecordShape:
    return RecordShape(
        topic=_topic(table),
        key=table.try_text("key"),
        value=_value(table),
        headers=_headers(table),
        timestamp=table.try_text("timestamp"),
        partition=table.try_text("partition"),
    )


def _topic(table: Table) -> Topic:
    given = table.get("topic")
    if isinstance(given, Mapping):
        inner = table.below("topic")
        inner.refuse_other_keys(("sql",))
        return Topic(sql=inner.text("sql", "an expression that gives each row's topic"))
    name = table.text("topic", 'a name, or { sql = "an expression" } where rows go to different topics')
    _check_topic(table, "topic", name)
    return Topic(name=name)


def _check_topic(table: Table, key: str, name: str) -> None:
    if not is_topic_name(name):
        way_out = '; for an expression write topic = { sql = "..." }' if key == "topic" else ""
        table.refuse(
            key,
            f"{name!r} is no topic's name: at most 249 letters, digits and the signs . _ - are allowed{way_out}",
        )


def _value(table: Table) -> Value:
    encoding = Encoding(table.choice("encoding", [each.value for each in Encoding], Encoding.JSON.value))
    given = table.get("value")
    is_list = isinstance(given, list)
    expressions = table.texts("value")
    if encoding is not Encoding.JSON:
        if is_list:
            table.refuse("value", f"encoding = {encoding.value!r} takes one expression, not a list")
        if not expressions:
            example = "payload" if encoding is Encoding.BINARY else "line"
            table.refuse(
                "value", f"encoding = {encoding.value!r} needs one expression, like value = {example!r}"
            )
    schema_id = table.try_number("schema_id", highest=2**31 - 1)
    if schema_id is not None and encoding is not Encoding.BINARY:
        table.refuse("schema_id", 'goes in front of binary values only: write encoding = "binary"')
    return Value(encoding=encoding, expressions=expressions, is_list=is_list, schema_id=schema_id)


def _headers(table: Table) -> Mapping[str, str] | str | None:
    given = table.get("headers")
    if isinstance(given, Mapping):
        inner = table.below("headers")
        return {name: inner.text(name, "a SQL expression; text stands in single quotes") for name in given}
    return table.try_text("headers")


# ---- Spark


def _spark(table: Table) -> SparkSettings:
    table.refuse_other_keys(("master", "remote", "settings"))
    master, remote = table.try_text("master"), table.try_text("remote")
    if master is not None and remote is not None:
        table.refuse("remote", "cannot go with master: Spark runs here, or behind a Connect server")
    if remote is not None and not remote.startswith("sc://"):
        table.refuse(
            "remote", f'{remote!r} is no address of a Connect server: it looks like "sc://host:15002"'
        )
    return SparkSettings(master=master, remote=remote, settings=table.options("settings"))
