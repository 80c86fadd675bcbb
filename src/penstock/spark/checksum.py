# SPDX-License-Identifier: Apache-2.0
"""A checksum of the rows of a partition: the same for the same rows, however they were cut into batches.

It is taken over keys, values, topics and partitions; of each text also over the lengths, with -1 for a null, so that
"ab", "c" is not "a", "bc", and nothing is not "". The bytes are taken as they lie, without an object for a row.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from penstock.records._columns_cy import text_lengths
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
        if len(column):
            content, lengths = self.parts
            self.parts = _with_texts(content, lengths, column)

    def add_nulls(self, count: int) -> None:
        content, lengths = self.parts
        self.parts = (content, crc32c(_NULL * count, lengths))


def _with_texts(content: int, lengths: int, column: pa.Array) -> tuple[int, int]:
    """Both checksums with one more array that is not empty. Spark leaves no bytes below a null, so nulls add none."""
    validity, offsets, data = column.buffers()
    # 64-bit offsets under spark.sql.execution.arrow.useLargeVarTypes.
    is_large = str(column.type).startswith("large_")
    first, count = column.offset, len(column)
    if data is not None:
        places = memoryview(offsets).cast("B").cast("q" if is_large else "i")
        content = crc32c(memoryview(data)[places[first] : places[first + count]], content)
    # Not by Arrow's own function: that lets go of the interpreter lock, and waits to get it back, for 10 us of work.
    valid = 0 if validity is None else validity.address
    return content, crc32c(text_lengths(offsets.address, valid, is_large, first, count), lengths)


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
