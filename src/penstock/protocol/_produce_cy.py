# SPDX-License-Identifier: Apache-2.0
# cython: boundscheck=False, wraparound=False
"""The Produce request, which carries the data, and its answer. Compiled if possible.

The table in `messages.produce` says what the bytes are, and `codec` can write and read all of it. Compiled code has a
short way for what brokers of today are sent and nearly always answer: the flexible versions of the request, and the
answer of version 13 that has nothing special about it. Everything else, and everything in pure runs, is left to the
codec. Either way the batches are never copied: `encode` puts the buffers themselves between small pieces of its own.

What a broker would refuse, or worse, misread, is refused here first. Each partition gets exactly one batch of magic 2,
from version 3 on, and zstd is not used below version 7. Or each partition gets a message set, and all sets have one
magic: magic 1 is sent in version 2, magic 0 in versions 0 to 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.errors import ProtocolError
from penstock.protocol.codec import decode_response_body, encode_request_body
from penstock.protocol.messages.produce import FIRST_VERSION_WITH_BATCHES, PRODUCE
from penstock.protocol.schema import ZERO_UUID, ApiSchema
from penstock.records.legacy._sets_cy import problem_of_set
from penstock.types import Node

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

if cython.compiled:
    from cython.cimports.cpython.buffer import PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
    from cython.cimports.libc.string import memcmp, memcpy
    from cython.cimports.penstock._primitives_cy import (
        big_endian_at,
        put_big_endian,
        put_uvarint,
        take_uvarint,
    )
    from cython.cimports.penstock.records._layout_cy import (
        ATTRIBUTES_AT,
        BATCH_LENGTH_AT,
        CODEC_MASK,
        HEADER_SIZE,
        LENGTH_PREFIX_SIZE,
        MAGIC,
        MAGIC_AT,
    )
    from cython.cimports.penstock.records.legacy._sets_cy import codec_of_set
else:
    from penstock.records.format import (
        ATTRIBUTES_AT,
        BATCH_LENGTH_AT,
        CODEC_MASK,
        HEADER_SIZE,
        LENGTH_PREFIX_SIZE,
        MAGIC,
        MAGIC_AT,
    )
    from penstock.records.legacy._sets_cy import codec_of_set

    def big_endian_at(data: Any, at: int, size: int) -> int:
        """The signed number in `size` bytes."""
        return int.from_bytes(data[at : at + size], "big", signed=True)


FIRST_VERSION_WITH_ZSTD = 7
FIRST_VERSION_WITH_TOPIC_IDS = 13

_FIRST = cython.declare(cython.int, PRODUCE.min_version)
_WITH_BATCHES = cython.declare(cython.int, FIRST_VERSION_WITH_BATCHES)
_LAST_WITH_SETS = cython.declare(cython.int, FIRST_VERSION_WITH_BATCHES - 1)
_LAST = cython.declare(cython.int, PRODUCE.max_version)
_FLEXIBLE = cython.declare(cython.int, PRODUCE.flexible_from)
_WITH_ZSTD = cython.declare(cython.int, FIRST_VERSION_WITH_ZSTD)
_WITH_TOPIC_IDS = cython.declare(cython.int, FIRST_VERSION_WITH_TOPIC_IDS)
_ZSTD = cython.declare(cython.int, 4)
_MAX_STRING_BYTES = cython.declare(cython.Py_ssize_t, 0x7FFF)
_UUID_SIZE = cython.declare(cython.Py_ssize_t, 16)

# What `_checked` and `_group` give beside the codec.
_CODEC_BITS = cython.declare(cython.int, 3)  # of CODEC_MASK
_CHECKED_BITS = cython.declare(cython.int, 5)  # the codec, and the magic above it
_MAGIC_MASK = cython.declare(cython.int, 3)
_MAGICS_SHIFT = cython.declare(cython.int, 8)  # below it, a bit for each codec

# No more than this is written besides names: before all topics, in each topic, in each partition.
_IN_REQUEST = cython.declare(cython.Py_ssize_t, 32)
_IN_TOPIC = cython.declare(cython.Py_ssize_t, 32)
_IN_PARTITION = cython.declare(cython.Py_ssize_t, 16)

# The ordinary answer of version 13. Of a partition: index, error code, base offset, log append time, log start offset,
# then no record errors, no message and no tagged fields; at the end: throttle time and no tagged fields.
_PLAIN_VERSION = cython.declare(cython.int, 13)
_ANSWER_SIZE = cython.declare(cython.Py_ssize_t, 33)
_END_SIZE = cython.declare(cython.Py_ssize_t, 5)


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


# --------------------------------------------------------------------------------------------- the request


@cython.final
# No garbage collection, nor for what answers it: there are as many as batches, and nothing in them leads back.
@cython.no_gc
@cython.cclass
class PartitionBatch:
    """One sealed batch (or a list of its pieces) or message set, and its place; `topic_id` is zeros while unknown."""

    def __init__(self, topic: str, topic_id: bytes, partition: cython.int, records: Any) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self.records = records


@cython.final
@cython.cclass
class TopicBatches:
    """What goes to one topic.

    Attributes:
        batches: (records, size) by partition, in the order given.

    Raises:
        ValueError: the name is too long, or the id is not 16 bytes long.
    """

    def __init__(self, name: str, topic_id: bytes) -> None:
        if len(topic_id) != _UUID_SIZE:
            raise ValueError(f"the id of topic {name!r} is not 16 bytes long")
        self.name = name
        self.utf8_name = _utf8(name)
        self.topic_id = topic_id
        self.batches: dict[int, tuple[Any, int]] = {}


@cython.cclass
class ProduceRequest:
    """Batches for the partitions that one broker leads.

    Args:
        acks: -1, 0 or 1.
        timeout_ms: how long the broker may wait for other replicas.
        batches: PartitionBatches, in a sequence.
        transactional_id: whose they are, None outside of transactions.
        max_version: the highest version to use.

    Raises:
        TypeError: something else than a PartitionBatch is among the batches.
        ValueError: there is no batch, a partition has none or more than one, a batch has an unknown magic or another
            one than the others, acks is none of -1, 0 and 1, or the topic ids contradict each other.
    """

    def __init__(
        self,
        acks: cython.int,
        timeout_ms: cython.int,
        batches: Sequence[PartitionBatch],
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
        found: cython.int = _group(batches, self._topics)
        highest: cython.int = _LAST
        if found >> _MAGICS_SHIFT == 1 << MAGIC:
            self.min_version = _WITH_ZSTD if found >> _ZSTD & 1 else _WITH_BATCHES
            topic: TopicBatches
            for topic in self._topics:
                if topic.topic_id == ZERO_UUID:
                    highest = _WITH_TOPIC_IDS - 1
        else:
            self.min_version = _first_version_of_sets(found >> _MAGICS_SHIFT, transactional_id)
            highest = _LAST_WITH_SETS
        self.max_version = max_version if max_version < highest else highest
        if self.max_version < self.min_version:
            raise ValueError(f"no Produce version between {self.min_version} and {self.max_version}")

    @property
    def api(self) -> ApiSchema:
        return PRODUCE

    @property
    def expects_response(self) -> bool:
        """Not with acks=0: the broker does not answer."""
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
        if cython.compiled and version >= _FLEXIBLE:
            return self._encode_flexible(version >= _WITH_TOPIC_IDS)
        return encode_request_body(PRODUCE, version, self._body())

    def decode_response(self, version: cython.int, body: Any) -> ProduceResponse:
        """Read the answer; topics are named even where the wire has only their ids.

        Raises:
            ProtocolError: the bytes are not an answer in that version, or tell of a topic that was not sent.
        """
        if cython.compiled and version == _PLAIN_VERSION:
            plain: ProduceResponse | None = read_plain_answer(body, self._topics)
            if plain is not None:
                return plain
        return self._decode_by_table(version, body)

    def _encode_flexible(self, by_id: cython.bint) -> list:  # type: ignore[type-arg]
        """The buffers of the request in the flexible versions. Compiled code only.

        Args:
            by_id: whether topics are named by their ids.
        """
        buffers: list = []  # type: ignore[type-arg]
        topic: TopicBatches
        index: cython.int
        most: cython.Py_ssize_t = _IN_REQUEST
        if self._transactional_id is not None:
            most += len(self._transactional_id)
        for topic in self._topics:
            most += len(topic.utf8_name) + _IN_TOPIC + len(topic.batches) * _IN_PARTITION
        # All that is written is written here, and cut into pieces where a batch goes between.
        room: bytes = PyBytes_FromStringAndSize(cython.NULL, most)
        piece: cython.p_uchar = cython.cast(cython.p_uchar, PyBytes_AS_STRING(room))
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
                buffers += batch[0] if isinstance(batch[0], list) else (batch[0],)
                at = put_uvarint(piece, 0, 0)  # no tagged fields in the partition
            at = put_uvarint(piece, at, 0)  # nor in the topic
        at = put_uvarint(piece, at, 0)  # nor in the request
        buffers.append(PyBytes_FromStringAndSize(cython.cast(cython.p_char, piece), at))
        return buffers

    def _body(self) -> dict:  # type: ignore[type-arg]
        """The request as the table has it; of a topic's name and its id, the codec takes what the version has."""
        transactional_id = self._transactional_id
        return {
            "transactional_id": None if transactional_id is None else transactional_id.decode(),
            "acks": self.acks,
            "timeout_ms": self._timeout_ms,
            "topic_data": [
                {
                    "name": topic.name,
                    "topic_id": topic.topic_id,
                    "partition_data": [
                        {"index": partition, "records": batch[0]}
                        for partition, batch in topic.batches.items()
                    ],
                }
                for topic in self._topics
            ],
        }

    def _decode_by_table(self, version: cython.int, body: Any) -> ProduceResponse:
        answer = decode_response_body(PRODUCE, version, body)
        by_id: cython.bint = version >= _WITH_TOPIC_IDS
        names = {topic.topic_id: topic.name for topic in self._topics}
        partitions: list = []
        for topic in answer["responses"]:
            name = names.get(topic["topic_id"]) if by_id else topic["name"]
            if name is None:
                raise ProtocolError(
                    f"Produce response v{version}: topic id {topic['topic_id'].hex()} was not in the request"
                )
            partitions += [_partition_response(name, each) for each in topic["partition_responses"]]
        endpoints: list = [
            Node(each["node_id"], each["host"], each["port"], each["rack"])
            for each in answer["node_endpoints"]
        ]
        return ProduceResponse(answer["throttle_time_ms"], partitions, endpoints)

    def __repr__(self) -> str:
        count = sum(len(topic.batches) for topic in self._topics)
        return f"<ProduceRequest acks={self.acks}, {count} batches, versions {self.min_version}-{self.max_version}>"


