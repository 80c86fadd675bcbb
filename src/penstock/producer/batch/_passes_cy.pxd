# C layout of what seals batches.
cdef class Sealing:
    cdef int _codec_id
