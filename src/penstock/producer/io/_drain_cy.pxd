# C layout of the drainer, and of what one pass over the queues finds.
from penstock.producer.batch._batch_cy cimport Batch
from penstock.producer.batch._queue_cy cimport PartitionQueue

cdef class PartitionLeader:
    cdef object node
    cdef object node_id
    cdef int epoch

cdef class LeaderCache:
    cdef object snapshot
    cdef object _seen
    cdef dict _known

    cdef PartitionLeader _find(self, PartitionQueue queue)

cdef class QueueHead:
    cdef PartitionQueue queue
    cdef Batch batch
    cdef int leader_epoch

cdef class QueueScan:
    cdef object snapshot
    cdef dict nodes
    cdef dict heads
    cdef set topics
    cdef set leaderless
    cdef double next_delay
    cdef double oldest

    cdef _add_head(self, PartitionLeader leader, PartitionQueue queue, Batch batch)

cdef class NodeProgress:
    cdef double ready
    cdef double drained

cdef class Drainer:
    cdef object _accumulator
    cdef readonly object gate
    cdef readonly object sealer
    cdef Py_ssize_t _max_request_size
    cdef dict _rotation
    cdef dict _progress
    cdef readonly object _seen
    cdef LeaderCache _leaders
    cdef QueueScan _scan
    cdef set _left_behind
    cdef readonly list unsealed
    cdef readonly bint gate_failed

    cdef QueueScan _scan_queues(self, snapshot, bint sendable, double linger, double now)
    cdef _update_load(self, str topic, snapshot)
    cdef bint _stalled(self, node_id, double timeout) except -1
    cdef list _take_batches(self, node_id, list heads, double now)
    cdef _on_gate_error(self, batch, error)
    cdef _fail_unsealed(self, batch, error)