@cython.cfunc
@cython.exceptval(-1)
def _group(batches: Any, topics: list) -> cython.int:  # type: ignore[type-arg]
    """Put together what goes to the same topic, in the order given.

    Args:
        batches: PartitionBatches.
        topics: gets the topics.

    Returns:
        The codecs that are used, a bit for each; from bit 8 on the magics, likewise.
    """
    found: cython.int = 0
    checked: cython.longlong
    batch: PartitionBatch
    known: dict | None = None  # type: ignore[type-arg]  # by name and id, once there are several
    topic: TopicBatches | None = None
    for each in batches:
        if not isinstance(each, PartitionBatch):
            raise TypeError(f"not a PartitionBatch: {each!r}")
        batch = each
        checked = _checked(batch)
        found |= 1 << (checked & CODEC_MASK)
        found |= 1 << (_MAGICS_SHIFT + (checked >> _CODEC_BITS & _MAGIC_MASK))
        if topic is None:
            topic = TopicBatches(batch.topic, batch.topic_id)
            topics.append(topic)
        elif topic.name is not batch.topic or topic.topic_id is not batch.topic_id:
            if known is None:
                known = {(topic.name, topic.topic_id): topic}
            topic = known.get((batch.topic, batch.topic_id))
            if topic is None:
                topic = known[batch.topic, batch.topic_id] = TopicBatches(batch.topic, batch.topic_id)
                topics.append(topic)
        if batch.partition in topic.batches:
            raise ValueError(f"two batches for {_where(batch)}")
        topic.batches[batch.partition] = (batch.records, checked >> _CHECKED_BITS)
    if len(topics) > 1:
        _check_ids(topics)
    return found


