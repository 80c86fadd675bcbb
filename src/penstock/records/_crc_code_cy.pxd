# CRC-32C in C, by the processor's instruction or by a table, and zlib's CRC-32 by a table. Only `_crc_cy` cimports this:
# it fills the tables.
#
# A checksum is a remainder of polynomials over GF(2). The highest bit of a number here is the lowest power.
cdef extern from *:
    """
    #include <stddef.h>
    #include <stdint.h>
    #include <string.h>

    #define PENSTOCK_CRC_POLYNOMIAL 0x82F63B78u
    #define PENSTOCK_CRC_ZLIB_POLYNOMIAL 0xEDB88320u

    /* penstock_crc_table[n][byte]: the remainder of a byte that n bytes follow. */
    static uint32_t penstock_crc_table[8][256];
    static uint32_t penstock_crc_zlib_table[8][256];

    static void penstock_crc_fill_table(uint32_t (*table)[256], uint32_t polynomial) {
        uint32_t value;
        int byte, at;
        for (byte = 0; byte < 256; byte++) {
            value = (uint32_t)byte;
            for (at = 0; at < 8; at++) {
                value = value >> 1 ^ (value & 1 ? polynomial : 0);
            }
            table[0][byte] = value;
        }
        for (at = 1; at < 8; at++) {
            for (byte = 0; byte < 256; byte++) {
                value = table[at - 1][byte];
                table[at][byte] = value >> 8 ^ table[0][value & 0xFF];
            }
        }
    }

    /* Eight bytes at a time, on a processor of any byte order. */
    static inline unsigned int penstock_crc_by(
        uint32_t (*table)[256], const unsigned char *data, size_t size, unsigned int before
    ) {
        uint32_t value = ~(uint32_t)before;
        for (; size >= 8; data += 8, size -= 8) {
            value = table[7][(value ^ data[0]) & 0xFF] ^ table[6][(value >> 8 ^ data[1]) & 0xFF]
                ^ table[5][(value >> 16 ^ data[2]) & 0xFF] ^ table[4][value >> 24 ^ data[3]]
                ^ table[3][data[4]] ^ table[2][data[5]] ^ table[1][data[6]] ^ table[0][data[7]];
        }
        for (; size > 0; data++, size--) {
            value = value >> 8 ^ table[0][(value ^ *data) & 0xFF];
        }
        return ~value;
    }

    static unsigned int penstock_crc_by_table(const unsigned char *data, size_t size, unsigned int before) {
        return penstock_crc_by(penstock_crc_table, data, size, before);
    }

    static unsigned int penstock_crc_by_zlib_table(const unsigned char *data, size_t size, unsigned int before) {
        return penstock_crc_by(penstock_crc_zlib_table, data, size, before);
    }

    /* For each kind of processor: the instruction for eight bytes and for one, and whether it is there. */
    #if defined(__GNUC__) && defined(__x86_64__)
    #define PENSTOCK_CRC_FUNCTION static __attribute__((target("sse4.2")))
    #define PENSTOCK_CRC_WORD(value, word) __builtin_ia32_crc32di(value, word)
    #define PENSTOCK_CRC_BYTE(value, byte) __builtin_ia32_crc32qi((uint32_t)(value), byte)
    static int penstock_crc_find_instruction(void) {
        __builtin_cpu_init();
        return __builtin_cpu_supports("sse4.2") != 0;
    }
    #elif defined(__GNUC__) && defined(__aarch64__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ \\
        && (defined(__ARM_FEATURE_CRC32) || defined(__linux__))
    #define PENSTOCK_CRC_FUNCTION static
    static inline uint64_t PENSTOCK_CRC_WORD(uint64_t value, uint64_t word) {
        __asm__(".arch_extension crc\\n\\tcrc32cx %w0, %w0, %x1" : "+r"(value) : "r"(word));
        return value;
    }
    static inline uint64_t PENSTOCK_CRC_BYTE(uint64_t value, uint32_t byte) {
        __asm__(".arch_extension crc\\n\\tcrc32cb %w0, %w0, %w1" : "+r"(value) : "r"(byte));
        return value;
    }
    #ifdef __ARM_FEATURE_CRC32  /* every processor that the compiler was told of has it */
    static int penstock_crc_find_instruction(void) { return 1; }
    #else
    #include <sys/auxv.h>
    static int penstock_crc_find_instruction(void) {
        return (getauxval(AT_HWCAP) & 1ul << 7) != 0;  /* HWCAP_CRC32 */
    }
    #endif
    #endif

    #ifdef PENSTOCK_CRC_FUNCTION
    /* A processor begins an instruction in each cycle, and has its result after three: so three parts of the data are
       read side by side. To join them, the checksum of the first is shifted by as many zeros as the next one has bytes.
       The shift is a product, and comes from tables by four bits of the checksum. */
    #define PENSTOCK_CRC_SIZES 4
    static const size_t penstock_crc_sizes[PENSTOCK_CRC_SIZES] = {4096, 1024, 256, 64};  /* of a part: powers of 2 */
    static uint32_t penstock_crc_shifts[PENSTOCK_CRC_SIZES][8][16];

    static uint32_t penstock_crc_product(uint32_t one, uint32_t other) {
        uint32_t product = 0;
        for (; other != 0; other <<= 1) {
            product ^= other & 0x80000000u ? one : 0;
            one = one >> 1 ^ (one & 1 ? PENSTOCK_CRC_POLYNOMIAL : 0);
        }
        return product;
    }

    static void penstock_crc_fill_shifts(void) {
        uint32_t power, digit;
        size_t bits;
        int size, at;
        for (size = 0; size < PENSTOCK_CRC_SIZES; size++) {
            power = 0x40000000u;  /* x, squared until it is x to the number of bits */
            for (bits = 1; bits < 8 * penstock_crc_sizes[size]; bits *= 2) {
                power = penstock_crc_product(power, power);
            }
            for (at = 0; at < 8; at++) {
                for (digit = 0; digit < 16; digit++) {
                    penstock_crc_shifts[size][at][digit] = penstock_crc_product(digit << 4 * at, power);
                }
            }
        }
    }

    static inline uint64_t penstock_crc_shifted(uint64_t value, uint32_t (*shift)[16]) {
        return shift[0][value & 15] ^ shift[1][value >> 4 & 15] ^ shift[2][value >> 8 & 15]
            ^ shift[3][value >> 12 & 15] ^ shift[4][value >> 16 & 15] ^ shift[5][value >> 20 & 15]
            ^ shift[6][value >> 24 & 15] ^ shift[7][value >> 28 & 15];
    }

    static inline uint64_t penstock_crc_load(const unsigned char *data) {
        uint64_t word;
        memcpy(&word, data, sizeof word);
        return word;
    }

    PENSTOCK_CRC_FUNCTION unsigned int penstock_crc_by_instruction(
        const unsigned char *data, size_t size, unsigned int before
    ) {
        uint64_t value = (uint32_t)~before, second, third;
        const unsigned char *end;
        size_t part;
        int at;
        for (at = 0; at < PENSTOCK_CRC_SIZES; at++) {
            part = penstock_crc_sizes[at];
            for (; size >= 3 * part; size -= 3 * part) {
                second = third = 0;
                end = data + part;
                #pragma GCC unroll 8
                for (; data < end; data += 8) {
                    value = PENSTOCK_CRC_WORD(value, penstock_crc_load(data));
                    second = PENSTOCK_CRC_WORD(second, penstock_crc_load(data + part));
                    third = PENSTOCK_CRC_WORD(third, penstock_crc_load(data + 2 * part));
                }
                data += 2 * part;
                value = penstock_crc_shifted(value, penstock_crc_shifts[at]) ^ second;
                value = penstock_crc_shifted(value, penstock_crc_shifts[at]) ^ third;
            }
        }
        for (; size >= 8; data += 8, size -= 8) {
            value = PENSTOCK_CRC_WORD(value, penstock_crc_load(data));
        }
        for (; size > 0; data++, size--) {
            value = PENSTOCK_CRC_BYTE(value, *data);
        }
        return ~(uint32_t)value;
    }
    #else  /* no instruction that is known here */
    #define penstock_crc_by_instruction penstock_crc_by_table
    static int penstock_crc_find_instruction(void) { return 0; }
    static void penstock_crc_fill_shifts(void) {}
    #endif

    /* Once, before any of the others. */
    static int penstock_crc_prepare(void) {
        penstock_crc_fill_table(penstock_crc_table, PENSTOCK_CRC_POLYNOMIAL);
        penstock_crc_fill_table(penstock_crc_zlib_table, PENSTOCK_CRC_ZLIB_POLYNOMIAL);
        penstock_crc_fill_shifts();
        return penstock_crc_find_instruction();
    }
    """
    bint prepare "penstock_crc_prepare" () noexcept
    unsigned int by_instruction "penstock_crc_by_instruction" (
        const unsigned char* data, size_t size, unsigned int before
    ) noexcept nogil
    unsigned int by_table "penstock_crc_by_table" (
        const unsigned char* data, size_t size, unsigned int before
    ) noexcept nogil
    unsigned int by_zlib_table "penstock_crc_by_zlib_table" (
        const unsigned char* data, size_t size, unsigned int before
    ) noexcept nogil
