# SPDX-License-Identifier: Apache-2.0
"""Checksums of the rows that a task takes from Spark, each with the number of its method. No row becomes an object.

`RowsChecksum` is the one that is used: over all that a row sends, whatever the order of the rows and however they were
cut into batches and tasks. `RunningChecksum` is that of the first release, over keys, values, topics and partitions in
the order of a task's rows: decisions of that release can only be repaired with it.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock.records._columns_cy import text_lengths
from penstock.records._crc_cy import crc32c
from penstock.records._row_hash_cy import add_lists, add_numbers, add_texts, hash_sum
from penstock.sink.messages import IN_ORDER, SUMMED

if TYPE_CHECKING:
    import pyarrow as pa

_NULL: Final = struct.pack("=i", -1)
_MASK: Final = 2**64 - 1

# Tell the fields of a row apart. They are part of the method: as long as its number is the same, they do not change.
_TOPIC: Final = 0x243F6A8885A308D3
_KEY: Final = 0x13198A2E03707344
_VALUE: Final = 0xA4093822299F31D0
_TIMESTAMP: Final = 0x082EFA98EC4E6C89
_PARTITION: Final = 0x452821E638D01377
_HEADERS: Final = 0xBE5466CF34E90C6C
_HEADER_NAME: Final = 0xC0AC29B7C97C50DD
_HEADER_VALUE: Final = 0x3F84D5B5B5470917

_TEXTS: Final = (("topic", _TOPIC), ("key", _KEY), ("value", _VALUE))


class Checksum(Protocol):
    """Takes up batch after batch."""

    method: int

    def add(self, batch: pa.RecordBatch) -> None:
        """Take up the rows of a batch, as Spark gave them."""

    @property
    def value(self) -> int:
        """The checksum so far, 64 bits."""


def checksum_by(method: int) -> Checksum:
    """A checksum by that method; by the one in use, if it is none that is known here."""
    return RunningChecksum() if method == IN_ORDER else RowsChecksum()


class RowsChecksum:
    """The sum of the hashes of all rows: of topic, key, value, headers, timestamp and partition, as far as not null.

    A column that is missing is one of nulls. Strings are the bytes that are sent of them, and it does not matter how
    wide Arrow's offsets are.
    """

    method = SUMMED

    def __init__(self) -> None:
        self._sum = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Take up the rows of a batch.

        Raises:
            ValueError: Arrow's offsets point to what is not there.
        """
        hashes = bytearray(8 * batch.num_rows)
        names = batch.schema.names
        for name, tag in _TEXTS:
            if name in names:
                _add_texts(hashes, tag, batch.column(name))
        if "partition" in names:
            _add_numbers(hashes, _PARTITION, batch.column("partition"))
        if "timestamp" in names:
            _add_numbers(hashes, _TIMESTAMP, _in_microseconds(batch.column("timestamp")))
        if "headers" in names:
            _add_headers(hashes, batch.column("headers"))
        self._sum = (self._sum + hash_sum(hashes)) & _MASK

    @property
    def value(self) -> int:
        """The checksum so far."""
        return self._sum


def _add_texts(hashes: bytearray, tag: int, column: Any) -> None:
    if column.null_count == len(column):
        return  # Arrow may leave out the buffers
    validity, offsets, data = column.buffers()
    at, size = (0, 0) if data is None else (data.address, data.size)
    add_texts(hashes, tag, offsets.address, _address(validity), at, size, _is_large(column), column.offset)


def _add_numbers(hashes: bytearray, tag: int, column: Any) -> None:
    if column.null_count < len(column):
        validity, items = column.buffers()
        add_numbers(
            hashes, tag, items.address, _address(validity), column.type.bit_width == 64, column.offset
        )


def _in_microseconds(column: Any) -> Any:
    """Return the timestamps in Spark's unit, microseconds."""
    if column.type.unit == "us":
        return column
    import pyarrow as pa

    return column.cast(pa.timestamp("us", column.type.tz), safe=False)


def _add_headers(hashes: bytearray, column: Any) -> None:
    if column.null_count == len(column):
        return
    validity, offsets = column.buffers()[:2]
    is_large = _is_large(column)
    places = memoryview(offsets).cast("B").cast("q" if is_large else "i")
    first, after = places[column.offset], places[column.offset + len(column)]
    entries = column.values.slice(first, after - first)
    of_entries = bytearray(8 * len(entries))
    if len(entries):
        # Where a whole header is null, so are its name and value then, whatever lies there.
        parts = dict(zip((field.name for field in entries.type), entries.flatten(), strict=True))
        _add_texts(of_entries, _HEADER_NAME, parts["key"])
        _add_texts(of_entries, _HEADER_VALUE, parts["value"])
    add_lists(
        hashes, _HEADERS, offsets.address, _address(validity), is_large, column.offset, of_entries, first
    )


def _address(buffer: Any) -> int:
    return 0 if buffer is None else buffer.address


def _is_large(column: Any) -> bool:
    """Whether offsets have 64 bits, as under spark.sql.execution.arrow.useLargeVarTypes."""
    return str(column.type).startswith("large_")


class RunningChecksum:
    """Of keys, values, topics and partitions, in order.

    Of each text it is also over the lengths, with -1 for a null, so that "ab", "c" is not "a", "bc", and nothing is not
    an empty text.
    """

    method = IN_ORDER

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
