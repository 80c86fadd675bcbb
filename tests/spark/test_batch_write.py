# SPDX-License-Identifier: Apache-2.0
"""Batch writes with a real Spark to a real Kafka, read back by a consumer that is not ours."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fix_broker import MakeTopic
from fix_spark import ReadBack, ReadRecord, Write

from penstock._primitives_cy import partition_for_key
from penstock.devbroker import DevCluster
from pyspark_penstock import DefaultSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import DataSourceWriter
    from pyspark.sql.types import StructType

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

EXACTLY, AT_LEAST = "exactly-once", "at-least-once"
MOMENT_MS = 1_767_323_045_678


def orders(spark: SparkSession, rows: int, partitions: int = 2) -> DataFrame:
    return spark.range(0, rows, 1, partitions).selectExpr(
        "CAST(id % 10 AS STRING) AS key", "CAST(concat('order-', id) AS BINARY) AS value"
    )


def values(records: list[ReadRecord]) -> Counter[bytes | None]:
    return Counter(record.value for record in records)


def expected_orders(rows: int) -> Counter[bytes | None]:
    return Counter(f"order-{number}".encode() for number in range(rows))


@pytest.mark.parametrize("delivery", [EXACTLY, AT_LEAST])
def test_every_row_arrives_once_in_the_partition_of_its_key(
    spark: SparkSession, topic: MakeTopic, write: Write, read_back: ReadBack, delivery: str
) -> None:
    name = topic(3)
    write(orders(spark, 5000, 3), topic=name, delivery=delivery)
    records = read_back(name)
    assert values(records) == expected_orders(5000)
    assert all(record.partition == partition_for_key(record.key, 3) for record in records if record.key)


@pytest.mark.parametrize("delivery", [EXACTLY, AT_LEAST])
def test_all_that_a_record_can_have(
    spark: SparkSession, topic: MakeTopic, write: Write, read_back: ReadBack, delivery: str
) -> None:
    name, other = topic(4), topic(1)
    frame = spark.sql(f"""
        SELECT 'text' AS value, X'00FF' AS key, 3 AS partition, '{name}' AS topic,
               timestamp_millis({MOMENT_MS}) AS timestamp,
               array(named_struct('key', 'h', 'value', X'01'), named_struct('key', 'n', 'value', CAST(NULL AS BINARY)))
                   AS headers
        UNION ALL SELECT NULL, X'07', NULL, '{other}', NULL, NULL
    """)
    write(frame, delivery=delivery)
    (record,) = read_back(name)
    assert (record.key, record.value, record.partition) == (b"\x00\xff", b"text", 3)
    assert record.headers == (("h", b"\x01"), ("n", None))
    assert record.timestamp_ms == MOMENT_MS
    (tombstone,) = read_back(other)
    assert (tombstone.key, tombstone.value, tombstone.headers) == (b"\x07", None, ())
    assert abs(tombstone.timestamp_ms / 1000 - time.time()) < 600


def test_the_option_topic_goes_before_the_column(
    spark: SparkSession, topic: MakeTopic, write: Write, read_back: ReadBack
) -> None:
    name, other = topic(), topic()
    write(spark.sql(f"SELECT 'v' AS value, '{other}' AS topic"), topic=name)
    assert (len(read_back(name)), len(read_back(other))) == (1, 0)


def test_empty_frames_and_empty_partitions_are_fine(
    spark: SparkSession, topic: MakeTopic, write: Write, read_back: ReadBack
) -> None:
    name = topic()
    write(orders(spark, 0), topic=name)
    write(spark.createDataFrame([], "value string"), topic=name)
    assert read_back(name) == []
    write(orders(spark, 1, 2), topic=name)
    assert values(read_back(name)) == expected_orders(1)


def test_a_run_is_written_once_and_another_one_again(
    spark: SparkSession, topic: MakeTopic, write: Write, read_back: ReadBack
) -> None:
    name = topic(2)
    frame = orders(spark, 500)
    write(frame, topic=name, runId=f"{name}-1")
    write(frame, topic=name, runId=f"{name}-1")
    assert values(read_back(name)) == expected_orders(500)
    write(frame, topic=name, runId=f"{name}-2")
    assert values(read_back(name)) == expected_orders(500) + expected_orders(500)
    with pytest.raises(Exception, match=r"RunIdReusedError") as caught:
        write(frame, topic=topic(), runId=f"{name}-1")
    assert "Traceback" not in str(caught.value)


def refused(spark: SparkSession, write: Write, frame: DataFrame, **options: str) -> str:
    """What the query says when a write fails."""
    started = time.monotonic()
    with pytest.raises(Exception, match="penstock") as caught:
        write(frame, **options)
    assert time.monotonic() - started < 60, "that is not seconds, even on a busy machine"
    said = str(caught.value)
    assert "Traceback" not in said
    return said


def test_what_is_wrong_is_said_in_a_sentence_on_the_driver(
    spark: SparkSession, topic: MakeTopic, write: Write, read_back: ReadBack
) -> None:
    name = topic()
    text = spark.range(5).selectExpr("CAST(id AS STRING) AS value")
    said = refused(spark, write, spark.range(5).selectExpr("id AS value"), topic=name)
    assert (
        "the column value is bigint, but must be string or binary: use CAST(value AS STRING) AS value" in said
    )
    assert "no topic: set .option" in refused(spark, write, text)
    assert "did you mean 'topic'?" in refused(spark, write, text, topik=name)
    assert "did you mean 'kafka.linger.ms'?" in refused(spark, write, text, topic=name, kafka_lingre_ms="1")
    extra = text.selectExpr("value", "1 AS amount")
    assert "column 'amount' would not be written" in refused(spark, write, extra, topic=name)
    assert read_back(name) == []
    write(extra, topic=name, ignoreExtraColumns="true")
    assert len(read_back(name)) == 5


def test_a_wrong_address_fails_in_seconds_with_the_cause(spark: SparkSession, write: Write) -> None:
    frame = orders(spark, 5)
    said = refused(spark, write, frame, topic="orders", kafka_bootstrap_servers="127.0.0.1:1")
    assert "penstock.errors.KafkaError: the driver cannot reach Kafka at 127.0.0.1:1 within 8 s" in said
    assert "connection refused" in said


def test_a_row_that_is_too_large_fails_the_write_and_nothing_is_visible(
    spark: SparkSession, topic: MakeTopic, write: Write, read_back: ReadBack
) -> None:
    name = topic(2)
    frame = spark.range(0, 2000, 1, 2).selectExpr(
        "CASE WHEN id = 1500 THEN repeat('x', 60000) ELSE 'fine' END AS value"
    )
    said = refused(spark, write, frame, topic=name, kafka_max_request_size="50000")
    assert "1 row of partition 1 of the DataFrame cannot be written to topic" in said
    assert "(row 500: the record takes up to" in said
    assert "max.request.size" in said
    assert read_back(name) == []


def test_bad_rows_go_to_the_dead_letter_topic_with_the_others(
    spark: SparkSession, topic: MakeTopic, write: Write, read_back: ReadBack, tmp_path: Path
) -> None:
    name, dead = topic(2), topic()
    frame = spark.range(0, 1000, 1, 2).selectExpr(
        "CAST(id AS STRING) AS key",
        "CASE WHEN id = 7 THEN repeat('x', 60000) ELSE 'fine' END AS value",
        "CASE WHEN id = 900 THEN 77 ELSE NULL END AS partition",
    )
    progress = tmp_path / "progress"
    options = {"onBadRow": "dead-letter", "deadLetterTopic": dead, "progressFile": str(progress)}
    write(frame, topic=name, kafka_max_request_size="50000", **options)
    assert len(read_back(name)) == 998
    letters = {record.key: record for record in read_back(dead)}
    assert sorted(letters) == [b"7", b"900"]
    assert (letters[b"7"].value, letters[b"900"].value) == (None, b"fine")
    assert dict(letters[b"7"].headers)["penstock.value.size"] == b"60000"
    assert dict(letters[b"900"].headers)["penstock.topic"] == name.encode()
    (line,) = map(json.loads, progress.read_text().splitlines())
    assert (line["batchId"], line["rows"], line["deadLetters"], line["skipped"]) == (0, 1000, 2, False)
    assert line["partitions"][dead]["0"]["rows"] == 2


def test_a_task_that_fails_is_run_again_and_its_rows_are_there_once(
    spark: SparkSession, topic: MakeTopic, write: Write, read_back: ReadBack, tmp_path: Path
) -> None:
    name = topic(2)
    marker = str(tmp_path / "failed-once")

    def fail_once(batches: object) -> object:
        from pathlib import Path as PathInWorker

        yield from batches  # type: ignore[misc]
        if not PathInWorker(marker).exists():
            PathInWorker(marker).touch()
            raise RuntimeError("the first attempt ends here, with its rows sent")

    frame = orders(spark, 3000).mapInArrow(fail_once, "key string, value binary")
    write(frame, topic=name)
    assert Path(marker).exists()
    assert values(read_back(name)) == expected_orders(3000)


def test_an_error_of_the_commit_is_a_sentence_too_and_nothing_is_visible(
    spark: SparkSession, dev_cluster: DevCluster, topic: MakeTopic, read_back: ReadBack
) -> None:
    # Made in here, so that it is sent to Spark's processes by value: they do not know this file.
    class FailingSource(DefaultSource):
        @classmethod
        def name(cls) -> str:
            return "penstock_failing"

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
            from penstock.errors import KafkaError
            from penstock.spark.worker import plain_errors
            from penstock.spark.writers import BatchWriter, batch_writer

            class FailingWriter(BatchWriter):
                def commit(self, messages: object) -> None:
                    with plain_errors():
                        raise KafkaError("the brokers are on strike")

            return FailingWriter(batch_writer(self.options, schema, overwrite)._write)  # type: ignore[attr-defined]

    spark.dataSource.register(FailingSource)
    name = topic(2)
    write = orders(spark, 100).write.format("penstock_failing").mode("append").option("topic", name)
    with pytest.raises(Exception, match="the brokers are on strike") as caught:
        write.option("kafka.bootstrap.servers", dev_cluster.bootstrap_servers).save()
    assert "Traceback" not in str(caught.value)
    assert read_back(name) == []
