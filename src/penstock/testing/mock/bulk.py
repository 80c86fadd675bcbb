# SPDX-License-Identifier: Apache-2.0
"""What a MockProducer gives for many records at once: their Delivery, and the rows of a table as records."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any

from penstock._arguments import check_callable, check_timeout
from penstock.errors import BulkDeliveryError, DamagedRowError, KafkaError
from penstock.records._columns_cy import LIES
from penstock.records._rows_cy import Rows
from penstock.records.arrow import ArrowSource
from penstock.records.arrow_rows import ColumnNames, arrow_rows, moment_text
from penstock.testing.mock.delivery import MockDelivery, PendingRecord
from penstock.types import (
    BulkReport,
    PartitionReport,
    ProducerRecord,
    RowErrors,
    TopicPartition,
)

log = logging.getLogger("penstock.testing")

Prepared = tuple[int, ProducerRecord, PendingRecord]  # with the number of the row


class MockBulkDelivery:
    """The future of all rows of one call, with the methods of the real one.

    Args:
        accepted: the records that were accepted, with the numbers of their rows.
        refused: the rows that were left out.
    """

    def __init__(self, accepted: Sequence[Prepared], refused: Sequence[RowErrors]) -> None:
        self._accepted = accepted
        self._refused = refused

    @property
    def accepted(self) -> int:
        """How many records were accepted."""
        return len(self._accepted)

    @property
    def errors(self) -> list[RowErrors]:
        """The rows known by now not to be delivered, in order."""
        failed = [
            RowErrors(row, row, error)
            for row, _, pending in self._accepted
            if pending.delivery.done() and (error := pending.delivery.exception(0)) is not None
        ]
        return sorted([*failed, *self._refused], key=lambda entry: entry.first_row)

    def done(self) -> bool:
        """Whether the outcome of every row is known."""
        return all(pending.delivery.done() for _, _, pending in self._accepted)

    def result(self, timeout: float | None = None) -> BulkReport:
        """Wait for all outcomes; what was written where.

        Raises:
            BulkDeliveryError: some accepted records were not delivered.
            KafkaTimeoutError: the time is up, and nobody has completed the records.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self._report()

    def exception(self, timeout: float | None = None) -> BulkDeliveryError | None:
        """Wait for all outcomes; the error that `result` would raise, or None."""
        check_timeout(timeout)
        failed = [
            RowErrors(row, row, error)
            for row, _, pending in self._accepted
            if (error := pending.delivery.exception(timeout)) is not None
        ]
        if not failed:
            return None
        bulk_error = BulkDeliveryError(
            f"{len(failed)} of {len(self._accepted)} records were not delivered; {failed[0]}", self._report()
        )
        bulk_error.__cause__ = failed[0].error
        return bulk_error

    def add_done_callback(self, fn: Callable[[MockBulkDelivery], object]) -> None:
        """Call `fn(bulk)` when it is done: on the thread that completes it, or at once when it is done already."""
        check_callable(fn, "fn")
        pending = [one.delivery for _, _, one in self._accepted if not one.delivery.done()]
        if not pending:
            self._call(fn)
            return
        completed = itertools.count(1)  # counts in one step: several threads may complete records

        def one_more(_: MockDelivery) -> None:
            if next(completed) == len(pending):
                self._call(fn)

        for delivery in pending:
            delivery.add_done_callback(one_more)

    def _call(self, fn: Callable[[MockBulkDelivery], object]) -> None:
        try:
            fn(self)
        except (Exception, SystemExit):
            log.exception("a done callback of a bulk delivery raised")

    def __await__(self) -> Generator[Any, None, BulkReport]:
        for _, _, pending in self._accepted:
            try:
                yield from pending.delivery.__await__()
            except KafkaError:  # told below, for all of them
                continue
        return self.result(0)

    def _report(self) -> BulkReport:
        records = size = 0
        partitions: dict[TopicPartition, PartitionReport] = {}
        for _, _, pending in self._accepted:
            if pending.delivery.exception(0) is not None:
                continue
            metadata = pending.delivery.result(0)
            records += 1
            size += max(0, metadata.serialized_key_size) + max(0, metadata.serialized_value_size)
            before = partitions.get(metadata.topic_partition)
            first = metadata.offset if before is None else before.first_offset
            count = 1 if before is None else before.records + 1
            partitions[metadata.topic_partition] = PartitionReport(count, first, metadata.offset)
        return BulkReport(records, size, partitions, tuple(self.errors))

    def __repr__(self) -> str:
        return f"<MockBulkDelivery {'done' if self.done() else 'pending'}: {self.accepted} records accepted>"


def prepare_rows(
    topic: str | None, data: Any, names: ColumnNames, prepare: Callable[[ProducerRecord], PendingRecord]
) -> tuple[list[Prepared], list[RowErrors]]:
    """The rows of an Arrow table as records that can be accepted, and the rows that cannot be sent.

    Args:
        topic: where all of them go; None: a column says it.
        data: the table.
        names: its columns.
        prepare: checks a record and gives it its partition.
    """
    prepared: list[Prepared] = []
    bad: list[RowErrors] = []
    with ArrowSource(data) as source:
        for number, (rows, row) in enumerate(_each_row(arrow_rows(source, names))):
            try:
                record = _record(topic, rows, row)
                prepared.append((number, record, prepare(record)))
            except (KafkaError, ValueError) as error:
                bad.append(RowErrors(number, number, error))
    return prepared, bad


def _each_row(chunks: Iterable[Rows]) -> Iterator[tuple[Rows, int]]:
    for rows in chunks:
        for row in range(rows.length):
            yield rows, row


def _record(topic: str | None, rows: Rows, row: int) -> ProducerRecord:
    """A row as a record.

    Raises:
        ValueError: it cannot be one.
        DamagedRowError: it contradicts itself.
    """
    size = rows.size_bound(row)
    if size == LIES or (rows.topic is not None and rows.wrong_part(row) == "topic"):
        raise DamagedRowError(
            f"the table contradicts itself: the {rows.wrong_part(row)} lies outside of the data"
        )
    if size < 0:
        raise ValueError("a header is null, or its name is null or not UTF-8")
    if topic is None:
        name = rows.topic.get(row)
        if not name:
            raise ValueError(f"the topic is null, or a name that no topic can have: {name!r}")
        topic = name.decode()
    value, key, headers, partition, timestamp = rows.record(row)
    if timestamp is not None and timestamp < 0:
        given = moment_text(rows.timestamp.as_given(row), rows.timestamp.unit)
        raise ValueError(f"the timestamp is before 1970, or too large: {given}")
    return ProducerRecord(topic, value, key, headers, partition, timestamp)
