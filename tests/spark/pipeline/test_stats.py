# SPDX-License-Identifier: Apache-2.0
"""Counts of a run come from Spark's progress and from the sink's lines, each batch once."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from penstock._json_fields import Fields
from penstock.spark.pipeline.check import load_pipeline
from penstock.spark.pipeline.stats import (
    BatchCounts,
    ProgressReader,
    RunStats,
    SinkLines,
    bytes_text,
    count_text,
    sorted_partitions,
)

DEFINITION: dict[str, Any] = {
    "pipeline": {"name": "orders"},
    "source": {"format": "rate", "streaming": True},
    "expectations": [
        {"name": "positive", "condition": "amount > 0", "action": "dead-letter"},
        {"name": "known", "condition": "customer IS NOT NULL", "action": "drop"},
    ],
    "sink": {
        "topic": "orders",
        "dead_letter_topic": "dead",
        "checkpoint": "c",
        "options": {"kafka.bootstrap.servers": "h:1"},
    },
}


@pytest.fixture
def stats() -> RunStats:
    return RunStats(pipeline=load_pipeline(DEFINITION), started=100.0)


class Progress:
    """What Spark says of one batch."""

    def __init__(self, batch: int, rows: int, *, at: str = "t", idle: bool = False, **metrics: int) -> None:
        said: dict[str, Any] = {"batchId": batch, "timestamp": at, "numInputRows": rows}
        said["durationMs"] = {"triggerExecution": 500}
        said["observedMetrics"] = {} if idle else {"penstock_rows": {"rows": rows, **metrics}}
        self.json = json.dumps(said)


class Query:
    """A query that has these batches behind it, and remembers the latest few."""

    def __init__(self, *progress: Progress) -> None:
        self.recentProgress = list(progress)
        self.asked_for_all = 0

    @property
    def lastProgress(self) -> Progress | None:
        return self.recentProgress[-1] if self.recentProgress else None


def test_nothing_is_known_before_the_first_batch(stats: RunStats) -> None:
    assert ProgressReader(stats).read(Query(), 101.0) == 0
    assert (stats.rows_in, stats.rows_out, stats.dead_letters, stats.dropped) == (0, 0, 0, 0)
    assert stats.rate(100.0) == 0
    assert stats.bytes is None


def test_batches_are_counted_once(stats: RunStats) -> None:
    reader = ProgressReader(stats)
    query = Query(Progress(0, 100, dead=3, dropped=2, failed_0=3, failed_1=2))
    reader.read(query, 101.0)
    reader.read(query, 102.0)
    query.recentProgress += [Progress(1, 50, at="u"), Progress(2, 10, at="v", dead=1, failed_0=1)]
    reader.read(query, 104.0)
    reader.read(query, 105.0)
    assert [batch.number for batch in stats.batches] == [0, 1, 2]
    assert (stats.rows_in, stats.rows_out, stats.dead_letters, stats.dropped) == (160, 154, 4, 2)
    assert [(expectation.name, count) for expectation, count in stats.failed] == [
        ("positive", 4),
        ("known", 2),
    ]
    assert stats.batches[0].at == 1.0
    assert stats.batches[0].seconds == 0.5
    assert stats.rate(107.0) == pytest.approx(22.0)


def test_the_first_look_may_find_several(stats: RunStats) -> None:
    ProgressReader(stats).read(Query(Progress(0, 5), Progress(1, 6)), 101.0)
    assert stats.rows_in == 11


def test_a_restarted_query_goes_on_where_it_was(stats: RunStats) -> None:
    ProgressReader(stats).read(Query(Progress(7, 5)), 101.0)
    assert stats.rows_in == 5


def test_idle_reports_are_no_batches(stats: RunStats) -> None:
    reader = ProgressReader(stats)
    query = Query(Progress(0, 5, at="a"), Progress(1, 0, at="b", idle=True))
    reader.read(query, 101.0)
    query.recentProgress.append(Progress(1, 0, at="c", idle=True))
    reader.read(query, 111.0)
    query.recentProgress.append(Progress(1, 8, at="d"))
    reader.read(query, 121.0)
    assert [batch.rows for batch in stats.batches] == [5, 8]


def test_spark_connect_gives_parts_instead_of_sums(stats: RunStats) -> None:
    progress = Progress(0, 7)
    said = json.loads(progress.json)
    del said["numInputRows"]
    said["sources"] = [{"numInputRows": 4}, {"numInputRows": 3}]
    fields = [{"name": "rows", "type": "long"}, {"name": "dead", "type": "long"}]
    said["observedMetrics"] = {"penstock_rows": {"values": [7, 2], "schema": {"fields": fields}}}
    progress.json = json.dumps(said)
    ProgressReader(stats).read(Query(progress), 101.0)
    assert (stats.rows_in, stats.rows_out, stats.dead_letters) == (7, 5, 2)


def test_rows_in_are_unknown_where_nobody_counted(stats: RunStats) -> None:
    stats.add_batch(0, 1.0, 1.0, BatchCounts(None, {"rows": 4}))
    assert stats.rows_in is None
    assert stats.rows_out == 4


@pytest.mark.parametrize("outcome", ["failed", "stopped"])
def test_a_run_that_ended_in_its_first_batch_has_counted_nothing(stats: RunStats, outcome: str) -> None:
    stats.outcome = outcome
    assert stats.rows_in is None
    assert [count for _, count in stats.failed] == [None, None]


def test_a_run_that_found_nothing_to_do_has_counted_zero(stats: RunStats) -> None:
    stats.outcome = "done"
    assert stats.rows_in == 0
    assert [count for _, count in stats.failed] == [0, 0]


def test_rows_that_fail_the_expectation_that_stopped_the_run_are_not_counted(stats: RunStats) -> None:
    stats.add_batch(0, 1.0, 1.0, BatchCounts(4, {"rows": 4, "failed_1": 1}))
    stats.outcome, stats.stopped_by = "failed", "positive"
    assert stats.rows_in == 4
    assert [(expectation.name, count) for expectation, count in stats.failed] == [
        ("positive", None),
        ("known", 1),
    ]


def test_lines_of_the_sink_are_taken_once(stats: RunStats, tmp_path: Path) -> None:
    lines = SinkLines(tmp_path / "progress.jsonl")
    assert lines.read(stats) == 0
    first = {
        "batchId": 0,
        "rows": 7,
        "bytes": 1000,
        "deadLetters": 2,
        "partitions": {"orders": {"0": {"rows": 5, "endOffset": 6}, "1": {"rows": 2}}},
    }
    second = {
        "batchId": 1,
        "rows": 3,
        "bytes": 500,
        "partitions": {"orders": {"0": {"rows": 3, "endOffset": 10}}, "dead": {"0": {"rows": 1}}},
    }
    text = json.dumps(first) + "\n" + json.dumps(second)
    lines.path.write_text(text[:-5])
    assert lines.read(stats) == 1
    assert lines.read(stats) == 0
    lines.path.write_text(text + "\n")
    assert lines.read(stats) == 1
    assert (stats.bytes, stats.bad_rows, stats.skipped_rows) == (1500, 2, 0)
    assert [
        (topic, number, facts.rows, facts.end_offset) for topic, number, facts in sorted_partitions(stats)
    ] == [
        ("dead", 0, 1, None),
        ("orders", 0, 8, 10),
        ("orders", 1, 2, None),
    ]


@pytest.mark.parametrize(
    "bad",
    [
        b'{"batchId": 1, "rows": 1, "byt',
        b'{"batchId": 1, "rows": 1, "byt{"batchId": 2, "rows": 1}',
        b"\xff\xfe",
        b"[" * 100_000,
        b"[1, 2]",
        b"7",
        b"",
        b'{"rows": 1}',
        b'{"batchId": "1"}',
        b'{"batchId": 1, "bytes": 1.5}',
        b'{"batchId": 1, "deadLetters": -1}',
        b'{"batchId": 1, "skipped": "no"}',
        b'{"batchId": 1, "bytes": 5, "partitions": []}',
        b'{"batchId": 1, "bytes": 5, "partitions": {"orders": 3}}',
        b'{"batchId": 1, "bytes": 5, "partitions": {"orders": {"zero": {"rows": 1}}}}',
        b'{"batchId": 1, "bytes": 5, "partitions": {"orders": {"4294967296": {"rows": 1}}}}',
        b'{"batchId": 1, "bytes": 5, "partitions": {"orders": {"0": {"rows": true}}}}',
        b'{"batchId": 1, "bytes": 5, "partitions": {"orders": {"0": {"endOffset": null}}}}',
    ],
)
def test_a_line_that_cannot_be_read_is_told_once_and_those_behind_it_count(
    stats: RunStats, tmp_path: Path, caplog: pytest.LogCaptureFixture, bad: bytes
) -> None:
    good = {"batchId": 0, "bytes": 10, "partitions": {"orders": {"0": {"rows": 5, "endOffset": 6}}}}
    line = json.dumps(good).encode()
    lines = SinkLines(tmp_path / "progress.jsonl")
    lines.path.write_bytes(line + b"\n" + bad + b"\n" + line + b"\n")
    with caplog.at_level(logging.WARNING, "penstock.spark"):
        assert lines.read(stats) == 2
        assert lines.read(stats) == 0
    assert (stats.bytes, stats.bad_rows, stats.skipped_rows, stats.skipped_batches) == (20, 0, 0, set())
    assert [(facts.rows, facts.end_offset) for facts in stats.partitions.values()] == [(10, 6)]
    (told,) = caplog.records
    assert vars(told)["kafka_event"] == "spark-numbers-unreadable"
    assert "(line 2 of its progress)" in told.getMessage()


@pytest.mark.parametrize("sink_first", [True, False])
def test_a_batch_that_was_there_already_has_sent_nothing(stats: RunStats, sink_first: bool) -> None:
    counts = BatchCounts(20, {"rows": 20, "dead": 1, "dropped": 1, "failed_0": 1, "failed_1": 1})
    if sink_first:
        stats.add_sink_line(Fields({"batchId": 3, "rows": 19, "skipped": True}))
    stats.add_batch(3, 1.0, 1.0, counts)
    if not sink_first:
        stats.add_sink_line(Fields({"batchId": 3, "rows": 19, "skipped": True}))
    assert (stats.rows_in, stats.rows_out, stats.dead_letters, stats.dropped) == (20, 0, 0, 1)
    assert stats.skipped_rows == 19
    stats.add_batch(4, 2.0, 1.0, counts)
    stats.add_sink_line(Fields({"batchId": 4, "rows": 19, "skipped": False}))
    assert (stats.rows_out, stats.dead_letters, stats.skipped_rows) == (18, 1, 19)


def test_time_stands_still_at_the_end(stats: RunStats) -> None:
    assert stats.seconds(103.0) == 3.0
    stats.finished = 104.0
    assert stats.seconds(200.0) == 4.0


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (None, "-"),
        (0, "0 B"),
        (999, "999 B"),
        (1500, "1.5 kB"),
        (2_000_000, "2.0 MB"),
        (3 * 10**12, "3.0 TB"),
    ],
)
def test_sizes_are_readable(size: int | None, text: str) -> None:
    assert bytes_text(size) == text


def test_counts_are_readable() -> None:
    assert count_text(1234567) == "1,234,567"
    assert count_text(None) == "-"


def test_rows_that_the_sink_found_bad_are_not_counted_as_written(stats: RunStats) -> None:
    stats.add_sink_line(
        Fields({"batchId": 0, "deadLetters": 1, "partitions": {"orders": {"0": {"rows": 9}}}})
    )
    assert stats.rows_out == 0  # Spark has not told of the batch yet
    stats.add_batch(0, 1.0, 1.0, BatchCounts(10, {"rows": 10}))
    assert (stats.rows_in, stats.rows_out, stats.bad_rows) == (10, 9, 1)
