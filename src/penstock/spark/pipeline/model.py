# SPDX-License-Identifier: Apache-2.0
"""A pipeline as it is meant: checked, complete, and without Spark.

What a user writes becomes this in `check`; what Spark does with it is decided in `plan`. Any text of it
may hold a secret that came from the environment, so nothing of it shows itself: `Pipeline.hide` makes a text fit to be
printed.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.spark.pipeline.file import Definition

PREVIOUS = "input"  # what a SQL step calls the rows of the step before it


class Action(enum.Enum):
    """What becomes of a row that does not meet an expectation."""

    FAIL = "fail"
    DROP = "drop"
    DEAD_LETTER = "dead-letter"


class Encoding(enum.Enum):
    """How a record's value is made."""

    JSON = "json"  # an object of the columns
    BINARY = "binary"  # bytes that a step has made, Avro for example
    RAW = "raw"  # one column as text


@dataclass(frozen=True, repr=False)
class Source:
    """Where rows come from: one of format, sql and table is there."""

    format: str | None
    sql: str | None
    table: str | None
    schema: str | None  # as Spark's DDL
    streaming: bool
    count_rows: (
        bool  # whether a batch job counts what the source gives; keeps filters from moving into the source
    )
    options: Mapping[str, str]


@dataclass(frozen=True, repr=False)
class Step:
    """One transformation: SQL, or a Python function from DataFrame to DataFrame."""

    name: str | None
    sql: str | None
    python: str | None  # module:function


@dataclass(frozen=True, repr=False)
class Expectation:
    """A condition that every row should meet; null does not meet it."""

    name: str
    condition: str
    action: Action


@dataclass(frozen=True, repr=False)
class Topic:
    """The topic's name, or the SQL expression that gives each row's."""

    name: str | None = None
    sql: str | None = None


@dataclass(frozen=True, repr=False)
class Value:
    """What a record's value is made from."""

    encoding: Encoding
    expressions: tuple[str, ...]  # none: all columns
    is_list: bool  # [a, b]: an object with these members; otherwise one expression
    schema_id: int | None  # of a schema registry; goes in front of binary values


@dataclass(frozen=True, repr=False)
class RecordShape:
    """How a row becomes a record: SQL expressions over the columns of the last step."""

    topic: Topic
    key: str | None
    value: Value
    headers: Mapping[str, str] | str | None  # name: expression, or one expression for the whole array
    timestamp: str | None
    partition: str | None


@dataclass(frozen=True, repr=False)
class Sink:
    """Where records go, and with which guarantee."""

    record: RecordShape
    delivery: str
    dead_letter_topic: str | None
    checkpoint: str | None
    trigger: str | None  # "available-now", or an interval like "10 seconds"
    output_mode: str
    options: Mapping[str, str]


@dataclass(frozen=True, repr=False)
class SparkSettings:
    """Which Spark: a master or a Connect server, and settings."""

    master: str | None
    remote: str | None
    settings: Mapping[str, str]


@dataclass(frozen=True, repr=False)
class Pipeline:
    """A pipeline, with all that its definition says."""

    name: str
    source: Source
    steps: tuple[Step, ...]
    expectations: tuple[Expectation, ...]
    sink: Sink
    spark: SparkSettings
    definition: Definition  # for the lines of errors that only Spark can find

    def hide(self, text: str) -> str:
        """The text as it may be printed: without values of the environment, and without secrets."""
        return self.definition.hide(text)

    @property
    def title(self) -> str:
        """The name, as it may be printed."""
        return self.hide(self.name)

    def __repr__(self) -> str:
        return f"<Pipeline {self.title!r}>"
