# C layout of columns of numbers and of bytes, so that rows are read without the interpreter and its lock.
from penstock.records._memory_cy cimport int_at, prefetch_line

cdef class IntColumn:
    cdef readonly Py_ssize_t length
    cdef Py_ssize_t _offset
    cdef int _width              # bytes of an item, negative for unsigned ones
    cdef bint _has_nulls
    cdef const unsigned char* _valid
    cdef const unsigned char* _items
    cdef long long _times        # what a value is multiplied by, or, negative, divided by
    cdef bint _smallest_is_null  # as a number of 64 bits
    cdef object _keep

    cdef long long at(self, Py_ssize_t row) noexcept nogil
    cdef long long _scaled(self, long long value) noexcept nogil

cdef class BytesColumn:
    cdef readonly Py_ssize_t length
    cdef int _kind
    cdef Py_ssize_t _offset
    cdef bint _has_nulls
    cdef const unsigned char* _valid
    cdef const int* _ints        # offsets of 32 bits, or views
    cdef const long long* _longs  # offsets of 64 bits, or sizes
    cdef const unsigned char* _data
    cdef Py_ssize_t _limit       # bytes that `_data` is known to have
    cdef Py_ssize_t _buffer_count  # of views
    cdef const unsigned char** _buffers  # of views, or one pointer for each row
    cdef Py_ssize_t _width
    cdef IntColumn _codes        # of a dictionary
    cdef BytesColumn _words
    cdef object _keep
    cdef bytearray _places       # the sizes and addresses that `_longs` and `_buffers` point to, where these are ours
    cdef const unsigned char* found  # the bytes that `find` found last

    cdef Py_ssize_t find(self, Py_ssize_t row) noexcept nogil
    cdef void prefetch(self, Py_ssize_t row) noexcept nogil
    cdef bint is_text(self, Py_ssize_t size) noexcept nogil
    cdef Py_ssize_t _find_view(self, Py_ssize_t at) noexcept nogil
    cdef long long* _make_places(self, Py_ssize_t count) except NULL

# The ordinary column, of 32-bit offsets and without nulls, read where it is used: a call for each row costs as much.
# What its offsets say is checked here as `BytesColumn.find` does. `_memory` has the same for plain Python.
cdef extern from *:
    """
    #define PENSTOCK_OFFSETS_32 1  /* OFFSETS_32 of the module */
    #define PENSTOCK_LIES -2  /* LIES of the module */
    """
    int _PLAIN_OFFSETS "PENSTOCK_OFFSETS_32"
    int _OUTSIDE "PENSTOCK_LIES"

cdef inline Py_ssize_t find_in(BytesColumn column, Py_ssize_t row) noexcept nogil:
    cdef const int* offsets
    # Without a sign: below zero is far beyond the limit.
    cdef unsigned int start
    cdef unsigned int end
    if column._kind != _PLAIN_OFFSETS or column._has_nulls:
        return column.find(row)
    offsets = column._ints + column._offset + row
    start = int_at(offsets, 0)
    end = int_at(offsets, 1)
    if start > end or end > column._limit:
        return _OUTSIDE
    column.found = column._data + start
    return end - start

cdef inline void prefetch_in(BytesColumn column, Py_ssize_t row) noexcept nogil:
    cdef const unsigned char* start
    if column._kind != _PLAIN_OFFSETS or column._has_nulls:
        column.prefetch(row)
        return
    start = column._data + column._ints[column._offset + row]
    prefetch_line(start)
    prefetch_line(start + 64)