@cython.cfunc
@cython.exceptval(-1)
def _first_version_of_sets(magics: cython.int, transactional_id: Any) -> cython.int:
    """The lowest version that can carry the message sets of a request.

    Args:
        magics: a bit for each magic in the request.
    """
    if magics & (magics - 1):
        raise ValueError("batches and message sets of different magic in one produce request")
    if transactional_id is not None:
        raise ValueError("message sets cannot be part of a transaction")
    return _FIRST if magics == 1 else _LAST_WITH_SETS


@cython.cfunc
@cython.exceptval(-1)
def _checked(batch: PartitionBatch) -> cython.longlong:
    """The size of a batch times 32, plus its magic times 8, plus its codec, once its records are known to be sound.

    Raises:
        ValueError: they are neither one batch, and only one, nor a message set.
    """
    size: cython.Py_ssize_t
    magic: cython.int = MAGIC
    codec: cython.int = 0
    length: cython.longlong = 0
    records: Any = batch.records
    behind: cython.Py_ssize_t = 0  # bytes in further pieces
    if isinstance(records, list):
        for piece in records[1:]:
            behind += len(piece)
        records = records[0]
    if cython.compiled:
        view = cython.declare(cython.Py_buffer)
        PyObject_GetBuffer(records, cython.address(view), PyBUF_SIMPLE)
        size = view.len
        data: cython.p_const_uchar = cython.cast(cython.p_const_uchar, view.buf)
    else:
        size = records.nbytes if isinstance(records, memoryview) else len(records)
        data = records
    if size > MAGIC_AT:
        magic = big_endian_at(data, MAGIC_AT, 1)
        length = big_endian_at(data, BATCH_LENGTH_AT, 4) + LENGTH_PREFIX_SIZE
        if 0 <= magic < MAGIC:
            codec = codec_of_set(data, size, magic)
        elif size >= HEADER_SIZE:
            codec = big_endian_at(data, ATTRIBUTES_AT, 2) & CODEC_MASK
    if cython.compiled:
        PyBuffer_Release(cython.address(view))  # type: ignore[possibly-undefined]
    if codec < 0:
        raise ValueError(f"no message set of magic {magic} for {_where(batch)}: {problem_of_set(codec)}")
    if 0 <= magic < MAGIC and size > MAGIC_AT:
        return size << _CHECKED_BITS | magic << _CODEC_BITS | codec
    if size < HEADER_SIZE:
        raise ValueError(f"no record batch for {_where(batch)}: {size} bytes")
    size += behind
    if magic != MAGIC:
        raise ValueError(f"the batch for {_where(batch)} has magic {magic}, not 0, 1 or {MAGIC}")
    if length < size:
        raise ValueError(f"more than one record batch for {_where(batch)}")
    if length > size:
        raise ValueError(f"the batch for {_where(batch)} is cut off: {size} of {length} bytes")
    return size << _CHECKED_BITS | MAGIC << _CODEC_BITS | codec


