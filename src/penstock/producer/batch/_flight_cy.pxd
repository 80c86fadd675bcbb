# C layout of batches, so that what happens to every batch reads fields and not dictionaries.
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
    cpdef take_numbers(self, producer, int base_sequence, Py_ssize_t numbered_as, bint transactional)
    cpdef bint is_numbered_for(self, producer) except -1
    cpdef move_to(self, state)
    cpdef bint backing_off(self, double now, int leader_epoch) noexcept
    cpdef Py_ssize_t wire_size(self) except -1

cpdef bint is_later(int sequence, int than) noexcept
