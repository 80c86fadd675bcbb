# SPDX-License-Identifier: Apache-2.0
# cython: boundscheck=False, wraparound=False, initializedcheck=False, nonecheck=False
"""The column of a table that has the headers: lists of names and values. Compiled if possible.

The rules are those of `_columns_cy`. A list is read twice, to measure it and to write it: what is written never goes
beyond what was measured, whatever the memory says by then.
"""

from __future__ import annotations

from typing import Any

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

if cython.compiled:
    from cython.cimports.penstock._primitives_cy import put_varint, size_of_varint
    from cython.cimports.penstock.records._columns_cy import BytesColumn
    from cython.cimports.penstock.records._memory_cy import (
        bytes_at,
        copy,
        field_size,
        int_at,
        ints_at,
        is_null,
        long_at,
        longs_at,
        put_field,
    )
else:
    from penstock._primitives_cy import put_varint, size_of_varint
    from penstock.records._columns_cy import BytesColumn
    from penstock.records._memory import (
        bytes_at,
        copy,
        field_size,
        int_at,
        ints_at,
        is_null,
        long_at,
        longs_at,
        put_field,
    )

from penstock.records._columns_cy import LIES, NULLS, OFFSETS_32, OFFSETS_64, POINTERS, SIZES_32, SIZES_64

# C variables when compiled, so that their use costs nothing.
_NULLS = cython.declare(cython.int, NULLS)
_OFFSETS_32 = cython.declare(cython.int, OFFSETS_32)
_OFFSETS_64 = cython.declare(cython.int, OFFSETS_64)
_POINTERS = cython.declare(cython.int, POINTERS)
_SIZES_32 = cython.declare(cython.int, SIZES_32)
_SIZES_64 = cython.declare(cython.int, SIZES_64)
_LIES = cython.declare(cython.Py_ssize_t, LIES)


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


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
        self._entry_count = entries.length
        self._entries_have_nulls = bool(entries.validity)
        self._entries_offset = entries.offset
        self._entries_valid = bytes_at(entries.validity, (entries.offset + entries.length + 7) // 8)

    def _look(self, row: cython.Py_ssize_t) -> cython.bint:
        """Set the range of a row's entries; whether there are entries as the list says."""
        at: cython.Py_ssize_t = row + self._offset
        first: cython.longlong = 0
        count: cython.longlong = 0
        if self._kind == _NULLS or (self._has_nulls and is_null(self._valid, at)):
            pass
        elif self._kind == _OFFSETS_32:
            first = int_at(self._ints, at)
            count = int_at(self._ints, at + 1) - first
        elif self._kind == _OFFSETS_64:
            first = long_at(self._longs, at)
            count = long_at(self._longs, at + 1)
            if first < 0 or count < first:
                return False
            count -= first
        elif self._kind == _SIZES_32:
            first = int_at(self._ints, at)
            count = int_at(self._int_sizes, at)
        elif self._kind == _SIZES_64:
            first = long_at(self._longs, at)
            count = long_at(self._long_sizes, at)
        else:
            first = at * self._width
            count = self._width
        # In this order: no sum of what was read is taken, which could be more than a number can hold.
        if first < 0 or count < 0 or first > self._entry_count or count > self._entry_count - first:
            return False
        self._first = first
        self._last = first + count
        return True

    def lies(self, row: cython.Py_ssize_t) -> cython.bint:
        """Whether anything that a row names lies outside of the column; `measure` stops at the first trouble."""
        entry: cython.Py_ssize_t
        if self._kind == _POINTERS:
            return False
        if not self._look(row):
            return True
        for entry in range(self._first, self._last):
            if self._names.find(entry) == _LIES or self._values.find(entry) == _LIES:
                return True
        return False

    def measure(self, row: cython.Py_ssize_t, most: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Bytes of a row's headers section, counted until they are more than `most`.

        -1 where a header is null, or has no name or one that is not UTF-8; LIES where the column contradicts itself.
        """
        entry: cython.Py_ssize_t
        name_size: cython.Py_ssize_t
        value_size: cython.Py_ssize_t
        if self._kind == _POINTERS:
            name_size = self._encoded.find(row)
            return 1 if name_size < 0 else name_size
        if not self._look(row):
            return _LIES
        size: cython.Py_ssize_t = size_of_varint(self._last - self._first)
        for entry in range(self._first, self._last):
            if self._entries_have_nulls and is_null(self._entries_valid, entry + self._entries_offset):
                return -1
            name_size = self._names.find(entry)
            if name_size == _LIES:
                return _LIES
            if name_size < 0 or not self._names.is_text(name_size):
                return -1
            value_size = self._values.find(entry)
            if value_size == _LIES:
                return _LIES
            size += field_size(name_size) + field_size(value_size)
            if size > most:  # lists may overlap: a small table can name more headers than there is memory
                break
        return size

    def put(
        self, memory: cython.p_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, row: cython.Py_ssize_t
    ) -> cython.Py_ssize_t:
        """Write a row's headers section; the position behind it.

        -1 where it does not fit before `end`, or is not what it was when it was measured: then somebody changes the
        table meanwhile, and what was written is worth nothing.
        """
        entry: cython.Py_ssize_t
        size: cython.Py_ssize_t
        if self._kind == _POINTERS:
            size = self._encoded.find(row)
            if size < 0:
                memory[at] = 0
                return at + 1
            return copy(memory, at, self._encoded.found, size)
        if not self._look(row):
            return -1
        if size_of_varint(self._last - self._first) > end - at:
            return -1
        at = put_varint(memory, at, self._last - self._first)
        for entry in range(self._first, self._last):
            size = self._names.find(entry)
            if size < 0 or field_size(size) > end - at:
                return -1
            at = put_field(memory, at, self._names.found, size)
            size = self._values.find(entry)
            if size == _LIES or field_size(size) > end - at:
                return -1
            at = put_field(memory, at, self._values.found, size)
        return at

    def get(self, row: cython.Py_ssize_t) -> list[tuple[str, bytes | None]]:
        """A row's headers as Python objects.

        Raises:
            ValueError: they were encoded before, and nobody needs them otherwise; a name is null or not UTF-8; or the
                column contradicts itself.
        """
        if self._kind == _POINTERS:
            raise ValueError("headers that were encoded before are not taken apart")
        if not self._look(row):
            raise ValueError(f"row {row} of a column of headers lies outside of the column's data")
        found: list = []
        entry: cython.Py_ssize_t
        for entry in range(self._first, self._last):
            name: bytes | None = self._names.get(entry)
            if name is None:
                raise ValueError(f"row {row} of a column of headers has a header without a name")
            found.append((name.decode(), self._values.get(entry)))
        return found
