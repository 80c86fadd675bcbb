# C layout and signatures of the network client.
from penstock.network._connection_cy cimport NetworkMetrics
from penstock.network._pool_cy cimport ConnectionPool

cdef class NetworkClient:
    cdef readonly NetworkMetrics metrics
    cdef readonly ConnectionPool _pool
    cdef object _fetcher
    cdef object _updater
    cdef object _reporter
    cdef object _rng
    cdef object _clock
    cdef object _backend
    cdef object _selector
    cdef object _bootstrap
    cdef bint _closed

    cpdef bint is_ready(self, node, double now) except -1
    cdef double _move_bytes(self, double wait, double now) except? -1
