# C layout of the sealer, so that the drain calls it without the interpreter.
from penstock.producer.batch._batch_cy cimport Batch, BatchIdentity

cdef class Sealer:
    cdef public object codec
    cdef readonly object ratios
    cdef int _codec_id
    cdef object _pool
    cdef Py_ssize_t _batch_size

    cpdef seal(self, Batch batch, BatchIdentity identity, bint plain=?)
    cdef _compress(self, Batch batch)
    cdef _gather(self, Batch batch)
    cdef _put(self, Batch batch, payload)
