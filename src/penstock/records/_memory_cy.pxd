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
