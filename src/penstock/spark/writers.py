# SPDX-License-Identifier: Apache-2.0
"""The writers that Spark asks for: made and pickled on the driver, unpickled in each task, ended on the driver.

Spark pickles a writer twice for each execution of a batch, and runs `commit` in another process: on an unpickled copy
in a batch job, on a writer made anew in a streaming query. So everything that costs, or changes something, is done by
the first `__getstate__`, which keeps what came of it: it is called in the planning process, before the tasks start, and
not for a writer that only commits.

Planning, a task and the commit are in processes of their own, and a job waits for what each imports. So what only one
of them needs is imported where it is used.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)

from penstock._counted import counted
from penstock._events import Event, tell
from penstock.errors import ConfigError, SinkError
from penstock.sink import BatchPlan, DriverIdentity, Step, reached
from penstock.spark.options import BATCH_BATCH_ID, SinkOptions, parse_options
from penstock.spark.partition_sender import TaskMessage, append_progress, numbers_of, summed
from penstock.spark.schema import check_schema
from penstock.spark.worker import AFTER_FIRST_WORK, plain_errors, spare_lasting_objects

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import Row, StructType

log = logging.getLogger("penstock.spark")

Messages = Sequence[WriterCommitMessage | None]

# As many as Spark puts into an Arrow batch.
ROWS_AT_ONCE = 10_000


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
    """The writer of a batch job.

    Raises:
        ConfigError: options or columns are wrong, or topics were to be overwritten.
    """
    with plain_errors():
        if overwrite:
            raise ConfigError(
                'a topic cannot be overwritten; records are added to it: write with .mode("append")'
            )
        parsed = parse_options(options, streaming=False)
        check_schema(schema, parsed)
        return BatchWriter(Write(parsed))


def stream_writer(options: Mapping[str, str], schema: StructType) -> DataSourceStreamWriter:
    """The writer of one micro-batch.

    Raises:
        ConfigError: options or columns are wrong.
    """
    with plain_errors():
        parsed = parse_options(options, streaming=True)
        check_schema(schema, parsed)
        if hasattr(datasource, "DataSourceStreamArrowWriter"):
            return StreamArrowWriter(Write(parsed))
        return StreamRowWriter(Write(parsed), schema)  # Spark 4.0


class Write:
    """One execution of a batch, in all the places where it happens.

    Args:
        options: of the write.
    """

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._settings = options.sink_settings() if options.exactly_once else None
        self._plan: BatchPlan | None = None
        self._is_planned = False

    def __getstate__(self) -> dict[str, Any]:
        with plain_errors(pickling=True):
            self._maybe_plan()
        return self.__dict__.copy()

    def _maybe_plan(self) -> None:
        if self._is_planned:
            return
        from penstock.spark.cluster_check import check_cluster
        from penstock.spark.options import warn_of_secrets

        warn_of_secrets(self._options)
        if self._settings is None:
            check_cluster(self._options)
        else:
            from penstock.sink import driver_client, prepare, was_decided, was_used

            settings = self._settings
            check_cluster(self._options, client=driver_client(settings), was_used=partial(was_used, settings))
            former = self._options.former_settings()
            if former is not None and not was_decided(settings) and was_decided(former):
                self._settings = former  # or the run would be written twice
            self._plan = prepare(self._settings, DriverIdentity.current())
        self._is_planned = True
        spare_lasting_objects(AFTER_FIRST_WORK)

    def write(self, batches: Iterator[pa.RecordBatch]) -> TaskMessage:
        """Do the work of one task."""
        from penstock.spark.task import current_task, write_at_least_once, write_exactly_once

        with plain_errors():
            task = current_task(streaming=self._options.streaming, exactly_once=self._options.exactly_once)
            if self._plan is None:
                message = write_at_least_once(self._options, task, batches)
            else:
                message = write_exactly_once(self._options, self._plan, task, batches)
        spare_lasting_objects(AFTER_FIRST_WORK)
        return message

    def commit(self, messages: Messages, batch_id: int) -> None:
        """Make the batch visible, on the driver."""
        with plain_errors():
            reached(Step.COMMITTING, batch_id=batch_id)
            done = _all_task_messages(messages)
            report = summed(message.report for message in done)
            skipped = any(message.skipped for message in done)
            if self._settings is not None:
                from penstock.sink import commit

                outcomes = [message.outcome for message in done]
                committed = commit(self._settings, outcomes, batch_id, topic_ids=report.topic_ids)
                skipped = committed.skipped or skipped
            elif report.topic_ids:
                from penstock.spark.cluster_check import check_topics_kept

                check_topics_kept(self._options, report.topic_ids)
            numbers = numbers_of(done)
            if numbers is not None:
                tell(
                    log, logging.INFO, Event.SPARK_BATCH_WRITTEN, "batch %d: %s", batch_id, numbers,
                    batch_id=batch_id, records=numbers.records,
                )  # fmt: skip
            if skipped and "run_id" in self._options.sink:
                tell(
                    log, logging.WARNING, Event.SPARK_RUN_SKIPPED,
                    "%s was written before: %s read and none written. Jobs without the option sinkId, and "
                    "pipelines of one name, share the names of their runs: if this is another job, give it a sinkId, "
                    "or the run another runId",
                    self._settings.name if self._settings is not None else "this run",
                    f"{counted(report.rows, 'row')} {'was' if report.rows == 1 else 'were'}",
                    batch_id=batch_id, records=report.rows,
                )  # fmt: skip
            if self._options.progress_file is not None:
                append_progress(
                    self._options.progress_file, batch_id, report, skipped=skipped, numbers=numbers
                )
        spare_lasting_objects(AFTER_FIRST_WORK)

    def abort(self, messages: Messages, batch_id: int) -> None:
        """Give the batch up, on the driver."""
        with plain_errors():
            if self._settings is not None:
                from penstock.sink import abort

                outcomes = [
                    message.outcome if isinstance(message, TaskMessage) else None for message in messages
                ]
                abort(self._settings, outcomes, batch_id, self._plan)


class BatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame.

    Args:
        write: what is done.
    """

    def __init__(self, write: Write) -> None:
        self._write = write

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one partition; in a task."""
        return self._write.write(iterator)

    def commit(self, messages: Messages) -> None:
        """All tasks have written; on the driver."""
        self._write.commit(messages, BATCH_BATCH_ID)

    def abort(self, messages: Messages) -> None:
        """A task, or the commit, has failed; on the driver."""
        self._write.abort(messages, BATCH_BATCH_ID)


if hasattr(datasource, "DataSourceStreamArrowWriter"):  # Spark 4.1 and later

    class StreamArrowWriter(datasource.DataSourceStreamArrowWriter):
        """Writes a micro-batch where Spark hands over Arrow batches.

        Args:
            write: what is done.
        """

        def __init__(self, write: Write) -> None:
            self._write = write

        def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
            """Write one partition; in a task."""
            return self._write.write(iterator)

        def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803
            """All tasks have written; on the driver."""
            self._write.commit(messages, batchId)

        def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803
            """A task, or the commit, has failed; on the driver."""
            self._write.abort(messages, batchId)


class StreamRowWriter(DataSourceStreamWriter):
    """Writes a micro-batch where Spark hands over rows.

    Args:
        write: what is done.
        schema: the columns of the rows.
    """

    def __init__(self, write: Write, schema: StructType) -> None:
        self._write = write
        self._schema = schema

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        """Write one partition; in a task."""
        return self._write.write(row_batches(iterator, self._schema))

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803
        """All tasks have written; on the driver."""
        self._write.commit(messages, batchId)

    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803
        """A task, or the commit, has failed; on the driver."""
        self._write.abort(messages, batchId)


def row_batches(rows: Iterable[Any], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Gather Spark rows into Arrow batches with the columns of a record.

    Args:
        rows: Spark rows, which can be asked by the name of a column.
        schema: the columns they have, checked before.
    """
    import pyarrow as pa

    bytes_or_text = {"binary": pa.binary(), "string": pa.string()}
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    types = {
        "headers": pa.list_(header),
        "topic": pa.string(),
        "partition": pa.int32(),
        "timestamp": pa.timestamp("us", tz="UTC"),
    }
    columns = {
        field.name: types.get(field.name) or bytes_or_text[field.dataType.typeName()]
        for field in schema.fields
        if field.name in ("key", "value", *types)
    }
    source = iter(rows)
    while chunk := list(islice(source, ROWS_AT_ONCE)):
        arrays = [
            pa.array([_plain(name, row[name]) for row in chunk], kind) for name, kind in columns.items()
        ]
        yield pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _plain(name: str, value: Any) -> Any:
    """A value as Arrow takes it: headers come as rows, bytes as bytearrays, times without a zone as local ones."""
    if value is None:
        return None
    if name == "headers":
        return [
            header if header is None else {"key": header["key"], "value": header["value"]} for header in value
        ]
    if name == "timestamp" and value.tzinfo is None:
        return value.astimezone()
    return bytes(value) if isinstance(value, bytearray) else value


def _all_task_messages(messages: Messages) -> list[TaskMessage]:
    """Those of all tasks.

    Raises:
        SinkError: one is none of ours, or missing: what its task wrote would be left out in silence.
    """
    all_of_them = []
    for number, message in enumerate(messages):
        if not isinstance(message, TaskMessage):
            found = "no message" if message is None else f"a message of type {type(message).__qualname__}"
            raise SinkError(
                f"task {number} has handed over {found}, which is not what this version of Penstock writes: do the "
                "executors have the version of the driver? The batch was not committed"
            )
        all_of_them.append(message)
    return all_of_them
