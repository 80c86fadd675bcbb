# C layout of the sender's statistics, so that what every request adds to them does not need the interpreter.
from penstock._stats_cy cimport Histogram, TimeBudget, WindowedStat

cdef class RequestSums:
    cdef Py_ssize_t count
    cdef Py_ssize_t size
    cdef Py_ssize_t largest
    cdef Py_ssize_t records
    cdef double ratios
    cdef double waited_ms
    cdef double longest_ms
    cdef Py_ssize_t record_sizes
    cdef Py_ssize_t largest_record
    cdef str topic

cdef class TopicStats:
    cdef readonly WindowedStat sent
    cdef readonly WindowedStat bytes
    cdef readonly WindowedStat compression
    cdef readonly WindowedStat retries
    cdef readonly WindowedStat errors

cdef class LeavingStats:
    cdef WindowedStat batches
    cdef WindowedStat records
    cdef WindowedStat fill

cdef class SenderMetrics:
    cdef public object catch_up
    cdef readonly TimeBudget time
    cdef readonly object retry_cause
    cdef object _now
    cdef double _next_catch_up
    cdef object _registry
    cdef dict _topics
    cdef WindowedStat _batch_size
    cdef WindowedStat _compression
    cdef WindowedStat _queue_time
    cdef WindowedStat _record_size
    cdef WindowedStat _sent
    cdef WindowedStat _per_request
    cdef WindowedStat _latency
    cdef WindowedStat _throttle
    cdef WindowedStat _splits
    cdef WindowedStat _retries
    cdef WindowedStat _errors
    cdef Histogram _queue_times
    cdef Histogram _latencies
    cdef WindowedStat _retry_time
    cdef Histogram _retry_times
    cdef WindowedStat _delivery_time
    cdef Histogram _delivery_times
    cdef WindowedStat _callback_time
    cdef Histogram _callback_times
    cdef WindowedStat _fill
    cdef Histogram _fills
    cdef list _reasons

    cdef _record_topic(self, str name, RequestSums sums, double now)
    cdef _note_left(self, list batches, double now)
    cdef _add_left(self, int left_by, long long count, long long records, double fills, double now)
    cpdef double enter(self, int activity) except? -1
    cpdef on_turn(self, double now)
    cpdef on_request(self, list batches, double now)
    cpdef on_response(self, double latency, long long throttle_ms, double now)
    cpdef on_written(self, list batches, double now)
    cpdef on_callbacks(self, double seconds, double now)
    cpdef TopicStats topic(self, str name)
