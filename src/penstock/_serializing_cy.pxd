# C layout of what turns keys and values into bytes, so that the send path calls it without the interpreter.

cdef Py_ssize_t headers_bound(headers) except? -2
cdef copy_of(data)
cdef list pairs_of(dict headers)
cdef freeze_headers(headers)

cdef class Part:
    cdef readonly object serializer
    cdef readonly bint passes_bytes
    cdef readonly bint wants_headers
    cdef str _name
    cdef object _function

    cpdef bytes turn(self, topic, headers, data)
