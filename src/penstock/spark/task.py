# SPDX-License-Identifier: Apache-2.0
"""One task of a write: takes the Arrow batches of a Spark partition, and returns what the driver needs to know.

Rules of a write:
1. Nothing is asked of Kafka before the first row: empty partitions cost nothing.
2. What is returned was acknowledged. At least once, that is all; exactly once, it lies in a transaction of this attempt
   alone, which stays open and is handed to the driver.
3. After an error the producer is not used again. Spark ends the process anyway; where there is an open transaction, it
   is aborted right away if that is quick, so that readers need not wait until somebody cleans up.

Rules of the producers, of which there is one for each Python worker and configuration. It is kept over tasks and
micro-batches, with its memory and connections:
1. A producer is made by the process that uses it, never before a fork: Spark forks its workers.
2. A worker runs one task at a time, so nobody else uses the producer meanwhile.
3. Workers end without a clean-up (SIGKILL, or an exit that runs no hooks). Nothing here needs one: what is left open of
   a transaction is aborted by others, and everything else was waited for before its task returned.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock._counted import counted
from penstock.errors import BootstrapError, ConfigError, KafkaError, SinkError
from penstock.producer.producer import Producer
from penstock.sink import (
    Admission,
    BatchPlan,
    Nothing,
    PartitionCount,
    Skipped,
    Step,
    TaskHandle,
    Written,
    admit,
    open_transaction,
    process_slots,
    reached,
)
from penstock.sink.messages import SUMMED
from penstock.sink.settings import BATCH_QUERY_ID
from penstock.spark.checksum import Checksum, checksum_by
from penstock.spark.known_topics import known_topics
from penstock.spark.options import BATCH_BATCH_ID, SAME_EVERYWHERE, SinkOptions, producer_config
from penstock.spark.partition_sender import PartitionSender, TaskMessage, TaskReport
from penstock.spark.task_numbers import task_numbers

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.control.client import IdleClients
    from penstock.transaction_handle import TransactionHandle

# After so many seconds the driver may have given a task up. A driver that gives a batch up looks twice, and sees
# quicker ones.
LONG_TASK_SECONDS = 0.2
# Of this process, for a task's last look; made when the first one needs it.
_clients: list[IdleClients] = []

# How long a task that has failed waits for its transaction to be aborted. Spark waits with it.
_ABORT_SECONDS = 5.0

_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
_CONTINUOUS: Final = "__is_continuous_processing"

_Key = tuple[int, tuple[tuple[str, str], ...]]

# Configurations that have a producer at once; a notebook may try out many more in the life of a worker.
_KEPT = 4

# Last used last. The process id in the key guards against a copy made by a fork.
_producers: dict[_Key, Producer] = {}


# ---- which task


class SparkTask(NamedTuple):
    """Where in Spark a task is.

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


# ---- writing


def write_at_least_once(
    options: SinkOptions, task: SparkTask, batches: Iterable[pa.RecordBatch]
) -> TaskMessage:
    """Send all rows, and wait until they are acknowledged.

    Raises:
        KafkaError: rows cannot be sent, or were not delivered; others may have been.
    """
    filled = _Filled(batches)
    if not filled:
        return TaskMessage()
    _tell(Step.TASK_FIRST_ROW, task)
    producer = shared_producer(producer_config(options))
    sender = PartitionSender(producer, options, task.partition_id)
    try:
        report, numbers = _send_all(producer, sender, filled)
    except BaseException:
        forget_producer(producer)
        raise
    _tell(Step.TASK_FLUSHED, task)
    return TaskMessage(report, numbers=numbers)


def write_exactly_once(
    options: SinkOptions, plan: BatchPlan, task: SparkTask, batches: Iterable[pa.RecordBatch]
) -> TaskMessage:
    """Send all rows in a transaction of their own, and hand it over; or only count them, if the batch was written.

    Raises:
        KafkaError: this execution may not write any more, rows cannot be sent, or were not delivered. Whatever was
            sent will never be visible.
    """
    began = time.monotonic()
    place = (plan.stamp, task.query_id, task.batch_id)
    filled = _Filled(batches)
    admission = admit(plan, task.query_id, task.batch_id, task=task.partition_id)
    checksum = _checksum(plan, task, admission)
    if admission is Admission.SKIP:
        rows = 0
        for batch in filled:
            checksum.add(batch)
            rows += batch.num_rows
        skipped = Skipped(*place, rows, checksum.value, checksum.method)
        return TaskMessage(TaskReport(rows=rows), skipped, skipped=True)
    if not filled:
        return TaskMessage(outcome=Nothing(*place))
    config = producer_config(options) | {"transaction.timeout.ms": str(plan.transaction_timeout_ms)}
    producer = shared_producer(config)
    sender = PartitionSender(producer, options, task.partition_id, checksum)
    try:
        transactional_id = open_transaction(producer, plan)
        _tell(Step.TASK_FIRST_ROW, task)
        report, numbers = _send_all(producer, sender, filled)
        _tell(Step.TASK_FLUSHED, task)
        if time.monotonic() - began >= LONG_TASK_SECONDS:
            _check_wanted(options, plan)
        transaction = producer.detach_transaction()
        _check_count(transaction, report, task, options)
    except BaseException as error:
        _give_up(producer, error)
        raise
    process_slots().give_back(transactional_id, plan)
    _tell(Step.TASK_DETACHED, task)
    handle = TaskHandle(
        transaction=transaction,
        task=task.partition_id,
        rows=report.rows,
        checksum=checksum.value,
        method=checksum.method,
        counts=_counts(report),
    )
    return TaskMessage(report, Written(*place, handle), numbers=numbers)


