# C layout of a Produce request, so that its answer is read against fields and not dictionaries.
cdef class TopicBatches:
    cdef readonly str name
    cdef readonly bytes utf8_name
    cdef readonly bytes topic_id
    cdef readonly dict batches

cdef class ProduceFields:
    cdef readonly int acks
    cdef readonly int min_version
    cdef readonly int max_version
    cdef readonly int _timeout_ms
    cdef readonly bytes _transactional_id
    cdef readonly list _topics

    cdef list _encode_flexible(self, bint by_id)
