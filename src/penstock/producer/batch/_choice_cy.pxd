# C layout of the choice of partitions: which goes on under a partition's lock, and in every turn of the I/O thread.
from penstock.producer.batch._queue_cy cimport TopicState

cdef class Chance:
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

cdef class StickyChoice:
    cdef Chance _chance

cpdef note_depths(TopicState topic)
