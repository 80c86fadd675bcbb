# SPDX-License-Identifier: Apache-2.0
"""Frozen values that cross module borders: who, where, and what became of a record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from penstock._other_clients import OF_ERRORS_IN_METADATA, OF_METADATA, names_of_other_clients


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Header(NamedTuple):
    """A record header: a name, and a value that may be null."""

    key: str
    value: bytes | None


class Node(NamedTuple):
    """A broker as the client knows it. Bootstrap nodes have negative ids."""

    id: int
    host: str
    port: int
    rack: str | None = None

    def __str__(self) -> str:
        return f"{self.host}:{self.port} (id {self.id})"


@names_of_other_clients(OF_METADATA, "message")
@names_of_other_clients(OF_ERRORS_IN_METADATA, "error")
class RecordMetadata(NamedTuple):
    """Where an acknowledged record is.

    Attributes:
        offset: its offset in the partition, or -1 when the broker did not say (acks=0, or a duplicate).
        timestamp: milliseconds since the epoch: the broker's where the topic uses LogAppendTime, else the record's.
        serialized_key_size: bytes of the key, -1 for a null key.
        serialized_value_size: bytes of the value, -1 for a null value.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    serialized_key_size: int
    serialized_value_size: int

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition as a value."""
        return TopicPartition(self.topic, self.partition)


# Called with where a record is and, when it was not acknowledged, why not.
OnDelivery = Callable[[RecordMetadata, Exception | None], object]
# Where the callback has another name, it also has other arguments.
NO_CALLBACK = "send() has no callback=; use on_delivery=, which is called with (metadata, error)"


def check_other_clients_arguments(callback: object, timestamp: object) -> None:
    """Refuse arguments of `send` that only other clients take. A fourth one by position is `callback`.

    Raises:
        TypeError: there is one.
    """
    if callback is timestamp is None:
        return
    if timestamp is not None:
        raise TypeError("send() has no timestamp=; use timestamp_ms=, milliseconds since the epoch")
    if callable(callback):
        raise TypeError(NO_CALLBACK)
    raise TypeError(
        "send() takes topic, value and key by position, and nothing else; write headers=, partition=, timestamp_ms= or "
        "on_delivery="
    )


@dataclass(frozen=True, slots=True)
class RowErrors:
    """Rows of `send_many` or `send_arrow` that follow each other and were not delivered for the same reason.

    Attributes:
        first_row: the number of the first one; 0 is the first row of the call.
        last_row: that of the last one.
        error: why.
    """

    first_row: int
    last_row: int
    error: Exception

    def __str__(self) -> str:
        rows = f"row {self.first_row}" if self.count == 1 else f"rows {self.first_row} to {self.last_row}"
        return f"{rows}: {self.error}"

    @property
    def count(self) -> int:
        """The number of rows."""
        return self.last_row - self.first_row + 1


class PartitionReport(NamedTuple):
    """What one partition got of a bulk.

    Attributes:
        records: how many.
        first_offset: the smallest offset, or -1 when the broker did not say (acks=0, or a duplicate).
        last_offset: the largest one. Records of others may lie between them.
    """

    records: int
    first_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class BulkReport:
    """What became of the rows of `send_many` or `send_arrow`.

    Attributes:
        records: how many were acknowledged.
        bytes: of their keys and values.
        partitions: what each partition got.
        errors: the rows that were not delivered, or not sent because something is wrong with them; in order.
    """

    records: int
    bytes: int
    partitions: Mapping[TopicPartition, PartitionReport]
    errors: tuple[RowErrors, ...]


class OffsetAndMetadata(NamedTuple):
    """The position of a consumer in one partition.

    Attributes:
        offset: of the next record to be read.
        metadata: a note of the consumer's own.
        leader_epoch: of the last record read, -1 when it is not known.
    """

    offset: int
    metadata: str | None = ""
    leader_epoch: int = -1


class ConsumerGroupMetadata(NamedTuple):
    """A consumer group, and the member whose positions become part of a transaction; a member may be left out."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None

    @property
    def has_member(self) -> bool:
        """Whether the group's coordinator can check the member, so that one that was replaced is refused."""
        return self.generation_id >= 0 or bool(self.member_id) or self.group_instance_id is not None


