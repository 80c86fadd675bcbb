# C signatures of the functions that other compiled modules call.
cpdef Py_ssize_t varint_size(long long value) noexcept nogil
cdef Py_ssize_t put_varint(unsigned char* buffer, Py_ssize_t at, long long value) noexcept nogil
cpdef int murmur2(bytes key)
cpdef int partition_for_key(bytes key, int partition_count)
cdef int partition_at(const unsigned char* key, Py_ssize_t size, int partition_count) noexcept nogil
cdef int _murmur2_at(const unsigned char* data, Py_ssize_t size) noexcept nogil
