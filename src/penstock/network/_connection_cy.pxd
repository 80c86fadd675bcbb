# C layout and signatures of a connection, of the requests on it, and of what is counted.
from penstock._stats_cy cimport TimeBudget
from penstock.protocol._framing_cy cimport FrameReader

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
    cdef public long long authentications
    cdef public long long authentications_failed
    cdef public long long reauthentications
    cdef public long long reauthentications_failed
    cdef public long long select_count
    cdef public long long io_wait_ns
    cdef public long long io_ns
    cdef readonly dict nodes
    cdef readonly TimeBudget time

cdef class ClientRequest:
    cdef readonly object node
    cdef readonly object request
    cdef readonly double timeout
    cdef readonly object on_response

cdef class InFlightRequest:
    cdef readonly object node
    cdef readonly object request
    cdef readonly object on_response
    cdef readonly int version
    cdef readonly int correlation_id
    cdef readonly bint internal
    cdef readonly double sent_at
    cdef readonly double deadline
    cdef readonly double received_at
    cdef readonly object body
    cdef readonly object error

    cpdef end(self, body, error, double now)

cdef class InFlightRequests:
    cdef list _queue

    cpdef add(self, InFlightRequest request)
    cpdef InFlightRequest oldest(self)
    cpdef InFlightRequest take_answered(self, int correlation_id)
    cpdef InFlightRequest take_last(self)

cdef class Connection:
    cdef readonly object known
    cdef readonly object transport
    cdef readonly object address
    cdef readonly InFlightRequests in_flight
    cdef public double last_used_at
    cdef public double setup_deadline
    cdef public double renew_at
    cdef public double used_before_renewal
    cdef long long _responses_before
    cdef readonly bint peer_closed
    cdef readonly object read_error
    cdef readonly bint closed
    cdef readonly long long unsent_bytes
    cdef public bint established
    cdef public bint write_watched
    cdef public object handshake
    cdef public object api_versions
    cdef int _picked
    cdef object _picked_from
    cdef object _picked_api
    cdef int _picked_lowest
    cdef int _picked_highest
    cdef FrameReader _reader
    cdef Py_ssize_t _max_response_bytes
    cdef object _unsent
    cdef bint _unsent_has_answer
    cdef NetworkMetrics _metrics
    cdef NodeMetrics _node_metrics

    cpdef bint can_send(self, double now, Py_ssize_t max_in_flight) except -1
    cpdef int pick_version(self, request) except -1
    cpdef start_request(self, InFlightRequest request, list buffers, double now)
    cpdef InFlightRequest write(self)
    cpdef list read(self, double now)
    cdef list _read_frames(self)
