# SPDX-License-Identifier: Apache-2.0
"""What `penstock run --dry-run` shows: the resolved plan, the schema, and ten records as they would be sent.

Nothing is written and no broker is asked.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock._redaction import Redactor, redacted
from penstock.spark.pipeline.failure import spark_words
from penstock.spark.pipeline.model import Pipeline, Source, Step
from penstock.spark.pipeline.plan import Plan, make_plan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SAMPLE_ROWS = 10

Hide = Callable[[str], str]  # makes a text one that may be printed

_STREAM_WAIT = 20.0  # seconds for a stream to give its first rows
_LOOK_EVERY = 0.2
_WIDEST = 100  # characters of a key, value or expression on one line


def dry_run(pipeline: Pipeline, spark: SparkSession) -> Iterator[str]:
    """The lines to print; the sample is taken when they are asked for.

    Raises:
        PipelineDefinitionError: Spark refuses a part of the definition.
    """
    plan = make_plan(pipeline, spark, watched=False)
    try:
        yield from describe_pipeline(pipeline)
        yield ""
        yield "Rows after the last step"
        yield from _schema_lines(plan.rows.schema, pipeline.hide)
        yield ""
        yield "Records"
        yield from _schema_lines(plan.records.schema, pipeline.hide)
        yield ""
        yield from _sample(pipeline, plan, spark)
    finally:
        plan.close()


# ---- the plan


def describe_pipeline(pipeline: Pipeline) -> Iterator[str]:
    """The definition as it was understood, secrets left out."""
    hide = pipeline.hide
    yield f"Pipeline {pipeline.title}"
    yield ""
    yield f"Source       {_source_words(pipeline.source, hide)}"
    yield from _option_lines(pipeline.source.options, pipeline.definition.hide)
    for position, step in enumerate(pipeline.steps):
        name = f" ({hide(step.name)})" if step.name else ""
        yield f"Step {position + 1}       {_step_words(step, hide)}{name}"
    for expectation in pipeline.expectations:
        condition = _one_line(hide(expectation.condition))
        yield f"Expectation  {hide(expectation.name)}: {condition}; else {expectation.action.value}"
    yield from _sink_lines(pipeline)


def _source_words(source: Source, hide: Hide) -> str:
    kind = "streaming" if source.streaming else "batch"
    if source.sql is not None:
        return f"{_one_line(hide(source.sql))} ({kind})"
    return (
        f"{f'table {hide(source.table)}' if source.table is not None else hide(str(source.format))} ({kind})"
    )


def _step_words(step: Step, hide: Hide) -> str:
    return hide(str(step.python)) if step.sql is None else _one_line(hide(step.sql))


def _sink_lines(pipeline: Pipeline) -> Iterator[str]:
    sink, record, hide = pipeline.sink, pipeline.sink.record, pipeline.hide
    topic = hide(record.topic.name) if record.topic.name is not None else f"by {hide(str(record.topic.sql))}"
    yield f"Sink         topic {topic}, {sink.delivery}"
    value = record.value
    columns = ", ".join(map(hide, value.expressions)) or "all columns"
    yield f"  value      {value.encoding.value}: {_one_line(columns)}"
    for name in ("key", "timestamp", "partition"):
        if getattr(record, name) is not None:
            yield f"  {name:<10} {_one_line(hide(getattr(record, name)))}"
    if isinstance(record.headers, str):
        yield f"  headers    {_one_line(hide(record.headers))}"
    for name, expression in record.headers.items() if isinstance(record.headers, dict) else ():
        yield f"  header     {name}: {_one_line(pipeline.definition.hide.option(name, expression))}"
    if sink.dead_letter_topic is not None:
        yield f"  dead letters to {hide(sink.dead_letter_topic)}"
    if sink.checkpoint is not None:
        trigger = hide(sink.trigger or "at once")
        yield f"  checkpoint {hide(sink.checkpoint)}, trigger {trigger}, {sink.output_mode}"
    yield from _option_lines(sink.options, pipeline.definition.hide)


def _option_lines(options: Mapping[str, str], hide: Redactor) -> Iterator[str]:
    for name, value in options.items():
        yield f"  {name} = {hide.option(name, value)}"


def _one_line(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= _WIDEST else f"{words[: _WIDEST - 3]}..."


def _schema_lines(schema: Any, hide: Hide) -> Iterator[str]:
    # A column without a name of its own is called as its expression, literals included.
    names = [hide(field.name) for field in schema.fields]
    width = max(map(len, names), default=0)
    for name, field in zip(names, schema.fields, strict=True):
        nullable = "" if field.nullable else ", never null"
        yield f"  {name:<{width}}  {hide(field.dataType.simpleString())}{nullable}"


# ---- the sample


def _sample(pipeline: Pipeline, plan: Plan, spark: SparkSession) -> Iterator[str]:
    try:
        rows = _stream_rows(plan, spark) if pipeline.source.streaming else plan.records.take(SAMPLE_ROWS)
    except Exception as error:  # noqa: BLE001  # the plan stands; that no rows can be had yet is worth a line, not a failure
        yield f"No sample: {spark_words(error, pipeline.hide)}"
        return
    if not rows:
        yield "No sample: " + (
            f"no rows within {_STREAM_WAIT:.0f} s" if pipeline.source.streaming else "the source gave no rows"
        )
        return
    yield f"Sample, {len(rows)} record{'s' if len(rows) > 1 else ''} as they would be sent"
    for number, row in enumerate(rows, 1):
        # A literal in SQL may have come from the environment.
        yield from _record_lines(number, row.asDict(), plan.topic_option, pipeline.definition.hide)


def _stream_rows(plan: Plan, spark: SparkSession) -> list[Any]:
    """The first rows of a stream: through a query of its own that ends up in memory."""
    name = f"penstock_sample_{uuid.uuid4().hex[:12]}"
    with tempfile.TemporaryDirectory(prefix="penstock-dry-run-", ignore_cleanup_errors=True) as folder:
        writer = plan.records.limit(SAMPLE_ROWS).writeStream.format("memory").queryName(name)
        query = writer.option("checkpointLocation", folder).outputMode("append").start()
        try:
            deadline = time.monotonic() + _STREAM_WAIT
            rows: list[Any] = []
            while len(rows) < SAMPLE_ROWS and query.isActive and time.monotonic() < deadline:
                time.sleep(_LOOK_EVERY)
                rows = spark.table(name).take(SAMPLE_ROWS)
                if rows and _is_idle(query):
                    break
            failure = query.exception()
            if failure is not None:
                raise failure
        finally:
            query.stop()
            with contextlib.suppress(Exception):  # a view that is left over does no harm
                spark.catalog.dropTempView(name)
    return rows


def _is_idle(query: Any) -> bool:
    return not query.status["isDataAvailable"] and not query.status["isTriggerActive"]


def _record_lines(
    number: int, record: dict[str, Any], topic: str | None, hide: Redactor | None = None
) -> Iterator[str]:
    hide = hide or Redactor()
    place = [hide(str(record.get("topic", topic)))]
    if record.get("partition") is not None:
        place.append(f"partition {record['partition']}")
    if record.get("timestamp") is not None:
        place.append(f"{record['timestamp'].astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC")
    yield f"{number:>4}  {', '.join(place)}"
    for header in record.get("headers") or ():
        value = shown(header["value"], partial(hide.option, header["key"]))
        yield f"      header {shown(header['key'], hide)}: {value}"
    if "key" in record:
        yield f"      key    {shown(record['key'], hide)}"
    yield f"      value  {shown(record['value'], hide)}"


def shown(data: Any, hide: Hide = redacted) -> str:
    """A key or value on one line: text as it is but for secrets, other bytes in hexadecimal, null by name."""
    if data is None:
        return "null"
    if isinstance(data, str):
        text = data
    else:
        try:
            text = bytes(data).decode()
        except UnicodeDecodeError:
            text = f"0x{bytes(data).hex()}"
    text = hide(text)
    if not text.isprintable():
        text = json.dumps(text, ensure_ascii=False)
    return text if len(text) <= _WIDEST else f"{text[:_WIDEST]}... ({len(text)} characters)"
