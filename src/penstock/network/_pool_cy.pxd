# C layout and signatures of the pool of connections.
from penstock.network._connection_cy cimport ClientRequest, Connection, InFlightRequest, NetworkMetrics

cdef class ConnectionPool:
    cdef readonly object states
    cdef readonly double next_sweep_at
    cdef public object fatal_error
    cdef readonly list ended
    cdef readonly list finished
    cdef dict _connections
    cdef list _failed_writes
    cdef public int _correlation_id
    cdef object _settings
    cdef object _client_id
    cdef Py_ssize_t _max_in_flight
    cdef public object _backend
    cdef object _reporter
    cdef object _dialogues
    cdef NetworkMetrics _metrics

    cpdef Connection get(self, node_id)
    cpdef Connection sendable(self, node_id, double now)
    cpdef start_request(self, Connection connection, ClientRequest asked, int version, double now, bint internal)
    cpdef end_request(self, InFlightRequest request, body, error, double now)
    cpdef list take_ended(self)
    cpdef on_events(self, events, double now)
    cpdef handle_failed_writes(self, double now)
    cdef _read(self, Connection connection, double now)
    cdef _on_answer(self, Connection connection, InFlightRequest request, raw, double now)
    cdef _write(self, Connection connection, double now)
    cdef _watch_writes(self, Connection connection)
