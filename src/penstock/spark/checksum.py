# SPDX-License-Identifier: Apache-2.0
"""A checksum of the rows of a partition: the same for the same rows, however they were cut into batches.

It is taken over keys, values, topics and partitions; of each text also over the lengths, with -1 for a null, so that
"ab", "c" is not "a", "bc", and nothing is not "". The bytes are taken as they lie, without an object for a row.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from penstock.records.crc import crc32c

if TYPE_CHECKING:
    import pyarrow as pa

_NULL: Final = struct.pack("=i", -1)


class RunningChecksum:
    """Takes up batch after batch, in order."""

    def __init__(self) -> None:
        self._keys = _TextChecksum()
        self._values = _TextChecksum()
        self._topics = _TextChecksum()
        self._partitions = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Take up the column `value`, and of `key`, `topic` and `partition` those that there are."""
        names = batch.schema.names
        if "key" in names:
            self._keys.add(batch.column("key"))
        else:
            self._keys.add_nulls(batch.num_rows)
        self._values.add(batch.column("value"))
        if "topic" in names:
            self._topics.add(batch.column("topic"))
        if "partition" in names:
            self._partitions = _with_numbers(self._partitions, batch.column("partition"))

    @property
    def value(self) -> int:
        """The checksum so far, 64 bits: that of keys and places above that of the values."""
        places = (*self._keys.parts, *self._topics.parts, self._partitions)
        return crc32c(struct.pack("<5I", *places)) << 32 | crc32c(struct.pack("<2I", *self._values.parts))


class _TextChecksum:
    """The checksum of one column of texts or bytes.

    Attributes:
        parts: of the bytes, and of the lengths.
    """

    def __init__(self) -> None:
        self.parts = (0, 0)

    def add(self, column: pa.Array) -> None:
        content, lengths = self.parts
        self.parts = (_with_bytes(content, column), _with_numbers(lengths, _binary_length(column)))

    def add_nulls(self, count: int) -> None:
        content, lengths = self.parts
        self.parts = (content, crc32c(_NULL * count, lengths))


def _binary_length(column: pa.Array) -> pa.Array:
    """The length of each text; null for a null."""
    try:
        # pyarrow.compute has it from here. That module makes a Python function of everything that Arrow can do, which
        # takes 20 ms, and the first task of each worker would wait for it.
        from pyarrow._compute import call_function
    except ImportError:
        from pyarrow.compute import call_function
    return call_function("binary_length", [column])


def _with_bytes(checksum: int, column: pa.Array) -> int:
    """The checksum with the bytes of one more array. Spark leaves no bytes below a null, so nulls add none."""
    _, offsets, data = column.buffers()
    if data is None or not len(column):
        return checksum
    # 64-bit offsets under spark.sql.execution.arrow.useLargeVarTypes.
    places = memoryview(offsets).cast("B").cast("q" if str(column.type).startswith("large_") else "i")
    start, end = places[column.offset], places[column.offset + len(column)]
    return crc32c(memoryview(data)[start:end], checksum)


def _with_numbers(checksum: int, column: pa.Array) -> int:
    """The checksum with one more array of numbers, as 32 bits each."""
    if not len(column):
        return checksum
    numbers = column if str(column.type) == "int32" else column.cast("int32")
    if numbers.null_count:
        numbers = numbers.fill_null(-1)
    _, data = numbers.buffers()
    start = 4 * numbers.offset
    return crc32c(memoryview(data).cast("B")[start : start + 4 * len(numbers)], checksum)
