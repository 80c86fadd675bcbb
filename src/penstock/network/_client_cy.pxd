# C layout of the part of the network client that every turn and every request goes through.
from penstock.network._counters_cy cimport NetworkCounters
from penstock.network._pool_cy cimport PoolFields

cdef class ClientFields:
    cdef readonly NetworkCounters metrics
    cdef readonly PoolFields _pool
    cdef readonly object _fetcher
    cdef readonly object _clock
    cdef readonly object _selector
    cdef public object _bootstrap
    cdef public bint _closed
    cdef readonly list _ended

    cdef double _move_bytes(self, double wait, double now) except? -1
    cpdef list _take_ended(self)
