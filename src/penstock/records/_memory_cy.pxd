# Reads the memory of columns by its address, and writes the fields of records, where this is used: a call for each would
# cost as much as the work. `_memory` is the same for plain Python.
from libc.string cimport memcpy
from penstock._primitives_cy cimport put_varint, size_of_varint

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

# Tells the processor which memory will be read soon; compilers that cannot say so leave it out.
cdef extern from *:
    """
    #if defined(__GNUC__) || defined(__clang__)
    #define PENSTOCK_PREFETCH(address) __builtin_prefetch(address)
    #else
    #define PENSTOCK_PREFETCH(address) ((void)(address))
    #endif
    """
    void prefetch_line "PENSTOCK_PREFETCH" (const void* address) noexcept nogil

# An item of memory that another thread may change meanwhile: what was checked is what is used, so it is read once.
cdef extern from *:
    """
    #define PENSTOCK_INT_AT(items, at) (((const volatile int*)(items))[at])
    #define PENSTOCK_LONG_AT(items, at) (((const volatile long long*)(items))[at])
    /* A number of so many bytes, negative for one without a sign; of -8 bytes as if it had one. */
    static inline long long penstock_number_at(const unsigned char* items, Py_ssize_t at, int width) {
        switch (width) {
            case 4: return ((const volatile int*)items)[at];
            case -4: return ((const volatile unsigned int*)items)[at];
            case 2: return ((const volatile short*)items)[at];
            case -2: return ((const volatile unsigned short*)items)[at];
            case 1: return ((const volatile signed char*)items)[at];
            case -1: return ((const volatile unsigned char*)items)[at];
            default: return ((const volatile long long*)items)[at];
        }
    }
    """
    int int_at "PENSTOCK_INT_AT" (const int* items, Py_ssize_t at) noexcept nogil
    long long long_at "PENSTOCK_LONG_AT" (const long long* items, Py_ssize_t at) noexcept nogil
    long long number_at "penstock_number_at" (
        const unsigned char* items, Py_ssize_t at, int width
    ) noexcept nogil

# Multiplies two numbers of 64 bits and folds the product of 128 bits into 64.
cdef extern from *:
    """
    #if defined(__SIZEOF_INT128__)
    static CYTHON_INLINE unsigned long long penstock_folded(unsigned long long a, unsigned long long b) {
        unsigned __int128 product = (unsigned __int128) a * b;
        return (unsigned long long) product ^ (unsigned long long) (product >> 64);
    }
    #else
    static CYTHON_INLINE unsigned long long penstock_folded(unsigned long long a, unsigned long long b) {
        unsigned long long a_low = a & 0xFFFFFFFFu, a_high = a >> 32, b_low = b & 0xFFFFFFFFu, b_high = b >> 32;
        unsigned long long low = a_low * b_low, cross = a_high * b_low, other = a_low * b_high;
        unsigned long long middle = (low >> 32) + (cross & 0xFFFFFFFFu) + (other & 0xFFFFFFFFu);
        unsigned long long high = a_high * b_high + (cross >> 32) + (other >> 32) + (middle >> 32);
        return (a * b) ^ high;
    }
    #endif
    """
    unsigned long long folded "penstock_folded" (unsigned long long a, unsigned long long b) noexcept nogil

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
