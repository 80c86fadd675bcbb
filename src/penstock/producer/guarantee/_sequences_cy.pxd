# C layout of the numbers, so that what is asked of every batch reads fields and not dictionaries.
from penstock.producer.batch._batch_cy cimport Batch, BatchIdentity
from penstock.producer.batch._queue_cy cimport PartitionQueue

cdef class PartitionNumbers:
    cdef public object identity
    cdef public int next
    cdef readonly Py_ssize_t numbered
    cdef public int last_acked_sequence
    cdef public long long last_acked_offset
    cdef public list in_flight

    cpdef bint is_next(self, int sequence) noexcept

cdef class SequenceBook:
    cdef public Py_ssize_t remembered
    cdef readonly dict _partitions
    cdef readonly dict away
    cdef readonly dict unresolved
    cdef readonly dict broken

    cpdef PartitionNumbers of(self, PartitionQueue queue)
    cpdef bint may_number(self, PartitionQueue queue, identity) except -1
    cpdef bint may_resend(self, PartitionQueue queue, Batch batch) except -1
    cpdef bint may_resend_broken(self, PartitionQueue queue, Batch batch) except -1
    cpdef number(self, Batch batch, identity, bint transactional)
    cpdef acknowledge(self, Batch batch, long long base_offset)

cdef class Numbering:
    cdef readonly Py_ssize_t retries
    cdef readonly bint transactional
    cdef public SequenceBook book
    cdef object _identity
    cdef readonly bint has_identity
    cdef public bint halted

    cpdef bint may_drain(self, PartitionQueue queue, Batch batch) except -1
    cpdef BatchIdentity assign(self, Batch batch)
    cpdef on_success(self, Batch batch, long long base_offset)

cpdef int next_sequence(int base_sequence, Py_ssize_t count) noexcept
cpdef int last_sequence_of(Batch batch) noexcept
