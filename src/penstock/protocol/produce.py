# SPDX-License-Identifier: Apache-2.0
"""The Produce request, written by hand: it is the one that carries the data.

Byte for byte what the table in `messages.produce` gives, but the batches are never copied: `encode` puts the buffers
themselves between small pieces of its own. What a broker would refuse, or worse, misread, is refused here first: each
partition gets exactly one batch, of magic 2, and zstd is not said below version 7.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from penstock.errors import ProtocolError
from penstock.protocol._produce_cy import by_topic, flexible_parts
from penstock.protocol._wire_writer import append_uvarint
from penstock.protocol.codec import decode_response_body
from penstock.protocol.messages.produce import PRODUCE
from penstock.protocol.produce_answer import (
    PLAIN_VERSION,
    PartitionResponse,
    ProduceResponse,
    read_plain_answer,
)
from penstock.protocol.schema import ZERO_UUID, ApiSchema, Buffer
from penstock.types import Node

__all__ = ["PartitionBatch", "PartitionResponse", "ProduceRequest", "ProduceResponse"]

FIRST_VERSION_WITH_ZSTD: Final = 7
FIRST_VERSION_WITH_TOPIC_IDS: Final = 13

_ZSTD: Final = 4

_MAX_STRING_BYTES: Final = 0x7FFF

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_ACKS_AND_TIMEOUT = struct.Struct(">hi")
_INDEX_AND_SIZE = struct.Struct(">ii")


class PartitionBatch(NamedTuple):
    """One sealed batch and where it goes; `topic_id` is 16 zero bytes while it is not known."""

    topic: str
    topic_id: bytes
    partition: int
    records: Buffer


class ProduceRequest:
    """Batches for the partitions that one broker leads.

    Raises:
        ValueError: there is no batch, a partition has none or more than one, a batch is not of magic 2, acks is none of
            -1, 0 and 1, or the topic ids contradict each other.
    """

    __slots__ = ("_timeout_ms", "_topics", "_transactional_id", "acks", "max_version", "min_version")

    def __init__(
        self,
        acks: int,
        timeout_ms: int,
        batches: Sequence[PartitionBatch],
        transactional_id: str | None = None,
        *,
        max_version: int = PRODUCE.max_version,
    ) -> None:
        if acks not in (-1, 0, 1):
            raise ValueError(f"acks must be -1, 0 or 1, not {acks}")
        if not batches:
            raise ValueError("a produce request needs at least one batch")
        codecs: set[int] = set()
        self.acks = acks
        self._timeout_ms = timeout_ms
        self._transactional_id = None if transactional_id is None else _utf8(transactional_id)
        self._topics = _by_topic(batches, codecs)
        self.min_version: int = FIRST_VERSION_WITH_ZSTD if _ZSTD in codecs else PRODUCE.min_version
        any_id_unknown = ZERO_UUID in [topic.topic_id for topic in self._topics]
        highest = FIRST_VERSION_WITH_TOPIC_IDS - 1 if any_id_unknown else PRODUCE.max_version
        self.max_version: int = min(max_version, highest)
        if self.max_version < self.min_version:
            raise ValueError(f"no Produce version between {self.min_version} and {self.max_version}")

    @property
    def api(self) -> ApiSchema:
        """Produce."""
        return PRODUCE

    @property
    def expects_response(self) -> bool:
        """Not with acks=0: the broker stays silent."""
        return self.acks != 0

    def encode(self, version: int) -> list[Buffer]:
        """The body in that version; the batches are in the list as they are.

        Raises:
            ValueError: the version is outside `min_version` and `max_version`.
        """
        if not self.min_version <= version <= self.max_version:
            raise ValueError(
                f"this produce request can be sent in versions {self.min_version} to {self.max_version}, "
                f"not in {version}"
            )
        if PRODUCE.is_flexible(version):
            return self._encode_flexible(by_id=version >= FIRST_VERSION_WITH_TOPIC_IDS)
        return self._encode_plain()

    def decode_response(self, version: int, body: memoryview) -> ProduceResponse:
        """Read the answer; topics are named even where the wire has only their ids.

        Raises:
            ProtocolError: the bytes are not an answer in that version, or tell of a topic that was not sent.
        """
        by_id = version >= FIRST_VERSION_WITH_TOPIC_IDS
        names = {topic.topic_id: topic.name for topic in self._topics} if by_id else None
        if names is not None and version == PLAIN_VERSION:
            plain = read_plain_answer(body, names)
            if plain is not None:
                return plain
        answer = decode_response_body(PRODUCE, version, body)
        partitions: list[PartitionResponse] = []
        for topic in answer["responses"]:
            name = topic["name"] if names is None else names.get(topic["topic_id"])
            if name is None:
                raise ProtocolError(
                    f"Produce response v{version}: topic id {topic['topic_id'].hex()} was not in the request"
                )
            partitions.extend(_partition_response(name, each) for each in topic["partition_responses"])
        endpoints = [
            Node(each["node_id"], each["host"], each["port"], each["rack"])
            for each in answer["node_endpoints"]
        ]
        return ProduceResponse(answer["throttle_time_ms"], partitions, endpoints)

    def _encode_plain(self) -> list[Buffer]:
        buffers: list[Buffer] = []
        piece = bytearray()
        if self._transactional_id is None:
            piece += _INT16.pack(-1)
        else:
            piece += _INT16.pack(len(self._transactional_id)) + self._transactional_id
        piece += _ACKS_AND_TIMEOUT.pack(self.acks, self._timeout_ms)
        piece += _INT32.pack(len(self._topics))
        for topic in self._topics:
            piece += _INT16.pack(len(topic.utf8_name)) + topic.utf8_name
            piece += _INT32.pack(len(topic.batches))
            for partition, (records, size) in topic.batches.items():
                piece += _INDEX_AND_SIZE.pack(partition, size)
                buffers += (piece, records)
                piece = bytearray()
        return buffers

    def _encode_flexible(self, *, by_id: bool) -> list[Buffer]:
        piece = bytearray()
        if self._transactional_id is None:
            piece.append(0)
        else:
            append_uvarint(piece, len(self._transactional_id) + 1)
            piece += self._transactional_id
        piece += _ACKS_AND_TIMEOUT.pack(self.acks, self._timeout_ms)
        append_uvarint(piece, len(self._topics) + 1)
        return flexible_parts(self._topics, piece, by_id)

    def __repr__(self) -> str:
        count = sum(len(topic.batches) for topic in self._topics)
        return f"<ProduceRequest acks={self.acks}, {count} batches, versions {self.min_version}-{self.max_version}>"


class _TopicBatches(NamedTuple):
    name: str
    utf8_name: bytes
    topic_id: bytes
    batches: dict[int, tuple[Buffer, int]]  # by partition, in the order given, with their sizes


def _by_topic(batches: Sequence[PartitionBatch], codecs: set[int]) -> list[_TopicBatches]:
    """Put together what goes to the same topic; `codecs` gets those that are used."""
    found = by_topic(batches, codecs)
    topics = [_TopicBatches(name, _utf8(name), topic_id, found[name, topic_id]) for name, topic_id in found]
    for topic in topics:
        if len(topic.topic_id) != len(ZERO_UUID):
            raise ValueError(f"the id of topic {topic.name!r} is not 16 bytes long")
    if len(topics) > 1:
        _check_ids(topics)
    return topics


def _check_ids(topics: Sequence[_TopicBatches]) -> None:
    seen: set[str] = set()
    for topic in topics:
        if topic.name in seen:
            raise ValueError(f"two ids for topic {topic.name!r}")
        seen.add(topic.name)
    known_ids = [topic.topic_id for topic in topics if topic.topic_id != ZERO_UUID]
    if len(set(known_ids)) != len(known_ids):
        raise ValueError("two topics with the same id")


def _utf8(text: str) -> bytes:
    raw = text.encode()
    if len(raw) > _MAX_STRING_BYTES:
        raise ValueError(f"too long for the protocol: {len(raw)} bytes")
    return raw


def _partition_response(topic: str, body: dict[str, Any]) -> PartitionResponse:
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
