# C layout of the lock, so that to take a free one is to set a few fields.
cdef extern from "pythread.h" nogil:
    unsigned long PyThread_get_thread_ident()

cdef class ShortLock:
    cdef bint _held
    cdef bint _nests
    cdef unsigned long _owner    # the thread that holds it, or held it last
    cdef ShortLock _below        # the lock that was taken before this one and is still held, by whichever thread
    cdef Py_ssize_t _depth       # how often its holder took it again
    cdef Py_ssize_t _waiting
    cdef object _door

    cpdef acquire(self)
    cpdef release(self)
    cdef bint take(self) except -1
    cdef bint let_go(self) except -1
    cdef _wait(self)
    cdef _unchain(self)

cpdef bint holds_any() except -1
