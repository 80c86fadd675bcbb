# Multiplies two numbers of 64 bits and folds the product of 128 bits into 64; `_memory` is the same for plain Python.
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
