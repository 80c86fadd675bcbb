# Calls of the operating system that return at once, made without giving up the interpreter lock.
cdef extern from *:
    """
    #define PENSTOCK_MOST_PARTS 64
    #define PENSTOCK_MOST_EVENTS 64
    #define PENSTOCK_MOST_RECEIVED 65536
    /* What is read goes on as Python's bytes before the interpreter lock, which guards this, is given up. */
    static char penstock_received[PENSTOCK_MOST_RECEIVED];
    #ifdef Py_GIL_DISABLED
    #define PENSTOCK_HAS_LOCK 0
    #else
    #define PENSTOCK_HAS_LOCK 1
    #endif
    #include <errno.h>
    #include <string.h>
    #ifdef _WIN32
    static inline int penstock_can_send(void) { return 0; }
    static inline Py_ssize_t penstock_send(int fd, Py_buffer *views, int count) { errno = ENOSYS; return -1; }
    static inline Py_ssize_t penstock_receive(int fd, size_t size) { errno = ENOSYS; return -1; }
    #else
    #include <sys/types.h>
    #include <sys/socket.h>
    #include <sys/uio.h>
    #ifndef MSG_NOSIGNAL
    #define MSG_NOSIGNAL 0
    #endif
    static inline int penstock_can_send(void) { return PENSTOCK_HAS_LOCK; }
    static inline Py_ssize_t penstock_send(int fd, Py_buffer *views, int count) {
        struct iovec parts[PENSTOCK_MOST_PARTS];
        struct msghdr message;
        Py_ssize_t sent;
        int at;
        for (at = 0; at < count; at++) {
            parts[at].iov_base = views[at].buf;
            parts[at].iov_len = (size_t)views[at].len;
        }
        memset(&message, 0, sizeof message);
        message.msg_iov = parts;
        message.msg_iovlen = count;
        do {
            sent = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        } while (sent < 0 && errno == EINTR);
        return sent;
    }
    static inline Py_ssize_t penstock_receive(int fd, size_t size) {
        Py_ssize_t received;
        do {
            received = recv(fd, penstock_received, size, MSG_DONTWAIT);
        } while (received < 0 && errno == EINTR);
        return received;
    }
    #endif
    #ifdef __linux__
    #include <sys/epoll.h>
    static inline int penstock_can_wait(void) { return PENSTOCK_HAS_LOCK; }
    static inline int penstock_wait(int fd, int *fds, unsigned int *masks, int milliseconds) {
        struct epoll_event events[PENSTOCK_MOST_EVENTS];
        int at, count;
        do {
            count = epoll_wait(fd, events, PENSTOCK_MOST_EVENTS, milliseconds);
        } while (count < 0 && errno == EINTR && milliseconds == 0);
        for (at = 0; at < count; at++) {
            fds[at] = events[at].data.fd;
            masks[at] = events[at].events;
        }
        return count;
    }
    #else
    static inline int penstock_can_wait(void) { return 0; }
    static inline int penstock_wait(int fd, int *fds, unsigned int *masks, int milliseconds) {
        errno = ENOSYS;
        return -1;
    }
    #endif
    #ifndef EWOULDBLOCK
    #define EWOULDBLOCK EAGAIN
    #endif
    static inline int penstock_is_not_now(int code) { return code == EAGAIN || code == EWOULDBLOCK; }
    """
    int system_can_send "penstock_can_send" () noexcept
    int system_can_wait "penstock_can_wait" () noexcept
    int is_not_now "penstock_is_not_now" (int code) noexcept
    Py_ssize_t system_send "penstock_send" (int fd, Py_buffer* views, int count) noexcept
    Py_ssize_t system_receive "penstock_receive" (int fd, size_t size) noexcept
    const char* received_bytes "penstock_received"
    int system_wait "penstock_wait" (int fd, int* fds, unsigned int* masks, int milliseconds) noexcept nogil
    int INTERRUPTED "EINTR"
    Py_ssize_t MOST_RECEIVED "PENSTOCK_MOST_RECEIVED"

# So that compiled code makes these calls without the interpreter. It gets the C code above as well, and drops it.
cpdef Py_ssize_t send_at_once(int fd, buffers) except? -2
cpdef receive_at_once(int fd, Py_ssize_t max_bytes)
cpdef bint wait_for_owners(int epoll_fd, double seconds, dict watched, list ready) except -1
