# SPDX-License-Identifier: Apache-2.0
"""The Produce request, written by hand: it is the one that carries the data.

Byte for byte what the table in `messages.produce` gives, but the batches are never copied: `encode` puts the buffers
themselves between small pieces of its own. What a broker would refuse, or worse, misread, is refused here first: each
partition gets exactly one batch, of magic 2, and zstd is not said below version 7.
"""

from __future__ import annotations

import struct
from typing import Any, ClassVar, NamedTuple

from penstock.errors import ProtocolError
from penstock.protocol._produce_answer_cy import PLAIN_VERSION, read_plain_answer
from penstock.protocol._produce_cy import FIRST_VERSION_WITH_TOPIC_IDS, FIRST_VERSION_WITH_ZSTD, ProduceFields
from penstock.protocol.codec import decode_response_body
from penstock.protocol.messages.produce import PRODUCE
from penstock.protocol.produce_answer import PartitionResponse, ProduceResponse
from penstock.protocol.schema import ApiSchema, Buffer
from penstock.types import Node

__all__ = [
    "FIRST_VERSION_WITH_TOPIC_IDS",
    "FIRST_VERSION_WITH_ZSTD",
    "PartitionBatch",
    "PartitionResponse",
    "ProduceRequest",
    "ProduceResponse",
]

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


class ProduceRequest(ProduceFields):
    """Batches for the partitions that one broker leads.

    Args:
        acks: -1, 0 or 1.
        timeout_ms: how long the broker may wait for other replicas.
        batches: PartitionBatches, in a sequence.
        transactional_id: whose they are, None outside of transactions.
        max_version: the highest version to use.

    Raises:
        ValueError: there is no batch, a partition has none or more than one, a batch is not of magic 2, acks is none of
            -1, 0 and 1, or the topic ids contradict each other.
    """

    __slots__ = ()

    api: ClassVar[ApiSchema] = PRODUCE

    def decode_response(self, version: int, body: memoryview) -> ProduceResponse:
        """Read the answer; topics are named even where the wire has only their ids.

        Raises:
            ProtocolError: the bytes are not an answer in that version, or tell of a topic that was not sent.
        """
        if version == PLAIN_VERSION:
            plain = read_plain_answer(body, self._topics)
            if plain is not None:
                return plain
        by_id = version >= FIRST_VERSION_WITH_TOPIC_IDS
        names = {topic.topic_id: topic.name for topic in self._topics} if by_id else None
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

    def __repr__(self) -> str:
        count = sum(len(topic.batches) for topic in self._topics)
        return f"<ProduceRequest acks={self.acks}, {count} batches, versions {self.min_version}-{self.max_version}>"


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
