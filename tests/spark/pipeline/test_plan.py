# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501  # one refusal per row
"""On a real Spark: rows become the records that the definition asks for, and what Spark refuses names its line."""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import PipelineDefinitionError
from penstock.spark.pipeline.check import load_pipeline
from penstock.spark.pipeline.failure import pipeline_failure
from penstock.spark.pipeline.plan import make_plan

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

# No broker is asked; the mark puts these tests where the one Spark session of the run is anyway.
pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.slow]

ROWS = "SELECT * FROM VALUES (1, 'a', 10), (2, 'b', -5), (3, NULL, 7) AS t(id, name, amount)"
BASE: dict[str, Any] = {
    "source": {"sql": ROWS},
    "sink": {"topic": "t", "options": {"kafka.bootstrap.servers": "h:1"}},
}


def definition(**changes: Any) -> dict[str, Any]:
    """BASE with other tables; those of `sink` are added to its own."""
    data = copy.deepcopy(BASE)
    data["sink"].update(changes.pop("sink", {}))
    return {**data, **changes}


def records(spark: SparkSession, **changes: Any) -> list[Row]:
    plan = make_plan(load_pipeline(definition(**changes)), spark, watched=False)
    try:
        return plan.records.collect()
    finally:
        plan.close()


def refusal(spark: SparkSession, **changes: Any) -> str:
    with pytest.raises(PipelineDefinitionError) as caught:
        records(spark, **changes)
    return str(caught.value)


def expect(name: str, condition: str, action: str) -> dict[str, str]:
    return {"name": name, "condition": condition, "action": action}


def own_views(spark: SparkSession) -> list[str]:
    return [table.name for table in spark.catalog.listTables() if table.name.startswith("penstock_")]


# ---- steps


def test_steps_see_the_one_before_the_source_and_those_with_names(spark: SparkSession) -> None:
    steps = [
        {"name": "positive", "sql": "SELECT * FROM input WHERE amount > 0"},
        {"sql": "SELECT id, amount * 2 AS twice FROM input;"},
        {
            "sql": "WITH one AS (SELECT id FROM positive) -- the first\n"
            "SELECT i.id, twice, s.name FROM input i JOIN one USING (id) JOIN source s USING (id) -- joined"
        },
    ]
    rows = [json.loads(row.value) for row in records(spark, steps=steps)]
    assert sorted(rows, key=lambda row: row["id"]) == [
        {"id": 1, "twice": 20, "name": "a"},
        {"id": 3, "twice": 14},
    ]


def test_python_steps_come_from_beside_the_definition(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "shop_steps.py").write_text(
        "from pyspark.sql.functions import udf\n"
        "@udf('string')\n"
        "def shout(name):\n"
        "    return loud(name)\n"
        "def loud(name):\n"
        "    return name.upper() if name else 'nobody'\n"
        "def enrich(df):\n"
        "    return df.withColumn('name', shout('name')).select('id', 'name')\n"
    )
    path = tmp_path / "p.toml"
    path.write_text(
        f'[source]\nsql = "{ROWS}"\n[[steps]]\npython = "shop_steps:enrich"\n[sink]\ntopic = "t"\n'
        'value = "name"\nencoding = "raw"\noptions.kafka.bootstrap.servers = "h:1"\n'
    )
    plan = make_plan(load_pipeline(path), spark, watched=False)
    assert [row.value for row in plan.records.collect()] == ["A", "B", "nobody"]
    plan.close()


def test_views_are_taken_away(spark: SparkSession) -> None:
    plan = make_plan(load_pipeline(definition(steps=[{"sql": "SELECT 1 FROM input"}])), spark, watched=False)
    assert own_views(spark)
    plan.close()
    assert not own_views(spark)


# ---- records


@pytest.mark.parametrize(
    ("sink", "values"),
    [
        ({}, ['{"id":1,"name":"a","amount":10}', '{"id":2,"name":"b","amount":-5}', '{"id":3,"amount":7}']),
        (
            {"value": ["id AS n", "amount + 1 AS more"]},
            ['{"n":1,"more":11}', '{"n":2,"more":-4}', '{"n":3,"more":8}'],
        ),
        ({"value": "CASE WHEN id > 1 THEN struct(id) END"}, [None, '{"id":2}', '{"id":3}']),
        ({"value": "array(id, amount)"}, ["[1,10]", "[2,-5]", "[3,7]"]),
        ({"value": "name", "encoding": "raw"}, ["a", "b", None]),
        ({"value": "amount", "encoding": "raw"}, ["10", "-5", "7"]),
        ({"value": "encode(name, 'utf-8')", "encoding": "binary"}, [b"a", b"b", None]),
        (
            {"value": "encode(name, 'utf-8')", "encoding": "binary", "schema_id": 258},
            [b"\0\0\0\1\2a", b"\0\0\0\1\2b", None],
        ),
    ],
    ids=[
        "all columns",
        "a list",
        "a struct or a tombstone",
        "an array",
        "raw",
        "number",
        "binary",
        "schema id",
    ],
)
def test_values(spark: SparkSession, sink: dict[str, Any], values: list[Any]) -> None:
    assert [row.value for row in records(spark, sink=sink)] == values


