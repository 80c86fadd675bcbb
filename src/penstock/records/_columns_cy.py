# SPDX-License-Identifier: Apache-2.0
# cython: boundscheck=False, wraparound=False, initializedcheck=False, nonecheck=False
"""Columns of whole numbers and of bytes, read where they lie: the memory of Arrow arrays, or of Python's bytes objects.

Compiled if possible. Rules:
1. A column keeps what it points to alive (`keep`).
2. `at` and `find` touch no Python object, and run without the interpreter lock.
3. What a table says of itself is checked: an offset, a code or a view is compared with what the column is known to
   have, each time it is read. Another thread may change the memory meanwhile, so it is read once, into a variable that
   is checked and used.

In plain Python a pointer is a memoryview of the same memory.
"""

from __future__ import annotations

from typing import Any

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
    from cython.cimports.penstock.records._memory_cy import (
        bytes_at,
        int_at,
        ints_at,
        is_null,
        long_at,
        longs_at,
        number_at,
        prefetch_line,
    )
else:
    from penstock.records._memory import bytes_at, int_at, ints_at, is_null, long_at, longs_at, number_at

NULL = -(2**63)  # what a column of numbers gives for null

# Layouts of columns of bytes, and of lists.
NULLS, OFFSETS_32, OFFSETS_64, VIEWS, FIXED, POINTERS, DICTIONARY, SIZES_32, SIZES_64 = range(9)

LIES = -2  # what a column of bytes gives for a row whose bytes would lie outside of the column's

# More than any machine can address: a column that says so is wrong. Sums of a few such sizes are far from an overflow.
MOST_BYTES = 1 << 56

# C variables when compiled, so that their use costs nothing.
_NULLS = cython.declare(cython.int, NULLS)
_OFFSETS_32 = cython.declare(cython.int, OFFSETS_32)
_OFFSETS_64 = cython.declare(cython.int, OFFSETS_64)
_VIEWS = cython.declare(cython.int, VIEWS)
_FIXED = cython.declare(cython.int, FIXED)
_POINTERS = cython.declare(cython.int, POINTERS)
_DICTIONARY = cython.declare(cython.int, DICTIONARY)
_LIES = cython.declare(cython.Py_ssize_t, LIES)
_MOST_BYTES = cython.declare(cython.longlong, MOST_BYTES)
_NULL = cython.declare(cython.longlong, NULL)  # by name: C has no literal for the smallest number
_LARGEST = cython.declare(cython.longlong, 0x7FFFFFFFFFFFFFFF)

# Of numbers: the format of an item by its width, and the unit of moments by what they are multiplied by.
_FORMATS = {1: "b", -1: "B", 2: "h", -2: "H", 4: "i", -4: "I", 8: "q", -8: "Q"}
_UNITS = {1: "ms", 1000: "s", -1000: "us", -1_000_000: "ns", 86_400_000: "days"}


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


