# Lengths and bytes of a record, written where they are used: a call for each would cost as much as the work.
# `_fields` is the same for plain Python.
from libc.string cimport memcpy
from penstock._primitives_cy cimport put_varint, size_of_varint

cdef inline Py_ssize_t copy(
    unsigned char* memory, Py_ssize_t at, const unsigned char* data, Py_ssize_t size
) noexcept nogil:
    memcpy(memory + at, data, size)
    return at + size

# Write a length and the bytes; -1 is null.
cdef inline Py_ssize_t put_field(
    unsigned char* memory, Py_ssize_t at, const unsigned char* data, Py_ssize_t size
) noexcept nogil:
    at = put_varint(memory, at, size)
    if size > 0:
        at = copy(memory, at, data, size)
    return at

cdef inline Py_ssize_t field_size(Py_ssize_t size) noexcept nogil:
    return 1 if size < 0 else size_of_varint(size) + size
