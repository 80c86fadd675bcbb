# C layout of the drainer, and of what one pass over the queues finds.
from penstock.producer.batch._accumulator_cy cimport RecordAccumulator
from penstock.producer.batch._batch_cy cimport Batch
from penstock.producer.batch._partitioner_cy cimport LoadWatch
from penstock.producer.batch._queue_cy cimport PartitionQueue

cdef class ReadyCheck:
    cdef readonly list nodes
    cdef readonly double next_delay
    cdef readonly double next_expiry
    cdef readonly set leaderless_topics
    cdef list topics
    cdef list brokers

    cdef _add_head(self, LedQueue led, Batch batch, bint full)
    cdef _let_go(self)

cdef class LeadingBroker:
    cdef object node
    cdef bint is_ready
    cdef list heads

cdef class LedQueue:
    cdef PartitionQueue queue
    cdef LeadingBroker broker
    cdef int epoch
    cdef bytes topic_id
    cdef Batch batch
    cdef bint full

cdef class LeaderCache:
    cdef object snapshot
    cdef LoadWatch _load
    cdef dict _known
    cdef dict brokers

    cdef LedQueue _find(self, PartitionQueue queue)

cdef class Drainer:
    cdef RecordAccumulator _accumulator
    cdef readonly object gate
    cdef readonly object sealer
    cdef Py_ssize_t _max_request_size
    cdef readonly dict _rotation
    cdef readonly LoadWatch load
    cdef LeaderCache _leaders
    cdef ReadyCheck _check
    cdef set _left_behind
    cdef double _linger          # as of the last `ready`
    cdef int _hurry
    cdef readonly list unsealed
    cdef readonly bint gate_failed

    cpdef ReadyCheck ready(self, snapshot, double now)
    cpdef dict drain(self, list nodes, double now, old=?)
    cpdef let_go(self)
    cpdef bint has_more(self, node_id) except -1
    cpdef list partition_batches(self, list batches, bint is_old)
    cdef ReadyCheck _scan_queues(self, snapshot, bint sendable, double linger, double now)
    cdef list _take_batches(self, node_id, list heads, double now, bint plain)
    cdef int _why(self, Batch batch, bint full, double now) noexcept
    cdef _on_gate_error(self, batch, error)
    cdef _fail_unsealed(self, batch, error)
