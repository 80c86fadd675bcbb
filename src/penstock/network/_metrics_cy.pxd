# C layout of the counters of the network layer.
cdef class NodeMetrics:
    cdef public long long requests
    cdef public long long responses
    cdef public long long bytes_out
    cdef public long long bytes_in
    cdef public long long request_max
    cdef public double latency_sum
    cdef public double latency_max

cdef class NetworkMetrics:
    cdef public long long requests
    cdef public long long responses
    cdef public long long bytes_out
    cdef public long long bytes_in
    cdef public long long request_max
    cdef public long long connections_created
    cdef public long long connections_closed
    cdef public long long connections_failed
    cdef public long long authentications_failed
    cdef public long long select_count
    cdef public long long io_wait_ns
    cdef public long long io_ns
    cdef readonly dict nodes
