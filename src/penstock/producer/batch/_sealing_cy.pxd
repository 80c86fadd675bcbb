# C layout of what seals batches.
from penstock.producer.batch._batch_cy cimport Batch

cdef class Sealer:
    cdef public object codec
    cdef readonly object ratios
    cdef int _codec_id
    cdef object _pool
    cdef Py_ssize_t _batch_size

    cdef _compress(self, Batch batch)
