# SPDX-License-Identifier: Apache-2.0
# cython: boundscheck=False, wraparound=False, initializedcheck=False, nonecheck=False
"""Hashes of the rows of a table, made column by column, and their sum. Compiled if possible.

A row's hash is made of the hashes of its fields, added up, and mixed; a null adds nothing, so that a column that is
missing is a column of nulls. The sum of all rows' hashes does not depend on their order, nor on how they were cut into
tables, so that it tells whether two sets of rows are the same. All numbers are of 64 bits, and sums modulo 2**64. The
hashes are kept in logs: what they are for given bytes must never change.

Columns are read where they lie, as Arrow lays them out. Every range is compared with the size of its buffer before a
byte of it is read, and read once: another thread may change it meanwhile.
"""

from __future__ import annotations

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING
    from cython.cimports.penstock.records._memory_cy import (
        bytes_at,
        folded,
        half_at,
        int_at,
        ints_at,
        is_null,
        long_at,
        longs_at,
        word_at,
    )
else:
    from penstock.records._memory import (
        bytes_at,
        folded,
        half_at,
        int_at,
        ints_at,
        is_null,
        long_at,
        longs_at,
        word_at,
    )

# C variables when compiled, so that their use costs nothing. The numbers are digits of pi and e: nothing is special
# about them, but that they never change.
_ALL = cython.declare(cython.ulonglong, 0xFFFFFFFFFFFFFFFF)
_EVEN = cython.declare(cython.ulonglong, 0xD1310BA698DFB5AC)
_ODD = cython.declare(cython.ulonglong, 0x2FFD72DBD01ADFB7)
_LANE = cython.declare(cython.ulonglong, 0xB8E1AFED6A267E96)
_LAST = cython.declare(cython.ulonglong, 0xBA7C9045F12C7F99)
_ROW = cython.declare(cython.ulonglong, 0xB7E151628AED2A6B)


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _short_word(
    data: cython.p_const_uchar, start: cython.Py_ssize_t, size: cython.Py_ssize_t
) -> cython.ulonglong:
    """One to seven bytes as a number: no two texts of one size have the same."""
    number: cython.ulonglong
    if size >= 4:
        return half_at(data, start) | half_at(data, start + size - 4) << 32
    number = data[start + (size >> 1)]
    number = number << 8 | data[start + size - 1]
    return number << 8 | data[start]


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _hash_of(
    data: cython.p_const_uchar, start: cython.Py_ssize_t, size: cython.Py_ssize_t, tag: cython.ulonglong
) -> cython.ulonglong:
    """The hash of some bytes in a column with this tag: two words at a time are multiplied, and folded into one."""
    end: cython.Py_ssize_t = start + size
    at: cython.Py_ssize_t = start
    number: cython.ulonglong = tag
    other: cython.ulonglong
    if size >= 32:
        # Side by side: a processor multiplies while it waits for the product before.
        other = tag ^ _LANE
        while at + 32 <= end:
            number = folded(word_at(data, at) ^ _EVEN, word_at(data, at + 8) ^ number)
            other = folded(word_at(data, at + 16) ^ _ODD, word_at(data, at + 24) ^ other)
            at += 32
        number ^= other
    if at + 16 <= end:
        number = folded(word_at(data, at) ^ _EVEN, word_at(data, at + 8) ^ number)
        at += 16
    if at < end:
        # The last bytes, with some that were read before where there are any: the size tells how many.
        if size >= 16:
            number = folded(word_at(data, end - 16) ^ _ODD, word_at(data, end - 8) ^ number)
        elif size >= 8:
            number = folded(word_at(data, start) ^ _ODD, word_at(data, end - 8) ^ number)
        else:
            number = folded(_short_word(data, start, size) ^ _ODD, number)
    return folded(number ^ _LAST, _EVEN ^ cython.cast(cython.ulonglong, size))


