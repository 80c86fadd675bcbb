# SPDX-License-Identifier: Apache-2.0
"""The answer to a Produce request, and the short way to read the ordinary one.

Almost every answer looks the same: no record errors, no messages, no tagged fields. Such a one is read here with a few
`struct` calls, a quarter of what the table costs; anything else, also what is malformed, is left to the table-driven
decoder, which knows all versions and names what is wrong.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final, NamedTuple

from penstock.protocol._produce_cy import read_plain_partitions
from penstock.types import Node


class PartitionResponse(NamedTuple):
    """What the broker said of one partition.

    Attributes:
        record_errors: (index in the batch, message) of the records that made it refuse the batch.
        leader_id: the leader that the broker knows of, -1 when it does not say; `leader_epoch` likewise.
    """

    topic: str
    partition: int
    error_code: int
    base_offset: int
    log_append_time_ms: int
    log_start_offset: int
    record_errors: list[tuple[int, str | None]]
    error_message: str | None
    leader_id: int
    leader_epoch: int


class ProduceResponse(NamedTuple):
    """The answer to a ProduceRequest; `node_endpoints` are the addresses of leaders named in it."""

    throttle_ms: int
    partitions: list[PartitionResponse]
    node_endpoints: list[Node]


PLAIN_VERSION: Final = 13  # the one that is read here

_UUID_SIZE: Final = 16
_MANY: Final = 0x80  # from here on an unsigned varint takes more than one byte
_END = struct.Struct(">iB")  # throttle time, no tags


def read_plain_answer(body: memoryview, names: Mapping[bytes, str]) -> ProduceResponse | None:
    """Read an answer of version 13 that has nothing special about it; None: it has, or is not an answer at all.

    Args:
        body: the answer.
        names: the topics of the request, by id.
    """
    try:
        return _read(body, names)
    except (struct.error, IndexError):
        return None


def _read(body: memoryview, names: Mapping[bytes, str]) -> ProduceResponse | None:
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
        at = read_plain_partitions(body, at, partitions_and_one - 1, name, PartitionResponse, partitions)
        if at < 0:
            return None
        if body[at]:
            return None
        at += 1
    throttle_ms, tags = _END.unpack_from(body, at)
    if tags or at + _END.size != len(body):
        return None
    return ProduceResponse(throttle_ms, partitions, [])
