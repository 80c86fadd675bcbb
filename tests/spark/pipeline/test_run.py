# SPDX-License-Identifier: Apache-2.0
"""On a real Spark and a real Kafka: pipelines write what they should, count it, and stop when asked."""

from __future__ import annotations

import copy
import json
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fix_broker import MakeTopic
from fix_spark import ReadBack

from penstock.devbroker import DevCluster
from penstock.errors import ExpectationFailedError, PipelineDefinitionError, PipelineError
from penstock.spark import run_pipeline
from penstock.spark.pipeline.check import load_pipeline
from penstock.spark.pipeline.producers import producer_rows
from penstock.spark.pipeline.run import PipelineRun, StopSignals
from penstock.spark.pipeline.stats import RunStats
from penstock.spark.pipeline.view import NoView

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(600)]

ORDERS = "SELECT id, id % 10 AS amount, concat('c', id % 3) AS customer FROM range(0, 1000, 1, 2)"


@pytest.fixture
def definition(dev_cluster: DevCluster, topic: MakeTopic) -> dict[str, Any]:
    """A batch of 1000 orders, 100 of them without an amount."""
    return {
        "pipeline": {"name": "orders"},
        "source": {"sql": ORDERS},
        "sink": {
            "topic": topic(2),
            "key": "customer",
            "options": {"kafka.bootstrap.servers": dev_cluster.bootstrap_servers},
        },
    }


@pytest.fixture
def streaming(definition: dict[str, Any], tmp_path: Path, spark: SparkSession) -> dict[str, Any]:
    """The same from files, two at a time."""
    spark.sql(ORDERS).repartition(4).write.json(str(tmp_path / "in"))
    data = copy.deepcopy(definition)
    data["source"] = {
        "format": "json",
        "path": str(tmp_path / "in"),
        "schema": "id LONG, amount LONG, customer STRING",
        "streaming": True,
        "options": {"maxFilesPerTrigger": 2},
    }
    data["sink"] |= {"checkpoint": str(tmp_path / "checkpoint"), "trigger": "available-now"}
    return data


def ids(records: list[Any]) -> list[int]:
    return sorted(json.loads(record.value)["id"] for record in records)


def test_a_batch_is_written_and_counted(
    spark: SparkSession, definition: dict[str, Any], read_back: ReadBack, tmp_path: Path
) -> None:
    definition["steps"] = [{"sql": "SELECT * FROM input WHERE id < 500"}]
    stats = run_pipeline(definition, spark, report=tmp_path / "report.html")
    records = read_back(definition["sink"]["topic"])
    assert ids(records) == list(range(500))
    assert {record.key for record in records} == {b"c0", b"c1", b"c2"}
    assert stats.outcome == "done"
    assert (stats.rows_in, stats.rows_out, stats.dead_letters, stats.dropped) == (1000, 500, 0, 0)
    assert stats.bytes is not None
    assert stats.bytes >= sum(len(record.value or b"") for record in records)
    assert sum(facts.rows for facts in stats.partitions.values()) == 500
    last = {record.partition: record.offset for record in records}
    for (_topic, partition), facts in stats.partitions.items():
        assert facts.end_offset == last[partition] + 1
    assert "500" in (tmp_path / "report.html").read_text()


def test_good_rows_and_dead_letters_leave_in_the_same_write(
    spark: SparkSession, streaming: dict[str, Any], topic: MakeTopic, read_back: ReadBack
) -> None:
    streaming["expectations"] = [
        {"name": "has an amount", "condition": "amount > 0", "action": "dead-letter"},
        {"name": "not the last", "condition": "id < 990", "action": "drop"},
    ]
    streaming["sink"]["dead_letter_topic"] = topic(1)
    stats = run_pipeline(streaming, spark)
    good, dead = (
        read_back(streaming["sink"]["topic"]),
        read_back(streaming["sink"]["dead_letter_topic"]),
    )
    assert ids(good) == [number for number in range(990) if number % 10]
    assert ids(dead) == list(range(0, 1000, 10))
    assert dict(dead[0].headers)["penstock.expectation"] in (b"has an amount", b"has an amount, not the last")
    assert (stats.rows_in, stats.rows_out, stats.dead_letters, stats.dropped) == (1000, 891, 100, 9)
    assert [count for _, count in stats.failed] == [100, 10]
    assert len(stats.batches) == 2
    assert {name for name, _ in stats.partitions} == {
        streaming["sink"]["topic"],
        streaming["sink"]["dead_letter_topic"],
    }
    assert spark.streams.active == []
    producers = stats.producers
    assert producers is not None
    assert (producers.records, producers.unknown, producers.retries) == (991, 0, 0)
    assert producers.bytes > sum(len(record.value or b"") for record in (*good, *dead))
    assert 0 < producers.batches == producers.sends
    assert 0 < producers.requests <= producers.batches
    assert {batch.number for batch in stats.batches} == set(stats.producers_by_batch)
    assert sum(each.records for each in stats.producers_by_batch.values()) == 991
    assert all(1 <= each.tasks <= 4 for each in stats.producers_by_batch.values())
    assert 0 < producers.slowest.ms <= producers.ms
    assert {row.label: row.value for row in producer_rows(stats)}["records sent"] == "991"


