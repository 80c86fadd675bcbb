# C layout of a window, so that the loops over its rows run without the interpreter and its lock.
from penstock.records._batch_cy cimport BatchWriter
from penstock.records._rows_cy cimport Rows

cdef class Window:
    cdef readonly Py_ssize_t capacity
    cdef readonly Rows rows
    cdef readonly Py_ssize_t first   # of the rows
    cdef readonly Py_ssize_t last
    cdef readonly Py_ssize_t count   # of rows that can be sent
    cdef readonly Py_ssize_t sticky
    cdef readonly Py_ssize_t bad
    cdef readonly bint ordered       # by `order`; otherwise the rows as they are
    cdef public long long now_ms
    cdef public bint expendable      # rows that the broker refuses are left out
    cdef readonly Py_ssize_t refusal  # the writer's answer to the row behind the last that was appended
    cdef readonly Py_ssize_t payload  # bytes of keys and values appended by the last call
    cdef bytearray _place_memory
    cdef bytearray _order_memory
    cdef bytearray _topic_memory
    cdef int* _places                # of each row: its slot, STICKY, or what is wrong with it
    cdef int* _order
    cdef int* _topics
    cdef bint _has_topics
    cdef int _slots
    cdef list _bases                 # the first slot of each topic

    cdef void _place(self, int partitions, Py_ssize_t limit, int key_hash) noexcept nogil
    cdef void _place_by_topic(
        self, const int* bases, const int* counts, Py_ssize_t limit, int key_hash
    ) noexcept nogil
    cdef void _count_slots(self, int* starts) noexcept nogil
    cdef void _fill_order(self, int* starts) noexcept nogil
    cdef Py_ssize_t _append(
        self, Rows rows, BatchWriter writer, Py_ssize_t first, Py_ssize_t last, Py_ssize_t budget
    ) noexcept nogil
