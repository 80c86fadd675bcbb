# SPDX-License-Identifier: Apache-2.0
"""What users give to `send_many`: sequences of values, keys and so on, checked and made into records or columns.

A bytes object is read without a copy: its column holds an address and a size for each row.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from penstock._counted import counted
from penstock.records._batch_cy import encode_headers
from penstock.records._columns_cy import NULL, POINTERS, BytesColumn, IntColumn
from penstock.records._headers_cy import HeadersColumn
from penstock.records._rows_cy import Rows
from penstock.records.arrow import ArrowColumn
from penstock.types import Header, HeadersLike, ProducerRecord, as_headers

# Called with topic, keys, values and headers; gives the last three as they are sent.
Serialize = Callable[
    [str, Sequence[Any] | None, Sequence[Any], Sequence[Any] | None],
    tuple[Sequence[bytes | None] | None, Sequence[bytes | None], Sequence[Any] | None],
]

_MAX_NUMBER = 2**63 - 1


class PythonRows(NamedTuple):
    """Records as Python has them, one sequence for each part; None: no record has it."""

    values: Sequence[bytes | None]
    keys: Sequence[bytes | None] | None = None
    headers: Sequence[Sequence[Header]] | None = None
    partitions: Sequence[int | None] | None = None
    timestamps: Sequence[int | None] | None = None

    def as_rows(self) -> Rows:
        """The same as columns; every key and value is bytes or None."""
        columns: dict[str, object] = {"value": BytesColumn(POINTERS, tuple(self.values))}
        if self.keys is not None:
            columns["key"] = BytesColumn(POINTERS, tuple(self.keys))
        if self.headers is not None:
            sections = tuple(encode_headers(headers) if headers else None for headers in self.headers)
            columns["headers"] = HeadersColumn(POINTERS, None, None, None, BytesColumn(POINTERS, sections))
        if self.partitions is not None:
            columns["partition"] = _int_column(self.partitions)
        if self.timestamps is not None:
            columns["timestamp"] = _int_column(self.timestamps)
        return Rows(len(self.values), columns)


def rows_with_headers(rows: Rows, headers: Sequence[Header]) -> Rows:
    """Rows that have no column of headers, each with these; others as they are."""
    if rows.headers is not None or not headers or not rows.length:
        return rows
    names = ("key", "value", "partition", "timestamp", "topic")
    columns: dict[str, object] = {name: getattr(rows, name) for name in names}
    sections = BytesColumn(POINTERS, (encode_headers(headers),) * rows.length)
    columns["headers"] = HeadersColumn(POINTERS, None, None, None, sections)
    return Rows(rows.length, columns)


@dataclass(frozen=True, slots=True)
class ManyRecords:
    """Records of one topic, one sequence for each part; None: no record has it. All are of the same length."""

    topic: str
    values: Sequence[Any]
    keys: Sequence[Any] | None
    headers: Sequence[tuple[Header, ...]] | None
    partitions: Sequence[int | None] | None
    timestamps: Sequence[int | None] | None

    @classmethod
    def of(
        cls,
        topic: str,
        values: Iterable[Any],
        keys: Iterable[Any] | None,
        headers: Iterable[HeadersLike | None] | None,
        partition: int | Iterable[int | None] | None,
        timestamps_ms: Iterable[int | None] | None,
    ) -> ManyRecords:
        """Take the arguments of the call.

        Raises:
            TypeError: an argument, or an item of one, has the wrong type.
            ValueError: the lengths differ, or a number cannot be.
        """
        ProducerRecord(topic)  # refuses what is no topic
        taken = _items("values", values)
        count = len(taken)
        frozen = None
        if headers is not None:
            frozen = [as_headers(some) for some in _items("headers", headers, count)]
        partitions: Iterable[int | None] | None
        if isinstance(partition, bool) or not isinstance(partition, int | Iterable | None):
            raise TypeError(
                f"partition must be an int or None, or one for each record, not {type(partition).__name__}"
            )
        if isinstance(partition, int):
            partitions = [partition] * count
        else:
            partitions = partition
        return cls(
            topic,
            taken,
            None if keys is None else _items("keys", keys, count),
            frozen,
            None if partitions is None else _numbers("partition", partitions, count),
            None if timestamps_ms is None else _numbers("timestamps_ms", timestamps_ms, count),
        )

    def records(self) -> Iterator[ProducerRecord]:
        nothing = (None,) * len(self.values)
        for value, key, headers, partition, timestamp in zip(
            self.values,
            self.keys or nothing,
            self.headers or ((),) * len(self.values),
            self.partitions or nothing,
            self.timestamps or nothing,
            strict=True,
        ):
            yield ProducerRecord(self.topic, value, key, headers, partition, timestamp)

    def rows(self, serialize: Serialize | None) -> Rows:
        """The records as columns.

        Args:
            serialize: gives keys, values and headers as they are sent; None: they are bytes as they are, if they can
                be sent at all.

        Raises:
            SerializationError: a key or value cannot be turned into bytes; a note tells which row.
        """
        values, keys, headers = self.values, self.keys, self.headers
        if serialize is not None:
            keys, values, headers = serialize(str.__str__(self.topic), keys, values, headers)
        return PythonRows(values, keys, headers, self.partitions, self.timestamps).as_rows()

    def with_headers(self, add: Callable[[HeadersLike | None], tuple[Header, ...]]) -> ManyRecords:
        """The same records; `add` gives the headers of each."""
        if self.headers is not None:
            return replace(self, headers=[add(some) for some in self.headers])
        headers = add(None)
        return replace(self, headers=[headers] * len(self.values)) if headers else self

    def are_bytes(self) -> bool:
        """Whether keys and values are bytes, or None."""
        return _are_bytes(self.values) and (self.keys is None or _are_bytes(self.keys))


def _are_bytes(items: Sequence[Any]) -> bool:
    return all(item is None or type(item) is bytes for item in items)


def _items(name: str, items: Iterable[Any], count: int | None = None) -> list[Any]:
    if isinstance(items, str | bytes | bytearray | memoryview):
        raise TypeError(f"{name} must be a sequence with an item for each record, not {type(items).__name__}")
    taken = list(items)
    if count is not None and len(taken) != count:
        raise ValueError(f"{name} must have {counted(count, 'item')}, one for each value, not {len(taken)}")
    return taken


def _numbers(name: str, numbers: Iterable[int | None], count: int) -> list[int | None]:
    taken = _items(name, numbers, count)
    for row, number in enumerate(taken):
        if number is None:
            continue
        if not isinstance(number, int) or isinstance(number, bool):
            raise TypeError(f"{name} of row {row} must be an int or None, not {type(number).__name__}")
        if not 0 <= number <= _MAX_NUMBER:
            way_out = "; None lets the producer choose" if name == "partition" and number < 0 else ""
            raise ValueError(f"{name} of row {row} must not be negative or beyond 64 bits: {number}{way_out}")
    return taken


def _int_column(numbers: Sequence[int | None]) -> IntColumn:
    memory = array("q", [NULL if number is None else number for number in numbers])
    address, length = memory.buffer_info()
    layout = ArrowColumn("", "l", length, 0, 0, (address,), (), None)
    return IntColumn(layout, 8, 1, memory)
