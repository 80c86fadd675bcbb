# SPDX-License-Identifier: Apache-2.0
"""Sends the Arrow batches of one Spark partition through a producer, with bounded memory, and reports what was written.

`send_arrow` copies a batch into the producer's memory, and waits while that is full; nothing of the batch is kept
afterwards. What is remembered of batches on their way are a few numbers each, dropped as soon as they are acknowledged.

What a task reports to the driver, and the driver to others, are sums, never rows.
"""

from __future__ import annotations

import json
import logging
import os
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.datasource import WriterCommitMessage

from penstock._counted import counted
from penstock._events import ClientEvents, Event, tell
from penstock.errors import (
    BadRowsError,
    BrokerError,
    BulkDeliveryError,
    DamagedRowError,
    KafkaError,
    RecordTooLargeError,
)
from penstock.sink.replaced import TopicIds
from penstock.spark.checksum import Checksum
from penstock.spark.dead_letters import DeadLetters
from penstock.spark.options import KAFKA_PREFIX, SinkOptions
from penstock.spark.producer_numbers import ProducerNumbers, of_tasks
from penstock.types import BulkReport

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.producer.producer import Producer
    from penstock.producer.send.bulk_delivery import BulkDelivery
    from penstock.types import RowErrors

log = logging.getLogger("penstock.spark")

_events = ClientEvents("")  # of this process: a stream writes its progress again and again


@dataclass(slots=True)
class PartitionSums:
    """What one partition of a topic got.

    Attributes:
        rows: how many records.
        end_offset: one above the highest offset known, or -1.
    """

    rows: int = 0
    end_offset: int = -1


@dataclass(slots=True)
class TaskReport:
    """Sums of one task, or of all tasks of a batch.

    Attributes:
        rows: rows taken from Spark.
        bytes: of keys and values.
        dead_letters: of the rows, those that went to the dead-letter topic.
        partitions: what each partition got, dead letters included; by topic, then by number.
        topic_ids: the ids under which a task has known these topics, from its first record to its last acknowledgement;
            without topics whose id no broker has told.
    """

    rows: int = 0
    bytes: int = 0
    dead_letters: int = 0
    partitions: dict[str, dict[int, PartitionSums]] = field(default_factory=dict)
    topic_ids: TopicIds = field(default_factory=dict)

    def add_delivered(self, report: BulkReport) -> None:
        self.bytes += report.bytes
        for (topic, partition), part in report.partitions.items():
            self._count(topic, partition, part.records, part.last_offset + 1 if part.last_offset >= 0 else -1)

    def add(self, other: TaskReport) -> None:
        """Add the numbers of another report to this one."""
        self.rows += other.rows
        self.bytes += other.bytes
        self.dead_letters += other.dead_letters
        for topic, counts in other.partitions.items():
            for partition, count in counts.items():
                self._count(topic, partition, count.rows, count.end_offset)
        for topic, ids in other.topic_ids.items():
            self.topic_ids[topic] = self.topic_ids.get(topic, frozenset()) | ids

    def _count(self, topic: str, partition: int, rows: int, end_offset: int) -> None:
        count = self.partitions.setdefault(topic, {}).setdefault(partition, PartitionSums())
        count.rows += rows
        count.end_offset = max(count.end_offset, end_offset)


def summed(reports: Iterable[TaskReport]) -> TaskReport:
    """Add up reports."""
    total = TaskReport()
    for report in reports:
        total.add(report)
    return total


@dataclass
class TaskMessage(WriterCommitMessage):
    """What one task did; pickled by Spark.

    Attributes:
        report: its sums.
        outcome: of the exactly-once protocol, what the driver needs to end the task's transaction; None otherwise.
        skipped: the batch had been written before, and its rows were only counted.
        numbers: what its producer did, see `ProducerNumbers.to_dict`; None where nothing was sent, and in messages of
            releases that do not tell. Plain values, so that a driver of another release can read the message.
    """

    report: TaskReport = field(default_factory=TaskReport)
    outcome: Any = None
    skipped: bool = False
    numbers: dict[str, Any] | None = None


def numbers_of(messages: Sequence[TaskMessage]) -> ProducerNumbers | None:
    """What the producers of all tasks of a batch did; None if no task has sent anything."""
    known, unknown = [], 0
    unreadable: list[tuple[int, ValueError]] = []
    for task, message in enumerate(messages):
        if not message.report.partitions:
            continue
        if message.numbers is None:
            unknown += 1
            continue
        try:
            known.append(ProducerNumbers.from_dict(message.numbers))
        except ValueError as error:
            unreadable.append((task, error))
    if unreadable:
        task, first = unreadable[0]
        tell(
            log, logging.WARNING, Event.SPARK_NUMBERS_UNREADABLE,
            "what the producers of %d of %d tasks say of their work cannot be read; of task %d: %s",
            len(unreadable), len(messages), task, first, of=_events, each=(), error=first,
        )  # fmt: skip
        unknown += len(unreadable)
    return of_tasks(known, unknown) if known or unknown else None


