# C layout of the accumulator, so that a turn of the I/O thread reads fields and not dictionaries.
from penstock.producer.batch._queue_cy cimport Admission

cdef class RecordAccumulator:
    cdef readonly Py_ssize_t batch_size
    cdef readonly double linger
    cdef public double delivery_timeout
    cdef readonly object pool
    cdef readonly object sealer
    cdef public object partitioner
    cdef object _wake
    cdef readonly object unseen
    cdef public bint watches_failures
    cdef readonly object _lock
    cdef readonly dict topics
    cdef readonly dict fast_topics
    cdef object _followed
    cdef readonly dict _queues
    cdef Admission _admission
    cdef readonly object appender
    cdef set _flushes
    cdef bint _closed
    cdef readonly set _active
    cdef readonly list _news
    cdef readonly set _incomplete
    cdef set _given_up
    cdef public object deferred
    cdef readonly object owner

    cpdef list active_queues(self)
    cpdef list take_news(self)
    cpdef bint everything_sendable(self) except -1
    cpdef release_all(self, list batches)
    cpdef forget_all(self, list batches)
