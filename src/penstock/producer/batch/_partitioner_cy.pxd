# C layout of the choice of partitions, which is made under a partition's lock and prepared in every turn of the I/O thread.
from penstock._primitives_cy cimport partition_for_key
from penstock.records._crc_cy cimport crc32_partition

# The numbers of these hashes, as `_primitives_cy` has them for plain Python.
cdef enum:
    MURMUR2 = 1
    CRC32 = 2

# The partition of a key, of so many; -1: it goes where records without key go. In line, because each key comes here.
cdef inline Py_ssize_t place_by_key(bytes key, Py_ssize_t count, int key_hash) except? -2:
    if key is not None and key_hash == MURMUR2:
        return partition_for_key(key, count)
    if key_hash == CRC32 and key:  # not b""
        return crc32_partition(key, count)
    return -1

cdef class Placement:
    cdef readonly object partitioner
    cdef readonly int key_hash
    cdef readonly bint wants_new_batches

    cpdef Py_ssize_t choose(
        self, given, str topic, key, bytes key_bytes, value, bytes value_bytes, cluster, Py_ssize_t count
    ) except? -2

cdef class TopicState:
    cdef readonly str name
    cdef readonly Py_ssize_t sticky_size
    cdef object choose
    cdef public list queues              # by partition; replaced whole when the topic changes
    cdef public Py_ssize_t sticky_partition   # written under that partition's lock
    cdef public Py_ssize_t sticky_bytes       # likewise
    cdef public bint known
    cdef public bint used
    cdef public object load

    cpdef switch(self)
    cdef bint maybe_switch_locked(self) except -1
    cdef bint count_locked(self, Py_ssize_t size, bint full) except -1

cdef class RandomNumbers:
    cdef object _random

    cpdef Py_ssize_t randrange(self, Py_ssize_t stop) except -1

cdef class LoadTable:
    cdef readonly tuple partitions
    cdef readonly tuple cumulative

    cpdef Py_ssize_t pick(self, rng) except -1

cdef class TopicLoad:
    cdef readonly LoadTable everywhere
    cdef readonly LoadTable in_rack
    cdef readonly list queues
    cdef readonly list depths

cdef class BuiltInPartitioner:
    cdef object _settings
    cdef object _snapshot
    cdef RandomNumbers _random
    cdef readonly bint adaptive
    cdef readonly double availability_timeout
    cdef readonly bint plain

    cpdef note_depths(self, TopicState topic, list queues, list depths)

cdef class NodeProgress:
    cdef double ready
    cdef double drained

cdef class LoadWatch:
    cdef BuiltInPartitioner _partitioner
    cdef bint _adaptive
    cdef readonly bint has_changes
    cdef readonly bint avoids_stalled
    cdef readonly dict _changed
    cdef readonly dict _progress
    cdef readonly object _seen
    cdef object _snapshot
    cdef dict _led

    cpdef note_partition(self, str topic, int partition)
    cpdef note_change(self, str topic)
    cpdef update_changed(self, dict topics)
    cpdef note_node(self, node_id, bint can_take, double now)
    cpdef update(self, TopicState topic)
    cdef Py_ssize_t _count_led(self, str topic) except -1
    cdef bint _is_stalled(self, node_id) except -1
