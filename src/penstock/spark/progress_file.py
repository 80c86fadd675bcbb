# SPDX-License-Identifier: Apache-2.0
"""One line of JSON for each committed batch, for a program on the driver's machine that shows how a query gets on.

`commit` runs in a process of Spark's, so that the program which started the query has no other way to learn what went
where. The file is for people to look at: when it cannot be written, the batch is none the worse.
"""

from __future__ import annotations

import json
import logging

from penstock.spark.task_report import TaskReport

_logger = logging.getLogger(__name__)


def append_progress(path: str, batch_id: int, report: TaskReport, *, skipped: bool) -> None:
    """Append the line of a batch.

    Args:
        path: the file.
        batch_id: of the micro-batch; 0 in batch jobs.
        report: the sums of all tasks.
        skipped: whether the batch had been written before, so that its rows were only counted.
    """
    partitions = {
        topic: {
            str(number): {"rows": count.rows}
            | ({"endOffset": count.end_offset} if count.end_offset >= 0 else {})
            for number, count in sorted(counts.items())
        }
        for topic, counts in sorted(report.partitions.items())
    }
    line = {
        "batchId": batch_id,
        "rows": report.rows,
        "bytes": report.bytes,
        "skipped": skipped,
        "deadLetters": report.dead_letters,
        "partitions": partitions,
    }
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")  # one write, so that a reader never sees half a line
    except OSError as error:
        _logger.warning("the progress of batch %d could not be written to %s: %s", batch_id, path, error)
