# C signature of the look at a message set's outline, for the Produce request.
cdef int codec_of_set(const unsigned char* data, Py_ssize_t size, int magic) noexcept nogil
