# C layout of batches and of their numbers, so that what happens to every batch reads fields and not dictionaries.
from penstock.producer.batch._queue_cy cimport PartitionQueue
from penstock.records._batch_cy cimport BatchWriter

cdef class BatchFields:
    cdef public PartitionQueue queue
    cdef public BatchWriter writer
    cdef public double created
    cdef public list buffers
    cdef public Py_ssize_t queued_as
    cdef public Py_ssize_t counted
    cdef public object result
    cdef public object state
    cdef public Py_ssize_t attempts
    cdef public double retry_at
    cdef public int leader_epoch
    cdef public double drained_at
    cdef public bint request_pending
    cdef object _identity
    cdef readonly int base_sequence
    cdef object _numbered_for
    cdef public Py_ssize_t numbered_as
    cdef public object stamped
    cdef public bint renumbered
    cdef public object last_error
    cdef public bint in_doubt
    cdef public bint is_piece
    cdef public object wire

    cdef _take_identity(self, identity)
    cpdef move_to(self, state)
    cpdef bint backing_off(self, double now, int leader_epoch) noexcept
    cpdef Py_ssize_t wire_size(self) except -1

cdef class PartitionNumbers:
    cdef public object identity
    cdef public int next
    cdef readonly Py_ssize_t numbered
    cdef public int last_acked_sequence
    cdef public long long last_acked_offset
    cdef public list in_flight

cdef class NumberedBook:
    cdef readonly dict _partitions
    cdef readonly dict away
    cdef readonly dict unresolved
    cdef readonly dict broken

    cpdef PartitionNumbers of(self, PartitionQueue queue)
    cpdef bint may_number(self, PartitionQueue queue, identity) except -1
    cpdef bint may_resend(self, PartitionQueue queue, BatchFields batch) except -1
    cpdef number(self, BatchFields batch, identity, bint transactional)
    cpdef acknowledge(self, BatchFields batch, long long base_offset)

cdef class NumberedLeave:
    cdef readonly Py_ssize_t retries
    cdef readonly bint transactional
    cdef readonly NumberedBook book
    cdef object _identity
    cdef bint _valid

    cdef bint _may_drain(self, PartitionQueue queue, BatchFields batch) except -1
    cdef _assign(self, BatchFields batch)

cdef class NumberedGate:
    cdef readonly NumberedLeave numbering

cpdef int next_sequence(int base_sequence, Py_ssize_t count) noexcept
cpdef int last_sequence_of(BatchFields batch) noexcept
cpdef bint is_later(int sequence, int than) noexcept
