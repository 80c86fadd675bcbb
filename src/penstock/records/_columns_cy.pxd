# C layout of columns, so that rows are read without the interpreter and its lock.
cdef class IntColumn:
    cdef readonly Py_ssize_t length
    cdef Py_ssize_t _offset
    cdef int _width              # bytes of an item, negative for unsigned ones
    cdef bint _has_nulls
    cdef const unsigned char* _valid
    cdef const unsigned char* _items
    cdef long long _times        # what a value is multiplied by, or, negative, divided by
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
    cdef const unsigned char** _buffers  # of views, or one pointer for each row
    cdef Py_ssize_t _width
    cdef IntColumn _codes        # of a dictionary
    cdef BytesColumn _words
    cdef object _keep
    cdef const unsigned char* found  # the bytes that `find` found last

    cdef Py_ssize_t find(self, Py_ssize_t row) noexcept nogil
    cdef void prefetch(self, Py_ssize_t row) noexcept nogil
    cdef bint is_text(self, Py_ssize_t size) noexcept nogil
    cdef Py_ssize_t _find_view(self, Py_ssize_t at) noexcept nogil
