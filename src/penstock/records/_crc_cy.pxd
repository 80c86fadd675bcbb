# C signature of the checksum, so that other compiled modules call it without the interpreter.
cdef unsigned int crc32c_at(const unsigned char* data, Py_ssize_t size, unsigned int before) noexcept nogil
