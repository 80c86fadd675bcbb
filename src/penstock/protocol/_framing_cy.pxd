# C layout and signatures of what moves the frames of a connection.
cdef class FrameReader:
    cdef Py_ssize_t _max_frame_bytes
    cdef Py_ssize_t _min_frame_bytes
    cdef bytearray _partial
    cdef Py_ssize_t _frame_size
    cdef bint _saw_frame
    cdef readonly object trouble

    cpdef list feed(self, data)
    cdef Py_ssize_t _take_whole(self, bytes data, list frames) except -1
    cdef Py_ssize_t _checked_size(self, bytearray prefix) except -1

cpdef int next_correlation_id(int previous) noexcept
cpdef list frame_request(api, int version, int correlation_id, client_id, body)
cpdef long long frame_size(buffers) except -1
cpdef tuple parse_response_header(api, int version, frame)
