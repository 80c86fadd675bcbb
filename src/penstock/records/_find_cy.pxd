# The ordinary column, of 32-bit offsets and without nulls, read where it is used: a call for each row costs as much.
# What its offsets say is checked here as `BytesColumn.find` does.
from penstock.records._columns_cy cimport BytesColumn
from penstock.records._memory_cy cimport int_at, prefetch_line

cdef extern from *:
    """
    #define PENSTOCK_OFFSETS_32 1  /* OFFSETS_32 of _columns_cy */
    #define PENSTOCK_LIES -2  /* LIES of _columns_cy */
    """
    int _OFFSETS_32 "PENSTOCK_OFFSETS_32"
    int _LIES "PENSTOCK_LIES"

cdef inline Py_ssize_t find_in(BytesColumn column, Py_ssize_t row) noexcept nogil:
    cdef const int* offsets
    # Without a sign: below zero is far beyond the limit.
    cdef unsigned int start
    cdef unsigned int end
    if column._kind != _OFFSETS_32 or column._has_nulls:
        return column.find(row)
    offsets = column._ints + column._offset + row
    start = int_at(offsets, 0)
    end = int_at(offsets, 1)
    if start > end or end > column._limit:
        return _LIES
    column.found = column._data + start
    return end - start

cdef inline void prefetch_in(BytesColumn column, Py_ssize_t row) noexcept nogil:
    cdef const unsigned char* start
    if column._kind != _OFFSETS_32 or column._has_nulls:
        column.prefetch(row)
        return
    start = column._data + column._ints[column._offset + row]
    prefetch_line(start)
    prefetch_line(start + 64)
