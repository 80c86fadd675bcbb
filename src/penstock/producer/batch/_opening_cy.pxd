# C layout of what opens batches.
from penstock.producer.batch._queue_cy cimport PartitionQueue, TopicState

cdef class BatchOpener:
    cdef readonly Py_ssize_t batch_size
    cdef public object pool
    cdef public object sealer
    cdef public object _wake
    cdef public object _now
    cdef public object _lock

    cpdef _append(self, TopicState topic, partition, record, on_delivery, buffer)
    cdef _append_to(self, PartitionQueue queue, TopicState sticky, record, on_delivery, buffer)
    cpdef _return_unused(self, buffer, fresh, spares)
    cpdef PartitionQueue _queue(self, TopicState topic, partition)
    cpdef _new_batch(self, PartitionQueue queue, buffer)
