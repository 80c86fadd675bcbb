# SPDX-License-Identifier: Apache-2.0
"""Metadata in pieces: its response can be as large as the cluster, and is decoded as fast as its reader wants."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

from penstock.protocol._wire_reader import (
    Cursor,
    Malformed,
    Reader,
    count_reader,
    elements_reader,
    struct_reader,
)
from penstock.protocol.codec import check_end, undecodable
from penstock.protocol.messages import METADATA
from penstock.protocol.requests import SchemaRequest
from penstock.protocol.schema import Array, Buffer, Struct


class MetadataRequest(SchemaRequest):
    """A Metadata request; its response is decoded up to the topics."""

    def decode_response(self, version: int, body: memoryview) -> MetadataResponse:  # type: ignore[override]
        """The response.

        Raises:
            ProtocolError: the bytes are not a response in that version.
        """
        return MetadataResponse(version, body)


class TopicPiece(NamedTuple):
    """A topic of a response, and some of its partitions.

    Attributes:
        topic: the same object in all pieces of the topic. It is not to be changed.
        partitions: those of this piece, likewise.
        is_last: the topic has no further piece.
    """

    topic: dict[str, Any]
    partitions: list[dict[str, Any]]
    is_last: bool


class MetadataResponse:
    """A Metadata response.

    Raises:
        ProtocolError: what comes before the topics is not that of a response in this version.

    Attributes:
        version: the version of the response.
        throttle_ms: how long the client is to send nothing.
        brokers: the fields of each.
        cluster_id: None where the broker does not tell it.
        error_code: 0 before `pieces` has ended.
    """

    def __init__(self, version: int, data: Buffer) -> None:
        self.version = version
        cursor = Cursor(memoryview(data))
        try:
            body = _readers(version).before_topics(cursor)
        except Malformed as error:
            raise undecodable(METADATA, version, error) from None
        self.throttle_ms: int = body["throttle_time_ms"]
        self.brokers: list[dict[str, Any]] = body["brokers"]
        self.cluster_id: str | None = body["cluster_id"]
        self.error_code = 0
        self._topics = bytes(cursor.data[cursor.pos :])  # a copy is compared sooner than a view

    def has_topics_of(self, other: MetadataResponse) -> bool:
        """Whether it says the same of the same topics, in the same order."""
        # What comes before differs also between equal answers: since KRaft, each names any broker as the controller.
        return self.version == other.version and self._topics == other._topics

    def pieces(self, most: int) -> Iterator[TopicPiece]:
        """Decode the topics.

        Args:
            most: partitions of a piece.

        Raises:
            ProtocolError: the bytes are not a response in this version.
        """
        read = _readers(self.version)
        cursor = Cursor(memoryview(self._topics))
        path = ""
        try:
            for number in range(read.topic_count(cursor)):
                path = f"topics[{number}]"
                topic = read.before_partitions(cursor)
                count = read.partition_count(cursor)
                for start in range(0, count or 1, most):
                    path = f"topics[{number}].partitions[{start}:]"
                    partitions = read.partitions(cursor, min(most, count - start))
                    yield TopicPiece(topic, partitions, start + most >= count)
                read.after_partitions(cursor)
            path = ""
            self.error_code = read.after_topics(cursor)["error_code"]
            check_end(METADATA, self.version, cursor)
        except Malformed as error:
            raise undecodable(METADATA, self.version, error.inside(path)) from None


class _Readers(NamedTuple):
    """What reads the parts of a response in one version, in the order of the bytes."""

    before_topics: Reader
    topic_count: Callable[[Cursor], int]
    before_partitions: Reader
    partition_count: Callable[[Cursor], int]
    partitions: Callable[[Cursor, int], list[dict[str, Any]]]
    after_partitions: Reader
    after_topics: Reader


@cache
def _readers(version: int) -> _Readers:
    flexible = METADATA.is_flexible(version)
    before_topics, topic, after_topics = _around(METADATA.response, "topics")
    before_partitions, partition, after_partitions = _around(topic, "partitions")
    return _Readers(
        struct_reader(before_topics, version, flexible, is_whole=False),
        count_reader(topic, False, version, flexible),
        struct_reader(before_partitions, version, flexible, is_whole=False),
        count_reader(partition, False, version, flexible),
        elements_reader(partition, version, flexible),
        struct_reader(after_partitions, version, flexible),
        struct_reader(after_topics, version, flexible),
    )


def _around(struct: Struct, name: str) -> tuple[Struct, Struct, Struct]:
    """The fields before a list of structs, the struct of its elements, and the fields behind it."""
    (at,) = (number for number, field in enumerate(struct.fields) if field.name == name)
    kind = struct.fields[at].type
    assert isinstance(kind, Array)
    assert isinstance(kind.element, Struct)
    return Struct(struct.fields[:at]), kind.element, Struct(struct.fields[at + 1 :])
