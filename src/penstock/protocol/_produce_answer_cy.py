# SPDX-License-Identifier: Apache-2.0
# cython: boundscheck=False, wraparound=False
"""The short way to read the ordinary answer to a Produce request. Compiled if possible.

Almost every answer looks the same: no record errors, no messages, no tagged fields. Such a one is read here; anything
else, also what is malformed, is left to the table-driven decoder, which knows all versions and names what is wrong.
"""

from __future__ import annotations

import struct
from typing import Any

from penstock.protocol.produce_answer import PartitionResponse, ProduceResponse

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

if cython.compiled:
    from cython.cimports.cpython.buffer import PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING
    from cython.cimports.libc.string import memcmp
    from cython.cimports.penstock._primitives_cy import big_endian_at
    from cython.cimports.penstock.protocol._produce_answer_cy import named
    from cython.cimports.penstock.protocol._produce_cy import TopicBatches

PLAIN_VERSION = 13  # the one that is read here

# index, error code, base offset, log append time, log start offset, then: no record errors, no message, no tags
_ANSWER = struct.Struct(">ihqqq3s")
_ANSWER_SIZE = cython.declare(cython.Py_ssize_t, 33)
_END = struct.Struct(">iB")  # throttle time, no tags
_END_SIZE = cython.declare(cython.Py_ssize_t, 5)
_UUID_SIZE = cython.declare(cython.Py_ssize_t, 16)
_MANY = cython.declare(cython.int, 0x80)  # from here on an unsigned varint takes more than one byte


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


def read_plain_answer(body: Any, topics: list) -> ProduceResponse | None:  # type: ignore[type-arg]
    """Read an answer of version 13 that has nothing special about it; None: it has, or is not an answer at all.

    Args:
        body: the answer.
        topics: the TopicBatches of the request.
    """
    if not cython.compiled:
        try:
            return _read(body, topics)
        except (struct.error, IndexError):
            return None
    view = cython.declare(cython.Py_buffer)
    PyObject_GetBuffer(body, cython.address(view), PyBUF_SIMPLE)
    try:
        return _read_memory(cython.cast(cython.p_const_uchar, view.buf), view.len, topics)
    finally:
        PyBuffer_Release(cython.address(view))


@cython.cfunc
def _name_of(topics: list, topic_id: cython.p_const_uchar) -> Any:  # type: ignore[type-arg]
    """The name of the topic with that id; None: there is none. Compiled code only."""
    topic: TopicBatches
    for topic in topics:
        if not memcmp(PyBytes_AS_STRING(topic.topic_id), topic_id, _UUID_SIZE):
            return topic.name
    return None


@cython.cfunc
def _read_memory(data: cython.p_const_uchar, size: cython.Py_ssize_t, topics: list) -> Any:  # type: ignore[type-arg]
    """The same as `_read`, without a Python object for each step. Compiled code only."""
    partitions: list = []  # type: ignore[type-arg]
    at: cython.Py_ssize_t = 1
    if size < 1 or not 0 < data[0] < _MANY:
        return None
    count: cython.int
    for _ in range(cython.cast(cython.int, data[0]) - 1):
        if at + _UUID_SIZE + 1 > size:
            return None
        name: Any = _name_of(topics, data + at)
        count = data[at + _UUID_SIZE]
        at += _UUID_SIZE + 1
        if name is None or not 0 < count < _MANY:
            return None
        for _ in range(count - 1):
            if at + _ANSWER_SIZE > size or data[at + 30] != 1 or data[at + 31] or data[at + 32]:
                return None
            fields: tuple = (
                name,
                big_endian_at(data, at, 4),
                big_endian_at(data, at + 4, 2),
                big_endian_at(data, at + 6, 8),
                big_endian_at(data, at + 14, 8),
                big_endian_at(data, at + 22, 8),
                [],
                None,
                -1,
                -1,
            )
            partitions.append(named(PartitionResponse, fields))
            at += _ANSWER_SIZE
        if at >= size or data[at]:
            return None
        at += 1
    if at + _END_SIZE != size or data[at + 4]:
        return None
    return named(ProduceResponse, (big_endian_at(data, at, 4), partitions, []))


def _read(body: Any, topics: list) -> ProduceResponse | None:  # type: ignore[type-arg]
    names = {topic.topic_id: topic.name for topic in topics}
    partitions: list[PartitionResponse] = []
    topics_and_one = body[0]
    at = 1
    if not 0 < topics_and_one < _MANY:
        return None
    for _ in range(topics_and_one - 1):
        name = names.get(bytes(body[at : at + _UUID_SIZE]))
        partitions_and_one = body[at + _UUID_SIZE]
        at += _UUID_SIZE + 1
        if name is None or not 0 < partitions_and_one < _MANY:
            return None
        for _ in range(partitions_and_one - 1):
            *numbers, rest = _ANSWER.unpack_from(body, at)
            if rest != b"\x01\x00\x00":
                return None
            partitions.append(tuple.__new__(PartitionResponse, (name, *numbers, [], None, -1, -1)))
            at += _ANSWER_SIZE
        if body[at]:
            return None
        at += 1
    throttle_ms, tags = _END.unpack_from(body, at)
    if tags or at + _END_SIZE != len(body):
        return None
    return ProduceResponse(throttle_ms, partitions, [])
