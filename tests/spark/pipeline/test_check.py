# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501  # one refusal per row
"""What is written becomes a Pipeline, or is refused with file, line, key, cause and way out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ConfigError, PipelineDefinitionError
from penstock.spark.pipeline.check import load_pipeline
from penstock.spark.pipeline.model import Action, Encoding, Expectation, Source, Step, Topic

BATCH = """\
[pipeline]
name = "orders"
[source]
format = "csv"
path = "in"
schema = "id INT"
[source.options]
header = true
[[steps]]
name = "clean"
sql = "SELECT * FROM input"
[[steps]]
python = "shop.steps:enrich"
[[expectations]]
name = "positive"
condition = "amount > 0"
action = "drop"
[sink]
topic = "orders"
key = "id"
[sink.options]
kafka.bootstrap.servers = "h:9092"
kafka.linger.ms = 5
[spark]
master = "local[2]"
[spark.settings]
spark.sql.shuffle.partitions = 4
spark.ui.enabled = false
"""
STREAM = BATCH.replace('format = "csv"', 'format = "csv"\nstreaming = true').replace(
    "[sink]\n", '[sink]\ncheckpoint = "c"\n'
)


def load(folder: Path, text: str) -> Any:
    path = folder / "p.toml"
    path.write_text(text, encoding="utf-8")
    return load_pipeline(path)


def refusal(folder: Path, text: str) -> str:
    """The error without the folder."""
    with pytest.raises(PipelineDefinitionError) as caught:
        load(folder, text)
    return str(caught.value).replace(f"{folder}/", "")


def test_a_whole_definition(tmp_path: Path) -> None:
    pipeline = load(tmp_path, BATCH)
    assert pipeline.name == "orders"
    assert pipeline.source == Source(
        format="csv",
        sql=None,
        table=None,
        schema="id INT",
        streaming=False,
        count_rows=True,
        options={"header": "true", "path": "in"},
    )
    assert pipeline.steps == (
        Step("clean", "SELECT * FROM input", None),
        Step(None, None, "shop.steps:enrich"),
    )
    assert pipeline.expectations == (Expectation("positive", "amount > 0", Action.DROP),)
    assert pipeline.sink.record.topic == Topic(name="orders")
    assert pipeline.sink.record.value.encoding is Encoding.JSON
    assert pipeline.sink.delivery == "exactly-once"
    assert pipeline.sink.options == {"kafka.bootstrap.servers": "h:9092", "kafka.linger.ms": "5"}
    assert pipeline.spark.master == "local[2]"
    assert pipeline.spark.settings == {"spark.sql.shuffle.partitions": "4", "spark.ui.enabled": "false"}


def test_a_dict_does_as_well() -> None:
    pipeline = load_pipeline(
        {
            "source": {"sql": "SELECT 1"},
            "sink": {
                "topic": {"sql": "t"},
                "options": {"kafka.bootstrap.servers": "h:1"},
                "value": ["a", "b"],
            },
        }
    )
    assert pipeline.name == "pipeline"
    assert pipeline.sink.record.topic == Topic(sql="t")
    assert pipeline.sink.record.value.expressions == ("a", "b")


def test_a_file_gives_its_name(tmp_path: Path) -> None:
    assert load(tmp_path, BATCH.replace('name = "orders"', "")).name == "p"


def test_a_stream(tmp_path: Path) -> None:
    text = STREAM.replace("[sink]", '[sink]\ntrigger = "10 seconds"\noutput_mode = "append"')
    sink = load(tmp_path, text).sink
    assert (sink.checkpoint, sink.trigger, sink.output_mode) == ("c", "10 seconds", "append")
    assert load(tmp_path, STREAM.replace("[sink]", '[sink]\ntrigger = "available-now"')).sink.trigger


def test_variables_may_stand_for_flags_and_numbers() -> None:
    pipeline = load_pipeline(
        {
            "source": {"format": "x", "streaming": "${streaming}"},
            "sink": {
                "topic": "t",
                "checkpoint": "c",
                "encoding": "binary",
                "value": "v",
                "schema_id": "${id}",
                "options": {"kafka.bootstrap.servers": "h:1"},
            },
        },
        {"streaming": "true", "id": "7"},
    )
    assert pipeline.source.streaming
    assert pipeline.sink.record.value.schema_id == 7


def test_it_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"^\[source\]: is missing"):
        load_pipeline({})


# what stands in the file, what stands there instead, the error
CASES = [
    ("[pipeline]", "[pipelines]", "p.toml:1: [pipelines]: there is no such table; a pipeline has pipeline, variables, source, steps, expectations, sink and spark; did you mean pipeline?"),
    ('name = "orders"', 'nname = "orders"', "p.toml:2: [pipeline] nname: there is no such key; did you mean name?"),
    ('name = "orders"', "name = 3", "p.toml:2: [pipeline] name: must be a string, but is an integer: put it in quotes"),
    ('name = "orders"', 'name = " "', "p.toml:2: [pipeline] name: is empty: give it a value, or take the key out"),
    ("[source]", "[sauce]", "p.toml:3: [sauce]: there is no such table; a pipeline has pipeline, variables, source, steps, expectations, sink and spark; did you mean source?"),
    ('format = "csv"', 'formats = "csv"', "p.toml:4: [source] formats: there is no such key; did you mean format?"),
    ('format = "csv"', 'xyz = "csv"', "p.toml:4: [source] xyz: there is no such key; there are format, path, sql, table, schema, streaming, count_rows, options"),
    ('format = "csv"', "", "p.toml:3: [source]: has no origin: give one of format (like \"csv\"), sql and table"),
    ('format = "csv"', 'format = "csv"\ntable = "t"', "p.toml:5: [source] table: has format and table: give one of format (like \"csv\"), sql and table"),
    ('format = "csv"', 'sql = "SELECT 1"', "p.toml:5: [source] path: goes with format, not with sql"),
    ('format = "csv"', 'format = "csv"\nstreaming = 1', "p.toml:5: [source] streaming: must be true or false, but is 1"),
    ("header = true", 'header = true\npath = "x"', "p.toml:7: [source] options: path is given twice: here and as the key path; remove one"),
    ("header = true", "header = [1]", "p.toml:8: [source] options.header: must be a string, a number or true or false, but is an array"),
    ("header = true", "header = true\nHeader = false", "p.toml:9: [source] options.Header: is there twice"),
    ("[source.options]\nheader = true", "options = 3", "p.toml:7: [source] options: must be a table of names and values, but is an integer"),
    ("[[steps]]\npython = \"shop.steps:enrich\"", "", None),
    ('sql = "SELECT * FROM input"', "", "p.toml:9: [[steps]] 1: needs either sql = \"SELECT ...\" or python = \"module:function\""),
    ('python = "shop.steps:enrich"', 'python = "shop.steps"', "p.toml:13: [[steps]] 2, python: 'shop.steps' is not \"module:function\""),
    ('python = "shop.steps:enrich"', 'python = "a:b"\nname = "clean"', "p.toml:14: [[steps]] 2, name: 'clean' is taken already; later steps could not tell which is meant"),
    ('name = "clean"', 'name = "input"', "p.toml:10: [[steps]] 1, name: 'input' is taken already; later steps could not tell which is meant"),
    ('name = "clean"', 'name = "a b"', "p.toml:10: [[steps]] 1, name: 'a b' cannot be a table's name in SQL: use letters, digits and _ only"),
    ("[[expectations]]", "[expectations]", "p.toml:14: [expectations]: is a list: write [[expectations]] with two brackets"),
    ('name = "positive"\n', "", "p.toml:14: [[expectations]] 1, name: is missing: a few words that say what is expected"),
    ('condition = "amount > 0"', "", "p.toml:14: [[expectations]] 1, condition: is missing: a SQL condition, like \"amount > 0\""),
    ('action = "drop"', 'action = "drp"', "p.toml:17: [[expectations]] 1, action: 'drp' is not fail, drop or dead-letter; did you mean drop?"),
    ('action = "drop"', 'action = "dead-letter"', "p.toml:17: [[expectations]] 1, action: dead-letter needs a topic: write dead_letter_topic = \"...\" in [sink], or use drop"),
    ('action = "drop"', '[[expectations]]\nname = "positive"\ncondition = "x"', "p.toml:18: [[expectations]] 2, name: 'positive' is there twice; give each expectation a name of its own"),
    ('topic = "orders"', "", "p.toml:18: [sink] topic: is missing: a name, or { sql = \"an expression\" } where rows go to different topics"),
    ('topic = "orders"', 'topic = "a b"', "p.toml:19: [sink] topic: 'a b' is no topic's name: at most 249 letters, digits and the signs . _ - are allowed; for an expression write topic = { sql = \"...\" }"),
    ('topic = "orders"', 'topic = { sq = "x" }', "p.toml:19: [sink] topic.sq: there is no such key; did you mean sql?"),
    ('key = "id"', 'dead_letter_topic = "a/b"', "p.toml:20: [sink] dead_letter_topic: 'a/b' is no topic's name: at most 249 letters, digits and the signs . _ - are allowed"),
    ('key = "id"', 'delivery = "exactly once"', "p.toml:20: [sink] delivery: 'exactly once' is not exactly-once or at-least-once; did you mean exactly-once?"),
    ('key = "id"', 'checkpoint = "c"', "p.toml:20: [sink] checkpoint: is for streaming pipelines: write streaming = true in [source], or take it out"),
    ('key = "id"', 'encoding = "avro"', "p.toml:20: [sink] encoding: 'avro' is not json, binary or raw"),
    ('key = "id"', 'encoding = "raw"', "p.toml:18: [sink] value: encoding = 'raw' needs one expression, like value = 'line'"),
    ('key = "id"', 'encoding = "binary"\nvalue = ["a"]', "p.toml:21: [sink] value: encoding = 'binary' takes one expression, not a list"),
    ('key = "id"', "value = []", "p.toml:20: [sink] value: is empty: name at least one column, or take the key out for all of them"),
    ('key = "id"', 'value = [\n"a",\n3]', "p.toml:22: [sink] value[1]: must be a SQL expression as a string, but is 3"),
    ('key = "id"', "schema_id = 3", "p.toml:20: [sink] schema_id: goes in front of binary values only: write encoding = \"binary\""),
    ('key = "id"', "schema_id = -3", "p.toml:20: [sink] schema_id: must be a whole number from 0 to 2147483647, but is -3"),
    ('key = "id"', "headers = { a = 1 }", "p.toml:20: [sink] headers.a: must be a string, but is an integer: put it in quotes"),
    ('key = "id"', 'kye = "id"', "p.toml:20: [sink] kye: there is no such key; did you mean key?"),
    ('kafka.bootstrap.servers = "h:9092"', "", "p.toml:21: [sink] options: kafka.bootstrap.servers is missing: write kafka.bootstrap.servers = \"host:9092\" under [sink.options]"),
    ("kafka.linger.ms = 5", 'Topic = "x"', "p.toml:23: [sink] options.Topic: is said by topic = ... in [sink]"),
    ("kafka.linger.ms = 5", 'checkpointLocation = "x"', "p.toml:23: [sink] options.checkpointLocation: is said by checkpoint = ... in [sink]"),
    ('master = "local[2]"', 'remote = "localhost"', "p.toml:25: [spark] remote: 'localhost' is no address of a Connect server: it looks like \"sc://host:15002\""),
    ('master = "local[2]"', 'master = "local[2]"\nremote = "sc://h"', "p.toml:26: [spark] remote: cannot go with master: Spark runs here, or behind a Connect server"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("there", "instead", "error"), CASES, ids=[f"{case[0]} -> {case[1]}"[:60] for case in CASES]
)
def test_refused_with_its_line(tmp_path: Path, there: str, instead: str, error: str | None) -> None:
    assert there in BATCH
    text = BATCH.replace(there, instead, 1)
    if error is None:
        load(tmp_path, text)
    else:
        assert refusal(tmp_path, text) == error


AFTER_APPEND = " With a watermark an aggregate's rows come in it, once they are final; rows of every change: docs/spark.md, foreachBatch"
STREAM_CASES = [
    ('checkpoint = "c"', "", "[sink] checkpoint: is missing: a streaming pipeline needs a folder where Spark notes how far it has come, like checkpoint = \"checkpoints/orders\""),
    ('checkpoint = "c"', 'checkpoint = "c"\ntrigger = "soon"', "[sink] trigger: 'soon' is neither \"available-now\" nor an interval like \"10 seconds\""),
    ('checkpoint = "c"', 'checkpoint = "c"\ntrigger = "continuous"', "[sink] trigger: the continuous trigger has no batches that could be written exactly once"),
    ('checkpoint = "c"', 'checkpoint = "c"\noutput_mode = "complete"', "[sink] output_mode: 'complete' is not possible: Spark writes to a data source of Python in the mode append only." + AFTER_APPEND),
    ('checkpoint = "c"', 'checkpoint = "c"\noutput_mode = "update"', "[sink] output_mode: 'update' is not possible: Spark writes to a data source of Python in the mode append only." + AFTER_APPEND),
    ('checkpoint = "c"', 'checkpoint = "c"\noutput_mode = "appended"', "[sink] output_mode: 'appended' is not append; did you mean append?"),
]  # fmt: skip


@pytest.mark.parametrize(("there", "instead", "error"), STREAM_CASES, ids=[case[1] for case in STREAM_CASES])
def test_a_stream_refused_with_its_line(tmp_path: Path, there: str, instead: str, error: str) -> None:
    found = refusal(tmp_path, STREAM.replace(there, instead, 1))
    assert re.sub(r"^p\.toml:\d+: ", "", found) == error
    assert found != error
