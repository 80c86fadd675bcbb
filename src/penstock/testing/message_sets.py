# SPDX-License-Identifier: Apache-2.0
"""Message sets, magic 0 and 1, as a broker handles them: checked on the way in, then put into the log's own format.

The log of the fake keeps batches of magic 2 whatever the release stores. So a set becomes a batch that says no more
than the stored format could: without headers in magic 1, and without timestamps in magic 0.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from penstock.error_codes import ErrorCode
from penstock.errors import ProtocolError
from penstock.records import format as layout
from penstock.records._crc_cy import crc32c
from penstock.records.format import BATCH_HEADER, BatchHeader, Buffer
from penstock.records.legacy.reader import read_set
from penstock.testing.refused import Refused
from penstock.testing.settings import TopicSettings
from penstock.types import Header

_ENTRY: Final = struct.Struct(">qiIbb")  # offset, size, checksum, magic, attributes
_PREFIX_SIZE: Final = 12
_CRC: Final = struct.Struct(">I")
_INT32: Final = struct.Struct(">i")
_LZ4: Final = 3
_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
_TOLERATED_BY_LZ4_OF_0_9: Final = (
    0x60,
    0x70,
)  # version 1, independent blocks; a checksum for each block, or none


class Plain(NamedTuple):
    """A record of any format."""

    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


def records_of_set(data: Buffer, settings: TopicSettings, *, verifies_old_lz4: bool) -> list[Plain]:
    """The records of the set that a client wants to append.

    Args:
        data: the set.
        settings: of the topic.
        verifies_old_lz4: whether lz4 in magic 0 must have the wrong checksum that clients of that time wrote.

    Raises:
        Refused: it is damaged, too large, or empty.
    """
    _check_entries(data, settings, verifies_old_lz4=verifies_old_lz4)
    try:
        found = list(read_set(data))
    except ProtocolError as error:
        raise Refused(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    if not found:
        raise Refused(ErrorCode.CORRUPT_MESSAGE, "The message set is empty")
    if settings.compacted and any(record.key is None for record in found):
        raise Refused(ErrorCode.CORRUPT_MESSAGE, "Compacted topic cannot accept message without key")
    return [
        Plain(layout.NO_TIMESTAMP if record.timestamp is None else record.timestamp, record.key, record.value)
        for record in found
    ]


def _check_entries(data: Buffer, settings: TopicSettings, *, verifies_old_lz4: bool) -> None:
    """Look at each entry as it came: brokers limit a single message, or the wrapper of many, and not the set."""
    view = memoryview(data)
    at = 0
    while at + _ENTRY.size <= len(view):
        _, size, _, magic, attributes = _ENTRY.unpack_from(view, at)
        if size < 0:
            return  # the reader tells what is wrong with it
        if _PREFIX_SIZE + size > settings.max_message_bytes:
            limit = settings.max_message_bytes
            raise Refused(
                ErrorCode.MESSAGE_TOO_LARGE, f"A message has {size} bytes, the topic takes at most {limit}"
            )
        if attributes & layout.CODEC_MASK == _LZ4 and magic == 0 and verifies_old_lz4:
            _check_old_lz4(_value(view[at : at + _PREFIX_SIZE + size], magic))
        at += _PREFIX_SIZE + size


def _value(entry: memoryview, magic: int) -> bytes:
    """The value of a wrapper, which has no key."""
    at = _ENTRY.size + (8 if magic else 0) + _INT32.size
    if at + _INT32.size > len(entry):
        return b""
    return bytes(entry[at + _INT32.size :])


def _check_old_lz4(frame: bytes) -> None:
    """Brokers of 0.9 check the frame as the clients of that time wrote it: the checksum is over the magic, too."""
    flags = frame[4] if len(frame) > 6 and frame[:4] == _LZ4_MAGIC else -1
    if flags not in _TOLERATED_BY_LZ4_OF_0_9 or frame[6] != (_xxh32_of_few(frame[:6]) >> 8) & 0xFF:
        raise Refused(ErrorCode.CORRUPT_MESSAGE, "Stream frame descriptor corrupted")


_WORD: Final = 0xFFFFFFFF


def _xxh32_of_few(data: bytes) -> int:
    """The xxHash32 of less than 16 bytes, seed 0."""
    value = 374761393 + len(data)
    at = 0
    while at + 4 <= len(data):
        value = (value + int.from_bytes(data[at : at + 4], "little") * 3266489917) & _WORD
        value = (_rotated(value, 17) * 668265263) & _WORD
        at += 4
    for byte in data[at:]:
        value = (_rotated((value + byte * 374761393) & _WORD, 11) * 2654435761) & _WORD
    value = ((value ^ value >> 15) * 2246822519) & _WORD
    value = ((value ^ value >> 13) * 3266489917) & _WORD
    return value ^ value >> 16


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> (32 - bits)) & _WORD


# ------------------------------------------------------------------------------------------------ as the log keeps it


def as_stored(records: Iterable[Plain], magic: int) -> list[Plain]:
    """What is left of records in the format of a log."""
    return [
        Plain(
            record.timestamp if magic else layout.NO_TIMESTAMP,
            record.key,
            record.value,
            record.headers if magic >= layout.MAGIC else (),
        )
        for record in records
    ]


def as_batch(records: list[Plain]) -> bytes:
    """One batch of magic 2, without a codec and without an identity."""
    base = records[0].timestamp
    section = b"".join(
        _record(index, record.timestamp - base, record) for index, record in enumerate(records)
    )
    header = BatchHeader(
        base_offset=0,
        batch_length=layout.HEADER_SIZE - layout.LENGTH_PREFIX_SIZE + len(section),
        partition_leader_epoch=layout.NO_LEADER_EPOCH,
        magic=layout.MAGIC,
        crc=0,
        attributes=0,
        last_offset_delta=len(records) - 1,
        base_timestamp=base,
        max_timestamp=max(record.timestamp for record in records),
        producer_id=layout.NO_PRODUCER_ID,
        producer_epoch=layout.NO_PRODUCER_EPOCH,
        base_sequence=layout.NO_SEQUENCE,
        records_count=len(records),
    )
    batch = bytearray(BATCH_HEADER.pack(*header) + section)
    _CRC.pack_into(batch, layout.CRC_AT, crc32c(memoryview(batch)[layout.CHECKED_FROM :]))
    return bytes(batch)


def _record(index: int, timestamp_delta: int, record: Plain) -> bytes:
    body = b"\0" + _varint(timestamp_delta) + _varint(index) + _field(record.key) + _field(record.value)
    body += _varint(len(record.headers))
    for name, value in record.headers:
        body += _field(name.encode()) + _field(value)
    return _varint(len(body)) + body


def _field(data: bytes | None) -> bytes:
    return _varint(-1) if data is None else _varint(len(data)) + data


def _varint(value: int) -> bytes:
    zigzag = value << 1 if value >= 0 else ~(value << 1)
    found = bytearray()
    while zigzag > 0x7F:
        found.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    found.append(zigzag)
    return bytes(found)
