# C layout of what is remembered of a request while it is on its way.
cdef class ClientRequest:
    cdef readonly object node
    cdef readonly object request
    cdef readonly double timeout
    cdef readonly object on_response

cdef class ClientResponse:
    cdef readonly object node
    cdef readonly object request
    cdef readonly object on_response
    cdef readonly int version
    cdef readonly double sent_at
    cdef public double received_at
    cdef public object body
    cdef public object error

cdef class Exchange:
    cdef readonly object request
    cdef readonly int version
    cdef readonly int correlation_id
    cdef readonly double sent_at
    cdef public double deadline
    cdef readonly object on_done
    cdef readonly object about

cdef class InFlightRequests:
    cdef list _queue

    cpdef add(self, Exchange exchange)
    cpdef Exchange oldest(self)
    cpdef Exchange take_answered(self, int correlation_id)
    cpdef Exchange take_last(self)
