# C signatures of the functions that other compiled modules call.
cpdef Py_ssize_t varint_size(long long value) noexcept
cdef Py_ssize_t put_varint(unsigned char* buffer, Py_ssize_t at, long long value) noexcept
cpdef int murmur2(bytes key)
cpdef int partition_for_key(bytes key, int partition_count)
