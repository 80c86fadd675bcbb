# SPDX-License-Identifier: Apache-2.0
"""What the data source is told by a pipeline, and a look at it before Spark is started, which takes many seconds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from penstock.errors import ConfigError, KafkaError, PipelineError
from penstock.spark.cluster_check import check_cluster
from penstock.spark.options import KAFKA_PREFIX, SinkOptions, parse_options
from penstock.spark.pipeline.lines import Path as KeyPath
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
    if progress is not None:
        options["progressFile"] = str(progress)
    return options


def check_sink(pipeline: Pipeline, *, from_here: bool) -> None:
    """See that the options can be, and that the brokers answer and have the topic.

    Args:
        from_here: whether Spark's driver is this process. One elsewhere may reach brokers that this one does not, and
            finds out by itself.

    Raises:
        PipelineDefinitionError: an option is wrong; names its line.
        PipelineError: no broker answers, or there is no such topic.
    """
    options = _parsed(pipeline)
    if not from_here:
        return
    try:
        check_cluster(options, dead_letter_topic=pipeline.sink.dead_letter_topic)
    except KafkaError as error:
        where = _place_of_trouble(pipeline, str(error))
        raise PipelineError(pipeline.definition.describe(where, str(error))) from pipeline.definition.cause(
            error
        )


def _place_of_trouble(pipeline: Pipeline, words: str) -> KeyPath:
    """The key that an error of the cluster is about: a topic that it names, or else the address."""
    keys = {pipeline.sink.dead_letter_topic: "dead_letter_topic", pipeline.sink.record.topic.name: "topic"}
    for topic, key in keys.items():
        if topic is not None and repr(topic) in words:
            return ("sink", key)
    return Table(pipeline.definition, ("sink",)).option_path(_SERVERS) or ("sink", "options")


def _parsed(pipeline: Pipeline) -> SinkOptions:
    given = sink_options(pipeline, pipeline.sink.record.topic.name, None)
    try:
        options = parse_options(given, streaming=pipeline.source.streaming)
        if options.exactly_once:
            options.sink_settings()
    except ConfigError as error:
        words = str(error)
        named = _given_as(error.option, pipeline.sink.options) or _named_in(words, pipeline.sink.options)
        table = Table(pipeline.definition, ("sink",))
        if named is None:
            table.refuse("options", words)
        table.refuse_option(named, words)
    return options


def _given_as(option: str | None, options: Iterable[str]) -> str | None:
    """An option as the definition spells it, if it is there. The producer's may be in snake case (kafka.linger_ms)."""
    if option is None:
        return None
    return next((name for name in options if _one_spelling(name) == _one_spelling(option)), None)


def _one_spelling(option: str) -> str:
    return option.lower().replace("_", ".")


def _named_in(words: str, options: Iterable[str]) -> str | None:
    """The option that an error is about. Those of the producer may be called as the producer calls them."""
    for name in sorted(options, key=len, reverse=True):
        plain = re.escape(name.removeprefix(KAFKA_PREFIX))
        if re.search(rf"(?<![\w.])(?:{re.escape(KAFKA_PREFIX)})?{plain}\b", words, re.IGNORECASE):
            return name
    return None


def _option(options: Mapping[str, str], name: str) -> str | None:
    return next((value for key, value in options.items() if key.lower() == name.lower()), None)
