# C layout of a Delivery, and what makes one for the queue.
cdef class Delivery:
    cdef object _batch
    cdef readonly int _index      # int where it is enough: many are kept, and 48 bytes are less than 64
    cdef int _key_size
    cdef int _value_size
    cdef long long _timestamp

cdef Delivery new_delivery(
    batch, Py_ssize_t index, long long timestamp, Py_ssize_t key_size, Py_ssize_t value_size
)
