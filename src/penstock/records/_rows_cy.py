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
    from cython.cimports.libc.string import memcpy
    from cython.cimports.penstock._primitives_cy import partition_at, put_varint, varint_size
    from cython.cimports.penstock.records._columns_cy import BytesColumn
    from cython.cimports.penstock.records._find_cy import find_in
    from cython.cimports.penstock.records._memory_cy import bytes_at, ints_at, is_null, longs_at
else:
    from penstock._primitives_cy import partition_at, put_varint, varint_size
    from penstock.records._columns_cy import BytesColumn
    from penstock.records._memory import bytes_at, find_in, ints_at, is_null, longs_at

from penstock.records._columns_cy import (
    FIXED,
    NULL,
    NULLS,
    OFFSETS_32,
    OFFSETS_64,
    POINTERS,
    SIZES_32,
    SIZES_64,
)

# What `Rows.place` says of a row without a partition: it goes wherever records without key go, or it cannot be sent.
STICKY = -1
BAD_SIZE = -2
BAD_PARTITION = -3
BAD_TIMESTAMP = -4
BAD_HEADER = -5

# C variables when compiled, so that their use costs nothing.
_NULLS = cython.declare(cython.int, NULLS)
_OFFSETS_32 = cython.declare(cython.int, OFFSETS_32)
_OFFSETS_64 = cython.declare(cython.int, OFFSETS_64)
_FIXED = cython.declare(cython.int, FIXED)
_POINTERS = cython.declare(cython.int, POINTERS)
_SIZES_32 = cython.declare(cython.int, SIZES_32)
_SIZES_64 = cython.declare(cython.int, SIZES_64)
_STICKY = cython.declare(cython.int, STICKY)
_BAD_SIZE = cython.declare(cython.int, BAD_SIZE)
_BAD_PARTITION = cython.declare(cython.int, BAD_PARTITION)
_BAD_TIMESTAMP = cython.declare(cython.int, BAD_TIMESTAMP)
_BAD_HEADER = cython.declare(cython.int, BAD_HEADER)
_NULL = cython.declare(cython.longlong, NULL)
_BATCH_HEADER = cython.declare(cython.Py_ssize_t, 61)
_RECORD_OVERHEAD = cython.declare(cython.Py_ssize_t, 21)


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _size_of(value: cython.longlong) -> cython.Py_ssize_t:
    """The bytes of a varint; the ordinary case is decided here, without a call."""
    if -64 <= value < 64:
        return 1
    if -8192 <= value < 8192:
        return 2
    return varint_size(value)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put(memory: cython.p_uchar, at: cython.Py_ssize_t, value: cython.longlong) -> cython.Py_ssize_t:
    """Write a varint, likewise."""
    if -1 <= value < 64:
        memory[at] = value << 1 if value >= 0 else 1
        return at + 1
    if 64 <= value < 8192:
        memory[at] = (value << 1 & 0x7F) | 0x80
        memory[at + 1] = value >> 6
        return at + 2
    return put_varint(memory, at, value)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _copy(
    memory: cython.p_uchar, at: cython.Py_ssize_t, data: cython.p_const_uchar, size: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    if cython.compiled:
        memcpy(memory + at, data, size)
    else:
        if len(data) != size:  # a slice would change its size, and with it the size of the batch's memory
            raise ValueError(f"a column has {len(data)} bytes where it says {size}")
        memory[at : at + size] = data
    return at + size


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put_field(
    memory: cython.p_uchar, at: cython.Py_ssize_t, data: cython.p_const_uchar, size: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Write a length and the bytes; -1 is null."""
    at = _put(memory, at, size)
    if size > 0:
        at = _copy(memory, at, data, size)
    return at


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _field_size(size: cython.Py_ssize_t) -> cython.Py_ssize_t:
    return 1 if size < 0 else _size_of(size) + size


@cython.final
@cython.cclass
class HeadersColumn:
    """Lists of names and values; or headers sections that were encoded before.

    Args:
        kind: how the list is laid out; POINTERS: `values` has whole sections, and the rest means nothing.
        layout: an ArrowColumn of lists.
        entries: the ArrowColumn of its pairs.
        names: the names, by entry.
        values: the values, by entry.
        keep: what holds the memory.
    """

    def __init__(
        self,
        kind: cython.int,
        layout: Any,
        entries: Any,
        names: BytesColumn | None,
        values: BytesColumn,
        keep: object = None,
    ) -> None:
        self._kind = kind
        self._keep = keep
        self._names: Any = names
        self._values: Any = values
        self._encoded: Any = values
        self.length = values.length
        self._offset = 0
        self._has_nulls = False
        if kind == _POINTERS:
            return
        self.length = layout.length
        if kind == _NULLS:
            return
        end: cython.Py_ssize_t = layout.offset + layout.length
        self._offset = layout.offset
        self._has_nulls = bool(layout.validity)
        self._valid = bytes_at(layout.validity, (end + 7) // 8)
        buffers: tuple = layout.buffers
        if kind == _OFFSETS_32:
            self._ints = ints_at(buffers[0], end + 1)
        elif kind == _OFFSETS_64:
            self._longs = longs_at(buffers[0], end + 1)
        elif kind == _SIZES_32:
            self._ints = ints_at(buffers[0], end)
            self._int_sizes = ints_at(buffers[1], end)
        elif kind == _SIZES_64:
            self._longs = longs_at(buffers[0], end)
            self._long_sizes = longs_at(buffers[1], end)
        else:
            self._width = layout.width
        self._entries_have_nulls = bool(entries.validity)
        self._entries_offset = entries.offset
        self._entries_valid = bytes_at(entries.validity, (entries.offset + entries.length + 7) // 8)

    def _look(self, row: cython.Py_ssize_t) -> None:
        """Set the range of a row's entries."""
        at: cython.Py_ssize_t = row + self._offset
        self._first = 0
        self._last = 0
        if self._kind == _NULLS or (self._has_nulls and is_null(self._valid, at)):
            return
        if self._kind == _OFFSETS_32:
            self._first = self._ints[at]
            self._last = self._ints[at + 1]
        elif self._kind == _OFFSETS_64:
            self._first = self._longs[at]
            self._last = self._longs[at + 1]
        elif self._kind == _SIZES_32:
            self._first = self._ints[at]
            self._last = self._first + self._int_sizes[at]
        elif self._kind == _SIZES_64:
            self._first = self._longs[at]
            self._last = self._first + self._long_sizes[at]
        else:
            self._first = at * self._width
            self._last = self._first + self._width

    def measure(self, row: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Bytes of a row's headers section; -1 where a header is null, or has no name or one that is not UTF-8."""
        entry: cython.Py_ssize_t
        name_size: cython.Py_ssize_t
        if self._kind == _POINTERS:
            name_size = self._encoded.find(row)
            return 1 if name_size < 0 else name_size
        self._look(row)
        size: cython.Py_ssize_t = _size_of(self._last - self._first)
        for entry in range(self._first, self._last):
            if self._entries_have_nulls and is_null(self._entries_valid, entry + self._entries_offset):
                return -1
            name_size = self._names.find(entry)
            if name_size < 0 or not self._names.is_text(name_size):
                return -1
            size += _field_size(name_size) + _field_size(self._values.find(entry))
        return size

    def put(self, memory: cython.p_uchar, at: cython.Py_ssize_t, row: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Write a row's headers section; the position behind it."""
        entry: cython.Py_ssize_t
        size: cython.Py_ssize_t
        if self._kind == _POINTERS:
            size = self._encoded.find(row)
            if size < 0:
                memory[at] = 0
                return at + 1
            return _copy(memory, at, self._encoded.found, size)
        self._look(row)
        at = _put(memory, at, self._last - self._first)
        for entry in range(self._first, self._last):
            size = self._names.find(entry)
            at = _put_field(memory, at, self._names.found, size)
            size = self._values.find(entry)
            at = _put_field(memory, at, self._values.found, size)
        return at

    def get(self, row: cython.Py_ssize_t) -> list[tuple[str, bytes | None]]:
        """A row's headers as Python objects.

        Raises:
            ValueError: they were encoded before, and nobody needs them otherwise; or a name is not UTF-8.
        """
        if self._kind == _POINTERS:
            raise ValueError("headers that were encoded before are not taken apart")
        self._look(row)
        found: list = []
        entry: cython.Py_ssize_t
        for entry in range(self._first, self._last):
            name: bytes = self._names.get(entry)
            found.append((name.decode(), self._values.get(entry)))
        return found


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

    def bound(self, row: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """The most that a batch with this one record can take, as `estimate_record_size` says; -1: a bad header."""
        size: cython.Py_ssize_t = _BATCH_HEADER + _RECORD_OVERHEAD
        self._key_size = -1 if self.key is None else find_in(self.key, row)
        size += _field_size(self._key_size)
        size += 1 if self.value is None else _field_size(find_in(self.value, row))
        if self.headers is None:
            return size + 1
        section: cython.Py_ssize_t = self.headers.measure(row)
        return -1 if section < 0 else size + section

    def place(
        self,
        row: cython.Py_ssize_t,
        partitions: cython.int,
        limit: cython.Py_ssize_t,
        hash_keys: cython.bint,
    ) -> cython.int:
        """A row's partition, STICKY, or what is wrong with it."""
        number: cython.longlong
        size: cython.Py_ssize_t = self.bound(row)
        if size < 0:
            return _BAD_HEADER
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
        if hash_keys and self._key_size >= 0:
            return partition_at(self.key.found, self._key_size, partitions)  # which `bound` has found
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
            section = self.headers.measure(row)
        body: cython.Py_ssize_t = (
            1 + _size_of(delta) + _size_of(index) + _field_size(key_size) + _field_size(value_size) + section
        )
        size: cython.Py_ssize_t = _size_of(body) + body
        if size > room:
            return size
        self.payload = (key_size if key_size > 0 else 0) + (value_size if value_size > 0 else 0)
        at = _put(memory, at, body)
        memory[at] = 0  # record attributes: none are defined
        at = _put(memory, at + 1, delta)
        at = _put(memory, at, index)
        at = _put(memory, at, key_size)
        if key_size > 0:
            at = _copy(memory, at, key, key_size)
        at = _put(memory, at, value_size)
        if value_size > 0:
            at = _copy(memory, at, value, value_size)
        if self.headers is None:
            memory[at] = 0
        else:
            self.headers.put(memory, at, row)
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
        """The most that a batch with this one record can take."""
        return self.bound(row)
