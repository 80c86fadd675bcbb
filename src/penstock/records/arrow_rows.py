# SPDX-License-Identifier: Apache-2.0
"""From an Arrow table to the rows that can be sent: which type can be which column.

| column | Arrow types |
|---|---|
| key, value, topic | binary, string, their large and view forms, fixed-size binary, dictionaries of these, null |
| partition | whole numbers of any width, null |
| timestamp | timestamps of any unit, dates, whole numbers (milliseconds), null |
| headers | lists of structs with the fields key and value, maps; in any list form, null |
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Self

from penstock.records._columns_cy import (
    DICTIONARY,
    FIXED,
    NULLS,
    OFFSETS_32,
    OFFSETS_64,
    SIZES_32,
    SIZES_64,
    VIEWS,
    BytesColumn,
    IntColumn,
)
from penstock.records._headers_cy import HeadersColumn
from penstock.records._rows_cy import Rows
from penstock.records.arrow import ArrowChunk, ArrowColumn, ArrowSource, type_name
from penstock.types import ProducerRecord

_BYTES = {
    "n": NULLS,
    "z": OFFSETS_32,
    "u": OFFSETS_32,
    "Z": OFFSETS_64,
    "U": OFFSETS_64,
    "vz": VIEWS,
    "vu": VIEWS,
}
_LISTS = {"+l": OFFSETS_32, "+m": OFFSETS_32, "+L": OFFSETS_64, "+vl": SIZES_32, "+vL": SIZES_64}
_WIDTHS = {"n": 0, "c": 1, "C": -1, "s": 2, "S": -2, "i": 4, "I": -4, "l": 8, "L": -8}
# Width of an item, and what it is multiplied by for milliseconds; negative: divided by.
_MOMENTS = {
    "tss": (8, 1000),
    "tsm": (8, 1),
    "tsu": (8, -1000),
    "tsn": (8, -1_000_000),
    "tdD": (4, 86_400_000),
    "tdm": (8, 1),
}
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_NANOSECONDS: Final = {"days": 86_400 * 10**9, "s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_DEFAULTS = ("key", "value", "headers", "partition", "timestamp")


@dataclass(frozen=True, slots=True)
class ColumnNames:
    """Which columns of a table are what; None: the records have no such part."""

    key: str | None = "key"
    value: str | None = "value"
    headers: str | None = "headers"
    partition: str | None = "partition"
    timestamp: str | None = "timestamp"
    topic: str | None = None

    def __post_init__(self) -> None:
        for part in (*_DEFAULTS, "topic"):
            name = getattr(self, part)
            if name is not None and not isinstance(name, str):
                raise TypeError(f"{part} must be the name of a column or None, not {type(name).__name__}")

    @classmethod
    def of_call(
        cls,
        topic: str | None,
        on_error: str,
        key: str | None,
        value: str | None,
        headers: str | None,
        partition: str | None,
        timestamp: str | None,
    ) -> Self:
        """The columns of a call of `send_arrow`, whose arguments these are.

        Args:
            topic: where all rows go; None: the column `topic` says it for each row.
            on_error: "fail" or "skip".
            key: the name of its column, and so for the others.

        Raises:
            TypeError, ValueError: an argument is wrong.
        """
        if on_error not in ("fail", "skip"):
            raise ValueError(f'on_error must be "fail" or "skip", not {on_error!r}')
        if topic is not None:
            ProducerRecord(topic)  # refuses what is no topic
        return cls(key, value, headers, partition, timestamp, "topic" if topic is None else None)

    def find(self, available: Sequence[str]) -> dict[str, int]:
        """The number of each column that is there.

        Raises:
            ValueError: one is missing that was asked for by name, or by none: the values and the topics; or two
                columns have the same name.
        """
        found: dict[str, int] = {}
        for part in (*_DEFAULTS, "topic"):
            name = getattr(self, part)
            if name is None:
                continue
            count = available.count(name)
            if count == 1:
                found[part] = available.index(name)
            elif count > 1:
                raise ValueError(f"the table has {count} columns named {name!r}")
            elif name != part or part in ("value", "topic"):
                raise ValueError(f"the table has no column {name!r} for the {part}; it has {list(available)}")
        return found


def arrow_rows(source: ArrowSource, names: ColumnNames) -> Iterator[Rows]:
    """The rows of a table, chunk by chunk.

    Raises:
        TypeError: a column has a type that it cannot have.
        ValueError: a column is missing.
        OSError: the source failed.
    """
    numbers = names.find(source.names)
    for chunk in source:
        yield _rows(chunk, numbers)


def _rows(chunk: ArrowChunk, numbers: dict[str, int]) -> Rows:
    columns: dict[str, object] = {}
    for part, number in numbers.items():
        column = chunk.columns[number]
        if column.format == "n":
            if part == "topic":
                columns[part] = BytesColumn(NULLS, column)
            continue
        if part == "headers":
            columns[part] = _headers_column(column, chunk.owner)
        elif part in ("partition", "timestamp"):
            columns[part] = _int_column(part, column, chunk.owner)
        else:
            columns[part] = _bytes_column(part, column, chunk.owner)
    return Rows(chunk.length, columns)


def _bytes_column(part: str, column: ArrowColumn, owner: object) -> BytesColumn:
    if column.dictionary is not None:
        width = _WIDTHS.get(column.format)
        if not width:
            raise TypeError(
                f"column {column.name!r} has a dictionary with codes that are {type_name(column.format)}"
            )
        words = _bytes_column(part, column.dictionary, owner)
        codes = IntColumn(column, width, 1, owner, smallest_is_null=False)
        return BytesColumn(DICTIONARY, column, 0, codes, words)
    kind = FIXED if column.format.startswith("w:") else _BYTES.get(column.format)
    if kind is None:
        raise TypeError(
            f"column {column.name!r} cannot be the {part}: it must hold bytes or strings, and is "
            f"{type_name(column.format)}. Cast it, or name another column with {part}=."
        )
    if not column.length:
        kind = NULLS  # it may come without buffers
    return BytesColumn(kind, column, column.width if kind == FIXED else 0, keep=owner)


def _int_column(part: str, column: ArrowColumn, owner: object) -> IntColumn:
    width: int | None
    width, times = _WIDTHS.get(column.format), 1
    if part == "timestamp" and column.format[:3] in _MOMENTS:
        width, times = _MOMENTS[column.format[:3]]
    if width is None or column.dictionary is not None:
        wanted = "timestamps, dates or whole numbers" if part == "timestamp" else "whole numbers"
        raise TypeError(
            f"column {column.name!r} cannot be the {part}: it must hold {wanted}, and is "
            f"{type_name(column.format)}. Cast it, or name another column with {part}=."
        )
    return IntColumn(column, width, times, owner, smallest_is_null=False)


def _headers_column(column: ArrowColumn, owner: object) -> HeadersColumn:
    kind = FIXED if column.format.startswith("+w:") else _LISTS.get(column.format)
    entries = column.children[0] if kind is not None and column.children else None
    if entries is None or entries.format != "+s" or len(entries.children) != 2:
        raise TypeError(
            f"column {column.name!r} cannot be the headers: it must hold maps, or lists of structs with the fields key "
            f"and value, and is {type_name(column.format)}"
        )
    name, value = entries.children
    if column.format != "+m" and (name.name, value.name) == ("value", "key"):
        name, value = value, name
    elif column.format != "+m" and (name.name, value.name) != ("key", "value"):
        raise TypeError(
            f"column {column.name!r} cannot be the headers: its structs have the fields {name.name!r} and "
            f"{value.name!r} instead of key and value"
        )
    names, values = _bytes_column("headers", name, owner), _bytes_column("headers", value, owner)
    return HeadersColumn(kind if column.length else NULLS, column, entries, names, values, owner)


def moment_text(number: int, unit: str) -> str:
    """A moment of a table as people read it: a number of units since 1970, with the date where the calendar has one.

    Args:
        number: how many.
        unit: days, s, ms, us or ns.
    """
    given = f"{number} {unit} since 1970"
    try:
        moment = _EPOCH + datetime.timedelta(microseconds=number * _NANOSECONDS[unit] // 1000)
    except OverflowError:
        return given
    return f"{moment.isoformat().removesuffix('+00:00')}Z ({given})"
