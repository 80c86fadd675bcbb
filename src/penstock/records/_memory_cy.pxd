# Reads the memory of columns by its address; `_memory` is the same for plain Python.
cdef inline const unsigned char* bytes_at(size_t address, Py_ssize_t size) noexcept nogil:
    return <const unsigned char*> address

cdef inline const int* ints_at(size_t address, Py_ssize_t count) noexcept nogil:
    return <const int*> address

cdef inline const long long* longs_at(size_t address, Py_ssize_t count) noexcept nogil:
    return <const long long*> address

cdef inline bint is_null(const unsigned char* valid, Py_ssize_t at) noexcept nogil:
    return not (valid[at >> 3] >> (at & 7)) & 1

# Eight bytes as a number, the lowest first; compilers make one load of it where the processor has that order.
cdef inline unsigned long long word_at(const unsigned char* data, Py_ssize_t at) noexcept nogil:
    data += at
    return (
        <unsigned long long> data[0]
        | <unsigned long long> data[1] << 8
        | <unsigned long long> data[2] << 16
        | <unsigned long long> data[3] << 24
        | <unsigned long long> data[4] << 32
        | <unsigned long long> data[5] << 40
        | <unsigned long long> data[6] << 48
        | <unsigned long long> data[7] << 56
    )

cdef inline unsigned long long half_at(const unsigned char* data, Py_ssize_t at) noexcept nogil:
    data += at
    return (
        <unsigned long long> data[0]
        | <unsigned long long> data[1] << 8
        | <unsigned long long> data[2] << 16
        | <unsigned long long> data[3] << 24
    )
