# C layout of what every request adds to the statistics, so that nothing of it needs the interpreter.
from penstock._stats_cy cimport WindowedStat
from penstock.producer.batch._requests_cy cimport RequestSums

cdef class TopicStats:
    cdef readonly WindowedStat sent
    cdef readonly WindowedStat bytes
    cdef readonly WindowedStat compression
    cdef readonly WindowedStat retries
    cdef readonly WindowedStat errors

cdef class RequestStats:
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

    cdef _record_topic(self, str name, RequestSums sums, double now)
    cpdef TopicStats topic(self, str name)