def _check_ids(topics: list) -> None:  # type: ignore[type-arg]
    seen: set[str] = set()
    for topic in topics:
        if topic.name in seen:
            raise ValueError(f"two ids for topic {topic.name!r}")
        seen.add(topic.name)
    known_ids = [topic.topic_id for topic in topics if topic.topic_id != ZERO_UUID]
    if len(set(known_ids)) != len(known_ids):
        raise ValueError("two topics with the same id")


def _where(batch: Any) -> str:
    """A batch's place, for people."""
    return f"partition {batch.partition} of topic {batch.topic!r}"


@cython.cfunc
def _utf8(text: str) -> bytes:
    raw: bytes = text.encode()
    if len(raw) > _MAX_STRING_BYTES:
        raise ValueError(f"too long for the protocol: {len(raw)} bytes")
    return raw


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_bytes(memory: cython.p_uchar, at: cython.Py_ssize_t, raw: bytes) -> cython.Py_ssize_t:
    """Write bytes as they are; the position behind them. Compiled code only."""
    memcpy(memory + at, PyBytes_AS_STRING(raw), len(raw))
    return at + len(raw)


# ---------------------------------------------------------------------------------------------- the answer


@cython.final
@cython.no_gc
@cython.cclass
class PartitionResponse:
    """What the broker said of one partition; without arguments, what a version that does not say it leaves open.

    Attributes:
        record_errors: (index in the batch, message) of the records that made it refuse the batch.
        leader_id: the leader that the broker knows of, -1 when it does not say; `leader_epoch` likewise.
    """

    def __init__(
        self,
        topic: str,
        partition: cython.int,
        error_code: cython.int = 0,
        base_offset: cython.longlong = -1,
        log_append_time_ms: cython.longlong = -1,
        log_start_offset: cython.longlong = -1,
        record_errors: Sequence[tuple[int, str | None]] = (),
        error_message: str | None = None,
        leader_id: cython.int = -1,
        leader_epoch: cython.int = -1,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.error_code = error_code
        self.base_offset = base_offset
        self.log_append_time_ms = log_append_time_ms
        self.log_start_offset = log_start_offset
        self.record_errors = record_errors
        self.error_message = error_message
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch


@cython.final
@cython.cclass
class ProduceResponse:
    """The answer to a ProduceRequest; `node_endpoints` are the addresses of leaders named in it."""

    def __init__(
        self,
        throttle_ms: cython.int,
        partitions: list,  # type: ignore[type-arg]
        node_endpoints: list,  # type: ignore[type-arg]
    ) -> None:
        self.throttle_ms = throttle_ms
        self.partitions: list[PartitionResponse] = partitions
        self.node_endpoints: list[Node] = node_endpoints


def _partition_response(topic: str, body: Any) -> PartitionResponse:
    leader = body["current_leader"]
    return PartitionResponse(
        topic,
        body["index"],
        body["error_code"],
        body["base_offset"],
        body["log_append_time_ms"],
        body["log_start_offset"],
        [(each["batch_index"], each["batch_index_error_message"]) for each in body["record_errors"]],
        body["error_message"],
        leader["leader_id"],
        leader["leader_epoch"],
    )


def read_plain_answer(body: Any, topics: list) -> ProduceResponse | None:  # type: ignore[type-arg]
    """Read an answer of version 13 that has nothing special about it; None: it has, or is not an answer at all.

    Compiled code only. What is malformed is left to the codec, which names what is wrong.

    Args:
        body: the answer.
        topics: the TopicBatches of the request.
    """
    view = cython.declare(cython.Py_buffer)
    PyObject_GetBuffer(body, cython.address(view), PyBUF_SIMPLE)
    try:
        return _read_memory(cython.cast(cython.p_const_uchar, view.buf), view.len, topics)
    finally:
        PyBuffer_Release(cython.address(view))


@cython.cfunc
def _read_memory(data: cython.p_const_uchar, size: cython.Py_ssize_t, topics: list) -> ProduceResponse:  # type: ignore[type-arg]
    partitions: list = []  # type: ignore[type-arg]
    at: cython.Py_ssize_t = 0
    count: cython.int
    one: PartitionResponse
    topic_count: cython.int = take_uvarint(data, size, cython.address(at))
    if topic_count < 1:
        return None  # type: ignore[return-value]
    for number in range(topic_count - 1):
        if at + _UUID_SIZE > size:
            return None  # type: ignore[return-value]
        name: str | None = _name_of(topics, number, data + at)
        at += _UUID_SIZE
        count = take_uvarint(data, size, cython.address(at))
        if name is None or count < 1:
            return None  # type: ignore[return-value]
        for _ in range(count - 1):
            if at + _ANSWER_SIZE > size or data[at + 30] != 1 or data[at + 31] or data[at + 32]:
                return None  # type: ignore[return-value]
            one = PartitionResponse.__new__(
                PartitionResponse
            )  # its constructor would ask for Python's numbers
            one.topic = name
            one.partition = big_endian_at(data, at, 4)
            one.error_code = big_endian_at(data, at + 4, 2)
            one.base_offset = big_endian_at(data, at + 6, 8)
            one.log_append_time_ms = big_endian_at(data, at + 14, 8)
            one.log_start_offset = big_endian_at(data, at + 22, 8)
            one.record_errors = ()
            one.leader_id = -1
            one.leader_epoch = -1
            partitions.append(one)
            at += _ANSWER_SIZE
        if at >= size or data[at]:
            return None  # type: ignore[return-value]
        at += 1
    if at + _END_SIZE != size or data[at + 4]:
        return None  # type: ignore[return-value]
    return ProduceResponse(big_endian_at(data, at, 4), partitions, [])


@cython.cfunc
def _name_of(topics: list, number: cython.Py_ssize_t, topic_id: cython.p_const_uchar) -> str | None:  # type: ignore[type-arg]
    """The name of the topic with that id, nearly always the one with this number; None: no topic has it."""
    count: cython.Py_ssize_t = len(topics)
    topic: TopicBatches
    tried: cython.Py_ssize_t
    for tried in range(count):
        topic = topics[(number + tried) % count]
        if not memcmp(PyBytes_AS_STRING(topic.topic_id), topic_id, _UUID_SIZE):
            return topic.name
    return None
