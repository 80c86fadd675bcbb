# C layout of those who wait in an event loop.
cdef extern from "Python.h":
    int PyContext_Enter(object context) except -1
    int PyContext_Exit(object context) except -1

cdef class Mailbox:
    cdef object _wake
    cdef public object _messages
    cdef bint _rung

    cpdef put(self, message)
    cpdef ring(self)

cdef class Waiter:
    cdef public bint _asyncio_future_blocking
    cdef object _loop
    cdef int _state
    cdef object _callback
    cdef object _context
    cdef object _message

    cpdef wake(self)
    cdef give_up(self)
    cdef _go_on_soon(self)

cdef Waiter _new_waiter(loop)

cdef class Waiting:
    cdef readonly object _loop
    cdef object _event
    cdef object _on_drop
    cdef readonly bint takes_waiters
    cdef readonly Mailbox mailbox
    cdef public dict tokens
    cdef public object follower

    cpdef enter(self)
    cpdef try_enter(self)
    cdef _wake_all(self)
    cpdef bint leave(self, token) except -1