def test_keys_headers_timestamps_and_partitions(spark: SparkSession) -> None:
    sink = {
        "key": "id",
        "headers": {"origin": "'test'", "amount": "amount", "name": "name"},
        "timestamp": "timestamp_seconds(id)",
        "partition": "amount",
        "topic": {"sql": "concat('orders-', id)"},
    }
    row = records(spark, sink=sink)[2].asDict(recursive=True)
    assert row.pop("timestamp").astimezone(UTC) == datetime(1970, 1, 1, 0, 0, 3, tzinfo=UTC)
    assert row == {
        "topic": "orders-3",
        "partition": 7,
        "headers": [
            {"key": "origin", "value": bytearray(b"test")},
            {"key": "amount", "value": bytearray(b"7")},
            {"key": "name", "value": None},
        ],
        "key": "3",
        "value": '{"id":3,"amount":7}',
    }


def test_headers_as_one_expression_and_a_key_of_several_columns(spark: SparkSession) -> None:
    sink = {"headers": "array(struct('n' AS key, name AS value))", "key": "struct(id, name)"}
    row = records(spark, sink=sink)[0]
    assert [(header.key, bytes(header.value)) for header in row.headers] == [("n", b"a")]
    assert row.key == '{"id":1,"name":"a"}'


def test_one_topic_is_an_option_and_no_column(spark: SparkSession) -> None:
    plan = make_plan(load_pipeline(BASE), spark)
    assert plan.topic_option == "t"
    assert plan.records.columns == ["value"]
    plan.close()


# ---- expectations


def test_rows_are_dropped_or_go_to_the_dead_letter_topic(spark: SparkSession) -> None:
    expectations = [
        expect("has a name", "name <> ''", "drop"),
        expect("positive", "amount > 0", "dead-letter"),
        expect("small", "amount BETWEEN 0 AND 100", "dead-letter"),
    ]
    sink = {"dead_letter_topic": "dead", "key": "name", "partition": "0", "headers": {"id": "id"}}
    good, dead = records(spark, expectations=expectations, sink=sink)
    assert (good.topic, good.partition, good.key) == ("t", 0, "a")
    assert [header.key for header in good.headers] == ["id"]
    assert (dead.topic, dead.partition, dead.key, json.loads(dead.value)["id"]) == ("dead", None, "b", 2)
    assert [(header.key, bytes(header.value)) for header in dead.headers] == [
        ("id", b"2"),
        ("penstock.expectation", b"positive, small"),
        ("penstock.topic", b"t"),
    ]


def test_a_dead_letter_is_kept_where_another_expectation_would_drop_it(spark: SparkSession) -> None:
    expectations = [expect("first", "id > 3", "drop"), expect("second", "id > 2", "dead-letter")]
    rows = records(spark, expectations=expectations, sink={"dead_letter_topic": "dead"})
    assert [(row.topic, json.loads(row.value)["id"]) for row in rows] == [("dead", 1), ("dead", 2)]


def test_a_row_that_is_dropped_needs_no_key(spark: SparkSession) -> None:
    expectations = [expect("a number", "name RLIKE '^[0-9]+$'", "drop")]
    assert records(spark, expectations=expectations, sink={"key": "CAST(name AS INT)"}) == []


def test_to_fail_goes_first(spark: SparkSession) -> None:
    expectations = [
        expect("dropped", "false", "drop"),
        expect("it's positive", "amount > 0", "fail"),
    ]
    with pytest.raises(Exception, match="USER_RAISED_EXCEPTION") as caught:
        records(spark, expectations=expectations)
    assert str(pipeline_failure(caught.value, "p")) == (
        'p: the expectation "it\'s positive" is not met by a row: {"id":2,"name":"b","amount":-5}'
    )


