# C layout of the drainer, and of what one pass over the queues finds.
from penstock.producer.batch._accumulator_cy cimport RecordAccumulator
from penstock.producer.batch._batch_cy cimport Batch
from penstock.producer.batch._partitioner_cy cimport LoadWatch
from penstock.producer.batch._queue_cy cimport PartitionQueue

cdef class ReadyCheck:
    cdef readonly list nodes
    cdef readonly double next_delay
    cdef readonly set leaderless_topics

cdef class LeadingBroker:
    cdef object node
    cdef bint is_ready
    cdef bint is_urgent
    cdef double due
    cdef list heads
    cdef bint is_listed

cdef class LedQueue:
    cdef long long generation
    cdef PartitionQueue queue
    cdef LeadingBroker broker
    cdef int epoch
    cdef bytes topic_id
    cdef bint is_listed

cdef class LeaderCache:
    cdef long long generation
    cdef object snapshot
    cdef LoadWatch _load
    cdef dict brokers
    cdef list busy
    cdef dict leaderless

    cdef LedQueue _find(self, PartitionQueue queue)
    cpdef drop_idle(self)

cdef class Drainer:
    cdef RecordAccumulator _accumulator
    cdef readonly object gate
    cdef readonly object sealer
    cdef Py_ssize_t _max_request_size
    cdef readonly LoadWatch load
    cdef readonly LeaderCache _leaders
    cdef ReadyCheck _check
    cdef set _left_behind
    cdef double _linger          # as of the last `ready`
    cdef int _hurry
    cdef readonly double next_expiry
    cdef readonly list unsealed
    cdef readonly bint gate_failed

    cpdef ReadyCheck ready(self, snapshot, double now)
    cpdef bint can_wait(self, node_id) except -1
    cpdef dict drain(self, list nodes, double now, old=?)
    cpdef bint has_more(self, node_id) except -1
    cpdef list take_expired(self, double now)
    cpdef list partition_batches(self, list batches, bint is_old)
    cdef _list_anew(self, snapshot, double now)
    cdef _list(self, list news, double now)
    cdef double _due(self, LedQueue led, double now) except? -1
    cdef _note_age(self, PartitionQueue queue)
    cdef _find_ready(self, bint all_again, double now)
    cdef _look_again(self, LeadingBroker broker, double now)
    cdef _note_due(self, LeadingBroker broker, double now)
    cdef list _take_batches(self, LeadingBroker broker, double now, bint plain)
    cdef bint _may_leave(self, PartitionQueue queue, Batch batch) except -1
    cdef bint _seal(self, LedQueue led, Batch batch, double now, bint plain) except -1
    cdef int _why(self, Batch batch, bint full, double now) noexcept
    cdef _fail_unsealed(self, batch, error)
