# Signatures of the calls of the operating system, so that compiled code makes them without the interpreter.
cpdef Py_ssize_t send_at_once(int fd, buffers) except? -2
cpdef receive_at_once(int fd, Py_ssize_t max_bytes)
cpdef bint wait_for_owners(int epoll_fd, double seconds, dict watched, list ready) except -1
