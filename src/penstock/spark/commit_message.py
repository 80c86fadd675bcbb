# SPDX-License-Identifier: Apache-2.0
"""What a task of the data source hands to the driver."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pyspark.sql.datasource import WriterCommitMessage

from penstock.spark.task_report import TaskReport


@dataclass
class TaskMessage(WriterCommitMessage):
    """What one task did; pickled by Spark.

    Attributes:
        report: its sums.
        outcome: of the exactly-once protocol, what the driver needs to end the task's transaction; None otherwise.
        skipped: the batch had been written before, and its rows were only counted.
    """

    report: TaskReport = field(default_factory=TaskReport)
    outcome: Any = None
    skipped: bool = False
