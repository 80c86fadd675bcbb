# SPDX-License-Identifier: Apache-2.0
"""Where in Spark a task is: its partition, and in a streaming query the query and the micro-batch."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from penstock.errors import KafkaError
from penstock.sink.settings import BATCH_QUERY_ID

_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
_CONTINUOUS: Final = "__is_continuous_processing"

BATCH_BATCH_ID: Final = 0  # a batch job has one batch


class SparkTask(NamedTuple):
    """One task.

    Attributes:
        partition_id: the partition of the DataFrame.
        query_id: of the streaming query, the same after a restart; "batch" in a batch job, and where Spark does not
            tell.
        batch_id: of the micro-batch; 0 in a batch job, and where Spark does not tell.
    """

    partition_id: int
    query_id: str = BATCH_QUERY_ID
    batch_id: int = BATCH_BATCH_ID


def current_task(*, streaming: bool, exactly_once: bool = True) -> SparkTask:
    """The task that runs in this process.

    Args:
        streaming: whether it is one of a streaming query.
        exactly_once: whether a streaming query must say which batch this is: without that a batch that is run again
            could not be told from a new one.

    Raises:
        KafkaError: the query does not say it though it must, or has no batches.
    """
    from pyspark.taskcontext import TaskContext

    context = TaskContext.get()
    if context is None:
        raise KafkaError("write() was called outside of a Spark task")
    return task_of(context, streaming=streaming, exactly_once=exactly_once)


def task_of(context: Any, *, streaming: bool, exactly_once: bool = True) -> SparkTask:
    """The task of a context; see `current_task`."""
    partition_id: int = context.partitionId()
    if not streaming:
        return SparkTask(partition_id)
    if context.getLocalProperty(_CONTINUOUS) == "true":
        raise KafkaError(
            "a continuous trigger has no batches that could be written; use .trigger(processingTime=...)"
        )
    query_id, batch_id = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
    if not query_id or batch_id is None or not batch_id.isdigit():
        if not exactly_once:
            return SparkTask(partition_id)
        raise KafkaError(
            f"this version of Spark does not tell a task its query and batch ({_QUERY_ID}={query_id!r}, "
            f"{_BATCH_ID}={batch_id!r}), so that a repeated batch could not be told from a new one; set the option "
            "delivery to at-least-once"
        )
    return SparkTask(partition_id, query_id, int(batch_id))