def add_texts(
    hashes: bytearray,
    tag: cython.ulonglong,
    offsets: cython.size_t,
    validity: cython.size_t,
    data: cython.size_t,
    data_size: cython.Py_ssize_t,
    is_large: cython.bint,
    first: cython.Py_ssize_t,
) -> None:
    """Add the hashes of a column of texts or bytes to those of the rows.

    Args:
        hashes: those of the rows so far, 8 bytes each.
        tag: tells the columns of a row apart.
        offsets: where the column's offsets are, of 64 bits if `is_large`.
        validity: where its bitmap of valid rows is; 0 where it has none.
        data: where its bytes are, `data_size` of them.
        data_size: see there.
        is_large: see there.
        first: the row of the column to begin with.

    Raises:
        ValueError: an offset points to what is not there.
    """
    count: cython.Py_ssize_t = len(hashes) // 8
    end: cython.Py_ssize_t = first + count
    ints: cython.p_const_int = ints_at(0 if is_large else offsets, end + 1)
    longs: cython.p_const_longlong = longs_at(offsets if is_large else 0, end + 1)
    valid: cython.p_const_uchar = bytes_at(validity, (end + 7) // 8)
    content: cython.p_const_uchar = bytes_at(data, data_size)
    sums: cython.p_ulonglong
    if cython.compiled:
        sums = cython.cast(cython.p_ulonglong, PyByteArray_AS_STRING(hashes))
    else:
        sums = memoryview(hashes).cast("Q")
    at: cython.Py_ssize_t
    start: cython.longlong
    after: cython.longlong
    for at in range(count):
        if validity and is_null(valid, first + at):
            continue
        if is_large:
            start = long_at(longs, first + at)
            after = long_at(longs, first + at + 1)
        else:
            start = int_at(ints, first + at)
            after = int_at(ints, first + at + 1)
        if start < 0 or after < start or after > data_size:
            raise ValueError(f"row {at} of an Arrow column lies outside of the column's data")
        sums[at] = (sums[at] + _hash_of(content, start, after - start, tag)) & _ALL


def add_numbers(
    hashes: bytearray,
    tag: cython.ulonglong,
    items: cython.size_t,
    validity: cython.size_t,
    is_large: cython.bint,
    first: cython.Py_ssize_t,
) -> None:
    """Add the hashes of a column of whole numbers to those of the rows; of 64 bits if `is_large`, else of 32."""
    count: cython.Py_ssize_t = len(hashes) // 8
    end: cython.Py_ssize_t = first + count
    ints: cython.p_const_int = ints_at(0 if is_large else items, end)
    longs: cython.p_const_longlong = longs_at(items if is_large else 0, end)
    valid: cython.p_const_uchar = bytes_at(validity, (end + 7) // 8)
    sums: cython.p_ulonglong
    if cython.compiled:
        sums = cython.cast(cython.p_ulonglong, PyByteArray_AS_STRING(hashes))
    else:
        sums = memoryview(hashes).cast("Q")
    at: cython.Py_ssize_t
    number: cython.longlong
    word: cython.ulonglong
    for at in range(count):
        if validity and is_null(valid, first + at):
            continue
        number = long_at(longs, first + at) if is_large else int_at(ints, first + at)
        word = cython.cast(cython.ulonglong, number) & _ALL
        sums[at] = (sums[at] + folded(folded(word ^ _EVEN, tag) ^ _LAST, _ODD)) & _ALL


def add_lists(
    hashes: bytearray,
    tag: cython.ulonglong,
    offsets: cython.size_t,
    validity: cython.size_t,
    is_large: cython.bint,
    first: cython.Py_ssize_t,
    entries: bytearray,
    first_entry: cython.Py_ssize_t,
) -> None:
    """Add the hashes of a column of lists, in which order matters, to those of the rows.

    Args:
        hashes: those of the rows so far, 8 bytes each.
        tag: tells the columns of a row apart.
        offsets: where the column's offsets are, of 64 bits if `is_large`.
        validity: where its bitmap of valid rows is; 0 where it has none.
        is_large: see there.
        first: the row of the column to begin with.
        entries: the hashes of the entries, 8 bytes each.
        first_entry: the number of the first of them in the column's entries.

    Raises:
        ValueError: an offset points to what is not there.
    """
    count: cython.Py_ssize_t = len(hashes) // 8
    end: cython.Py_ssize_t = first + count
    last_entry: cython.Py_ssize_t = first_entry + len(entries) // 8
    ints: cython.p_const_int = ints_at(0 if is_large else offsets, end + 1)
    longs: cython.p_const_longlong = longs_at(offsets if is_large else 0, end + 1)
    valid: cython.p_const_uchar = bytes_at(validity, (end + 7) // 8)
    sums: cython.p_ulonglong
    of_entries: cython.p_ulonglong
    if cython.compiled:
        sums = cython.cast(cython.p_ulonglong, PyByteArray_AS_STRING(hashes))
        of_entries = cython.cast(cython.p_ulonglong, PyByteArray_AS_STRING(entries))
    else:
        sums = memoryview(hashes).cast("Q")
        of_entries = memoryview(entries).cast("Q")
    at: cython.Py_ssize_t
    entry: cython.Py_ssize_t
    start: cython.longlong
    after: cython.longlong
    number: cython.ulonglong
    for at in range(count):
        if validity and is_null(valid, first + at):
            continue
        if is_large:
            start = long_at(longs, first + at)
            after = long_at(longs, first + at + 1)
        else:
            start = int_at(ints, first + at)
            after = int_at(ints, first + at + 1)
        if start < first_entry or after < start or after > last_entry:
            raise ValueError(f"row {at} of an Arrow column lies outside of the column's entries")
        number = tag
        for entry in range(start - first_entry, after - first_entry):
            number = folded(of_entries[entry] ^ _EVEN, number ^ _ODD)
        number = folded(number ^ _LAST, _EVEN ^ cython.cast(cython.ulonglong, after - start))
        sums[at] = (sums[at] + number) & _ALL


def hash_sum(hashes: bytearray) -> int:
    """The sum of the hashes of rows, each folded once more, so that no field can stand for that of another row."""
    total: cython.ulonglong = 0
    sums: cython.p_ulonglong
    if cython.compiled:
        sums = cython.cast(cython.p_ulonglong, PyByteArray_AS_STRING(hashes))
    else:
        sums = memoryview(hashes).cast("Q")
    at: cython.Py_ssize_t
    for at in range(len(hashes) // 8):
        total = (total + folded(sums[at] ^ _ROW, _LAST)) & _ALL
    return total
