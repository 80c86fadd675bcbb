# SPDX-License-Identifier: Apache-2.0
"""On a real Spark: a dry run shows plan, schema and sample, writes nothing, and asks no broker."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.spark.pipeline.check import load_pipeline
from penstock.spark.pipeline.dry_run import dry_run, shown

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GOLDEN = Path(__file__).resolve().with_name("dry_run.txt")

DEFINITION: dict[str, Any] = {
    "pipeline": {"name": "orders"},
    "source": {
        "sql": "SELECT id, id * 10 - 20 AS amount, concat('c', id % 2) AS customer FROM range(0, 100, 1, 1)"
    },
    "steps": [
        {"name": "paid", "sql": "SELECT *, amount * 2 AS twice\nFROM input\nWHERE id <> 1"},
        {"sql": "SELECT * FROM paid ORDER BY id"},
    ],
    "expectations": [
        {"name": "amount is positive", "condition": "amount > 0", "action": "dead-letter"},
        {"name": "no seventh", "condition": "id <> 7", "action": "drop"},
        {"name": "id is there", "condition": "id IS NOT NULL", "action": "fail"},
    ],
    "sink": {
        "topic": "orders",
        "key": "customer",
        "value": ["id", "twice", "repeat('long ', IF(id = 3, 30, 1)) AS text"],
        "headers": {"origin": "'test'", "raw": "X'FF00'"},
        "timestamp": "timestamp_seconds(id * 86400)",
        "partition": "id % 4",
        "dead_letter_topic": "orders-dead",
        "options": {"kafka.bootstrap.servers": "nowhere:1", "kafka.ssl.key.password": "hush", "runId": "7"},
    },
}


@pytest.mark.spark
@pytest.mark.broker
@pytest.mark.slow
def test_what_is_shown(spark: SparkSession) -> None:
    text = "\n".join(dry_run(load_pipeline(DEFINITION), spark)) + "\n"
    assert text == GOLDEN.read_text(encoding="utf-8")


@pytest.mark.spark
@pytest.mark.broker
@pytest.mark.slow
def test_a_stream_gives_a_sample_and_leaves_nothing(spark: SparkSession, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    pipeline = load_pipeline(
        {
            "source": {
                "format": "rate-micro-batch",
                "streaming": True,
                "options": {"rowsPerBatch": 100, "numPartitions": 1},
            },
            "steps": [{"sql": "SELECT value AS number FROM input"}],
            "sink": {
                "topic": "t",
                "checkpoint": str(checkpoint),
                "options": {"kafka.bootstrap.servers": "nowhere:1"},
            },
        }
    )
    lines = list(dry_run(pipeline, spark))
    assert "Sample, 10 records as they would be sent" in lines
    assert '      value  {"number":9}' in lines
    assert not checkpoint.exists()
    assert spark.streams.active == []


@pytest.mark.spark
@pytest.mark.broker
@pytest.mark.slow
def test_no_rows_are_said_in_words(spark: SparkSession) -> None:
    source = {"sql": "SELECT 1 AS id WHERE false"}
    sink = {"topic": "t", "options": {"kafka.bootstrap.servers": "nowhere:1"}}
    lines = list(dry_run(load_pipeline({"source": source, "sink": sink}), spark))
    assert lines[-1] == "No sample: the source gave no rows"


@pytest.mark.spark
@pytest.mark.broker
@pytest.mark.slow
def test_a_row_that_must_not_be_there_is_said_in_words(spark: SparkSession) -> None:
    lines = list(
        dry_run(
            load_pipeline(
                {
                    "source": {"sql": "SELECT -1 AS amount"},
                    "expectations": [{"name": "is positive", "condition": "amount > 0", "action": "fail"}],
                    "sink": {"topic": "t", "options": {"kafka.bootstrap.servers": "nowhere:1"}},
                }
            ),
            spark,
        )
    )
    assert lines[-1] == "No sample: the expectation 'is positive' is not met by a row: {\"amount\":-1}"


@pytest.mark.spark
@pytest.mark.broker
@pytest.mark.slow
def test_a_stream_that_stays_empty_says_how_long_it_waited(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    monkeypatch.setattr("penstock.spark.pipeline.dry_run._STREAM_WAIT", 1.0)
    source = {"format": "text", "streaming": True, "options": {"path": str(tmp_path / "in")}}
    options = {"kafka.bootstrap.servers": "nowhere:1"}
    sink = {"topic": "t", "checkpoint": str(tmp_path / "checkpoint"), "options": options}
    lines = list(dry_run(load_pipeline({"source": source, "sink": sink}), spark))
    assert lines[-1] == "No sample: no rows within 1 s"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (None, "null"),
        ("plain", "plain"),
        (bytearray(b"bytes"), "bytes"),
        (b"\xff\x01", "0xff01"),
        ("two\nlines", '"two\\nlines"'),
        ("x" * 150, "x" * 100 + "... (150 characters)"),
    ],
)
def test_keys_and_values_fit_on_a_line(data: object, text: str) -> None:
    assert shown(data) == text
