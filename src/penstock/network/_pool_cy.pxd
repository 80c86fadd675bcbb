# C layout of the part of a pool that every request goes through.
from penstock.network._exchange_cy cimport Exchange
from penstock.network._wire_cy cimport Wire

cdef class PoolFields:
    cdef readonly dict _live
    cdef readonly list _failed_writes
    cdef public int _correlation_id
    cdef readonly object _client_id
    cdef readonly Py_ssize_t _max_in_flight
    cdef public double next_sweep_at
    cdef public object fatal_error

    cdef _take_answer(self, Wire connection, Exchange exchange, raw, double now)
