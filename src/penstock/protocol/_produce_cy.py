# SPDX-License-Identifier: Apache-2.0
# cython: boundscheck=False, wraparound=False
"""The batches of a Produce request: checked, sorted by topic, and the few bytes between them. Compiled if possible.

The request as a whole is in `produce`, the answer in `_produce_answer_cy`.
"""

from __future__ import annotations

import struct
from typing import Any

from penstock.protocol.messages.produce import PRODUCE
from penstock.protocol.schema import ZERO_UUID

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

if cython.compiled:
    from cython.cimports.cpython.buffer import PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
    from cython.cimports.libc.string import memcpy
    from cython.cimports.penstock._primitives_cy import big_endian_at, put_big_endian, put_uvarint

FIRST_VERSION_WITH_ZSTD = 7
FIRST_VERSION_WITH_TOPIC_IDS = 13

_FIRST = cython.declare(cython.int, PRODUCE.min_version)
_LAST = cython.declare(cython.int, PRODUCE.max_version)
_FLEXIBLE = cython.declare(cython.int, PRODUCE.flexible_from)
_WITH_ZSTD = cython.declare(cython.int, FIRST_VERSION_WITH_ZSTD)
_WITH_TOPIC_IDS = cython.declare(cython.int, FIRST_VERSION_WITH_TOPIC_IDS)
_ZSTD = cython.declare(cython.int, 4)
_MAX_STRING_BYTES = cython.declare(cython.Py_ssize_t, 0x7FFF)
_UUID_SIZE = cython.declare(cython.Py_ssize_t, 16)

# The few fields of a batch header that are looked at here, by their place in it.
_HEADER_SIZE = cython.declare(cython.Py_ssize_t, 61)
_LENGTH_END = cython.declare(cython.Py_ssize_t, 12)
_MAGIC = cython.declare(cython.int, 2)
_CODEC_MASK = cython.declare(cython.int, 7)
_CODEC_BITS = cython.declare(cython.int, 3)
_LENGTH_MAGIC_ATTRIBUTES = struct.Struct(">8xi4xb4xh")

# No more than this is written besides names: before all topics, in each topic, in each partition.
_IN_REQUEST = cython.declare(cython.Py_ssize_t, 32)
_IN_TOPIC = cython.declare(cython.Py_ssize_t, 32)
_IN_PARTITION = cython.declare(cython.Py_ssize_t, 16)
_ACKS_AND_TIMEOUT = struct.Struct(">hi")
_INDEX = struct.Struct(">i")


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_bytes(memory: cython.p_uchar, at: cython.Py_ssize_t, raw: bytes) -> cython.Py_ssize_t:
    """Write bytes as they are; the position behind them. Compiled code only."""
    memcpy(memory + at, PyBytes_AS_STRING(raw), len(raw))
    return at + len(raw)


def where(batch: Any) -> str:
    """A batch's place, for people."""
    return f"partition {batch.partition} of topic {batch.topic!r}"


@cython.cfunc
def _utf8(text: str) -> bytes:
    raw: bytes = text.encode()
    if len(raw) > _MAX_STRING_BYTES:
        raise ValueError(f"too long for the protocol: {len(raw)} bytes")
    return raw


@cython.cfunc
@cython.exceptval(-1)
def _size_and_codec(batch: Any, records: Any) -> cython.longlong:
    """The size of a batch times 8, plus its codec, once it is sure that its records are one batch, and only one.

    Raises:
        ValueError: they are not.
    """
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
            length = big_endian_at(data, 8, 4)
            magic = big_endian_at(data, 16, 1)
            attributes = big_endian_at(data, 21, 2)
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
    return size << _CODEC_BITS | attributes & _CODEC_MASK


