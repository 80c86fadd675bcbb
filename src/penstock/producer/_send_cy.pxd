# C layout of what is touched once per record.
cimport cython
from penstock.records._batch_cy cimport BatchWriter

cdef class Delivery:
    cdef object _batch
    cdef readonly int index      # int where it is enough: many are kept, and 48 bytes are less than 64
    cdef int _key_size
    cdef int _value_size
    cdef long long _timestamp

cdef class PartitionQueue:
    cdef readonly str topic
    cdef readonly int partition
    cdef readonly set active     # the producer's; its identity also says whose I/O thread serves this queue
    cdef set incomplete
    cdef public bint muted       # owned by the I/O thread
    cdef cython.pymutex _lock    # guards the rest
    cdef readonly bint closed
    cdef readonly object batches
    cdef BatchWriter _writer     # of the open batch, None when there is none
    cdef object _result
    cdef Py_ssize_t _size        # of the record appended last
    cdef Py_ssize_t _refusal     # the writer's answer, when it took no record

    cdef Delivery _append_locked(
        self, BatchWriter writer, result, long long timestamp, bytes key, bytes value, headers
    )
    cdef object _pop_locked(self)

cdef class TopicState:
    cdef readonly str name
    cdef readonly Py_ssize_t sticky_size
    cdef object choose
    cdef public list queues              # by partition; replaced whole when the topic changes
    cdef public Py_ssize_t sticky_partition   # written under that partition's lock
    cdef public Py_ssize_t sticky_bytes       # likewise
    cdef public bint used
    cdef public object load

    cpdef switch(self)
    cdef count_locked(self, Py_ssize_t size, bint full)

cdef class FastPath:
    cdef dict topics
    cdef public bint enabled
    cdef Py_ssize_t _max_record_size
    cdef bint _hash_keys
    cdef object _wall_ms
    cdef object _wake
    cdef object _append_now

    cpdef Delivery try_send(self, topic, value, key, headers, partition, timestamp_ms, on_delivery)
    cdef Py_ssize_t _size_bound(self, key, value, headers)

cdef class SendFace:
    cdef public FastPath _fast_path
