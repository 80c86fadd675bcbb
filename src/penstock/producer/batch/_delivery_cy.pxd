# C layout of a batch's outcome and of a Delivery, and what makes one for the queue.
cdef class BatchResult:
    cdef public object owner
    cdef public str topic
    cdef public int partition
    cdef public object pid
    cdef public long long base_offset
    cdef public long long log_append_time_ms
    cdef public object error
    cdef public object record_errors
    cdef public bint settled
    cdef public bint done
    cdef public object pieces
    cdef list _callbacks
    cdef object _followers       # made for the first who asks for them
    cdef public object unseen
    cdef public object expendable

    cpdef add_callback(self, delivery, on_delivery)
    cpdef tuple resolve(self, Py_ssize_t index)
    cpdef error_of(self, Py_ssize_t index)
    cpdef metadata_of(self, Py_ssize_t index, long long timestamp, key_size, value_size)
    cdef bint settle_unwatched(self, long long base_offset, long long log_append_time_ms) except -1

cdef class Delivery:
    cdef BatchResult _batch
    cdef readonly int _index      # int where it is enough: many are kept, and 48 bytes are less than 64
    cdef int _key_size
    cdef int _value_size
    cdef long long _timestamp

cdef Delivery new_delivery(
    BatchResult batch, Py_ssize_t index, long long timestamp, Py_ssize_t key_size, Py_ssize_t value_size
)
