# SPDX-License-Identifier: Apache-2.0
"""The layout of a record batch, format v2 (magic 2), and the arithmetic that goes with it.

A batch is a header of 61 bytes and a records section, compressed as a whole where a codec is set. Numbers in the header
are big-endian and of fixed width; those in a record are varints. Only the checksum's position splits the header: it
covers everything behind itself, so that a broker can set the base offset and the leader epoch without a new one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from penstock._primitives_cy import varint_size
from penstock.errors import RecordTooLargeError

Buffer = bytes | bytearray | memoryview

MAGIC = 2

BATCH_HEADER = struct.Struct(
    ">"
    "q"  # base_offset
    "i"  # batch_length, counted from the next field
    "i"  # partition_leader_epoch
    "b"  # magic
    "I"  # crc, CRC-32C
    "h"  # attributes
    "i"  # last_offset_delta
    "q"  # base_timestamp
    "q"  # max_timestamp
    "q"  # producer_id
    "h"  # producer_epoch
    "i"  # base_sequence
    "i"  # records_count
)


class BatchHeader(NamedTuple):
    """The fields of a batch header in wire order, as `BATCH_HEADER` packs them."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int


BASE_OFFSET_AT = 0
BATCH_LENGTH_AT = 8
PARTITION_LEADER_EPOCH_AT = 12
MAGIC_AT = 16
CRC_AT = 17
ATTRIBUTES_AT = 21
LAST_OFFSET_DELTA_AT = 23
BASE_TIMESTAMP_AT = 27
MAX_TIMESTAMP_AT = 35
PRODUCER_ID_AT = 43
PRODUCER_EPOCH_AT = 51
BASE_SEQUENCE_AT = 53
RECORDS_COUNT_AT = 57
HEADER_SIZE = 61

LENGTH_PREFIX_SIZE = PARTITION_LEADER_EPOCH_AT  # bytes that batch_length does not count
CHECKED_FROM = ATTRIBUTES_AT  # where the bytes covered by the checksum begin

# Attributes of a batch.
CODEC_MASK = 0x07
TIMESTAMP_TYPE_BIT = 0x08  # set: the broker's time of append; clear: the producer's
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20  # the records are transaction markers, not data

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_TIMESTAMP = -1
NO_LEADER_EPOCH = -1

# A record's length (5 bytes), attributes (1), timestamp delta (10) and offset delta (5), all at their longest.
MAX_RECORD_OVERHEAD = 21

# Length, attributes, both deltas, two null lengths and a header count, a byte each.
MIN_RECORD_SIZE = 7

_SEQUENCE_MASK = 0x7FFFFFFF


class RecordLimit(NamedTuple):
    """What one record may take.

    Attributes:
        size: bytes.
        option: the name of the option that says so.
    """

    size: int
    option: str

    def error(self, what: str, size: int) -> RecordTooLargeError:
        """The error for a record that may take `size` bytes."""
        return RecordTooLargeError(
            f"{what} takes up to {size} bytes, more than {self.option} allows ({self.size}). Raise that option (and "
            "the topic's max.message.bytes), or send less at once.",
            size=size,
            limit=self.size,
            option=self.option,
        )


def estimate_record_size(
    key_size: int | None, value_size: int | None, headers: Iterable[tuple[str, bytes | None]] = ()
) -> int:
    """The most that a batch with this one record can take before compression, its header included.

    Args:
        key_size: bytes of the key, None for a null one.
        value_size: bytes of the value, None for a null one.
        headers: pairs of name and value.
    """
    headers = tuple(headers)
    size: int = HEADER_SIZE + MAX_RECORD_OVERHEAD + varint_size(len(headers))
    size += _field_size(key_size) + _field_size(value_size)
    for name, value in headers:
        size += _field_size(len(name.encode())) + _field_size(None if value is None else len(value))
    return size


def _field_size(size: int | None) -> int:
    if size is None:
        return 1  # the length -1
    prefix: int = varint_size(size)
    return prefix + size


def next_sequence(base_sequence: int, count: int) -> int:
    """The base sequence of the batch that follows one of `count` records; after 2147483647 comes 0."""
    if base_sequence == NO_SEQUENCE:
        return NO_SEQUENCE
    return (base_sequence + count) & _SEQUENCE_MASK


def last_sequence(base_sequence: int, last_offset_delta: int) -> int:
    """The sequence of a batch's last record; -1 for a batch without sequences."""
    return next_sequence(base_sequence, last_offset_delta)


# ---- how much memory may be made of what a peer sent: a small frame must not fill the machine

DECODED_PER_BYTE: Final = 20
DECODED_ANYWAY: Final = 1024 * 1024


def most_decoded_bytes(wire_bytes: int) -> int:
    """The bytes of memory that so many bytes from the wire may become, decompressed or decoded."""
    return DECODED_PER_BYTE * wire_bytes + DECODED_ANYWAY
