# SPDX-License-Identifier: Apache-2.0
"""Rows of Spark 4.0 become the Arrow batches that later versions hand over."""

from __future__ import annotations

import datetime

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.spark.writers import ROWS_AT_ONCE, row_batches

HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])


def test_every_column_has_its_type() -> None:
    schema = StructType(
        [
            StructField("key", StringType()),
            StructField("value", BinaryType()),
            StructField("headers", ArrayType(HEADER)),
            StructField("topic", StringType()),
            StructField("partition", IntegerType()),
            StructField("timestamp", TimestampType()),
            StructField("amount", LongType()),
        ]
    )
    moment = datetime.datetime(2026, 11, 15, 12, 0)  # noqa: DTZ001 (as Spark hands it over, in local time)
    header = Row(key="h", value=bytearray(b"1"))
    columns = Row("key", "value", "headers", "topic", "partition", "timestamp", "amount")
    rows = [
        columns("k", bytearray(b"v"), [header], "t", 2, moment, 1),
        columns(None, None, None, "t", None, None, 2),
    ]
    (batch,) = row_batches(rows, schema)
    assert batch.schema.names == ["key", "value", "headers", "topic", "partition", "timestamp"]
    assert batch.column("value").type == pa.binary()
    assert batch.column("timestamp").type == pa.timestamp("us", tz="UTC")
    assert batch.column("timestamp")[0].as_py() == moment.astimezone()
    first, second = batch.to_pylist()
    assert (first["key"], first["value"], first["headers"]) == ("k", b"v", [{"key": "h", "value": b"1"}])
    assert second == {
        "key": None,
        "value": None,
        "headers": None,
        "topic": "t",
        "partition": None,
        "timestamp": None,
    }


def test_a_batch_has_so_many_rows_and_the_last_one_the_rest() -> None:
    schema = StructType([StructField("value", StringType())])
    rows = (Row(value=str(number)) for number in range(2 * ROWS_AT_ONCE + 5))
    sizes = [batch.num_rows for batch in row_batches(rows, schema)]
    assert sizes == [ROWS_AT_ONCE, ROWS_AT_ONCE, 5]
    assert list(row_batches([], schema)) == []