@cython.final
@cython.cclass
class IntColumn:
    """Whole numbers, scaled: partitions, timestamps, the codes of a dictionary.

    Args:
        layout: an ArrowColumn of whole numbers, or anything with its attributes.
        width: bytes of an item; negative for unsigned ones; 0 where all are null.
        times: what a value is multiplied by; negative: what it is divided by, and rounded down.
        keep: what holds the memory.
        smallest_is_null: whether the smallest number of 64 bits stands for null. Otherwise it is a number like any
            other that is negative.
    """

    def __init__(
        self,
        layout: Any,
        width: cython.int,
        times: cython.longlong,
        keep: object,
        smallest_is_null: cython.bint = True,
    ) -> None:
        end: cython.Py_ssize_t = layout.offset + layout.length
        self.length = layout.length
        self._offset = layout.offset
        self._width = width
        self._times = times
        self._keep = keep
        self._smallest_is_null = smallest_is_null
        self._has_nulls = bool(layout.validity)
        self._valid = bytes_at(layout.validity, (end + 7) // 8)
        size: cython.Py_ssize_t = abs(width) * end
        self._items = bytes_at(layout.buffers[0] if width else 0, size)
        if not cython.compiled and width:
            self._items = self._items.cast(_FORMATS[width])

    def at(self, row: cython.Py_ssize_t) -> cython.longlong:
        """A row's number, or NULL; -1 for what a signed number cannot hold: nothing that is good is negative."""
        at: cython.Py_ssize_t = row + self._offset
        value: cython.longlong
        if self._width == 0 or (self._has_nulls and is_null(self._valid, at)):
            return _NULL
        value = number_at(self._items, at, self._width)
        if self._width == -8 and (value < 0 or value > _LARGEST):
            value = -1
        if value == _NULL and not self._smallest_is_null:
            return -1
        return value if self._times == 1 else self._scaled(value)

    def as_given(self, row: cython.Py_ssize_t) -> int | None:
        """A row's number as the column has it, before it is scaled; None for null."""
        at: cython.Py_ssize_t = row + self._offset
        if self._width == 0 or (self._has_nulls and is_null(self._valid, at)):
            return None
        number: int = number_at(self._items, at, self._width)
        if self._width == -8 and number < 0:
            number += 2**64
        return None if self._smallest_is_null and number == NULL else number

    @property
    def unit(self) -> str:
        """What the numbers of a column of moments count."""
        return _UNITS.get(self._times, "ms")

    @cython.cdivision(True)
    def _scaled(self, value: cython.longlong) -> cython.longlong:
        if value < 0:
            # The moment before the epoch that it is does not matter: none of them can be sent.
            return value if value == _NULL else -1
        if self._times < 0:
            return value // -self._times
        # Beyond what milliseconds can count: refused like a moment before the epoch.
        return -1 if value > _LARGEST // self._times else value * self._times


def text_lengths(
    offsets: cython.size_t,
    validity: cython.size_t,
    is_large: cython.bint,
    first: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
) -> bytearray:
    """The length of each text of an Arrow column as a whole number of 32 bits; -1 for a null.

    Args:
        offsets: where the column's offsets are, of 64 bits if `is_large`.
        validity: where its bitmap of valid rows is; 0 where it has none.
        is_large: see there.
        first: the row to begin with.
        count: how many rows.
    """
    found: bytearray = bytearray(4 * count)
    end: cython.Py_ssize_t = first + count
    ints: cython.p_const_int = ints_at(0 if is_large else offsets, end + 1)
    longs: cython.p_const_longlong = longs_at(offsets if is_large else 0, end + 1)
    valid: cython.p_const_uchar = bytes_at(validity, (end + 7) // 8)
    sizes: cython.p_int
    if cython.compiled:
        sizes = cython.cast(cython.p_int, PyByteArray_AS_STRING(found))
    else:
        sizes = memoryview(found).cast("i")
    at: cython.Py_ssize_t
    for at in range(count):
        if validity and is_null(valid, first + at):
            sizes[at] = -1
        elif is_large:
            sizes[at] = longs[first + at + 1] - longs[first + at]
        else:
            sizes[at] = ints[first + at + 1] - ints[first + at]
    return found


@cython.cfunc
def _known_size(address: cython.size_t, size: cython.longlong) -> cython.longlong:
    """The bytes of a buffer; none where there is no buffer, or what it says cannot be."""
    return size if address and 0 < size <= _MOST_BYTES else 0


@cython.final
@cython.cclass
class BytesColumn:
    """Byte strings.

    Args:
        kind: the layout.
        layout: an ArrowColumn, or anything with its attributes; for POINTERS a tuple of bytes and None.
        width: the size of each, for FIXED.
        codes: the row of `words` that each row has, for DICTIONARY.
        words: the dictionary.
        keep: what holds the memory.
    """

    def __init__(
        self,
        kind: cython.int,
        layout: Any,
        width: cython.Py_ssize_t = 0,
        codes: IntColumn | None = None,
        words: BytesColumn | None = None,
        keep: object = None,
    ) -> None:
        self._kind = kind
        self._width = width
        self._codes: Any = codes
        self._words: Any = words
        self._keep = keep
        self._offset = 0
        self._limit = 0
        self._buffer_count = 0
        self._has_nulls = False
        if not cython.compiled:
            self.found = b""
            self._buffers: Any = ()
        if kind == _POINTERS:
            self.length = len(layout)
            self._point_at(layout)
            return
        self.length = layout.length
        if kind == _NULLS or kind == _DICTIONARY:
            return
        end: cython.Py_ssize_t = layout.offset + layout.length
        self._offset = layout.offset
        self._has_nulls = bool(layout.validity)
        self._valid = bytes_at(layout.validity, (end + 7) // 8)
        buffers: tuple = layout.buffers
        if kind == _OFFSETS_32:
            self._ints = ints_at(buffers[0], end + 1)
            self._limit = _known_size(buffers[1], int_at(self._ints, end))
            self._data = bytes_at(buffers[1], self._limit)
        elif kind == _OFFSETS_64:
            self._longs = longs_at(buffers[0], end + 1)
            self._limit = _known_size(buffers[1], long_at(self._longs, end))
            self._data = bytes_at(buffers[1], self._limit)
        elif kind == _FIXED:
            self._limit = end * width
            self._data = bytes_at(buffers[0], self._limit)
        else:
            self._ints = ints_at(buffers[0], 4 * end)
            self._data = bytes_at(buffers[0], 16 * end)
            self._look_into(buffers[1 : len(buffers) - 1], layout.variadic_sizes())

    def _look_into(self, addresses: tuple, sizes: list) -> None:
        """Note the buffers that views point into."""
        self._buffer_count = len(addresses)
        at: cython.Py_ssize_t
        known: list = [_known_size(addresses[at], sizes[at]) for at in range(self._buffer_count)]
        if not cython.compiled:
            self._longs = known
            self._buffers = [bytes_at(addresses[at], known[at]) for at in range(self._buffer_count)]
            return
        places: cython.p_longlong = self._make_places(self._buffer_count)
        starts: cython.pp_const_uchar = cython.cast(cython.pp_const_uchar, places + self._buffer_count)
        address: cython.size_t
        for at in range(self._buffer_count):
            address = addresses[at]
            places[at] = known[at]
            starts[at] = cython.cast(cython.p_const_uchar, address)

    def _point_at(self, items: tuple) -> None:
        """Note where each bytes object has its bytes; the tuple keeps them where they are."""
        for item in items:
            if item is not None and not isinstance(item, bytes):
                raise TypeError(f"a column of Python objects takes bytes and None, not {type(item).__name__}")
        if not cython.compiled:
            self._buffers = items
            return
        count: cython.Py_ssize_t = len(items)
        sizes: cython.p_longlong = self._make_places(count)
        starts: cython.pp_const_uchar = cython.cast(cython.pp_const_uchar, sizes + count)
        at: cython.Py_ssize_t
        for at in range(count):
            item = items[at]
            if item is None:
                sizes[at] = -1
                continue
            sizes[at] = PyBytes_GET_SIZE(item)
            starts[at] = cython.cast(cython.p_const_uchar, PyBytes_AS_STRING(item))
        self._keep = (self._keep, items)

    def _make_places(self, count: cython.Py_ssize_t) -> cython.p_longlong:
        """Memory of this column's own for so many sizes, which are given, and as many addresses behind them."""
        self._places = bytearray(16 * count)
        sizes: cython.p_longlong = cython.cast(cython.p_longlong, PyByteArray_AS_STRING(self._places))
        self._longs = sizes
        self._buffers = cython.cast(cython.pp_const_uchar, sizes + count)
        return sizes

    def find(self, row: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Set `found` to a row's bytes, and give their number; -1 for null, LIES where they would lie outside."""
        at: cython.Py_ssize_t = row + self._offset
        start: cython.longlong
        end: cython.longlong
        if self._has_nulls and is_null(self._valid, at):
            return -1
        if self._kind == _OFFSETS_32:
            start = int_at(self._ints, at)
            end = int_at(self._ints, at + 1)
        elif self._kind == _OFFSETS_64:
            start = long_at(self._longs, at)
            end = long_at(self._longs, at + 1)
        elif self._kind == _VIEWS:
            return self._find_view(at)
        elif self._kind == _FIXED:
            start = at * self._width
            end = start + self._width
        elif self._kind == _POINTERS:
            if not cython.compiled:
                value: Any = self._buffers[at]
                self.found = value
                return -1 if value is None else len(value)
            self.found = self._buffers[at]
            return self._longs[at]
        elif self._kind == _DICTIONARY:
            word: cython.longlong = self._codes.at(at)
            if word == _NULL:
                return -1
            if word < 0 or word >= self._words.length:
                return _LIES
            size: cython.Py_ssize_t = self._words.find(word)
            self.found = self._words.found
            return size
        else:
            return -1
        if start < 0 or end < start or end > self._limit:
            return _LIES
        if cython.compiled:
            self.found = self._data + start
        else:
            self.found = self._data[start:end]
        return end - start

    def prefetch(self, row: cython.Py_ssize_t) -> None:
        """Let the processor fetch the start of a row's bytes, if they are somewhere else than those of the last row."""
        at: cython.Py_ssize_t = row + self._offset
        if not cython.compiled:
            return
        if self._has_nulls and is_null(self._valid, at):
            return  # where it would point is undefined
        if self._kind == _OFFSETS_32:
            prefetch_line(self._data + self._ints[at])
            prefetch_line(self._data + self._ints[at] + 64)
        elif self._kind == _OFFSETS_64:
            prefetch_line(self._data + self._longs[at])
            prefetch_line(self._data + self._longs[at] + 64)
        elif self._kind == _VIEWS and self._find_view(at) > 12:
            found: cython.p_const_uchar = self.found
            prefetch_line(found)
            prefetch_line(found + 64)

    def _find_view(self, at: cython.Py_ssize_t) -> cython.Py_ssize_t:
        # A view is its length, and either up to 12 bytes or: a prefix, the number of a buffer, the position there.
        size: cython.Py_ssize_t = int_at(self._ints, 4 * at)
        start: cython.Py_ssize_t = 16 * at + 4
        if size < 0:
            return _LIES
        source: cython.p_const_uchar = self._data
        if size > 12:
            number: cython.Py_ssize_t = int_at(self._ints, 4 * at + 2)
            start = int_at(self._ints, 4 * at + 3)
            if number < 0 or number >= self._buffer_count or start < 0 or start + size > self._longs[number]:
                return _LIES
            source = self._buffers[number]
        if cython.compiled:
            self.found = source + start
        else:
            self.found = source[start : start + size]
        return size

    def is_text(self, size: cython.Py_ssize_t) -> cython.bint:
        """Whether the bytes found last, so many, are UTF-8."""
        data: cython.p_const_uchar = self.found
        at: cython.Py_ssize_t = 0
        more: cython.Py_ssize_t
        first: cython.int
        second: cython.int
        while at < size:
            first = data[at]
            at += 1
            if first < 0x80:
                continue
            more = 1 if first < 0xE0 else 2 if first < 0xF0 else 3
            if first < 0xC2 or first > 0xF4 or at + more > size:
                return False
            second = data[at]
            # Longer than need be, a surrogate, or beyond the last character.
            if (first == 0xE0 and second < 0xA0) or (first == 0xED and second > 0x9F):
                return False
            if (first == 0xF0 and second < 0x90) or (first == 0xF4 and second > 0x8F):
                return False
            while more:
                if data[at] & 0xC0 != 0x80:
                    return False
                at += 1
                more -= 1
        return True

    def get(self, row: cython.Py_ssize_t) -> bytes | None:
        """A row as a Python object.

        Raises:
            ValueError: its bytes would lie outside of the column.
        """
        size: cython.Py_ssize_t = self.find(row)
        if size == _LIES:
            raise ValueError(f"row {row} of a column of bytes lies outside of the column's data")
        if size < 0:
            return None
        if cython.compiled:
            return PyBytes_FromStringAndSize(cython.cast(cython.p_char, self.found), size)
        return bytes(self.found)
