# C layout of the send path, so that a call of send goes through it without the interpreter.
from penstock._serializing_cy cimport Part
from penstock.producer.batch._delivery_cy cimport Delivery
from penstock.producer.batch._partitioner_cy cimport Placement, TopicState

cdef extern from "<time.h>" nogil:
    ctypedef struct timespec "struct timespec":
        long long tv_sec
        long tv_nsec
    int timespec_get(timespec* now, int base)
    int TIME_UTC

# What the size check adds to key, value and headers at most: batch header, record overhead, header count, two lengths.
cdef enum:
    OVERHEAD = 61 + 21 + 1 + 2 * 5


# Milliseconds since the epoch, by this clock, or by the system's, which is read without a call. In line, because each
# record comes here.
cdef inline long long wall_clock(wall_ms) except? -1:
    cdef timespec moment
    if wall_ms is not None:
        return wall_ms()
    timespec_get(&moment, TIME_UTC)
    return moment.tv_sec * 1000 + moment.tv_nsec // 1000000

cdef class SendCall:
    cdef readonly str topic
    cdef readonly object value
    cdef readonly object key
    cdef readonly object headers       # pairs, or None
    cdef readonly object partition
    cdef object timestamp_ms
    cdef public object on_delivery
    cdef object record                 # the same as a ProducerRecord, once somebody wants it
    cdef bint as_bytes
    cdef bint in_bulk
    # How far it has come.
    cdef object ended
    cdef object admitted
    cdef object callback
    cdef object cluster
    cdef TopicState topic_state
    cdef readonly bytes key_bytes
    cdef readonly bytes value_bytes
    cdef Py_ssize_t chosen
    cdef Py_ssize_t size
    cdef long long timestamp
    cdef bint has_begun
    cdef bint is_serialized
    cdef bint is_placed
    cdef bint is_measured
    cdef bint told_of_batch

    cdef _take(self, record)
    cdef _as_record(self)

cdef class SendPath:
    cdef public bint accepts
    cdef public bint closed
    cdef public object gate
    cdef readonly object limit
    cdef readonly object tracing
    cdef public object follower
    cdef readonly Placement placement
    cdef object _accumulator
    cdef object _appender
    cdef dict _topics
    cdef object _metadata
    cdef Part _for_key
    cdef Part _for_value
    cdef object _interceptors
    cdef bint _shows_records           # to interceptors
    cdef bint _tells_outcomes          # to interceptors
    cdef readonly object acknowledge
    cdef object _context               # adds the caller's context to headers, where records have no spans
    cdef object _clock
    cdef object _wall_ms
    cdef object _wake
    cdef Py_ssize_t _surely_fits

    cpdef SendCall call(self, topic, value, key, headers, partition, timestamp_ms, on_delivery)
    cpdef SendCall call_of(self, record, on_delivery)
    cpdef bint is_ready(self) except -1
    cpdef Delivery attempt(self, SendCall call)
    cdef _begin(self, SendCall call)
    cdef bint _prepare(self, SendCall call) except -1
    cdef bint _find_topic(self, SendCall call) except -1
    cdef _found(self, SendCall call, cluster)
    cdef _serialize(self, SendCall call)
    cdef _place(self, SendCall call)
    cdef _measure(self, SendCall call)
    cdef Delivery _append(self, SendCall call)
    cdef Delivery _before_new_batch(self, SendCall call)
    cdef _tell_refused(self, SendCall call, error)