def append_progress(
    path: str, batch_id: int, report: TaskReport, *, skipped: bool, numbers: ProducerNumbers | None = None
) -> None:
    """Append one line of JSON for a committed batch, for a program on the driver's machine that shows the progress.

    `commit` runs in a process of Spark's, so that the program which started the query has no other way to learn what
    went where. The file is for people to look at: when it cannot be written, the batch is none the worse.

    Args:
        path: the file.
        batch_id: of the micro-batch; 0 in batch jobs.
        report: the sums of all tasks.
        skipped: whether the batch had been written before, so that its rows were only counted.
        numbers: what the producers of its tasks did; None if they sent nothing.
    """
    partitions = {
        topic: {
            str(number): {"rows": count.rows}
            | ({"endOffset": count.end_offset} if count.end_offset >= 0 else {})
            for number, count in sorted(counts.items())
        }
        for topic, counts in sorted(report.partitions.items())
    }
    line: dict[str, Any] = {
        "batchId": batch_id,
        "rows": report.rows,
        "bytes": report.bytes,
        "skipped": skipped,
        "deadLetters": report.dead_letters,
        "partitions": partitions,
    }
    if numbers is not None:
        line["producers"] = numbers.to_dict()
    try:
        begin = "\n" if _ends_in_half_a_line(path) else ""
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{begin}{json.dumps(line)}\n")  # one write, so that a reader never sees half a line
    except OSError as error:
        tell(
            log, logging.WARNING, Event.SPARK_PROGRESS_UNWRITTEN,
            "the progress of batch %d could not be written to %s: %s", batch_id, path, error,
            of=_events, each=path, batch_id=batch_id, error=error,
        )  # fmt: skip


def _ends_in_half_a_line(path: str) -> bool:
    """Whether a write failed in the middle, or a driver died in it: what is appended would be lost as well."""
    if not os.path.isfile(path):  # it is new, or a pipe
        return False
    try:
        with open(path, "rb") as file:
            if file.seek(0, os.SEEK_END) == 0:
                return False
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
    except PermissionError:  # it may be written to, but not be read
        return False


_NAMED_ROWS = 3
# So many batches are on their way before the first of them is checked: most earlier checks would find nothing.
_CHECK_FROM = 16


