# C layout of queues, so that the fast path appends without the interpreter.
from penstock.producer.batch._batch_cy cimport Batch
from penstock.producer.batch._delivery_cy cimport Delivery
from penstock.producer.batch._partitioner_cy cimport TopicState
from penstock._short_lock_cy cimport ShortLock

# Why an append did not happen. In plain Python the module itself has them.
cpdef enum:
    NO_BATCH = 0
    GROW = 1
    MOVED = 2

cdef class Admission:
    cdef public bint open        # see RecordAccumulator.admit

cdef class PartitionQueue:
    cdef Admission _admission    # changed under the lock
    cdef readonly str topic
    cdef readonly int partition
    cdef readonly object place  # both, as a TopicPartition
    cdef readonly object owner
    cdef set active              # the producer's
    cdef set incomplete
    cdef readonly list news      # the producer's: emptied by the I/O thread
    cdef public object led       # owned by the I/O thread
    cdef public bint muted       # owned by the I/O thread
    cdef readonly bint seen_full # likewise
    cdef ShortLock _lock         # the rest, and the two sets above, change under it
    cdef readonly bint closed
    cdef readonly list batches   # `depth` and `is_empty` read its length without the lock
    cdef long long _openings     # batches that were opened here, so far
    cdef Batch _open             # takes records; None when there is none; `open_batch` reads it without the lock
    cdef readonly Py_ssize_t expected  # bytes that the next batch will probably have, from the one closed last
    cdef bint _wakes             # of the last `append_to_open`: the I/O thread is to be woken

    cpdef append(
        self,
        long long timestamp,
        bytes key,
        bytes value,
        headers,
        on_delivery,
        TopicState sticky=?,
        list spares=?,
        Batch fresh=?,
    )
    cdef _append_or_say_locked(
        self,
        long long timestamp,
        bytes key,
        bytes value,
        headers,
        on_delivery,
        TopicState sticky,
        list spares,
        Batch fresh,
    )
    cdef Delivery append_to_open(
        self,
        long long timestamp,
        bytes key,
        bytes value,
        headers,
        on_delivery,
        TopicState sticky,
        wake,
    )
    cdef Delivery _append_to_open_locked(
        self,
        long long timestamp,
        bytes key,
        bytes value,
        headers,
        on_delivery,
        TopicState sticky,
    )
    cdef Py_ssize_t _end_chunk_locked(self, Batch batch, Py_ssize_t refusal, TopicState sticky) except? -2
    cdef _refuse_locked(self)
    cdef _open_locked(self, Batch fresh)
    cdef _shut_locked(self, bint full)
    cdef _note_full_locked(self, Batch batch)
    cdef _note_oldest_locked(self)
    cpdef Batch open_batch(self)
    cdef bint _maybe_shut_locked(self, TopicState sticky) except -1
    cdef Batch _pop_locked(self)
    cpdef Batch look(self)
    cdef Batch _look_locked(self)
    cdef bint _is_full_locked(self) except -1
    cpdef bint is_empty(self) except -1
    cpdef bint take(self, Batch batch) except -1
    cdef bint _take_locked(self, Batch batch) except -1
    cpdef unmute(self)
