# C layout of columns of bytes, so that rows are read without the interpreter and its lock.
from penstock.records._numbers_cy cimport IntColumn

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
