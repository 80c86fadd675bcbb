# C layout of a statistic. Whole numbers are kept apart from others, so that what counts whole things stays whole.
# What a thread may be doing. In plain Python the module itself has them.
cpdef enum:
    OTHER = 0
    WAITING = 1
    WRITING = 2
    READING = 3
    SEALING = 4
    CALLBACKS = 5

cdef class _Sample:
    cdef readonly double start
    cdef readonly double last_at
    cdef readonly long long count
    cdef long long whole
    cdef double real
    cdef bint has_whole
    cdef bint has_real
    cdef long long largest_whole
    cdef double largest_real

cdef class WindowedStat:
    cdef Py_ssize_t _num_samples
    cdef double _window
    cdef tuple _samples          # oldest first; replaced whole, for readers on other threads
    cdef _Sample _current
    cdef long long _whole
    cdef double _real
    cdef bint _has_real
    cdef readonly long long count

    cpdef record(self, value, double now)
    cpdef add_whole(self, long long total, long long count, long long largest, double now)
    cpdef add_real(self, double total, long long count, double largest, double now)
    cdef _Sample _open_sample(self, double now)

cdef class Histogram:
    cdef readonly tuple bounds
    cdef int _size
    cdef double[48] _bounds
    cdef long long[49] _counts
    cdef readonly long long count
    cdef readonly double sum
    cdef Py_ssize_t _num_samples
    cdef double _window
    cdef double _window_start
    cdef double _last_at
    cdef tuple _marks            # replaced whole, for readers on other threads

    cpdef add(self, double value, double now)
    cdef _open_window(self, double now)

cdef class TimeBudget:
    cdef readonly int activity
    cdef readonly double since
    cdef double[6] _seconds

    cpdef enter(self, int activity, double now)
    cpdef relabel(self, int activity)
