# The layout of a record batch for compiled code: constants of C, by the names that `format` gives them for plain Python.
# A test keeps the two equal.
cdef enum:
    MAGIC = 2

    BASE_OFFSET_AT = 0
    BATCH_LENGTH_AT = 8
    PARTITION_LEADER_EPOCH_AT = 12
    MAGIC_AT = 16
    CRC_AT = 17
    ATTRIBUTES_AT = 21
    LAST_OFFSET_DELTA_AT = 23
    BASE_TIMESTAMP_AT = 27
    MAX_TIMESTAMP_AT = 35
    PRODUCER_ID_AT = 43
    PRODUCER_EPOCH_AT = 51
    BASE_SEQUENCE_AT = 53
    RECORDS_COUNT_AT = 57
    HEADER_SIZE = 61

    LENGTH_PREFIX_SIZE = 12
    CHECKED_FROM = 21

    CODEC_MASK = 0x07
    TRANSACTIONAL_BIT = 0x10

    NO_LEADER_EPOCH = -1

    MAX_RECORD_OVERHEAD = 21