@cython.final
@cython.cclass
class TopicBatches:
    """What goes to one topic.

    Attributes:
        batches: (records, size) by partition, in the order given.

    Raises:
        ValueError: the name is too long, or the id is none.
    """

    def __init__(self, name: str, topic_id: bytes) -> None:
        if len(topic_id) != _UUID_SIZE:
            raise ValueError(f"the id of topic {name!r} is not 16 bytes long")
        self.name = name
        self.utf8_name = _utf8(name)
        self.topic_id = topic_id
        self.batches: dict[int, tuple[Any, int]] = {}


@cython.cclass
class ProduceFields:
    """What a Produce request consists of, and how it is said; older versions are left to `_encode_plain`.

    Raises:
        ValueError: see `ProduceRequest`.
    """

    def __init__(
        self,
        acks: Any,
        timeout_ms: cython.int,
        batches: Any,
        transactional_id: Any = None,
        *,
        max_version: cython.int = PRODUCE.max_version,
    ) -> None:
        if acks not in (-1, 0, 1):
            raise ValueError(f"acks must be -1, 0 or 1, not {acks}")
        if not batches:
            raise ValueError("a produce request needs at least one batch")
        self.acks = acks
        self._timeout_ms = timeout_ms
        self._transactional_id = None if transactional_id is None else _utf8(transactional_id)
        self._topics: list[TopicBatches] = []
        self.min_version = _WITH_ZSTD if _sort(batches, self._topics) >> _ZSTD & 1 else _FIRST
        highest: cython.int = _LAST
        topic: TopicBatches
        for topic in self._topics:
            if topic.topic_id == ZERO_UUID:
                highest = _WITH_TOPIC_IDS - 1
        self.max_version = max_version if max_version < highest else highest
        if self.max_version < self.min_version:
            raise ValueError(f"no Produce version between {self.min_version} and {self.max_version}")

    @property
    def expects_response(self) -> bool:
        """Not with acks=0: the broker stays silent."""
        return self.acks != 0

    def encode(self, version: cython.int) -> list:  # type: ignore[type-arg]
        """The body in that version; the batches are in the list as they are.

        Raises:
            ValueError: the version is outside `min_version` and `max_version`.
        """
        if not self.min_version <= version <= self.max_version:
            raise ValueError(
                f"this produce request can be sent in versions {self.min_version} to {self.max_version}, "
                f"not in {version}"
            )
        if version >= _FLEXIBLE:
            return self._encode_flexible(version >= _WITH_TOPIC_IDS)
        return self._encode_plain()

    def _encode_flexible(self, by_id: cython.bint) -> list:  # type: ignore[type-arg]
        """The buffers of the request in the flexible versions.

        Args:
            by_id: whether topics are named by their ids.
        """
        if not cython.compiled:
            return _flexible_parts(self, by_id)
        buffers: list = []  # type: ignore[type-arg]
        topic: TopicBatches
        index: cython.int
        most: cython.Py_ssize_t = _IN_REQUEST
        if self._transactional_id is not None:
            most += len(self._transactional_id)
        for topic in self._topics:
            most += len(topic.utf8_name) + _IN_TOPIC + len(topic.batches) * _IN_PARTITION
        # All that is written is written here, and cut into pieces where a batch goes between.
        room: bytearray = bytearray(most)
        piece: cython.p_uchar = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(room))
        at: cython.Py_ssize_t
        if self._transactional_id is None:
            at = put_uvarint(piece, 0, 0)
        else:
            at = put_uvarint(piece, 0, len(self._transactional_id) + 1)
            at = _put_bytes(piece, at, self._transactional_id)
        at = put_big_endian(piece, at, self.acks, 2)
        at = put_big_endian(piece, at, self._timeout_ms, 4)
        at = put_uvarint(piece, at, len(self._topics) + 1)
        for topic in self._topics:
            if by_id:
                at = _put_bytes(piece, at, topic.topic_id)
            else:
                at = put_uvarint(piece, at, len(topic.utf8_name) + 1)
                at = _put_bytes(piece, at, topic.utf8_name)
            at = put_uvarint(piece, at, len(topic.batches) + 1)
            for partition, batch in topic.batches.items():
                index = partition
                at = put_big_endian(piece, at, index, 4)
                at = put_uvarint(piece, at, cython.cast(cython.Py_ssize_t, batch[1]) + 1)
                buffers.append(PyBytes_FromStringAndSize(cython.cast(cython.p_char, piece), at))
                buffers.append(batch[0])
                at = put_uvarint(piece, 0, 0)  # no tagged fields in the partition
            at = put_uvarint(piece, at, 0)  # nor in the topic
        at = put_uvarint(piece, at, 0)  # nor in the request
        buffers.append(PyBytes_FromStringAndSize(cython.cast(cython.p_char, piece), at))
        return buffers