# ---- what Spark refuses


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"source": {"format": "cvs", "path": "x"}}, "[source] format: [DATA_SOURCE_NOT_FOUND] Failed to find the data source: cvs"),
        ({"source": {"format": "csv", "path": "no/such/folder"}}, "[source] path: [PATH_NOT_FOUND] Path does not exist: "),
        ({"source": {"format": "csv", "options": {"path": "no/such/folder"}}}, "[source] options.path: [PATH_NOT_FOUND] Path does not exist: "),
        ({"source": {"table": "no_such_table"}}, "[source] table: [TABLE_OR_VIEW_NOT_FOUND]"),
        ({"source": {"sql": "SELEC 1"}}, "[source] sql: [PARSE_SYNTAX_ERROR] Syntax error at or near 'SELEC'."),
        ({"source": {"format": "csv", "path": "x", "schema": "id INTT"}}, "[source] format: [UNSUPPORTED_DATATYPE]"),
        ({"steps": [{"sql": "SELECT 1"}, {"sql": "SELECT nname FROM source"}]}, "[[steps]] 2, sql: [UNRESOLVED_COLUMN.WITH_SUGGESTION]"),
        ({"steps": [{"sql": "DROP TABLE x"}]}, "[[steps]] 1, sql: "),
        ({"steps": [{"python": "no_such_module:f"}]}, "[[steps]] 1, python: cannot import 'no_such_module' (ModuleNotFoundError"),
        ({"steps": [{"python": "json:enrich"}]}, "[[steps]] 1, python: the module 'json' has no function 'enrich'"),
        ({"steps": [{"python": "builtins:id"}]}, "[[steps]] 1, python: gave int; a step takes a DataFrame and returns one"),
        ({"steps": [{"python": "json:dumps"}]}, "[[steps]] 1, python: raised TypeError: "),
        ({"expectations": [expect("e", "amnt > 0", "drop")]}, "[[expectations]] 1, condition: [UNRESOLVED_COLUMN.WITH_SUGGESTION]"),
        ({"expectations": [expect("e", "amount", "drop")]}, "[[expectations]] 1, condition: `amount` is int; a condition is true or false"),
        ({"sink": {"key": "idd"}}, "[sink] key: [UNRESOLVED_COLUMN.WITH_SUGGESTION]"),
        ({"sink": {"value": ["id", "nme"]}}, "[sink] value[1]: [UNRESOLVED_COLUMN.WITH_SUGGESTION]"),
        ({"sink": {"value": "name"}}, "[sink] value: `name` is string: JSON is made from a struct, a map or an array"),
        ({"sink": {"value": "struct(id)", "encoding": "raw"}}, "[sink] value: is struct<id:int>, and encoding = 'raw' is for text: write encoding = 'json'"),
        ({"sink": {"value": "name", "encoding": "binary"}}, "[sink] value: `name` is string: encoding = 'binary' takes bytes"),
        ({"sink": {"timestamp": "id"}}, "[sink] timestamp: `id` is int: write timestamp_millis(...)"),
        ({"sink": {"partition": "name"}}, "[sink] partition: `name` is string: a partition is a whole number"),
        ({"sink": {"topic": {"sql": "id"}}}, "[sink] topic.sql: `id` is int: a topic's name is a string"),
        ({"sink": {"headers": "name"}}, "[sink] headers: is string, and must be array<struct<key:string,value:binary>>"),
        ({"sink": {"headers": {"a": "b c d"}}}, "[sink] headers.a: [PARSE_SYNTAX_ERROR]"),
    ],
    ids=str,
)  # fmt: skip
def test_refused_with_its_place(spark: SparkSession, changes: dict[str, Any], error: str) -> None:
    found = refusal(spark, **changes)
    assert found.startswith(error)
    assert "\n" not in found
    assert not own_views(spark)


def test_a_refusal_of_spark_names_the_line(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text(
        f'[source]\nsql = "{ROWS}"\n[sink]\ntopic = "t"\noptions.kafka.bootstrap.servers = "h:1"\n\nkey = "idd"\n'
    )
    with pytest.raises(PipelineDefinitionError, match=r"p\.toml:7: \[sink\] key: \[UNRESOLVED_COLUMN"):
        make_plan(load_pipeline(path), spark)


def test_a_path_that_is_not_there_is_told_with_where_it_begins(spark: SparkSession) -> None:
    source = {"format": "json", "path": "no/such/folder", "schema": "id LONG", "streaming": True}
    found = refusal(spark, source=source, sink={"checkpoint": "c"})
    assert found.startswith("[source] path: [PATH_NOT_FOUND] Path does not exist: ")
    assert found.endswith("no/such/folder. A relative path begins in the folder in which the run is started.")


def test_a_source_streams_if_it_says_so(spark: SparkSession) -> None:
    spark.readStream.format("rate").load().createOrReplaceTempView("ticks")
    try:
        assert refusal(spark, source={"sql": "SELECT * FROM ticks"}) == (
            "[source] streaming: the source is a stream: write streaming = true"
        )
    finally:
        spark.catalog.dropTempView("ticks")
    source = {"sql": "SELECT 1 AS x", "streaming": True}
    assert refusal(spark, source=source, sink={"checkpoint": "c"}) == (
        "[source] streaming: the source is no stream: write streaming = false"
    )
