# C layout and signatures of the network client.
from penstock.network._connection_cy cimport ClientRequest, NetworkMetrics
from penstock.network._pool_cy cimport ConnectionPool
from penstock._quiet_cy cimport QuietTime

cdef class NetworkClient:
    cdef readonly NetworkMetrics metrics
    cdef readonly ConnectionPool _pool
    cdef object _fetcher
    cdef object _updater
    cdef QuietTime _quiet
    cdef object _reporter
    cdef object _rng
    cdef object _now
    cdef object _backend
    cdef object _selector
    cdef object _bootstrap
    cdef bint _closed

    cpdef bint is_ready(self, node, double now) except -1
    cpdef bint ready(self, node, double now) except -1
    cpdef double connection_delay(self, node, double now) except? -1
    cpdef api_versions(self, node_id)
    cpdef send(self, ClientRequest asked, double now)
    cpdef list poll(self, double timeout, double now)
    cdef list _deliver(self)
    cdef double _move_bytes(self, double wait, double now) except? -1
