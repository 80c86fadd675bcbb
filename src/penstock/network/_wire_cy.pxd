# C layout of a connection, as far as bytes move over it.
from penstock.network._counters_cy cimport NetworkCounters, NodeMetrics
from penstock.network._exchange_cy cimport Exchange, InFlightRequests
from penstock.protocol._framing_cy cimport FrameReader

cdef class Wire:
    cdef readonly object known
    cdef readonly object transport
    cdef readonly InFlightRequests in_flight
    cdef readonly double last_used_at
    cdef readonly bint peer_closed
    cdef readonly object trouble
    cdef readonly bint closed
    cdef public bint write_watched
    cdef public object api_versions
    cdef int _picked
    cdef object _picked_from
    cdef object _picked_api
    cdef int _picked_lowest
    cdef int _picked_highest
    cdef FrameReader _reader
    cdef Py_ssize_t _max_response_bytes
    cdef object _unsent
    cdef readonly long long unsent_bytes
    cdef bint _unsent_has_answer
    cdef NetworkCounters _metrics
    cdef NodeMetrics _node_metrics

    cdef bint _takes_more(self, double now, Py_ssize_t max_in_flight) except -1
    cdef _start_request(self, Exchange exchange, list buffers, double now)
    cdef Exchange _write_some(self)
    cdef list _read_answers(self, double now)
    cdef list _read_frames(self)
