# C layout of the column of headers, so that rows are read without the interpreter and its lock.
from penstock.records._columns_cy cimport BytesColumn

cdef class HeadersColumn:
    cdef readonly Py_ssize_t length
    cdef int _kind
    cdef Py_ssize_t _offset
    cdef bint _has_nulls
    cdef const unsigned char* _valid
    cdef const int* _ints
    cdef const long long* _longs
    cdef const int* _int_sizes       # of list views
    cdef const long long* _long_sizes
    cdef Py_ssize_t _width
    cdef Py_ssize_t _entry_count     # entries that there are
    cdef bint _entries_have_nulls
    cdef const unsigned char* _entries_valid
    cdef Py_ssize_t _entries_offset
    cdef BytesColumn _names
    cdef BytesColumn _values
    cdef BytesColumn _encoded        # whole headers sections, where they were made before
    cdef object _keep
    cdef Py_ssize_t _first           # the entries of the row looked at last
    cdef Py_ssize_t _last

    cdef Py_ssize_t measure(self, Py_ssize_t row, Py_ssize_t most) noexcept nogil
    cdef Py_ssize_t put(
        self, unsigned char* memory, Py_ssize_t at, Py_ssize_t end, Py_ssize_t row
    ) noexcept nogil
    cdef bint _look(self, Py_ssize_t row) noexcept nogil
    cdef bint lies(self, Py_ssize_t row) noexcept nogil
