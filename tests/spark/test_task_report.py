# SPDX-License-Identifier: Apache-2.0
"""A line for each batch, and never a reason for a batch to fail."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import pytest

from penstock.spark.partition_sender import PartitionSums, TaskReport, append_progress, summed
from penstock.types import BulkReport, PartitionReport, TopicPartition


def test_a_line_for_each_batch(tmp_path: Path) -> None:
    path = tmp_path / "progress"
    report = TaskReport(3, 30, 1, {"b": {1: PartitionSums(2, 7), 0: PartitionSums(1, -1)}})
    append_progress(str(path), 4, report, skipped=False)
    append_progress(str(path), 5, TaskReport(rows=2), skipped=True)
    first, second = map(json.loads, path.read_text().splitlines())
    assert first == {
        "batchId": 4,
        "rows": 3,
        "bytes": 30,
        "skipped": False,
        "deadLetters": 1,
        "partitions": {"b": {"0": {"rows": 1}, "1": {"rows": 2, "endOffset": 7}}},
    }
    assert (second["batchId"], second["skipped"], second["partitions"]) == (5, True, {})


def test_a_file_that_cannot_be_written_fails_no_batch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        append_progress(str(tmp_path / "no" / "such"), 1, TaskReport(), skipped=False)
    assert "batch 1" in caplog.text


def test_a_line_that_was_cut_off_takes_no_other_with_it(tmp_path: Path) -> None:
    path = tmp_path / "progress"
    append_progress(str(path), 1, TaskReport(), skipped=False)
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:30])  # the disk was full, or the driver was killed
    for number in (3, 4):
        append_progress(str(path), number, TaskReport(rows=2), skipped=False)
    first, half, *others = path.read_bytes().splitlines()
    assert (first + b"\n", half) == (whole, whole[:30])
    assert [json.loads(line)["batchId"] for line in others] == [3, 4]


def test_an_empty_file_gets_no_empty_line(tmp_path: Path) -> None:
    path = tmp_path / "progress"
    path.touch()
    append_progress(str(path), 1, TaskReport(), skipped=False)
    assert json.loads(path.read_text())["batchId"] == 1


def test_progress_can_be_written_to_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as reader:
        append_progress(str(path), 1, TaskReport(), skipped=False)
        assert json.loads(reader.read())["batchId"] == 1


def test_reports_add_up() -> None:
    one, other = TaskReport(rows=2), TaskReport(rows=3, dead_letters=1)
    one.add_delivered(BulkReport(2, 20, {TopicPartition("t", 0): PartitionReport(2, 5, 6)}, ()))
    places = {
        TopicPartition("t", 0): PartitionReport(3, 0, 2),
        TopicPartition("t", 1): PartitionReport(1, -1, -1),
    }
    other.add_delivered(BulkReport(3, 30, places, ()))
    total = summed([one, other])
    assert (total.rows, total.bytes, total.dead_letters) == (5, 50, 1)
    assert total.partitions == {"t": {0: PartitionSums(5, 7), 1: PartitionSums(1, -1)}}
