# SPDX-License-Identifier: Apache-2.0
"""What the data source is told by a pipeline, and a look at it before Spark is started, which takes many seconds."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from penstock.errors import ConfigError, KafkaError, PipelineDefinitionError, PipelineError
from penstock.spark.cluster_check import check_cluster
from penstock.spark.options import SinkOptions, parse_options
from penstock.spark.pipeline.file import KeyPath
from penstock.spark.pipeline.model import Pipeline
from penstock.spark.pipeline.table import Table

_SERVERS = "kafka.bootstrap.servers"


def sink_options(pipeline: Pipeline, topic: str | None, progress: Path | None) -> dict[str, str]:
    """The options of the write.

    Args:
        topic: where all records go; None: a column of theirs says it.
        progress: the file for what was committed, or None.
    """
    sink = pipeline.sink
    options = {**sink.options, "delivery": sink.delivery}
    if topic is not None:
        options["topic"] = topic
    if _option(options, "onBadRow") == "dead-letter" and sink.dead_letter_topic is not None:
        options["deadLetterTopic"] = sink.dead_letter_topic
    if sink.checkpoint is not None:
        options["checkpointLocation"] = sink.checkpoint
    if not pipeline.source.streaming:
        options["pipelineName"] = pipeline.name
    if progress is not None:
        options["progressFile"] = str(progress)
    return options


def check_sink(pipeline: Pipeline, *, on_driver: bool, from_here: bool = True) -> None:
    """See that the options can be, and that the brokers answer and have the topic.

    Args:
        on_driver: whether Spark's driver is this process, or next to it. One elsewhere has environment variables and
            files that are not here, and may reach brokers that this process does not: it finds out by itself.
        from_here: whether brokers are asked, if so.

    Raises:
        PipelineDefinitionError: an option is wrong; names its line.
        PipelineError: no broker answers, or there is no such topic.
    """
    options = _parsed(pipeline, on_driver=on_driver)
    if not (on_driver and from_here):
        return
    try:
        check_cluster(options, dead_letter_topic=pipeline.sink.dead_letter_topic)
    except KafkaError as error:
        where = _place_of_trouble(pipeline, error)
        raise PipelineError(pipeline.definition.describe(where, str(error))) from pipeline.definition.cause(
            error
        )


def _place_of_trouble(pipeline: Pipeline, error: KafkaError) -> KeyPath:
    """The key that an error of the cluster is about: a topic, or else the address."""
    keys = {pipeline.sink.dead_letter_topic: "dead_letter_topic", pipeline.sink.record.topic.name: "topic"}
    if error.topic is not None and error.topic in keys:
        return ("sink", keys[error.topic])
    return Table(pipeline.definition, ("sink",)).option_path(_SERVERS) or ("sink", "options")


def _parsed(pipeline: Pipeline, *, on_driver: bool) -> SinkOptions:
    given = sink_options(pipeline, pipeline.sink.record.topic.name, None)
    try:
        options = parse_options(given, streaming=pipeline.source.streaming, on_driver=on_driver)
        if options.exactly_once:
            options.sink_settings()
    except ConfigError as error:
        named = _first_given(error.options, pipeline.sink.options)
        table = Table(pipeline.definition, ("sink",))
        raise _refusal(table, named, str(error)) from pipeline.definition.cause(error)
    return options


def _refusal(table: Table, named: str | None, words: str) -> PipelineDefinitionError:
    try:
        if named is None:
            table.refuse("options", words)
        table.refuse_option(named, words)
    except PipelineDefinitionError as refusal:
        # Without what was being handled: a traceback would show it, as it is.
        return refusal


def _first_given(wanted: Iterable[str], options: Collection[str]) -> str | None:
    """The first of some options that the definition has, as it spells it: kafka.linger_ms is kafka.linger.ms, too."""
    pairs = ((option, name) for option in wanted for name in options)
    return next((name for option, name in pairs if _one_spelling(name) == _one_spelling(option)), None)


def _one_spelling(option: str) -> str:
    return option.lower().replace("_", ".")


def _option(options: Mapping[str, str], name: str) -> str | None:
    return next((value for key, value in options.items() if key.lower() == name.lower()), None)
