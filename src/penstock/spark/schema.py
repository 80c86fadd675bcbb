# SPDX-License-Identifier: Apache-2.0
"""The columns that a write must and may have, checked on the driver before a task starts.

The texts name parts of the user's query: the column, the type it has there, the type it must have, and an expression
that gives it that type.
"""

from __future__ import annotations

import difflib
from collections import Counter
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock.errors import ConfigError
from penstock.spark.options import SinkOptions

COLUMNS: Final = ("key", "value", "headers", "topic", "partition", "timestamp")

# What format("kafka") reads besides the columns of a record.
_OF_A_KAFKA_SOURCE: Final = frozenset({"offset", "timestampType"})

_HEADERS_TYPE: Final = "array<struct<key:string,value:binary>>"


def check_schema(schema: StructType, options: SinkOptions) -> None:
    """Check the columns of a DataFrame.

    Raises:
        ConfigError: a column is missing, too many, or of a type that it cannot have.
    """
    _check_names(schema, options)
    for field in schema.fields:
        if field.name in COLUMNS:
            _check_type(field.name, field.dataType)
    if options.topic is None and "topic" not in schema.names:
        raise ConfigError(
            'no topic: set .option("topic", "name"), or give the DataFrame a column topic of type string '
            f"(it has {_listed(schema.names)})"
        )


def _check_names(schema: StructType, options: SinkOptions) -> None:
    names = schema.names
    twice = [name for name, count in Counter(names).items() if count > 1 and name in COLUMNS]
    if twice:
        raise ConfigError(
            f"the DataFrame has more than one column {_listed(twice)}; select the one to be written"
        )
    if "value" not in names:
        written = {name.lower(): name for name in names}
        near = difflib.get_close_matches("value", written, n=1, cutoff=0.8)
        hint = f"rename {written[near[0]]!r}, or make one" if near else "make one"
        raise ConfigError(
            f"the column value is missing (the DataFrame has {_listed(names)}); {hint}: "
            '.selectExpr("to_json(struct(*)) AS value"), for example'
        )
    extra = [name for name in names if name not in COLUMNS]
    if extra and not options.ignore_extra_columns:
        if _OF_A_KAFKA_SOURCE.issubset(extra):
            # Not its partition: the topic that is written to may have fewer.
            taken = ("key", "value", "headers", *(() if options.topic is not None else ("topic",)))
            kept = ", ".join(f'"{name}"' for name in taken if name in names)
            raise ConfigError(
                f"columns {_listed(extra)} would not be written: those of a Kafka source say where a record was. "
                f"Select what is to be written: .select({kept})"
            )
        hints = [
            f"; is {name!r} meant to be {near[0]!r}?"
            for name in extra
            if (near := difflib.get_close_matches(name.lower(), COLUMNS, n=1, cutoff=0.8))
        ]
        raise ConfigError(
            f"column{'s' if len(extra) > 1 else ''} {_listed(extra)} would not be written: a record is made of "
            f"{', '.join(COLUMNS)}{''.join(hints)}. Drop {'them' if len(extra) > 1 else 'it'}, put "
            f"{'them' if len(extra) > 1 else 'it'} into value, or set the option ignoreExtraColumns to true"
        )


def _check_type(name: str, found: DataType) -> None:
    wanted, fits, cast = _judge(name, found)
    if not fits:
        raise ConfigError(f"the column {name} is {found.simpleString()}, but must be {wanted}: use {cast}")


def _judge(name: str, found: DataType) -> tuple[str, bool, str]:
    """The type a column must have, whether it has it, and an expression that would give it."""
    if name in ("key", "value"):
        nested = isinstance(found, StructType | ArrayType | MapType)
        cast = f"to_json({name}) AS {name}" if nested else f"CAST({name} AS STRING) AS {name}"
        return "string or binary", isinstance(found, StringType | BinaryType), cast
    if name == "topic":
        return "string", isinstance(found, StringType), "CAST(topic AS STRING) AS topic"
    if name == "partition":
        return "int", isinstance(found, IntegerType), "CAST(partition AS INT) AS partition"
    if name == "timestamp":
        return "timestamp", isinstance(found, TimestampType), _timestamp_cast(found)
    return _HEADERS_TYPE, _are_headers(found), _headers_cast(found)


def _timestamp_cast(found: DataType) -> str:
    if isinstance(found, LongType):
        return "timestamp_millis(timestamp) AS timestamp"
    if isinstance(found, TimestampNTZType):
        return "CAST(timestamp AS TIMESTAMP) AS timestamp (it has no time zone; this takes the session's)"
    return "CAST(timestamp AS TIMESTAMP) AS timestamp"


def _are_headers(found: DataType) -> bool:
    if not isinstance(found, ArrayType) or not isinstance(found.elementType, StructType):
        return False
    fields = {field.name: field.dataType for field in found.elementType.fields}
    return (
        len(found.elementType.fields) == 2
        and isinstance(fields.get("key"), StringType)
        and isinstance(fields.get("value"), BinaryType)
    )


def _headers_cast(found: DataType) -> str:
    if isinstance(found, MapType):
        pairs = "transform(map_entries(headers), h -> named_struct('key', h.key, 'value', CAST(h.value AS BINARY)))"
        return f"{pairs} AS headers"
    if isinstance(found, ArrayType) and isinstance(found.elementType, StructType):
        return f"CAST(headers AS {_HEADERS_TYPE.upper()}) AS headers"
    if isinstance(found, NullType):
        return f"CAST(NULL AS {_HEADERS_TYPE.upper()}) AS headers"
    return "array(named_struct('key', 'name', 'value', CAST('text' AS BINARY))) AS headers"


def _listed(names: list[str]) -> str:
    return ", ".join(repr(name) for name in names) or "none"
