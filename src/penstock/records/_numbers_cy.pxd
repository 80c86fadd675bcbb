# C layout of columns of numbers, so that rows are read without the interpreter and its lock.
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
