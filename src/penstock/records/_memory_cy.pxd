# Reads the memory of columns by its address; `_memory` is the same for plain Python.
cdef inline const unsigned char* bytes_at(size_t address, Py_ssize_t size) noexcept nogil:
    return <const unsigned char*> address

cdef inline const int* ints_at(size_t address, Py_ssize_t count) noexcept nogil:
    return <const int*> address

cdef inline const long long* longs_at(size_t address, Py_ssize_t count) noexcept nogil:
    return <const long long*> address

cdef inline bint is_null(const unsigned char* valid, Py_ssize_t at) noexcept nogil:
    return not (valid[at >> 3] >> (at & 7)) & 1
