# C layout of the quiet time, so that the client reads a field.
cdef class QuietTime:
    cdef public double until
