# C layout of what the batches of a request add up to.
cdef class RequestSums:
    cdef readonly Py_ssize_t count
    cdef readonly Py_ssize_t size
    cdef readonly Py_ssize_t largest
    cdef readonly Py_ssize_t records
    cdef readonly double ratios
    cdef readonly double waited_ms
    cdef readonly double longest_ms
    cdef readonly Py_ssize_t record_sizes
    cdef readonly Py_ssize_t largest_record
    cdef readonly str topic
