# SPDX-License-Identifier: Apache-2.0
"""The columns of a write: sentences that name the column, its type, the wanted one, and an expression that helps."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock.errors import ConfigError
from penstock.spark.options import parse_options
from penstock.spark.schema import check_schema

HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
TEXT_HEADER = StructType([StructField("key", StringType()), StructField("value", StringType())])


def check(option: str | None = "orders", /, *, ignore: bool = False, **columns: DataType) -> None:
    options = {"kafka.bootstrap.servers": "x:1", "ignoreExtraColumns": str(ignore)}
    if option is not None:
        options["topic"] = option
    schema = StructType([StructField(name, kind) for name, kind in columns.items()])
    check_schema(schema, parse_options(options, streaming=False))


def refusal(option: str | None = "orders", /, **columns: DataType) -> str:
    with pytest.raises(ConfigError) as caught:
        check(option, **columns)
    return str(caught.value)


@pytest.mark.parametrize("kind", [StringType(), BinaryType()])
def test_keys_and_values_are_text_or_bytes(kind: DataType) -> None:
    check(value=kind)
    check(value=kind, key=kind)


def test_all_columns_of_a_record() -> None:
    check(
        None,
        key=StringType(),
        value=BinaryType(),
        headers=ArrayType(HEADER),
        topic=StringType(),
        partition=IntegerType(),
        timestamp=TimestampType(),
    )


def test_the_fields_of_a_header_may_stand_in_any_order() -> None:
    check(value=StringType(), headers=ArrayType(StructType(HEADER.fields[::-1])))


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("value", LongType(), "value is bigint, but must be string or binary: use CAST(value AS STRING) AS value"),
        ("value", HEADER, "but must be string or binary: use to_json(value) AS value"),
        ("value", NullType(), "the column value is void"),
        ("key", DoubleType(), "the column key is double, but must be string or binary: use CAST(key AS STRING) AS key"),
        ("key", MapType(StringType(), StringType()), "use to_json(key) AS key"),
        ("topic", BinaryType(), "the column topic is binary, but must be string: use CAST(topic AS STRING) AS topic"),
        ("partition", LongType(), "the column partition is bigint, but must be int: use CAST(partition AS INT)"),
        ("timestamp", LongType(), "but must be timestamp: use timestamp_millis(timestamp) AS timestamp"),
        ("timestamp", StringType(), "but must be timestamp: use CAST(timestamp AS TIMESTAMP) AS timestamp"),
        ("timestamp", TimestampNTZType(), "it has no time zone"),
        ("headers", MapType(StringType(), StringType()), "use transform(map_entries(headers), h -> "),
        ("headers", StringType(), "must be array<struct<key:string,value:binary>>"),
        ("headers", ArrayType(TEXT_HEADER), "use CAST(headers AS ARRAY<STRUCT<KEY:STRING,VALUE:BINARY>>) AS headers"),
    ],
)  # fmt: skip
def test_a_wrong_type_is_told_with_a_cast(name: str, kind: DataType, said: str) -> None:
    columns: dict[str, DataType] = {"value": StringType(), name: kind}
    assert said in refusal(**columns)


def test_a_value_is_required() -> None:
    said = refusal(key=StringType(), body=StringType())
    assert "the column value is missing (the DataFrame has 'key', 'body')" in said
    assert "to_json(struct(*)) AS value" in said
    assert "rename 'values'" in refusal(values=StringType())
    assert "rename 'VALUE'" in refusal(VALUE=StringType())


def test_a_topic_is_required() -> None:
    said = refusal(None, value=StringType())
    assert said.startswith('no topic: set .option("topic", "name"), or give the DataFrame a column topic')
    check(None, value=StringType(), topic=StringType())


def test_other_columns_are_refused_by_name_unless_they_are_to_be_ignored() -> None:
    said = refusal(value=StringType(), amount=LongType(), Key=StringType())
    assert "columns 'amount', 'Key' would not be written" in said
    assert "is 'Key' meant to be 'key'?" in said
    assert "ignoreExtraColumns" in said
    assert "column 'amount' would not be written" in refusal(value=StringType(), amount=LongType())
    check(ignore=True, value=StringType(), amount=LongType())


def test_columns_of_a_kafka_source_are_told_with_what_to_select() -> None:
    source: dict[str, DataType] = {"key": BinaryType(), "value": BinaryType(), "topic": StringType()}
    source |= {"partition": IntegerType(), "offset": LongType(), "timestamp": TimestampType()}
    said = refusal(**source, timestampType=IntegerType())
    assert said.startswith("columns 'offset', 'timestampType' would not be written: those of a Kafka source")
    assert said.endswith('.select("key", "value")')
    assert '"value", "topic")' in refusal(None, **source, timestampType=IntegerType())


def test_a_column_that_is_there_twice_is_refused() -> None:
    schema = StructType([StructField("value", StringType()), StructField("value", StringType())])
    options = parse_options({"kafka.bootstrap.servers": "x:1", "topic": "a"}, streaming=False)
    with pytest.raises(ConfigError, match="more than one column 'value'"):
        check_schema(schema, options)
