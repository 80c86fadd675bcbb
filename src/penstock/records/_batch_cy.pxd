# C layout of the writer, so that the send path calls it without the interpreter.

# Why `append` wrote nothing. In plain Python the module itself has the two.
cpdef enum:
    NO_ROOM = -1
    NEEDS_SEGMENT = -2

cdef class BatchWriter:
    cdef readonly list segments
    cdef readonly Py_ssize_t limit
    cdef readonly double ratio
    cdef readonly Py_ssize_t held
    cdef readonly Py_ssize_t count
    cdef readonly Py_ssize_t raw_size
    cdef readonly long long base_timestamp
    cdef readonly long long max_timestamp
    cdef readonly Py_ssize_t max_record_size
    cdef readonly bint sealed
    cdef list _used
    # The segment that is filled, free from `at` on for `room()` bytes. Who writes records there tells `add_rows`.
    cdef unsigned char* memory
    cdef Py_ssize_t at
    cdef Py_ssize_t _end

    # noexcept: they touch nothing that can fail, and to ask for an error costs as much as they do.
    cpdef Py_ssize_t estimated_size(self) noexcept
    cpdef bint is_full(self) noexcept
    cdef Py_ssize_t room(self) noexcept nogil
    cdef void add_rows(
        self,
        Py_ssize_t count,
        Py_ssize_t size,
        long long base_timestamp,
        long long max_timestamp,
        Py_ssize_t max_record_size,
    ) noexcept nogil
    cpdef Py_ssize_t append(self, long long timestamp, bytes key, bytes value, headers) except? -3
    cpdef seal(
        self,
        long long attributes,
        producer_id=?,
        long long producer_epoch=?,
        long long base_sequence=?,
        compressed=?,
    )
    cdef list _pieces(self)
    cdef _write_header(
        self,
        list pieces,
        long long size,
        int attributes,
        long long producer_id,
        int producer_epoch,
        int base_sequence,
    )
