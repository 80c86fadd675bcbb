# C layout of rows, so that they are written without the interpreter and its lock.
from penstock.records._columns_cy cimport BytesColumn, IntColumn
from penstock.records._headers_cy cimport HeadersColumn

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

    cdef Py_ssize_t bound(self, Py_ssize_t row, Py_ssize_t most) noexcept nogil
    cdef int place(
        self, Py_ssize_t row, int partitions, Py_ssize_t limit, int key_hash
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
