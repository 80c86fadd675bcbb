# C layout of the part of the network client that every turn and every request goes through.
from penstock.network._metrics_cy cimport NetworkMetrics
from penstock.network._pool_cy cimport ConnectionPool

cdef class ClientFields:
    cdef readonly NetworkMetrics metrics
    cdef readonly ConnectionPool _pool
    cdef readonly object _fetcher
    cdef readonly object _clock
    cdef readonly object _selector
    cdef public object _bootstrap
    cdef public bint _closed

    cdef double _move_bytes(self, double wait, double now) except? -1
