# SPDX-License-Identifier: Apache-2.0
# cython: boundscheck=False, wraparound=False
"""What a Produce request and its answer have for every batch: a few bytes each. Compiled if possible.

The request as a whole is in `produce`, the answer in `produce_answer`.
"""

from __future__ import annotations

import struct
from typing import Any

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

if cython.compiled:
    from cython.cimports.cpython.buffer import PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize

# The few fields of a batch header that are looked at here, by their place in it.
_HEADER_SIZE = cython.declare(cython.Py_ssize_t, 61)
_LENGTH_END = cython.declare(cython.Py_ssize_t, 12)
_MAGIC = cython.declare(cython.int, 2)
_CODEC_MASK = cython.declare(cython.int, 7)
_LENGTH_MAGIC_ATTRIBUTES = struct.Struct(">8xi4xb4xh")

_INDEX = struct.Struct(">i")
# index, error code, base offset, log append time, log start offset, then: no record errors, no message, no tags
_ANSWER = struct.Struct(">ihqqq3s")
_ANSWER_SIZE = cython.declare(cython.Py_ssize_t, 33)


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _number_at(data: cython.p_const_uchar, at: cython.Py_ssize_t, size: cython.int) -> cython.longlong:
    """A signed number of so many bytes, the highest first. Compiled code only."""
    value: cython.ulonglong = 0
    byte: cython.int
    for byte in range(size):
        value = (value << 8) | data[at + byte]
    sign: cython.int = 64 - 8 * size
    return cython.cast(cython.longlong, value << sign) >> sign


def where(batch: Any) -> str:
    """A batch's place, for people."""
    return f"partition {batch.partition} of topic {batch.topic!r}"


def size_and_codec(batch: Any) -> tuple[int, int]:
    """The size of a PartitionBatch and its codec, once it is sure that its records are one batch, and only one.

    Raises:
        ValueError: they are not.
    """
    records: Any = batch[3]
    size: cython.Py_ssize_t
    length: cython.Py_ssize_t = 0
    magic: cython.int = 0
    attributes: cython.int = 0
    if cython.compiled:
        view = cython.declare(cython.Py_buffer)
        PyObject_GetBuffer(records, cython.address(view), PyBUF_SIMPLE)
        size = view.len
        if size >= _HEADER_SIZE:
            data: cython.p_const_uchar = cython.cast(cython.p_const_uchar, view.buf)
            length = _number_at(data, 8, 4)
            magic = _number_at(data, 16, 1)
            attributes = _number_at(data, 21, 2)
        PyBuffer_Release(cython.address(view))
    else:
        size = records.nbytes if isinstance(records, memoryview) else len(records)
        if size >= _HEADER_SIZE:
            length, magic, attributes = _LENGTH_MAGIC_ATTRIBUTES.unpack_from(records)
    if size < _HEADER_SIZE:
        raise ValueError(f"no record batch for {where(batch)}: {size} bytes")
    if magic != _MAGIC:
        raise ValueError(f"the batch for {where(batch)} has magic {magic}, not {_MAGIC}")
    if length + _LENGTH_END < size:
        raise ValueError(f"more than one record batch for {where(batch)}")
    if length + _LENGTH_END > size:
        raise ValueError(f"the batch for {where(batch)} is cut off: {size} of {length + _LENGTH_END} bytes")
    return size, attributes & _CODEC_MASK


def total_bytes(buffers: Any) -> cython.Py_ssize_t:
    """The number of bytes in buffers; len() of a memoryview counts elements."""
    total: cython.Py_ssize_t = 0
    for buffer in buffers:
        total += buffer.nbytes if isinstance(buffer, memoryview) else len(buffer)
    return total


def flexible_head(partition: cython.int, size: cython.Py_ssize_t) -> bytes:
    """What is before a batch in the flexible versions: its partition, and its size as an unsigned varint, plus 1."""
    rest: cython.ulonglong = size + 1
    at: cython.Py_ssize_t = 4
    byte: cython.int
    if not cython.compiled:
        head = bytearray(_INDEX.pack(partition))
        while rest > 0x7F:
            head.append(rest & 0x7F | 0x80)
            rest >>= 7
        head.append(rest)
        return bytes(head)
    room: bytes = PyBytes_FromStringAndSize(cython.NULL, 14)
    memory: cython.p_uchar = cython.cast(cython.p_uchar, PyBytes_AS_STRING(room))
    for byte in range(4):
        memory[byte] = (partition >> (24 - 8 * byte)) & 0xFF
    while rest > 0x7F:
        memory[at] = (rest & 0x7F) | 0x80
        at += 1
        rest >>= 7
    memory[at] = rest
    return room[: at + 1]


