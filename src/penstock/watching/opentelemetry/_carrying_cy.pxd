# C layout of what turns contexts into headers.
cdef class ContextCarrier:
    cdef public object on_error
    cdef object _chosen
    cdef object _current
    cdef object _usual
    cdef object _other
    cdef object _span_class
    cdef tuple _named
    cdef tuple _last

    cpdef tuple of_caller(self)
    cpdef bint is_in(self, headers) except? -1
    cdef object _propagator(self)
    cdef tuple _write(self, propagator, context)
    cdef tuple _write_usual(self, context)
    cdef bint _is_usual(self, propagator) except? -1
    cdef bint _is_span(self, value) except? -1
