# C layout of what a look at the queues finds.
from penstock.producer.batch._batch_cy cimport Batch
from penstock.producer.batch._queue_cy cimport PartitionQueue

cdef class Waiting:
    cdef readonly PartitionQueue queue
    cdef readonly Batch batch
    cdef readonly int leader_epoch

cdef class Home:
    cdef readonly object leader
    cdef readonly object leader_id
    cdef readonly int leader_epoch

cdef class Homes:
    cdef readonly object snapshot
    cdef readonly object seen
    cdef dict _known

    cdef Home _find(self, PartitionQueue queue)

cdef class Look:
    cdef readonly object snapshot
    cdef readonly dict nodes
    cdef readonly dict by_node
    cdef readonly set topics
    cdef readonly set leaderless
    cdef readonly double next_delay
    cdef readonly double oldest

    cdef _note(self, Home home, PartitionQueue queue, Batch batch)
