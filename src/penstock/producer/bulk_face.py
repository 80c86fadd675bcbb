# SPDX-License-Identifier: Apache-2.0
"""The calls of the producer that blocks for many records at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypeVar

from penstock._locks import forbid_reentry
from penstock._refusals import noting_refusals
from penstock.producer.assembly import ProducerParts
from penstock.producer.send.bulk_delivery import BulkDelivery
from penstock.producer.steps import Steps
from penstock.records.arrow import ArrowSource
from penstock.records.arrow_rows import ColumnNames, arrow_rows
from penstock.records.python_rows import ManyRecords
from penstock.types import HeadersLike, ProducerRecord

R = TypeVar("R")


class BulkFace:
    """What `Producer` offers for many records at once."""

    _parts: ProducerParts

    def _check_process(self) -> None:
        raise NotImplementedError

    def _note_refused(self, error: BaseException) -> None:
        raise NotImplementedError

    def _run_sending(self, steps: Steps[R], call: str) -> R:
        raise NotImplementedError

    @noting_refusals
    def send_many(
        self,
        topic: str,
        values: Iterable[Any],
        *,
        keys: Iterable[Any] | None = None,
        headers: Iterable[HeadersLike | None] | None = None,
        partition: int | Iterable[int | None] | None = None,
        timestamps_ms: Iterable[int | None] | None = None,
    ) -> BulkDelivery:
        """Send many records; one BulkDelivery for all of them.

        The same records in the same order per partition as by as many calls of `send`. All are looked at before the
        first is accepted. A wait for memory in which not a single record is accepted ends after max.block.ms.

        Args:
            topic: where they go.
            values: a value for each; None is a tombstone. Serializers apply, as to keys.
            keys: a key for each.
            headers: for each pairs (name, bytes or None), a mapping, or None.
            partition: one for all, or one for each.
            timestamps_ms: one for each.

        Raises:
            BadRowsError: records are too large, or for a partition that does not exist; none was sent.
            SerializationError: a key or value could not be turned into bytes; none was sent.
            BufferExhaustedError: no memory became free in time; its `bulk_delivery` has what was accepted before.
            KafkaError: otherwise as `send`.
            TypeError, ValueError: an argument is wrong.
        """
        self._check_process()
        forbid_reentry("send_many()")
        many = ManyRecords.of(topic, values, keys, headers, partition, timestamps_ms)
        return self._run_sending(_many_steps(self._parts, many), "send_many()")

    @noting_refusals
    def send_arrow(
        self,
        topic: str | None,
        data: Any,
        *,
        key: str | None = "key",
        value: str | None = "value",
        headers: str | None = "headers",
        partition: str | None = "partition",
        timestamp: str | None = "timestamp",
        on_error: Literal["fail", "skip"] = "fail",
    ) -> BulkDelivery:
        """Send the rows of an Arrow table; one BulkDelivery for all of them.

        The data are read where they lie, and no Python object is made for a row. Keys and values are the bytes of
        their columns (of strings, UTF-8): serializers do not apply. The data are referred to until the call returns.

        The same records in the same order per partition as by a `send` for each row. A wait for memory in which not a
        single row is accepted ends after max.block.ms.

        Args:
            topic: where they go; None: the column `topic` says it for each row.
            data: anything with `__arrow_c_stream__` or `__arrow_c_array__`: a table of pyarrow, Polars, DuckDB,
                pandas and others.
            key: the name of the column with the keys; where there is none of that name, the records have none. None:
                they have none in any case. So for the others, but that the values must be there.
            value: likewise, the values.
            headers: likewise, lists of structs with the fields key and value, or maps.
            partition: likewise, partitions; where it is null, the key or the producer chooses.
            timestamp: likewise, timestamps of any unit; where it is null, the time is now.
            on_error: what a row that cannot be sent means. "fail": nothing is sent, and all rows are looked at before
                the first is accepted. "skip": the others are sent, and the BulkDelivery's `errors` has it.

        Raises:
            BadRowsError: rows cannot be sent, and none was: too large, no topic, a partition that does not exist.
            BufferExhaustedError: no memory became free in time; its `bulk_delivery` has what was accepted before.
            KafkaError: otherwise as `send`.
            OSError: the source of the data failed.
            TypeError, ValueError: an argument is wrong, or a column is missing or has a type that it cannot have.
        """
        self._check_process()
        forbid_reentry("send_arrow()")
        if on_error not in ("fail", "skip"):
            raise ValueError(f'on_error must be "fail" or "skip", not {on_error!r}')
        if topic is not None:
            ProducerRecord(topic)  # refuses what is no topic
        names = ColumnNames(key, value, headers, partition, timestamp, "topic" if topic is None else None)
        with ArrowSource(data) as source:
            rows = arrow_rows(source, names)
            steps = self._parts.columns.steps(topic, rows, skip=on_error == "skip")
            return self._run_sending(steps, "send_arrow()")


def _many_steps(parts: ProducerParts, many: ManyRecords) -> Steps[BulkDelivery]:
    """Send many records: what fails in here is counted as what fails in `send` is."""
    columns, send_path = parts.columns, parts.send_path
    if columns.row_by_row:
        return (yield from columns.record_steps(list(many.records())))
    send_path.check_open()
    as_they_are = not send_path.serializes and many.are_bytes()
    rows = many.rows(None if as_they_are else send_path.serialize)
    return (yield from columns.steps(many.topic, [rows] if rows.length else [], skip=False))
