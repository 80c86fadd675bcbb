# C layout of a Produce request and its answer, so that their loops read fields without the interpreter.
cdef class PartitionBatch:
    cdef readonly str topic
    cdef readonly bytes topic_id
    cdef readonly int partition
    cdef readonly object records

cdef class PartitionResponse:
    cdef readonly str topic
    cdef readonly int partition
    cdef readonly int error_code
    cdef readonly long long base_offset
    cdef readonly long long log_append_time_ms
    cdef readonly long long log_start_offset
    cdef readonly object record_errors
    cdef readonly str error_message
    cdef readonly int leader_id
    cdef readonly int leader_epoch

cdef class ProduceResponse:
    cdef readonly int throttle_ms
    cdef readonly list partitions
    cdef readonly list node_endpoints

cdef class TopicBatches:
    cdef readonly str name
    cdef readonly bytes utf8_name
    cdef readonly bytes topic_id
    cdef readonly dict batches

cdef class ProduceRequest:
    cdef readonly int acks
    cdef readonly int min_version
    cdef readonly int max_version
    cdef int _timeout_ms
    cdef bytes _transactional_id
    cdef list _topics

    cpdef list encode(self, int version)
    cdef list _encode_flexible(self, bint by_id)
    cdef dict _body(self)
    cdef ProduceResponse _decode_by_table(self, int version, body)
