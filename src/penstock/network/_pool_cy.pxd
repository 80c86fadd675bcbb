# C layout of the part of a pool that every request goes through.
from penstock.network._connection_cy cimport Connection, InFlightRequest

cdef class PoolFields:
    cdef readonly dict _live
    cdef readonly list _failed_writes
    cdef public int _correlation_id
    cdef readonly object _client_id
    cdef readonly Py_ssize_t _max_in_flight
    cdef public double next_sweep_at
    cdef public object fatal_error
    cdef readonly list ended

    cpdef end_request(self, InFlightRequest request, body, error, double now)
    cpdef list take_ended(self)
    cdef _take_answer(self, Connection connection, InFlightRequest answered, raw, double now)
