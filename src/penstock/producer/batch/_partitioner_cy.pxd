# C layout of the choice of partitions, which is made under a partition's lock and prepared in every turn of the I/O thread.
from penstock.producer.batch._queue_cy cimport TopicState

cdef class RandomNumbers:
    cdef object _random

    cpdef Py_ssize_t randrange(self, Py_ssize_t stop) except -1

cdef class LoadTable:
    cdef readonly tuple partitions
    cdef readonly tuple cumulative

    cpdef Py_ssize_t pick(self, rng) except -1

cdef class TopicLoad:
    cdef readonly LoadTable everywhere
    cdef readonly LoadTable in_rack
    cdef readonly list queues
    cdef readonly list depths

cdef class BuiltInPartitioner:
    cdef object _settings
    cdef object _snapshot
    cdef RandomNumbers _random
    cdef readonly bint adaptive
    cdef readonly double availability_timeout
    cdef readonly bint plain

cpdef note_depths(TopicState topic)
