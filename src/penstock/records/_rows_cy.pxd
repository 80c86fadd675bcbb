# C layout of rows, so that they are written without the interpreter and its lock.
from penstock.records._columns_cy cimport BytesColumn, IntColumn

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
    cdef bint _entries_have_nulls
    cdef const unsigned char* _entries_valid
    cdef Py_ssize_t _entries_offset
    cdef BytesColumn _names
    cdef BytesColumn _values
    cdef BytesColumn _encoded        # whole headers sections, where they were made before
    cdef object _keep
    cdef Py_ssize_t _first           # the entries of the row looked at last
    cdef Py_ssize_t _last

    cdef Py_ssize_t measure(self, Py_ssize_t row) noexcept nogil
    cdef Py_ssize_t put(self, unsigned char* memory, Py_ssize_t at, Py_ssize_t row) noexcept nogil
    cdef void _look(self, Py_ssize_t row) noexcept nogil

cdef class Rows:
    cdef readonly Py_ssize_t length
    cdef readonly BytesColumn key
    cdef readonly BytesColumn value
    cdef readonly HeadersColumn headers
    cdef readonly IntColumn partition
    cdef readonly IntColumn timestamp
    cdef readonly BytesColumn topic
    cdef Py_ssize_t payload          # bytes of key and value of the row written last
    cdef Py_ssize_t _key_size        # of the row that `bound` looked at last

    cdef Py_ssize_t bound(self, Py_ssize_t row) noexcept nogil
    cdef int place(
        self, Py_ssize_t row, int partitions, Py_ssize_t limit, bint hash_keys
    ) noexcept nogil
    cpdef long long timestamp_at(self, Py_ssize_t row, long long now_ms) noexcept nogil
    cdef Py_ssize_t append(
        self,
        unsigned char* memory,
        Py_ssize_t at,
        Py_ssize_t room,
        Py_ssize_t row,
        long long delta,
        Py_ssize_t index,
    ) noexcept nogil
