# C layout of a batch's outcome.
cdef class ResultFields:
    cdef public object owner
    cdef public str topic
    cdef public int partition
    cdef public object pid
    cdef public long long base_offset
    cdef public long long log_append_time_ms
    cdef public object error
    cdef public object record_errors
    cdef public bint settled
    cdef public bint done
    cdef public object pieces
    cdef public list callbacks
    cdef public object interested
    cdef public object unseen
    cdef public object expendable

    cdef bint settle_unwatched(self, long long base_offset, long long log_append_time_ms) except -1
