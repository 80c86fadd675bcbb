# C layout of the fast path.
from penstock.producer.batch._delivery_cy cimport Delivery
from penstock.producer.batch._partitioner_cy cimport TopicState

cdef extern from "<time.h>" nogil:
    ctypedef struct timespec "struct timespec":
        long long tv_sec
        long tv_nsec
    int timespec_get(timespec* now, int base)
    int TIME_UTC

cdef class FastPath:
    cdef dict topics
    cdef public bint enabled
    cdef public bint detour
    cdef readonly object context
    cdef readonly FastPath behind
    cdef Py_ssize_t _max_record_size
    cdef int _key_hash
    cdef object _wall_ms
    cdef object _wake
    cdef object _append_now

    cdef TopicState _last_topic  # sent to before this record; any thread may replace it

    cpdef Delivery try_send(self, topic, value, key, headers, partition, timestamp_ms, on_delivery)
    cpdef Delivery try_with_context(self, topic, value, key, headers, partition, timestamp_ms, on_delivery)

cdef class SendFace:
    cdef FastPath _fast_path
    cdef bint _notes_refusals