class ConfluentPosition(Protocol):
    """A TopicPartition of confluent-kafka, which has the offset in it."""

    topic: str
    partition: int
    offset: int


class GroupFields(Protocol):
    """A ConsumerGroupMetadata of any library."""

    @property
    def group_id(self) -> Any:
        """The id of the consumer group."""

    @property
    def generation_id(self) -> Any:
        """The group's generation, -1 when there is none."""

    @property
    def member_id(self) -> Any:
        """The id of the member in its group."""

    @property
    def group_instance_id(self) -> Any:
        """Its lasting name, if it has one."""


# What `send_offsets_to_transaction` takes; see `penstock.consumer_groups`. Keys and values of a mapping may be those of
# another library: (topic, partition), and an int or something with an offset.
PositionsLike = Mapping[Any, Any] | Iterable[ConfluentPosition]
GroupLike = str | bytes | GroupFields

HeadersLike = Iterable[tuple[str, bytes | None]] | Mapping[str, bytes | None]


@dataclass(frozen=True, slots=True)
class ProducerRecord:
    """A record to be sent, as interceptors, serializers and partitioners see it.

    Raises:
        TypeError: the topic is not a string, or a number is not an int.
        ValueError: the topic is empty, or the partition or timestamp is negative.
    """

    topic: str
    value: Any = None
    key: Any = None
    headers: tuple[Header, ...] = ()
    partition: int | None = None
    timestamp_ms: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.topic, str):
            raise TypeError(f"topic must be a str, not {type(self.topic).__name__}")
        if not self.topic:
            raise ValueError("topic must not be empty")
        if type(self.topic) is not str:
            object.__setattr__(self, "topic", str.__str__(self.topic))  # a member of a StrEnum, for instance
        for name in ("partition", "timestamp_ms"):
            number = getattr(self, name)
            if number is None:
                continue
            if not isinstance(number, int) or isinstance(number, bool):
                raise TypeError(f"{name} must be an int or None, not {type(number).__name__}")
            if number < 0:
                way_out = "; leave it out where it is not to be chosen" if name == "partition" else ""
                raise ValueError(f"{name} must not be negative: {number}{way_out}")
        if type(self.headers) is not tuple or not all(map(_is_plain_header, self.headers)):
            object.__setattr__(self, "headers", as_headers(self.headers))

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic and partition, the latter -1 while it is not known."""
        return TopicPartition(self.topic, -1 if self.partition is None else self.partition)


def as_headers(headers: HeadersLike | None) -> tuple[Header, ...]:
    """Check headers given by a user and freeze them.

    Raises:
        TypeError: a header is not a (str, bytes or None) pair.
    """
    if headers is None:
        return ()
    given: Any = headers
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise TypeError(f"headers must be pairs (name, value) or a mapping, not {type(given).__name__}")
    pairs = given.items() if isinstance(given, Mapping) else given
    return tuple(_as_header(pair) for pair in pairs)


def _is_plain_header(header: Any) -> bool:
    return (
        type(header) is Header
        and type(header.key) is str
        and (header.value is None or type(header.value) is bytes)
    )


def _as_header(pair: Any) -> Header:
    try:
        key, value = pair
    except (TypeError, ValueError):
        raise TypeError(f"a header is a pair (name, value), not {pair!r}") from None
    if not isinstance(key, str):
        raise TypeError(f"a header's name must be a str, not {type(key).__name__}")
    if value is not None and type(value) is not bytes:
        if not isinstance(value, bytes | bytearray | memoryview):
            raise TypeError(f"the value of header {key!r} must be bytes or None, not {type(value).__name__}")
        value = bytes(value)
    return Header(key if type(key) is str else str.__str__(key), value)