def by_topic(batches: Any, codecs: set) -> dict[tuple[str, bytes], dict[int, tuple[Any, int]]]:  # type: ignore[type-arg]
    """The records of each partition, with their size, by the name and id of their topic; in the order given.

    Args:
        batches: PartitionBatches.
        codecs: gets those that are used.

    Raises:
        ValueError: a partition has none or more than one, or not of magic 2.
    """
    found: dict = {}  # type: ignore[type-arg]
    place: Any = None
    rows: Any = None
    for batch in batches:
        size, codec = size_and_codec(batch)
        codecs.add(codec)
        name, topic_id, partition, records = batch
        if place is None or place[0] is not name or place[1] is not topic_id:
            place = (name, topic_id)
            rows = found.setdefault(place, {})
        if partition in rows:
            raise ValueError(f"two batches for {where(batch)}")
        rows[partition] = (records, size)
    return found


def flexible_parts(topics: Any, piece: bytearray, by_id: cython.bint) -> list:  # type: ignore[type-arg]
    """The buffers of a request in the flexible versions.

    Args:
        topics: each with `topic_id`, `utf8_name` and `batches`: (records, size) by partition.
        piece: what the request begins with, up to the count of topics.
        by_id: whether topics are named by their ids.
    """
    buffers: list = []  # type: ignore[type-arg]
    for topic in topics:
        if by_id:
            piece += topic.topic_id
        else:
            piece += _uvarint(len(topic.utf8_name) + 1)
            piece += topic.utf8_name
        piece += _uvarint(len(topic.batches) + 1)
        for partition, (records, size) in topic.batches.items():
            piece += flexible_head(partition, size)
            buffers.append(piece)
            buffers.append(records)
            piece = bytearray(1)  # no tagged fields in the partition
        piece.append(0)  # nor in the topic
    piece.append(0)  # nor in the request
    buffers.append(piece)
    return buffers


@cython.cfunc
def _uvarint(value: cython.ulonglong) -> bytes:
    number: bytearray = bytearray()
    while value > 0x7F:
        number.append((value & 0x7F) | 0x80)
        value >>= 7
    number.append(value)
    return bytes(number)


def read_plain_partitions(
    body: Any,
    at: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    name: str,
    kind: type,
    found: list,  # type: ignore[type-arg]
) -> cython.Py_ssize_t:
    """Read what the broker says of the partitions of a topic, where there is nothing special about it.

    Args:
        body: the answer, and `at` where it goes on.
        count: how many partitions.
        name: their topic.
        kind: the named tuple that is made for each, and `found`, which gets them.

    Returns:
        The position behind them; -1: one has something special, or the answer ends before.
    """
    if not cython.compiled:
        for _ in range(count):
            if at + _ANSWER_SIZE > len(body):
                return -1
            *numbers, rest = _ANSWER.unpack_from(body, at)
            if rest != b"\x01\x00\x00":
                return -1
            found.append(tuple.__new__(kind, (name, *numbers, [], None, -1, -1)))
            at += _ANSWER_SIZE
        return at
    view = cython.declare(cython.Py_buffer)
    PyObject_GetBuffer(body, cython.address(view), PyBUF_SIMPLE)
    try:
        data: cython.p_const_uchar = cython.cast(cython.p_const_uchar, view.buf)
        for _ in range(count):
            if at + _ANSWER_SIZE > view.len or data[at + 30] != 1 or data[at + 31] or data[at + 32]:
                return -1
            fields: tuple = (
                name,
                _number_at(data, at, 4),
                _number_at(data, at + 4, 2),
                _number_at(data, at + 6, 8),
                _number_at(data, at + 14, 8),
                _number_at(data, at + 22, 8),
                [],
                None,
                -1,
                -1,
            )
            found.append(tuple.__new__(kind, fields))
            at += _ANSWER_SIZE
    finally:
        PyBuffer_Release(cython.address(view))
    return at
