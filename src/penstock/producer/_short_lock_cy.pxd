# C layout of the lock, so that to take a free one is to set a field.
cdef class ShortLock:
    cdef bint _held
    cdef Py_ssize_t _waiting
    cdef object _door

    cpdef acquire(self)
    cpdef release(self)
    cdef _wait(self)
