# SPDX-License-Identifier: Apache-2.0
"""Exactly once into Kafka from many tasks: one transaction per task attempt, one logged decision per batch.

A driver calls `prepare` before a batch, `commit` or `abort` after it; its tasks call `admit` and `open_transaction`,
and return `Written`, `Skipped` or `Nothing`. The driver's work is generators of effects without I/O (`effects`,
`preparing`, `committing`, `aborting`, `rolling`), carried out by `carrying_out`. Knows no Spark.
"""

from __future__ import annotations

from penstock.sink.driver_identity import DriverIdentity
from penstock.sink.faces import abort, commit, prepare
from penstock.sink.messages import Message, Nothing, PartitionCount, Skipped, TaskHandle, Written
from penstock.sink.plan import BatchPlan, Content, Execution, ExecutionStamp, ProducerIdentity, Repair
from penstock.sink.recovering import inspect_sinks, roll_forward
from penstock.sink.reports import CommitReport, DecisionState, HandleState, OpenTransaction, SinkState
from penstock.sink.seam import Step, reached
from penstock.sink.settings import BATCH_QUERY_ID, DEFAULT_LOG_TOPIC, SinkSettings, sink_key
from penstock.sink.task_side import Admission, Slots, admit, open_transaction, process_slots

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
    "TaskHandle",
    "Written",
    "abort",
    "admit",
    "commit",
    "inspect_sinks",
    "open_transaction",
    "prepare",
    "process_slots",
    "reached",
    "roll_forward",
    "sink_key",
]
