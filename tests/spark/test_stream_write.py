# SPDX-License-Identifier: Apache-2.0
"""Streaming queries with a real Spark to a real Kafka: each batch once, also after a restart."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fix_broker import MakeTopic
from fix_spark import ReadBack

from penstock.control import list_transactions
from penstock.devbroker import DevCluster
from penstock.sink import inspect_sinks, sink_key
from pyspark_penstock import DefaultSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSourceStreamWriter
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]


# Of each of two queries that run side by side; more where time is no matter.
BATCHES = 300 if os.environ.get("PENSTOCK_SPARK_FAULTS") == "all" else 8
LONGEST_SECONDS = 100 + BATCHES
MOST_WORKERS = 4  # two tasks at a time, and Spark now and then starts another Python process


class Stream:
    """A streaming query over a folder of JSON files, one file to a batch."""

    def __init__(self, spark: SparkSession, cluster: DevCluster, folder: Path, topic: str) -> None:
        self.spark = spark
        self.servers = cluster.bootstrap_servers
        self.folder = folder
        self.topic = topic
        self.checkpoint = folder / "checkpoint"
        (folder / "in").mkdir()
        self._files = 0

    def add(self, *ids: int) -> None:
        """Put rows into the source, as a file of their own."""
        path = self.folder / "in" / f"{self._files:03}.json"
        self._files += 1
        text = "".join(json.dumps({"id": number}) + "\n" for number in ids)
        path.write_text(text)
        os.utime(path, (self._files, self._files))  # Spark takes them in the order of their times

    def run(self, source_format: str = "penstock", **options: str) -> None:
        """Run until all files are read."""
        self.wait(self.start(source_format, **options))

    def start(self, source_format: str = "penstock", **options: str) -> StreamingQuery:
        """Start the streaming query, and return it."""
        source = (
            self.spark.readStream.schema("id long")
            .option("maxFilesPerTrigger", 1)
            .json(str(self.folder / "in"))
        )
        return (
            source.selectExpr("CAST(id AS STRING) AS key", "CAST(id AS STRING) AS value")
            .writeStream.format(source_format)
            .option("kafka.bootstrap.servers", self.servers)
            .option("topic", self.topic)
            .option("checkpointLocation", str(self.checkpoint))
            .options(**options)
            .trigger(availableNow=True)
            .start()
        )

    @staticmethod
    def wait(query: StreamingQuery) -> None:
        """Wait until all files are read."""
        try:
            query.awaitTermination(LONGEST_SECONDS)
            if (error := query.exception()) is not None:
                raise error
            assert not query.isActive
        finally:
            query.stop()


@pytest.fixture
def stream(spark: SparkSession, dev_cluster: DevCluster, topic: MakeTopic, tmp_path: Path) -> Stream:
    return Stream(spark, dev_cluster, tmp_path, topic(2))


def test_batches_arrive_once_and_a_restart_goes_on(
    stream: Stream, read_back: ReadBack, tmp_path: Path
) -> None:
    progress = tmp_path / "progress"
    stream.add(*range(100))
    stream.add(*range(100, 150))
    stream.run(progressFile=str(progress))
    stream.add(*range(150, 170))
    stream.run(progressFile=str(progress))
    found = Counter(record.value for record in read_back(stream.topic))
    assert found == Counter(str(number).encode() for number in range(170))
    lines = [json.loads(line) for line in progress.read_text().splitlines()]
    assert [(line["batchId"], line["rows"]) for line in lines] == [(0, 100), (1, 50), (2, 20)]


def test_a_batch_that_spark_forgot_is_not_written_again(
    stream: Stream, read_back: ReadBack, tmp_path: Path
) -> None:
    stream.add(*range(30))
    stream.add(*range(30, 60))
    stream.run()
    # As after a driver that died between the sink's commit and Spark's own note of it.
    for path in (stream.checkpoint / "commits").glob("*1*"):
        path.unlink()
    progress = tmp_path / "progress"
    stream.run(progressFile=str(progress))
    found = Counter(record.value for record in read_back(stream.topic))
    assert found == Counter(str(number).encode() for number in range(60))
    (line,) = map(json.loads, progress.read_text().splitlines())
    assert (line["batchId"], line["rows"], line["skipped"]) == (1, 30, True)


def test_two_queries_of_one_application_do_not_take_their_sinks_from_each_other(
    spark: SparkSession, dev_cluster: DevCluster, topic: MakeTopic, read_back: ReadBack, tmp_path: Path
) -> None:
    """Spark plans the batches of both with the same few processes, now with this one and now with that one."""

    # Made in here, so that it is sent to Spark's processes by value: they do not know this file.
    class SlowPlanning(DefaultSource):
        @classmethod
        def name(cls) -> str:
            return "penstock_slow_planning"

        def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
            import threading

            threading.Event().wait(0.15)  # so that both are planned at once, which takes a process for each
            return super().streamWriter(schema, overwrite)

    spark.dataSource.register(SlowPlanning)
    streams = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        streams.append(Stream(spark, dev_cluster, tmp_path / name, topic(1)))
        for number in range(BATCHES):
            streams[-1].add(number)
    for query in [stream.start("penstock_slow_planning") for stream in streams]:
        Stream.wait(query)
    for stream in streams:
        found = [record.value for record in read_back(stream.topic)]
        assert found == [str(number).encode() for number in range(BATCHES)]
        key = sink_key(str(stream.checkpoint))
        (state,) = inspect_sinks({"bootstrap.servers": stream.servers}, key)
        assert state.generation == 1
        ids = list_transactions({"bootstrap.servers": stream.servers}, pattern=rf"ps\.{key}\.[0-9].*")
        assert len(ids) <= MOST_WORKERS


def test_at_least_once_writes_it_again(stream: Stream, read_back: ReadBack) -> None:
    stream.add(*range(30))
    stream.run(delivery="at-least-once")
    for path in (stream.checkpoint / "commits").glob("*0*"):
        path.unlink()
    stream.run(delivery="at-least-once")
    assert len(read_back(stream.topic)) == 60


def test_a_checkpoint_that_was_set_back_is_refused(stream: Stream, read_back: ReadBack) -> None:
    stream.add(*range(10))
    stream.run()
    shutil.copytree(stream.checkpoint, stream.folder / "copy")
    stream.add(*range(10, 20))
    stream.add(*range(20, 30))
    stream.run()
    shutil.rmtree(stream.checkpoint)
    (stream.folder / "copy").rename(stream.checkpoint)
    with pytest.raises(Exception, match="RestoredCheckpointError"):
        stream.run()
    assert len(read_back(stream.topic)) == 30


def test_a_batch_that_is_planned_anew_with_more_rows_is_not_skipped(
    stream: Stream, read_back: ReadBack
) -> None:
    for first in (0, 10):
        stream.add(*range(first, first + 10))
        stream.run()
    # The checkpoint is one batch old: restored from a copy, or its last files were lost with the power.
    for folder in ("offsets", "commits"):
        for path in (stream.checkpoint / folder).glob("*1*"):
            path.unlink()
    stream.add(*range(20, 33))
    with pytest.raises(Exception, match="RestoredCheckpointError") as caught:
        stream.run()
    assert "was written before with 10 rows, and comes again with" in str(caught.value)
    assert len(read_back(stream.topic)) == 20
    stream.run(onRestoredCheckpoint="rewrite")
    found = Counter(record.value for record in read_back(stream.topic))
    assert set(found) == {str(number).encode() for number in range(33)}
    assert all(found[str(number).encode()] == 1 for number in (*range(10), *range(20, 33)))


def test_a_batch_that_a_copy_of_the_checkpoint_wrote_to_another_topic_is_not_skipped(
    stream: Stream, read_back: ReadBack, topic: MakeTopic
) -> None:
    copy = {"topic": topic(2), "checkpointLocation": str(stream.folder / "copy")}
    sink = {"sinkId": str(stream.folder)}
    stream.add(*range(100))
    stream.run(**sink)
    shutil.copytree(stream.checkpoint, stream.folder / "copy")
    stream.add(*range(100, 200))
    stream.run(**sink, **copy)
    assert len(read_back(copy["topic"])) == 100
    with pytest.raises(Exception, match="RestoredCheckpointError"):
        stream.run(**sink)
    assert len(read_back(stream.topic)) == 100
    stream.run(**sink, onRestoredCheckpoint="rewrite")
    found = Counter(record.value for record in read_back(stream.topic))
    assert found == Counter(str(number).encode() for number in range(200))


def test_options_that_do_not_fit_a_streaming_query_are_refused(stream: Stream) -> None:
    stream.add(1)
    with pytest.raises(Exception, match="runId is for batch jobs") as caught:
        stream.run(runId="1")
    assert "Traceback (most recent call last)" not in str(caught.value)


def test_rows_are_written_where_spark_has_no_arrow_batches(stream: Stream, read_back: ReadBack) -> None:
    # Made in here, so that it is sent to Spark's processes by value: they do not know this file.
    class RowSource(DefaultSource):
        @classmethod
        def name(cls) -> str:
            return "penstock_rows"

        def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
            from penstock.spark.options import parse_options
            from penstock.spark.writers import StreamRowWriter, Write

            return StreamRowWriter(Write(parse_options(self.options, streaming=True)), schema)

    stream.spark.dataSource.register(RowSource)
    stream.add(*range(100))
    stream.add(*range(100, 120))
    stream.run("penstock_rows")
    found = Counter(record.value for record in read_back(stream.topic))
    assert found == Counter(str(number).encode() for number in range(120))
