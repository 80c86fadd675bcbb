# SPDX-License-Identifier: Apache-2.0
"""Rows that cannot be sent: what is wrong with each, told by its number."""

from __future__ import annotations

from typing import Any

from penstock.errors import BadRowsError, DamagedRowError, RecordTooLargeError
from penstock.producer.send.send_path import RecordLimit
from penstock.records._rows_cy import (
    BAD_HEADER,
    BAD_LAYOUT,
    BAD_PARTITION,
    BAD_SIZE,
    BAD_TIMESTAMP,
    Rows,
)
from penstock.records._window_cy import NO_TOPIC
from penstock.records.moments import moment_text
from penstock.types import RowErrors

# So many rows have an error of their own; the others share one for each kind of trouble. A table may have millions of
# bad rows, and an error object for each would be larger than the table.
_TOLD = 100
# So many are in the text of the error.
_NAMED = 3

_KINDS = {
    BAD_SIZE: "the record is too large",
    BAD_PARTITION: "the topic has no partition of that number",
    BAD_TIMESTAMP: "the timestamp is before 1970, or too large",
    BAD_HEADER: "a header is null, or its name is null or not UTF-8",
    BAD_LAYOUT: "the table contradicts itself: an offset, a code of a dictionary or a view lies outside of the data",
    NO_TOPIC: "the topic is null, or a name that no topic can have",
}
# What was found before all of a row was looked at.
_NOT_LOOKED_THROUGH = (NO_TOPIC, BAD_HEADER, BAD_SIZE)
_CLASSES: dict[int, type[Exception]] = {BAD_SIZE: RecordTooLargeError, BAD_LAYOUT: DamagedRowError}


class BadRows:
    """Collects bad rows.

    Args:
        limit: what a record may take.

    Attributes:
        count: how many there are.
        errors: the first of them, in order.
        refused_topics: the topics of a column that the cluster refuses, and why.
    """

    def __init__(self, limit: RecordLimit) -> None:
        self._limit = limit
        self.count = 0
        self.errors: list[RowErrors] = []
        self._general: dict[int, Exception] = {}
        self.refused_topics: dict[bytes, Exception] = {}  # by the cluster, and why

    def add(self, rows: Rows, row: int, code: int, number: int) -> Exception:
        """Note a row; what is wrong with it.

        Args:
            rows: where it is.
            row: its place there.
            code: what is wrong, as `Window.bad_rows` says.
            number: its number among all.
        """
        if code in _NOT_LOOKED_THROUGH and rows.is_damaged(row):
            code = BAD_LAYOUT  # who is told of anything else may read the row
        self.count += 1
        refused = None
        if code == NO_TOPIC and self.refused_topics:
            refused = self.refused_topics.get(rows.topic.get(row))
        if self.count > _TOLD:
            return refused or self._kind(code)
        error = refused or self._problem(rows, row, code)
        self.errors.append(RowErrors(number, number, error))
        return error

    def _kind(self, code: int) -> Exception:
        error = self._general.get(code)
        if error is None:
            kind = _CLASSES.get(code, ValueError)
            error = self._general[code] = kind(_KINDS[code])
        return error

    def _problem(self, rows: Rows, row: int, code: int) -> Exception:
        if code == BAD_SIZE:
            return self._limit.error("the record", rows.size_bound(row))
        value: Any = ""
        if code == BAD_LAYOUT:
            return DamagedRowError(f"{_KINDS[code]} (of its {rows.wrong_part(row)})")
        if code == BAD_PARTITION:
            topic = "" if rows.topic is None else f" of {rows.topic.get(row)!r}"
            value = f": {rows.partition_at(row)}{topic}"
        elif code == BAD_TIMESTAMP:
            value = f": {moment_text(rows.timestamp.as_given(row), rows.timestamp.unit)}"
        elif code == NO_TOPIC and rows.topic is not None:
            value = f": {rows.topic.get(row)!r}"
        return ValueError(_KINDS[code] + value)

    def error(self, total: str, outcome: str) -> BadRowsError:
        """What is raised for them."""
        named = "; ".join(str(entry) for entry in self.errors[:_NAMED])
        more = "; ..." if len(self.errors) > _NAMED else ""
        return BadRowsError(
            f"{self.count} {total} cannot be sent, and {outcome}. {named}{more}",
            self.errors,
            self.count,
        )
