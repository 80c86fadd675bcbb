# SPDX-License-Identifier: Apache-2.0
"""Exactly once into Kafka from many tasks: one transaction per task attempt, one logged decision per batch.

A driver calls `prepare` before a batch, `commit` or `abort` after it; its tasks call `admit` and `open_transaction`,
and return `Written`, `Skipped` or `Nothing`. The driver's work is generators of effects without I/O (`effects`,
`preparing`, `committing`, `aborting`, `recovering`), carried out by `carrying_out`. Knows no Spark.

The driver's work is imported when it is first asked for: tasks do without, and each waits for what it imports.
"""

from __future__ import annotations

import typing as _typing

from penstock._identity import TransactionalIdentity as ProducerIdentity  # the name that users know it by
from penstock._lazy import lazy_names as _lazy_names
from penstock.sink.content import Content
from penstock.sink.driver_identity import DriverIdentity, Life
from penstock.sink.messages import Message, Nothing, PartitionCount, Skipped, TaskHandle, Written
from penstock.sink.plan import BatchPlan, Execution, ExecutionStamp, Repair
from penstock.sink.reports import (
    CommitReport,
    DecisionState,
    HandleState,
    LogState,
    OpenTransaction,
    SinkState,
    StrayRecord,
)
from penstock.sink.seam import Step, reached
from penstock.sink.settings import BATCH_QUERY_ID, DEFAULT_LOG_TOPIC, SinkSettings, sink_key
from penstock.sink.task_side import Admission, Slots, admit, open_transaction, process_slots

if _typing.TYPE_CHECKING:
    from penstock.sink.faces import abort, commit, driver_client, prepare, was_used
    from penstock.sink.recovering import end_left_over, inspect_log, inspect_sinks, roll_forward

__all__ = [
    "BATCH_QUERY_ID",
    "DEFAULT_LOG_TOPIC",
    "Admission",
    "BatchPlan",
    "CommitReport",
    "Content",
    "DecisionState",
    "DriverIdentity",
    "Execution",
    "ExecutionStamp",
    "HandleState",
    "Life",
    "LogState",
    "Message",
    "Nothing",
    "OpenTransaction",
    "PartitionCount",
    "ProducerIdentity",
    "Repair",
    "SinkSettings",
    "SinkState",
    "Skipped",
    "Slots",
    "Step",
    "StrayRecord",
    "TaskHandle",
    "Written",
    "abort",
    "admit",
    "commit",
    "driver_client",
    "end_left_over",
    "inspect_log",
    "inspect_sinks",
    "open_transaction",
    "prepare",
    "process_slots",
    "reached",
    "roll_forward",
    "sink_key",
    "was_used",
]

__getattr__, __dir__ = _lazy_names(
    globals(),
    {
        **dict.fromkeys(("abort", "commit", "driver_client", "prepare", "was_used"), "penstock.sink.faces"),
        **dict.fromkeys(
            ("end_left_over", "inspect_log", "inspect_sinks", "roll_forward"), "penstock.sink.recovering"
        ),
    },
)
