# C layout of batches, so that what happens to every batch reads fields and not dictionaries.
from penstock.producer.batch._delivery_cy cimport BatchResult, Delivery
from penstock.producer.batch._queue_cy cimport PartitionQueue
from penstock.records._batch_cy cimport BatchWriter

# Why a batch left its queue. In plain Python the module itself has them.
cpdef enum:
    STILL_HERE = -1
    FULL = 0
    LINGER = 1
    FLUSH = 2
    MEMORY = 3
    CLOSE = 4
    TRANSACTION_END = 5
    ALONG = 6

cdef class BatchIdentity:
    cdef readonly long long producer_id
    cdef readonly int producer_epoch
    cdef readonly int base_sequence
    cdef readonly bint transactional

    cdef bint is_of(self, producer) except -1

cdef class Batch:
    cdef public PartitionQueue queue
    cdef public BatchWriter writer
    cdef public double created
    cdef public list buffers
    cdef public Py_ssize_t queued_as
    cdef public long long opening
    cdef readonly Py_ssize_t appended
    cdef public BatchResult result
    cdef public object state
    cdef public Py_ssize_t attempts
    cdef public double retry_at
    cdef public int leader_epoch
    cdef public double drained_at
    cdef public double retried_for
    cdef public int left_by
    cdef public bint request_pending
    cdef public BatchIdentity identity
    cdef public Py_ssize_t numbered_as
    cdef public BatchIdentity stamped
    cdef public bint renumbered
    cdef public object last_error
    cdef public bint in_doubt
    cdef public bint is_piece
    cdef public object wire
    cdef public tuple legacy

    cpdef Delivery append(self, long long timestamp, bytes key, bytes value, headers, on_delivery)
    cpdef Py_ssize_t append_rows(
        self, window, Py_ssize_t first, Py_ssize_t last, Py_ssize_t budget, list spares
    ) except -1
    cpdef tell_of_rows(self, window, Py_ssize_t first, Py_ssize_t count, list accepted)
    cpdef move_to(self, state)
    cpdef bint backing_off(self, double now, int leader_epoch) noexcept
    cpdef Py_ssize_t wire_size(self) except -1

cdef BatchIdentity new_identity(long long producer_id, int producer_epoch, int base_sequence, bint transactional)
cpdef bint is_later(int sequence, int than) noexcept
cpdef take_memory(list batches, set given_up, list buffers)
