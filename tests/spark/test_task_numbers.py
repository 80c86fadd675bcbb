# SPDX-License-Identifier: Apache-2.0
"""What a task tells of its producer: its own work alone, read once, and nothing for each record."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

from penstock.error_codes import ErrorCode
from penstock.protocol.messages import PRODUCE
from penstock.sink import prepare
from penstock.spark import cluster_check
from penstock.spark import task as task_module
from penstock.spark.options import SinkOptions, parse_options
from penstock.spark.partition_sender import TaskMessage
from penstock.spark.producer_numbers import ProducerNumbers
from penstock.spark.task import SparkTask, write_at_least_once, write_exactly_once
from penstock.spark.writers import Write
from penstock.testing import FakeKafka, Fault


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKafka]:
    monkeypatch.setattr(task_module, "_producers", {})
    monkeypatch.setattr(cluster_check, "_seen", {})
    with FakeKafka(topics={"orders": 2, "dead": 1}) as kafka:
        yield kafka
        for producer in list(task_module._producers.values()):
            producer.close(0)


def options(kafka: FakeKafka, **more: str) -> SinkOptions:
    given = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "topic": "orders", **more}
    return parse_options(given | {"delivery": more.get("delivery", "at-least-once")}, streaming=False)


def rows(count: int, size: int = 10) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": [b"x" * size] * count})


def numbers(message: TaskMessage) -> ProducerNumbers:
    return ProducerNumbers.from_dict(message.numbers)


def test_each_task_tells_of_its_own_work(kafka: FakeKafka) -> None:
    settings = options(kafka, **{"kafka.linger.ms": "60000"})  # nothing leaves by it: a task flushes
    for count in (300, 1, 20):
        said = numbers(write_at_least_once(settings, SparkTask(0), [rows(count, 100)]))
        assert said.records == count
        assert said.tasks == 1
        assert 0 < said.batches == said.sends
        assert said.bytes > 100 * count
        assert sum(left.batches for left in said.left.values()) == said.batches
        assert "flush" in said.left
        assert said.fill is not None
        assert 0 < said.fill <= 1
        assert 0 < said.requests <= said.batches
        assert (said.retries, said.cause) == (0, None)
        assert said.slowest == (said.ms, count, said.ms, count, 1)
    assert len(task_module._producers) == 1


def test_a_task_of_a_transaction_tells_too(kafka: FakeKafka) -> None:
    settings = options(kafka, delivery="exactly-once")
    plan = prepare(settings.sink_settings())
    for number in range(2):
        said = numbers(write_exactly_once(settings, plan, SparkTask(number), [rows(7)]))
        assert said.records == 7


def test_options_and_compression_are_told(kafka: FakeKafka) -> None:
    settings = options(
        kafka, **{"kafka.compression.type": "gzip", "kafka.linger.ms": "7", "kafka.batch.size": "5000"}
    )
    said = numbers(write_at_least_once(settings, SparkTask(0), [rows(1000, 100)]))
    assert (said.codec, said.linger_ms, said.batch_size) == ("gzip", 7, 5000)
    assert said.compression is not None
    assert said.compression < 0.5
    assert said.bytes < 1000 * 100 / 2


def test_what_was_sent_again_is_told_with_its_cause_and_only_once(kafka: FakeKafka) -> None:
    settings = options(kafka, **{"kafka.retry.backoff.ms": "1"})
    kafka.add_fault(Fault(api=PRODUCE, error=ErrorCode.NOT_ENOUGH_REPLICAS))
    first = numbers(write_at_least_once(settings, SparkTask(0), [rows(5)]))
    assert first.records == 5
    assert first.retries > 0
    assert first.sends > first.batches
    assert "replicas" in str(first.cause)
    second = numbers(write_at_least_once(settings, SparkTask(1), [rows(5)]))
    assert (second.retries, second.cause) == (0, None)


def test_a_task_that_failed_leaves_nothing_to_the_next(kafka: FakeKafka) -> None:
    settings = options(kafka)

    def broken() -> Iterator[pa.RecordBatch]:
        yield rows(50)
        raise EOFError("the JVM is gone")

    with pytest.raises(EOFError):
        write_at_least_once(settings, SparkTask(0), broken())
    assert numbers(write_at_least_once(settings, SparkTask(0), [rows(3)])).records == 3


def test_a_task_without_rows_has_no_numbers(kafka: FakeKafka) -> None:
    assert write_at_least_once(options(kafka), SparkTask(0), []).numbers is None


def test_dead_letters_are_records_too(kafka: FakeKafka) -> None:
    settings = options(
        kafka, onBadRow="dead-letter", deadLetterTopic="dead", **{"kafka.max.request.size": "2000"}
    )
    said = write_at_least_once(settings, SparkTask(0), [rows(3), rows(1, 5000)])
    assert (said.report.rows, said.report.dead_letters) == (4, 1)
    assert numbers(said).records == 4


def test_the_driver_logs_a_line_for_each_batch(
    kafka: FakeKafka, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    settings = options(kafka, progressFile=str(tmp_path / "progress"))
    messages = [write_at_least_once(settings, SparkTask(number), [rows(4)]) for number in range(3)]
    with caplog.at_level(logging.INFO, "penstock.spark"):
        Write(settings).commit([*messages, TaskMessage()], 0)
        Write(settings).commit([TaskMessage()], 1)  # which sent nothing, and has no line
    (record,) = caplog.records
    assert record.getMessage().startswith("batch 0: 3 tasks sent 12 records in ")


def test_nothing_is_done_for_each_record(kafka: FakeKafka) -> None:
    """As many calls in these modules for twenty thousand records as for ten, but for a few reasons to leave."""
    modules = {f"{name}.py" for name in ("task", "task_numbers", "producer_numbers", "partition_sender")}
    folder = str(Path(task_module.__file__).parent)
    calls = 0

    def count(frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal calls
        place = Path(frame.f_code.co_filename)
        calls += event == "call" and place.name in modules and str(place.parent) == folder

    settings = options(kafka)
    counted = []
    for few_or_many in (10, 10, 20_000):
        calls = 0
        before = sys.getprofile()
        sys.setprofile(count)
        try:
            message = write_at_least_once(settings, SparkTask(0), [rows(few_or_many)])
        finally:
            sys.setprofile(before)
        assert numbers(message).records == few_or_many
        counted.append(calls)
    assert 0 < counted[2] < counted[1] + 100
