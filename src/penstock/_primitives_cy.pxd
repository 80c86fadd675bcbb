# Numbers on the wire, written and read where they are used: a call for each would cost as much as the work. `memory`
# must have room for the number, `data` must have its bytes. What is written gives the position behind it.
cpdef Py_ssize_t varint_size(long long value) noexcept nogil
cdef Py_ssize_t put_any_varint(unsigned char* memory, Py_ssize_t at, long long value) noexcept nogil
cpdef int murmur2(bytes key)
cpdef int partition_for_key(bytes key, int partition_count) except? -1
cdef int partition_at(const unsigned char* key, Py_ssize_t size, int partition_count) noexcept nogil
cdef int _murmur2_at(const unsigned char* data, Py_ssize_t size) noexcept nogil

# The same as `varint_size`; the ordinary case is decided without a call.
cdef inline Py_ssize_t size_of_varint(long long value) noexcept nogil:
    if -64 <= value < 64:
        return 1
    if -8192 <= value < 8192:
        return 2
    return varint_size(value)

# The same as `put_any_varint`, likewise.
cdef inline Py_ssize_t put_varint(unsigned char* memory, Py_ssize_t at, long long value) noexcept nogil:
    if -1 <= value < 64:
        memory[at] = value << 1 if value >= 0 else 1
        return at + 1
    if 64 <= value < 8192:
        memory[at] = (value << 1 & 0x7F) | 0x80
        memory[at + 1] = value >> 6
        return at + 2
    return put_any_varint(memory, at, value)

# A number without a sign, seven bits a byte, the lowest first.
cdef inline Py_ssize_t put_uvarint(unsigned char* memory, Py_ssize_t at, unsigned long long value) noexcept nogil:
    while value > 0x7F:
        memory[at] = (value & 0x7F) | 0x80
        at += 1
        value >>= 7
    memory[at] = value
    return at + 1

# Such a number, with `at` moved behind it; -1 where the data ends before it, or it is above 2^28 - 1.
cdef inline int take_uvarint(const unsigned char* data, Py_ssize_t size, Py_ssize_t* at) noexcept nogil:
    cdef int value = 0
    cdef int shift
    for shift in range(0, 28, 7):
        if at[0] >= size:
            return -1
        value |= (data[at[0]] & 0x7F) << shift
        at[0] += 1
        if data[at[0] - 1] < 0x80:
            return value
    return -1

# A number of `size` bytes, the highest first.
cdef inline Py_ssize_t put_big_endian(
    unsigned char* memory, Py_ssize_t at, long long value, int size
) noexcept nogil:
    cdef int byte
    for byte in range(size):
        memory[at + byte] = (value >> (8 * (size - 1 - byte))) & 0xFF
    return at + size

# The signed number in `size` bytes, the highest first.
cdef inline long long big_endian_at(const unsigned char* data, Py_ssize_t at, int size) noexcept nogil:
    cdef unsigned long long value = 0
    cdef int byte
    cdef int sign = 64 - 8 * size
    for byte in range(size):
        value = (value << 8) | data[at + byte]
    return <long long> (value << sign) >> sign