@cython.cfunc
@cython.exceptval(-1)
def _sort(batches: Any, topics: list) -> cython.int:  # type: ignore[type-arg]
    """Put together what goes to the same topic, in the order given.

    Args:
        batches: PartitionBatches.
        topics: gets the topics.

    Returns:
        The codecs that are used, a bit for each.
    """
    codecs: cython.int = 0
    checked: cython.longlong
    known: dict = {}  # type: ignore[type-arg]
    topic: TopicBatches | None = None
    for batch in batches:
        if not isinstance(batch, tuple) or len(batch) != 4:
            raise TypeError(f"not a PartitionBatch: {batch!r}")
        row = cython.cast(tuple, batch)  # which C code reads without asking its class
        checked = _size_and_codec(batch, row[3])
        codecs |= 1 << (checked & _CODEC_MASK)
        name: str = row[0]
        topic_id: bytes = row[1]
        if topic is None or topic.name is not name or topic.topic_id is not topic_id:
            topic = known.get((name, topic_id))
            if topic is None:
                topic = known[name, topic_id] = TopicBatches(name, topic_id)
                topics.append(topic)
        partition: Any = row[2]
        if partition in topic.batches:
            raise ValueError(f"two batches for {where(batch)}")
        topic.batches[partition] = (row[3], checked >> _CODEC_BITS)
    if len(topics) > 1:
        _check_ids(topics)
    return codecs


def _check_ids(topics: list) -> None:  # type: ignore[type-arg]
    seen: set[str] = set()
    for topic in topics:
        if topic.name in seen:
            raise ValueError(f"two ids for topic {topic.name!r}")
        seen.add(topic.name)
    known_ids = [topic.topic_id for topic in topics if topic.topic_id != ZERO_UUID]
    if len(set(known_ids)) != len(known_ids):
        raise ValueError("two topics with the same id")


def _flexible_parts(request: Any, by_id: bool) -> list:  # type: ignore[type-arg]
    """The same as `ProduceFields._encode_flexible`, where it is not compiled."""
    buffers: list[Any] = []
    piece = bytearray()
    if request._transactional_id is None:
        piece.append(0)
    else:
        piece += _uvarint(len(request._transactional_id) + 1) + request._transactional_id
    piece += _ACKS_AND_TIMEOUT.pack(request.acks, request._timeout_ms)
    piece += _uvarint(len(request._topics) + 1)
    for topic in request._topics:
        piece += topic.topic_id if by_id else _uvarint(len(topic.utf8_name) + 1) + topic.utf8_name
        piece += _uvarint(len(topic.batches) + 1)
        for partition, (records, size) in topic.batches.items():
            piece += _INDEX.pack(partition) + _uvarint(size + 1)
            buffers += (piece, records)
            piece = bytearray(1)  # no tagged fields in the partition
        piece.append(0)  # nor in the topic
    piece.append(0)  # nor in the request
    buffers.append(piece)
    return buffers


def _uvarint(value: int) -> bytes:
    number = bytearray()
    while value > 0x7F:
        number.append((value & 0x7F) | 0x80)
        value >>= 7
    number.append(value)
    return bytes(number)