class PartitionSender:
    """Sends the rows of one task.

    Args:
        producer: of this process; inside of a transaction where there is to be one.
        options: of the write.
        spark_partition: the partition of the DataFrame, for errors.
        checksum: takes up the rows as Spark gave them, those of dead letters included; None where nobody asks for it.

    Attributes:
        report: what was sent and acknowledged so far.
    """

    def __init__(
        self,
        producer: Producer,
        options: SinkOptions,
        spark_partition: int,
        checksum: Checksum | None = None,
    ) -> None:
        self._producer = producer
        self._topic = options.topic
        self._dead_letter_topic = options.dead_letter_topic
        self._spark_partition = spark_partition
        self._on_their_way: deque[_Sent] = deque()
        self._dead_letters: DeadLetters | None = None
        if options.dead_letter_topic is not None:
            self._dead_letters = DeadLetters(
                producer, options.dead_letter_topic, options.topic, spark_partition
            )
        self.report = TaskReport()
        self._checksum = checksum

    def send(self, batch: pa.RecordBatch) -> None:
        """Send the rows of a batch; waits while there is no room for them.

        Raises:
            BadRowsError: some cannot be sent, and there is no dead-letter topic.
            KafkaError: as the producer raises it, or an earlier batch failed.
        """
        first_row = self.report.rows
        if self._dead_letters is None:
            try:
                bulk = self._producer.send_arrow(self._topic, batch)
            except BadRowsError as error:
                raise self._refused(error, batch, first_row) from None
            self._on_their_way.append(_Sent(bulk, first_row))
        else:
            bulk = self._producer.send_arrow(self._topic, batch, on_error="skip")
            # The broker may refuse rows as well: they are needed until it has answered.
            self._on_their_way.append(_Sent(bulk, first_row, batch))
            if bulk.accepted < batch.num_rows:
                left_out = [entry for entry in bulk.errors if not _is_the_brokers(entry)]
                self._send_dead_letters(self._dead_letters, batch, left_out, first_row)
        if self._checksum is not None:
            self._checksum.add(batch)
        self.report.rows += batch.num_rows
        self._take_up_what_is_done()

    def finish(self) -> TaskReport:
        """Wait for all acknowledgements.

        Raises:
            KafkaError: rows were not delivered.
        """
        if self._on_their_way:
            self._producer.flush()  # lingering batches need not wait any longer
        while self._on_their_way:
            self._take_up(self._on_their_way.popleft())
        return self.report

    def _take_up_what_is_done(self) -> None:
        # With dead letters the rows are held until then: no longer than they have to be.
        if self._dead_letters is None and len(self._on_their_way) < _CHECK_FROM:
            return
        while self._on_their_way and self._on_their_way[0].bulk.done():
            self._take_up(self._on_their_way.popleft())

    def _take_up(self, sent: _Sent) -> None:
        try:
            report = sent.bulk.result()
        except BulkDeliveryError as error:
            raise self._not_delivered(error, sent.first_row) from error
        self.report.add_delivered(report)
        if self._dead_letters is None or not report.errors:
            return
        if sent.batch is not None:
            refused = [entry for entry in report.errors if _is_the_brokers(entry)]
            self._send_dead_letters(self._dead_letters, sent.batch, refused, sent.first_row)
            return
        # Dead letters themselves. Those that were too large have been sent smaller; for others there is no other place.
        refused = [entry for entry in report.errors if not isinstance(entry.error, RecordTooLargeError)]
        if refused:
            raise self._letters_refused(refused)

    def _send_dead_letters(
        self, to: DeadLetters, batch: pa.RecordBatch, errors: Sequence[RowErrors], first_row: int
    ) -> None:
        self.report.dead_letters += sum(entry.count for entry in errors)
        self._on_their_way.extend(_Sent(bulk, first_row) for bulk in to.send(batch, errors, first_row))

    def _not_delivered(self, error: BulkDeliveryError, first_row: int) -> KafkaError:
        cause = str(error.__cause__ or error)
        refused = [entry for entry in error.report.errors if _is_the_brokers(entry)]
        if refused:
            cause = f"the broker refused {_reasons(refused[:_NAMED_ROWS], first_row)}"
        lost = sum(entry.count for entry in error.report.errors)
        return KafkaError(
            f"{counted(lost, 'row')} of partition {self._spark_partition} of the DataFrame "
            f"{'was' if lost == 1 else 'were'} not delivered to "
            f"{_where(self._topic)}: {cause}"
        )

    def _letters_refused(self, refused: Sequence[RowErrors]) -> KafkaError:
        lost = sum(entry.count for entry in refused)
        return KafkaError(
            f"{counted(lost, 'bad row')} of partition {self._spark_partition} of the DataFrame "
            f"{'was' if lost == 1 else 'were'} not written to the dead-letter topic "
            f"{self._dead_letter_topic!r}: {refused[0].error}"
        )

    def _refused(self, error: BadRowsError, batch: pa.RecordBatch, first_row: int) -> BadRowsError:
        named = error.errors[:_NAMED_ROWS]
        left = error.count - sum(entry.count for entry in named)
        more = f"; and {left} more" if left > 0 else ""
        topic = self._topic
        if topic is None and named and not isinstance(named[0].error, DamagedRowError):
            topic = _try_topic_of(batch, named[0].first_row)
        return BadRowsError(
            f"{error.count} row{'s' if error.count > 1 else ''} of partition {self._spark_partition} of the DataFrame "
            f"cannot be written to {_where(topic)} ({_reasons(named, first_row)}{more}). To go on without such rows "
            "set the option onBadRow to dead-letter, and name a topic for them: the option deadLetterTopic, or "
            "dead_letter_topic of a pipeline",
            error.errors,
            error.count,
        )


class _Sent(NamedTuple):
    """Rows that were sent: what becomes of them, their first one's number, and, if they may be needed, they."""

    bulk: BulkDelivery
    first_row: int
    batch: pa.RecordBatch | None = None


def _is_the_brokers(entry: RowErrors) -> bool:
    """Whether the broker refused these rows, after they were accepted here."""
    return isinstance(entry.error, BrokerError) and entry.error.names_record


def _where(topic: str | None) -> str:
    return "Kafka" if topic is None else f"topic {topic!r}"


def _try_topic_of(batch: pa.RecordBatch, row: int) -> str | None:
    """What the column topic says of a row; None where that is no name."""
    if "topic" not in batch.schema.names:
        return None
    topic = batch.column("topic")[row].as_py()
    return topic if isinstance(topic, str) else None


def _reasons(errors: Sequence[RowErrors], first_row: int) -> str:
    """Each reason once, behind the rows that it holds for."""
    rows_by_reason: dict[str, list[str]] = {}
    for entry in errors:
        first, last = first_row + entry.first_row, first_row + entry.last_row
        rows_by_reason.setdefault(_reason(entry.error), []).append(
            str(first) if first == last else f"{first} to {last}"
        )
    return "; ".join(
        f"row{'' if len(rows) == 1 and rows[0].isdecimal() else 's'} {', '.join(rows)}: {reason}"
        for reason, rows in rows_by_reason.items()
    )


def _reason(error: BaseException) -> str:
    """What is wrong with a row, with the producer's options as they are called here."""
    if isinstance(error, RecordTooLargeError) and error.size is not None and error.limit is not None:
        from penstock.records.format import RecordLimit

        error = RecordLimit(error.limit, f"{KAFKA_PREFIX}{error.option}").error("the record", error.size)
    return str(error).rstrip(".")
