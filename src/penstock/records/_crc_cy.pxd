# C signatures of the checksums, so that other compiled modules call them without the interpreter.
cdef unsigned int crc32c_at(const unsigned char* data, Py_ssize_t size, unsigned int before) noexcept nogil
cdef unsigned int crc32_at(const unsigned char* data, Py_ssize_t size, unsigned int before) noexcept nogil
cpdef int crc32_partition(bytes key, int partition_count) except? -1
cdef int crc32_partition_at(const unsigned char* key, Py_ssize_t size, int partition_count) noexcept nogil
