# SPDX-License-Identifier: Apache-2.0
"""What consumers of other libraries say of themselves, as values of ours: their group, and their positions.

Penstock has no consumer, so what is to become part of a transaction comes from another library. Each has a form of its
own, and none of them is imported here: a form is known by its fields.

| library | group | positions |
|---|---|---|
| confluent-kafka | bytes, which librdkafka wrote | a list of objects with topic, partition, offset, leader_epoch |
| kafka-python | a tuple with the names of ours | a mapping of (topic, partition) to (offset, metadata, leader_epoch) |
| aiokafka | the id | a mapping of (topic, partition) to (offset, metadata), or to an int |
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from types import NoneType
from typing import Any, Final

from penstock.types import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

_LARGEST_OFFSET: Final = 2**63 - 1
_LARGEST_GENERATION: Final = 2**31 - 1
# The position of confluent-kafka's consumer in a partition of which it has read nothing.
_NOTHING_READ: Final = -1001
# Of the topic, the partition, the offset, its metadata and its leader epoch.
_POSITION_KINDS: Final = (str, int, int, (str, NoneType), int)
_POSITIONS_RULE: Final = (
    "offsets must be a dict of TopicPartition to int or OffsetAndMetadata, for example "
    "{TopicPartition('orders', 0): 42}, or a list of confluent-kafka's TopicPartition"
)
_GROUP_KINDS: Final = (str, int, str, (str, NoneType))

# How librdkafka writes a group down: this, the generation in four bytes of the machine's own order, the group's id and
# the member's, each ended by a zero byte, whether there is no instance id in one byte, and if there is, that one.
_LIBRDKAFKA_MAGIC: Final = b"CGMDv2:"
_GENERATION_BYTES: Final = 4


def as_group(group: Any) -> ConsumerGroupMetadata:
    """A group given as its id, or with member and generation in any of the known forms.

    Raises:
        TypeError: it is nothing of that.
        ValueError: it is empty, bytes of an unknown form, or a generation without a member.
    """
    if isinstance(group, str):
        found = ConsumerGroupMetadata(group)
    elif isinstance(group, bytes | bytearray | memoryview):
        found = _from_librdkafka(bytes(group))
    else:
        found = _from_fields(group)
    if not found.group_id:
        raise ValueError("the group id must not be empty")
    if found.generation_id > 0 and not found.member_id:
        raise ValueError(
            f"generation {found.generation_id} of group {found.group_id!r} comes without a member id"
        )
    return found


def _from_fields(group: Any) -> ConsumerGroupMetadata:
    if type(group) is ConsumerGroupMetadata:
        fields: tuple[Any, ...] = group
    else:
        try:
            fields = tuple(getattr(group, name) for name in ConsumerGroupMetadata._fields)
        except AttributeError:
            raise TypeError(
                "group must be a group id, a ConsumerGroupMetadata, or what a consumer of confluent-kafka or "
                f"kafka-python gives for it, not {type(group).__name__}"
            ) from None
    if fields[0] is None:
        raise ValueError("the consumer has no group: make it with a group id, or give the id itself")
    _check_kinds(fields, _GROUP_KINDS, f"the group {group!r}")
    if not -1 <= fields[1] <= _LARGEST_GENERATION:
        raise ValueError(f"the generation of group {fields[0]!r} must be -1 or more, not {fields[1]}")
    return ConsumerGroupMetadata(*fields)


def _from_librdkafka(written: bytes) -> ConsumerGroupMetadata:
    """Read what `Consumer.consumer_group_metadata()` of confluent-kafka gives."""
    start = len(_LIBRDKAFKA_MAGIC) + _GENERATION_BYTES
    generation = int.from_bytes(written[len(_LIBRDKAFKA_MAGIC) : start], sys.byteorder, signed=True)
    group_id, _, rest = written[start:].partition(b"\0")
    member_id, ended, rest = rest.partition(b"\0")
    has_instance = rest[:1] == b"\0" and rest.find(b"\0", 1) == len(rest) - 1 > 0
    is_whole = written.startswith(_LIBRDKAFKA_MAGIC) and ended and (rest == b"\1" or has_instance)
    try:
        if not is_whole:
            raise ValueError
        return ConsumerGroupMetadata(
            group_id.decode(),
            generation,
            member_id.decode(),
            rest[1:-1].decode() if has_instance else None,
        )
    except ValueError:
        raise ValueError(
            f"group is {len(written)} bytes of an unknown form; what this release knows are those of confluent-kafka's "
            "consumer_group_metadata(). Give the group's id as a str, or a penstock.ConsumerGroupMetadata with the "
            "member's id and generation"
        ) from None


def as_positions(offsets: Any) -> dict[TopicPartition, OffsetAndMetadata]:
    """Positions in any of the known forms; those of confluent-kafka that say "nothing read" are left out.

    Raises:
        TypeError: a part is not what it must be.
        ValueError: an offset is negative, or comes with an error.
    """
    positions: dict[TopicPartition, OffsetAndMetadata] = {}
    for given, place, position in _pairs(offsets):
        _check_kinds((*place, *position), _POSITION_KINDS, f"the offset {given}")
        if place.partition < 0:
            raise ValueError(f"the partition of {given} must not be negative")
        if not 0 <= position.offset <= _LARGEST_OFFSET:
            raise ValueError(f"the offset of {place} must be a number from 0 on, not {position.offset!r}")
        positions[place] = position
    return positions


def _pairs(offsets: Any) -> Iterator[tuple[str, TopicPartition, OffsetAndMetadata]]:
    if isinstance(offsets, Mapping):
        for partition, offset in offsets.items():
            yield f"{partition!r}: {offset!r}", _as_place(partition), _as_position(offset)
        return
    if not isinstance(offsets, Iterable) or isinstance(offsets, str | bytes):
        raise TypeError(f"{_POSITIONS_RULE}, not {type(offsets).__name__}")
    for each in offsets:
        if not all(hasattr(each, name) for name in ("topic", "partition", "offset")):
            raise TypeError(f"{_POSITIONS_RULE}; {each!r} has no topic, partition and offset")
        error = getattr(each, "error", None)
        if error is not None:
            raise ValueError(f"{each!r} is no position but an error: {error}")
        if each.offset != _NOTHING_READ:
            yield repr(each), TopicPartition(each.topic, each.partition), _as_position(each)


def _as_place(partition: Any) -> TopicPartition:
    try:
        topic, number = partition if isinstance(partition, tuple) else (partition.topic, partition.partition)
    except (AttributeError, TypeError, ValueError):
        raise TypeError(f"{partition!r} is no partition: write TopicPartition(topic, number)") from None
    return TopicPartition(topic, number)


def _as_position(offset: Any) -> OffsetAndMetadata:
    """Kinds are judged later; a leader epoch that is not known may be None, or not there."""
    if not hasattr(offset, "offset"):
        return OffsetAndMetadata(offset)
    leader_epoch = getattr(offset, "leader_epoch", None)
    return OffsetAndMetadata(
        offset.offset, getattr(offset, "metadata", ""), -1 if leader_epoch is None else leader_epoch
    )


def _check_kinds(values: tuple[Any, ...], kinds: tuple[Any, ...], where: str) -> None:
    for value, kind in zip(values, kinds, strict=True):
        if not isinstance(value, kind) or isinstance(value, bool):
            raise TypeError(f"{value!r} is out of place in {where}")
