# SPDX-License-Identifier: Apache-2.0
"""Numbers on the wire, and the hash that places keys. Compiled if possible; the same source runs as plain Python.

Varints are Kafka's: zigzag, then seven bits a byte, low ones first. `memory` is a bytearray in plain Python and a C
pointer when compiled, so callers check the room before they write. The `.pxd` has what is written in line by compiled
code; numbers of fixed width are in it alone, because plain Python has `struct`.
"""

from __future__ import annotations

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

# How a key chooses its partition: not at all, as Java's producer does, or as librdkafka's consistent_random does.
IGNORED, MURMUR2, CRC32 = range(3)

# C variables when compiled: a plain global would cost a look-up and a Python number at every use.
_MURMUR_SEED = cython.declare(cython.uint, 0x9747B28C)
_MURMUR_M = cython.declare(cython.uint, 0x5BD1E995)
# Of the same kind: a literal as large as this is a Python number, and so would be all that is done with it.
_MASK_32 = cython.declare(cython.uint, 0xFFFFFFFF)
_MASK_64 = 0xFFFFFFFFFFFFFFFF


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


def varint_size(value: cython.longlong) -> cython.Py_ssize_t:
    """How many bytes a varint takes."""
    rest: cython.ulonglong = (value << 1) ^ (value >> 63)
    if not cython.compiled:
        rest &= _MASK_64
    size: cython.Py_ssize_t = 1
    while rest >= 0x80:
        rest >>= 7
        size += 1
    return size


def put_any_varint(
    memory: cython.p_uchar, at: cython.Py_ssize_t, value: cython.longlong
) -> cython.Py_ssize_t:
    """Write a varint at `at`; the position behind it."""
    rest: cython.ulonglong = (value << 1) ^ (value >> 63)
    if not cython.compiled:
        rest &= _MASK_64
    while rest >= 0x80:
        memory[at] = (rest & 0x7F) | 0x80
        at += 1
        rest >>= 7
    memory[at] = rest
    return at + 1


if not cython.compiled:
    size_of_varint, put_varint = varint_size, put_any_varint


def read_varint(data: bytes, at: cython.Py_ssize_t) -> tuple[int, int]:
    """The signed number at `at`, and the position behind it.

    Raises:
        ValueError: the data ends inside the number, or it is longer than ten bytes.
    """
    end: cython.Py_ssize_t = len(data)
    shift: cython.int = 0
    rest: cython.ulonglong = 0
    byte: cython.ulonglong
    while True:
        if at >= end:
            raise ValueError("the data ends inside a varint")
        byte = data[at]
        at += 1
        if shift == 63 and byte > 1:
            raise ValueError("a varint is longer than 64 bits")
        rest |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    value: cython.longlong = rest >> 1
    if rest & 1:
        value = -value - 1
    return value, at


def murmur2(key: bytes) -> cython.int:
    """Kafka's hash of a key: murmur2, seed 0x9747b28c, as a signed 32-bit number."""
    return _murmur2_at(key, len(key))


def _murmur2_at(data: cython.p_const_uchar, size: cython.Py_ssize_t) -> cython.int:
    h: cython.uint = (_MURMUR_SEED ^ size) & _MASK_32
    k: cython.uint
    at: cython.Py_ssize_t = 0
    while size - at >= 4:
        k = data[at] | (data[at + 1] << 8) | (data[at + 2] << 16) | (data[at + 3] << 24)
        k = (k * _MURMUR_M) & _MASK_32
        k ^= k >> 24
        k = (k * _MURMUR_M) & _MASK_32
        h = (h * _MURMUR_M) & _MASK_32
        h ^= k
        at += 4
    if size - at == 3:
        h ^= data[at + 2] << 16
    if size - at >= 2:
        h ^= data[at + 1] << 8
    if size - at >= 1:
        h ^= data[at]
        h = (h * _MURMUR_M) & _MASK_32
    h ^= h >> 13
    h = (h * _MURMUR_M) & _MASK_32
    h ^= h >> 15
    if cython.compiled:
        return cython.cast(cython.int, h)
    return h - 0x1_0000_0000 if h >= 0x8000_0000 else h


def partition_for_key(key: bytes, partition_count: cython.int) -> cython.int:
    """The partition of a key among all partitions of its topic, as the Java producer places it."""
    if partition_count == 0:
        raise ZeroDivisionError("a topic without partitions")
    return partition_at(key, len(key), partition_count)


@cython.cdivision(True)
def partition_at(
    key: cython.p_const_uchar, size: cython.Py_ssize_t, partition_count: cython.int
) -> cython.int:
    """The same for a key at an address in memory."""
    return (_murmur2_at(key, size) & 0x7FFFFFFF) % partition_count
