# The ordinary column, of 32-bit offsets and without nulls, read where it is used: a call for each row costs as much.
from penstock.records._columns_cy cimport BytesColumn
from penstock.records._prefetch_cy cimport prefetch_line

cdef extern from *:
    """
    #define PENSTOCK_OFFSETS_32 1  /* OFFSETS_32 of _columns_cy */
    """
    int _OFFSETS_32 "PENSTOCK_OFFSETS_32"

cdef inline Py_ssize_t find_in(BytesColumn column, Py_ssize_t row) noexcept nogil:
    cdef const int* offsets
    if column._kind != _OFFSETS_32 or column._has_nulls:
        return column.find(row)
    offsets = column._ints + column._offset + row
    column.found = column._data + offsets[0]
    return offsets[1] - offsets[0]

cdef inline void prefetch_in(BytesColumn column, Py_ssize_t row) noexcept nogil:
    cdef const unsigned char* start
    if column._kind != _OFFSETS_32 or column._has_nulls:
        column.prefetch(row)
        return
    start = column._data + column._ints[column._offset + row]
    prefetch_line(start)
    prefetch_line(start + 64)