def test_a_stream_that_was_read_is_not_written_again(
    spark: SparkSession, streaming: dict[str, Any], read_back: ReadBack
) -> None:
    run_pipeline(streaming, spark)
    again = run_pipeline(streaming, spark)
    assert again.rows_out == 0
    assert ids(read_back(streaming["sink"]["topic"])) == list(range(1000))


def test_an_expectation_that_fails_leaves_nothing_visible(
    spark: SparkSession, definition: dict[str, Any], read_back: ReadBack, tmp_path: Path
) -> None:
    definition["expectations"] = [{"name": "small", "condition": "id < 900", "action": "fail"}]
    with pytest.raises(ExpectationFailedError) as caught:
        run_pipeline(definition, spark, report=tmp_path / "report.html")
    assert str(caught.value).startswith("orders: the expectation 'small' is not met by a row: {\"id\":9")
    assert caught.value.expectation == "small"
    assert read_back(definition["sink"]["topic"]) == []
    page = (tmp_path / "report.html").read_text()
    assert "failed" in page
    assert "is not met by a row" in page
    assert "at least 1" in page


def test_an_expectation_ends_a_stream_too(spark: SparkSession, streaming: dict[str, Any]) -> None:
    streaming["expectations"] = [{"name": "small", "condition": "id < 900", "action": "fail"}]
    with pytest.raises(ExpectationFailedError):
        run_pipeline(streaming, spark)
    assert spark.streams.active == []


def test_a_bad_definition_starts_nothing(spark: SparkSession, definition: dict[str, Any]) -> None:
    definition["sink"]["key"] = "custommer"
    with pytest.raises(PipelineDefinitionError, match=r"\[sink\] key: \[UNRESOLVED_COLUMN"):
        run_pipeline(definition, spark)


class StopAfterFirstBatch(NoView):
    """Asks for a stop when it sees that a batch is done."""

    def __init__(self, stop: StopSignals) -> None:
        self._stop = stop

    def update(self, stats: RunStats, now: float, words: str) -> None:
        if stats.batches and not self._stop.wanted:
            self._stop.request()


def endless(streaming: dict[str, Any]) -> dict[str, Any]:
    del streaming["sink"]["trigger"]
    streaming["source"] = {
        "format": "rate-micro-batch",
        "streaming": True,
        "options": {"rowsPerBatch": 100, "numPartitions": 1},
    }
    streaming["steps"] = [{"sql": "SELECT value AS id, 'c' AS customer FROM input"}]
    return streaming


SLOW = (
    "SELECT id, 'c' AS customer, reflect('java.lang.Thread', 'sleep', 100L) AS nap FROM range(0, 10000, 1, 2)"
)


def test_a_stop_between_batches_loses_nothing(
    spark: SparkSession, streaming: dict[str, Any], read_back: ReadBack
) -> None:
    stop = StopSignals()
    run = PipelineRun(load_pipeline(endless(streaming)), spark, stop, StopAfterFirstBatch(stop))
    run.run()
    assert run.stats.outcome == "stopped"
    assert spark.streams.active == []
    found = ids(read_back(streaming["sink"]["topic"]))
    assert found == list(range(len(found)))
    assert len(found) >= run.stats.rows_out >= 100


def test_a_signal_stops_a_pipeline_and_is_passed_on(spark: SparkSession, streaming: dict[str, Any]) -> None:
    class Interrupts(NoView):
        def update(self, stats: RunStats, now: float, words: str) -> None:
            if stats.batches:
                signal.raise_signal(signal.SIGINT)

    assert threading.current_thread() is threading.main_thread()
    with pytest.raises(KeyboardInterrupt):
        run_pipeline(endless(streaming), spark, view=Interrupts())
    assert spark.streams.active == []


class FailsAtOnce(NoView):
    def update(self, stats: RunStats, now: float, words: str) -> None:
        raise ValueError("of the view")


def test_a_view_that_fails_leaves_no_query_behind(spark: SparkSession, streaming: dict[str, Any]) -> None:
    with pytest.raises(PipelineError, match="of the view"):
        run_pipeline(endless(streaming), spark, view=FailsAtOnce())
    assert spark.streams.active == []


def test_a_view_that_fails_leaves_no_batch_job_behind(
    spark: SparkSession, definition: dict[str, Any], read_back: ReadBack
) -> None:
    definition["source"] = {"sql": SLOW}
    with pytest.raises(PipelineError, match="of the view"):  # while Spark plans
        run_pipeline(definition, spark, view=FailsAtOnce())
    assert "penstock-pipeline" not in [thread.name for thread in threading.enumerate()]
    assert read_back(definition["sink"]["topic"]) == []


def test_a_batch_job_can_be_stopped(
    spark: SparkSession, definition: dict[str, Any], read_back: ReadBack
) -> None:
    class StopAtOnce(NoView):
        def update(self, stats: RunStats, now: float, words: str) -> None:
            if "of" in words:  # tasks are running
                stop.request()

    stop = StopSignals()
    definition["source"] = {"sql": SLOW}
    run = PipelineRun(load_pipeline(definition), spark, stop, StopAtOnce())
    run.run()
    assert run.stats.outcome == "stopped"
    assert read_back(definition["sink"]["topic"]) == []