def _checksum(plan: BatchPlan, task: SparkTask, admission: Admission) -> Checksum:
    """A new checksum; for a repair by the method of what is lost, which it will be compared with."""
    if admission is Admission.REPAIR and plan.repair is not None:
        return checksum_by(plan.repair.tasks[task.partition_id].method)
    return checksum_by(SUMMED)


def _check_count(
    transaction: TransactionHandle, report: TaskReport, task: SparkTask, options: SinkOptions
) -> None:
    """Make sure that what is handed over holds all rows, each as one record, and nothing else.

    Raises:
        SinkError: it does not.
    """
    if transaction.record_count != report.rows:
        from penstock.control import complete_all

        complete_all([transaction], commit=False, config=options.producer, timeout=_ABORT_SECONDS)
        raise SinkError(
            f"the transaction of partition {task.partition_id} of the DataFrame holds "
            f"{counted(transaction.record_count, 'record')}, but the task has sent {counted(report.rows, 'row')}: this "
            "is a mistake in Penstock. Nothing of it will be visible; the task can be run again"
        )


class _Filled:
    """The batches that have rows; can tell whether there are any. No batch is kept longer than it is looked at."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = (batch for batch in batches if batch.num_rows)
        self._first = next(self._batches, None)

    def __bool__(self) -> bool:
        return self._first is not None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        first, self._first = self._first, None
        if first is not None:
            yield first
            del first
        yield from self._batches


def _check_wanted(options: SinkOptions, plan: BatchPlan) -> None:
    from penstock.control.client import IdleClients
    from penstock.sink.task import check_wanted

    if not _clients:
        _clients.append(IdleClients())
    with _clients[0].borrow(options.producer) as client:
        check_wanted(plan, client)


def _send_all(
    producer: Producer, sender: PartitionSender, batches: Iterable[pa.RecordBatch]
) -> tuple[TaskReport, dict[str, Any]]:
    topics = known_topics(producer)
    began = time.monotonic()
    for batch in batches:
        sender.send(batch)
    sent = time.monotonic()
    report = sender.finish()
    done = time.monotonic()
    report.topic_ids = topics.ids(report.partitions)
    return report, task_numbers(producer, done - began, done - sent)


def _give_up(producer: Producer, error: BaseException) -> None:
    """Abort the transaction after an error, if that can be done quickly; then let the producer go."""
    if isinstance(error, Exception):  # a process that is told to end must not be held up
        aborting = threading.Thread(
            target=_abort, args=(producer, error), name="penstock-spark-abort", daemon=True
        )
        aborting.start()
        aborting.join(_ABORT_SECONDS)
        if aborting.is_alive():
            error.add_note(f"the transaction could not be aborted within {_ABORT_SECONDS:g} s")
    forget_producer(producer)  # which ends an abort that has not come through


def _abort(producer: Producer, error: Exception) -> None:
    try:
        producer.abort_transaction()
    except KafkaError as failure:  # the next clean-up, or the time-out, will do it
        error.add_note(f"the transaction could not be aborted at once: {failure}")


def _counts(report: TaskReport) -> tuple[PartitionCount, ...]:
    return tuple(
        PartitionCount(topic, partition, count.rows)
        for topic, counts in sorted(report.partitions.items())
        for partition, count in sorted(counts.items())
    )


def _tell(step: Step, task: SparkTask) -> None:
    reached(step, query_id=task.query_id, batch_id=task.batch_id, partition_id=task.partition_id)


# ---- the producers of this process


def shared_producer(config: Mapping[str, str]) -> Producer:
    """The producer of this process for a configuration, made when there is none.

    Raises:
        KafkaError: the configuration is wrong, or no address can be resolved.
    """
    key = (os.getpid(), tuple(sorted(config.items())))
    producer = _producers.pop(key, None)
    if producer is None:
        producer = _new_producer(config)
    _producers[key] = producer
    while len(_producers) > _KEPT:
        forget_producer(next(iter(_producers.values())))  # idle: every task waits for its acknowledgements
    return producer


def _new_producer(config: Mapping[str, str]) -> Producer:
    try:
        return Producer(config)
    except BootstrapError:
        raise
    except ConfigError as error:
        # The driver has checked the same options: what they name is missing where this task runs.
        import platform

        raise ConfigError(
            f"an option kafka.* of this write is wrong in a task on {platform.node()}, and was right on the driver: "
            f"{error}. {SAME_EVERYWHERE}",
            error.option,
            error.options,
        ) from None


def forget_producer(producer: Producer) -> None:
    """Do not use a producer again: whatever it has on its way is given up."""
    for key, known in list(_producers.items()):
        if known is producer:
            del _producers[key]
    try:
        producer.close(0)
    except KafkaError:  # it may be given up because something is wrong already
        pass
