# SPDX-License-Identifier: Apache-2.0
"""Exactly once into Kafka from many tasks: one transaction per task attempt, one logged decision per batch.

A driver calls `prepare` before a batch, `commit` or `abort` after it; its tasks call `admit` and `open_transaction`,
and return `Written`, `Skipped` or `Nothing`. The driver's work is generators of effects without I/O (`effects`,
`preparing`, `committing`, `aborting`, `recovering`), which `cluster` carries out. Knows no Spark.

The driver's work is imported when it is first asked for: tasks do without, and each waits for what it imports.
"""

from __future__ import annotations

import typing as _typing

from penstock._identity import TransactionalIdentity as ProducerIdentity  # the name that users know it by
from penstock._lazy import lazy_names as _lazy_names
from penstock.sink.hooks import Step, reached
from penstock.sink.identity import DriverIdentity, Life
from penstock.sink.messages import (
    BatchPlan,
    Content,
    Execution,
    ExecutionStamp,
    Message,
    Nothing,
    PartitionCount,
    Repair,
    Skipped,
    TaskHandle,
    Written,
)
from penstock.sink.settings import BATCH_QUERY_ID, DEFAULT_LOG_TOPIC, SinkSettings, sink_key
from penstock.sink.task import Admission, Slots, admit, open_transaction, process_slots

if _typing.TYPE_CHECKING:
    from penstock.sink.committing import CommitReport
    from penstock.sink.driver import abort, commit, driver_client, prepare, was_decided, was_used
    from penstock.sink.recovering import (
        DecisionState,
        HandleState,
        LogState,
        OpenTransaction,
        SinkState,
        StrayRecord,
        end_left_over,
        inspect_log,
        inspect_sinks,
        roll_forward,
    )

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
    "was_decided",
    "was_used",
]

_OF_DRIVER = ("abort", "commit", "driver_client", "prepare", "was_decided", "was_used")
_OF_RECOVERING = (
    "DecisionState",
    "HandleState",
    "LogState",
    "OpenTransaction",
    "SinkState",
    "StrayRecord",
    "end_left_over",
    "inspect_log",
    "inspect_sinks",
    "roll_forward",
)

__getattr__, __dir__ = _lazy_names(
    globals(),
    {
        "CommitReport": "penstock.sink.committing",
        **dict.fromkeys(_OF_DRIVER, "penstock.sink.driver"),
        **dict.fromkeys(_OF_RECOVERING, "penstock.sink.recovering"),
    },
)
