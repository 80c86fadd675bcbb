# C layout of what appends records and opens batches.
from penstock.producer.batch._partitioner_cy cimport TopicState
from penstock.producer.batch._queue_cy cimport Admission, PartitionQueue

cdef class Appender:
    cdef readonly Py_ssize_t batch_size
    cdef readonly object pool
    cdef object _sealer
    cdef Admission _admission
    cdef object _lock            # the accumulator's; here it guards the first choice of a sticky partition
    cdef object _wake
    cdef object _now

    cpdef _append(self, TopicState topic, partition, record, on_delivery, buffer)
    cdef _append_to(self, PartitionQueue queue, TopicState sticky, record, on_delivery, buffer)
    cdef tuple _append_rows(self, where, window, tuple rows, list accepted, buffer)
    cdef _return_unused(self, buffer, fresh, spares)
    cpdef PartitionQueue _queue(self, TopicState topic, partition)
    cdef tuple _place(self, where)
    cdef _new_batch(self, PartitionQueue queue, buffer)
