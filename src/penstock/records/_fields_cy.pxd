# Lengths and bytes of a record, written where they are used: a call for each would cost as much as the work.
# `_fields` is the same for plain Python.
from libc.string cimport memcpy
from penstock._primitives_cy cimport put_varint, varint_size

# The bytes of a varint; the ordinary case is decided here, without a call.
cdef inline Py_ssize_t size_of(long long value) noexcept nogil:
    if -64 <= value < 64:
        return 1
    if -8192 <= value < 8192:
        return 2
    return varint_size(value)

# Write a varint, likewise.
cdef inline Py_ssize_t put(unsigned char* memory, Py_ssize_t at, long long value) noexcept nogil:
    if -1 <= value < 64:
        memory[at] = value << 1 if value >= 0 else 1
        return at + 1
    if 64 <= value < 8192:
        memory[at] = (value << 1 & 0x7F) | 0x80
        memory[at + 1] = value >> 6
        return at + 2
    return put_varint(memory, at, value)

cdef inline Py_ssize_t copy(
    unsigned char* memory, Py_ssize_t at, const unsigned char* data, Py_ssize_t size
) noexcept nogil:
    memcpy(memory + at, data, size)
    return at + size

# Write a length and the bytes; -1 is null.
cdef inline Py_ssize_t put_field(
    unsigned char* memory, Py_ssize_t at, const unsigned char* data, Py_ssize_t size
) noexcept nogil:
    at = put(memory, at, size)
    if size > 0:
        at = copy(memory, at, data, size)
    return at

cdef inline Py_ssize_t field_size(Py_ssize_t size) noexcept nogil:
    return 1 if size < 0 else size_of(size) + size
