# SPDX-License-Identifier: Apache-2.0
# cython: boundscheck=False, wraparound=False, initializedcheck=False, nonecheck=False
"""Rows of columns, and how each is written as a record. Compiled if possible.

What `Rows.append` writes is byte for byte what `BatchWriter.append` would have written. Nothing here touches a Python
object but the methods that give one, so that the loops over rows run without the interpreter lock.
"""

from __future__ import annotations

from typing import Any

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

if cython.compiled:
    from cython.cimports.penstock._primitives_cy import partition_at, put_varint, size_of_varint
    from cython.cimports.penstock.records._columns_cy import find_in
    from cython.cimports.penstock.records._crc_cy import crc32_partition_at
    from cython.cimports.penstock.records._layout_cy import HEADER_SIZE, MAX_RECORD_OVERHEAD
    from cython.cimports.penstock.records._memory_cy import copy, field_size
else:
    from penstock._primitives_cy import partition_at, put_varint, size_of_varint
    from penstock.records._crc_cy import crc32_partition_at
    from penstock.records._memory import copy, field_size, find_in
    from penstock.records.format import HEADER_SIZE, MAX_RECORD_OVERHEAD

from penstock._primitives_cy import CRC32, MURMUR2
from penstock.records._columns_cy import LIES, NULL

# What `Rows.place` says of a row without a partition: it goes wherever records without key go, or it cannot be sent.
STICKY = -1
BAD_SIZE = -2
BAD_PARTITION = -3
BAD_TIMESTAMP = -4
BAD_HEADER = -5
BAD_LAYOUT = -7  # -6 is what `_window_cy` says of a row without a topic
# What `Rows.append` says of a row that is not what it was when it was placed: more than any room.
CHANGED = 0x7FFFFFFFFFFFFFFF

# C variables when compiled, so that their use costs nothing.
_STICKY = cython.declare(cython.int, STICKY)
_MURMUR2 = cython.declare(cython.int, MURMUR2)
_CRC32 = cython.declare(cython.int, CRC32)
_BAD_SIZE = cython.declare(cython.int, BAD_SIZE)
_BAD_PARTITION = cython.declare(cython.int, BAD_PARTITION)
_BAD_TIMESTAMP = cython.declare(cython.int, BAD_TIMESTAMP)
_BAD_HEADER = cython.declare(cython.int, BAD_HEADER)
_BAD_LAYOUT = cython.declare(cython.int, BAD_LAYOUT)
_CHANGED = cython.declare(cython.Py_ssize_t, CHANGED)
_LIES = cython.declare(cython.Py_ssize_t, LIES)
# Nobody needs to know how much more than this a record takes.
_LARGEST_RECORD = cython.declare(cython.Py_ssize_t, 0x7FFFFFFF)
_NULL = cython.declare(cython.longlong, NULL)


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


