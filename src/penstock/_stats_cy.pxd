# C layout of a statistic. Numbers are Python's, so that what counts whole things stays whole.
cdef class _Sample:
    cdef readonly double start
    cdef readonly double last_at
    cdef readonly object count
    cdef readonly object total
    cdef readonly object max

cdef class WindowedStat:
    cdef Py_ssize_t _num_samples
    cdef double _window
    cdef tuple _samples          # oldest first; replaced whole, for readers on other threads
    cdef _Sample _current
    cdef public object total
    cdef public object count

    cpdef record(self, value, double now)
    cpdef record_many(self, total, count, largest, double now)
    cdef _Sample _open_sample(self, double now)
