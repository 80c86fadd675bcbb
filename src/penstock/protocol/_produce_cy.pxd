# C signatures of what is asked for every batch.
cpdef tuple size_and_codec(batch)
cpdef Py_ssize_t total_bytes(buffers) except -1
cpdef bytes flexible_head(int partition, Py_ssize_t size)
cpdef Py_ssize_t read_plain_partitions(
    body, Py_ssize_t at, Py_ssize_t count, str name, type kind, list found
) except -2