@cython.final
@cython.cclass
class Rows:
    """The columns of one chunk; those that are None hold null in every row.

    Args:
        length: how many rows.
        columns: the columns by the names key, value, headers, partition, timestamp and topic.
    """

    def __init__(self, length: cython.Py_ssize_t, columns: dict) -> None:  # type: ignore[type-arg]
        self.length = length
        self.key: Any = columns.get("key")
        self.value: Any = columns.get("value")
        self.headers: Any = columns.get("headers")
        self.partition: Any = columns.get("partition")
        self.timestamp: Any = columns.get("timestamp")
        self.topic: Any = columns.get("topic")

    def bound(self, row: cython.Py_ssize_t, most: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """The most that a batch with this one record can take, as `estimate_record_size` says.

        Headers are counted until they are more than `most`. -1: a bad header; LIES: a column contradicts itself.
        """
        size: cython.Py_ssize_t = HEADER_SIZE + MAX_RECORD_OVERHEAD
        value_size: cython.Py_ssize_t
        self._key_size = -1 if self.key is None else find_in(self.key, row)
        if self._key_size >= 0:
            size += size_of_varint(self._key_size) + self._key_size
        elif self._key_size == _LIES:
            return _LIES
        else:
            size += 1
        value_size = -1 if self.value is None else find_in(self.value, row)
        if value_size >= 0:
            size += size_of_varint(value_size) + value_size
        elif value_size == _LIES:
            return _LIES
        else:
            size += 1
        if self.headers is None:
            return size + 1
        section: cython.Py_ssize_t = self.headers.measure(row, most)
        return section if section < 0 else size + section

    def place(
        self,
        row: cython.Py_ssize_t,
        partitions: cython.int,
        limit: cython.Py_ssize_t,
        key_hash: cython.int,
    ) -> cython.int:
        """A row's partition, STICKY, or what is wrong with it."""
        number: cython.longlong
        size: cython.Py_ssize_t = self.bound(row, limit)
        if size < 0:
            return _BAD_LAYOUT if size == _LIES else _BAD_HEADER
        if size > limit:
            return _BAD_SIZE
        if self.timestamp is not None:
            number = self.timestamp.at(row)
            if number < 0 and number != _NULL:
                return _BAD_TIMESTAMP
        if self.partition is not None:
            number = self.partition.at(row)
            if number != _NULL:
                return cython.cast(cython.int, number) if 0 <= number < partitions else _BAD_PARTITION
        if key_hash == _MURMUR2 and self._key_size >= 0:
            return partition_at(self.key.found, self._key_size, partitions)  # which `bound` has found
        if key_hash == _CRC32 and self._key_size > 0:
            return crc32_partition_at(self.key.found, self._key_size, partitions)
        return _STICKY

    def partition_at(self, row: cython.Py_ssize_t) -> int | None:
        """A row's partition as it says; None for null."""
        number: cython.longlong = _NULL if self.partition is None else self.partition.at(row)
        return None if number == _NULL else number

    def timestamp_at(self, row: cython.Py_ssize_t, now_ms: cython.longlong) -> cython.longlong:
        """A row's timestamp; `now_ms` where it has none."""
        if self.timestamp is None:
            return now_ms
        moment: cython.longlong = self.timestamp.at(row)
        return now_ms if moment == _NULL else moment

    def append(
        self,
        memory: cython.p_uchar,
        at: cython.Py_ssize_t,
        room: cython.Py_ssize_t,
        row: cython.Py_ssize_t,
        delta: cython.longlong,
        index: cython.Py_ssize_t,
    ) -> cython.Py_ssize_t:
        """Write a row as a record, unless that takes more than `room`; the bytes that it takes.

        CHANGED where it is none, or becomes another one while it is written. Whatever another thread does to the table,
        nothing is written beyond the room.

        All that is looked at is in local variables before the first byte is written: to a compiler, any byte of memory
        may be one of this object's.
        """
        key: cython.p_const_uchar = memory  # where it is null, nobody looks there
        value: cython.p_const_uchar = memory
        key_size: cython.Py_ssize_t = -1
        value_size: cython.Py_ssize_t = -1
        section: cython.Py_ssize_t = 1
        if self.key is not None:
            key_size = find_in(self.key, row)
            key = self.key.found
        if self.value is not None:
            value_size = find_in(self.value, row)
            value = self.value.found
        if self.headers is not None:
            section = self.headers.measure(row, _LARGEST_RECORD)
        # One look at three signs: sizes are -1 at least, where they are not LIES.
        if ((key_size + 1) | (value_size + 1) | section) < 0:
            return _CHANGED
        body: cython.Py_ssize_t = (
            1
            + size_of_varint(delta)
            + size_of_varint(index)
            + field_size(key_size)
            + field_size(value_size)
            + section
        )
        size: cython.Py_ssize_t = size_of_varint(body) + body
        if size > room:
            return size
        self.payload = (key_size if key_size > 0 else 0) + (value_size if value_size > 0 else 0)
        at = put_varint(memory, at, body)
        memory[at] = 0  # record attributes: none are defined
        at = put_varint(memory, at + 1, delta)
        at = put_varint(memory, at, index)
        at = put_varint(memory, at, key_size)
        if key_size > 0:
            at = copy(memory, at, key, key_size)
        at = put_varint(memory, at, value_size)
        if value_size > 0:
            at = copy(memory, at, value, value_size)
        if self.headers is None:
            memory[at] = 0
        elif self.headers.put(memory, at, at + section, row) != at + section:
            return _CHANGED
        return size

    def record(self, row: cython.Py_ssize_t) -> tuple[Any, ...]:
        """A row as Python objects: value, key, headers, partition, timestamp; None for null."""
        moment: cython.longlong = _NULL if self.timestamp is None else self.timestamp.at(row)
        return (
            None if self.value is None else self.value.get(row),
            None if self.key is None else self.key.get(row),
            () if self.headers is None else self.headers.get(row),
            self.partition_at(row),
            None if moment == _NULL else moment,
        )

    def size_bound(self, row: cython.Py_ssize_t) -> int:
        """The most that a batch with this one record can take; -1: a bad header; LIES: a column contradicts itself."""
        return self.bound(row, _LARGEST_RECORD)

    def is_damaged(self, row: cython.Py_ssize_t) -> bool:
        """Whether any part of a row lies outside of its column's data, whatever else is wrong with it."""
        if self.topic is not None and self.topic.find(row) == _LIES:
            return True
        if self.key is not None and self.key.find(row) == _LIES:
            return True
        if self.value is not None and self.value.find(row) == _LIES:
            return True
        return self.headers is not None and bool(self.headers.lies(row))

    def wrong_part(self, row: cython.Py_ssize_t) -> str:
        """Which part of a row lies outside of its column's data."""
        if self.topic is not None and self.topic.find(row) == _LIES:
            return "topic"
        if self.key is not None and self.key.find(row) == _LIES:
            return "key"
        if self.value is not None and self.value.find(row) == _LIES:
            return "value"
        return "headers"
