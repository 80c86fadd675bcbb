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
