# SPDX-License-Identifier: Apache-2.0
"""Reads message sets, magic 0 and 1, and checks every field.

What a peer or a damaged disk may put into a set ends in a ProtocolError that names the byte and the field.

Rules:
1. A length is used after it is known to fit, and a checksum is compared before any field that it covers is used.
2. A wrapper is decompressed within a bound. What is in it has the wrapper's magic and is not compressed again.
3. Offsets in a wrapper of magic 0 are absolute. In magic 1 they count from the first record, and the wrapper has the
   offset of the last one, or 0 where a producer did not set it (old librdkafka).
4. If the broker's clock gave the wrapper its timestamp, all records in it have that timestamp.
"""

from __future__ import annotations

import enum
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from penstock.errors import ProtocolError
from penstock.records.compression import CODECS, LZ4, ZSTD, decompress
from penstock.records.format import Buffer
from penstock.records.legacy.format import (
    CODEC_MASK,
    CRC_SIZE,
    ENTRY_PREFIX,
    FIELD_LENGTH,
    MAGIC_AT,
    MESSAGE_HEAD,
    MESSAGE_OVERHEAD,
    NEWEST_LEGACY_MAGIC,
    PREFIX_SIZE,
    TIMESTAMP,
    TIMESTAMP_TYPE_BIT,
)
from penstock.records.legacy.lz4 import with_right_checksum
from penstock.records.reader import MAX_RECORDS_BYTES

_INT64_MAX = 2**63 - 1


class TimestampType(enum.Enum):
    """Whose clock a timestamp is from."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class LegacyRecord(NamedTuple):
    """A record of a message set.

    Attributes:
        timestamp: milliseconds since the epoch, -1 where there is none; None in magic 0, which has no timestamps.
        timestamp_type: None in magic 0.
    """

    offset: int
    timestamp: int | None
    timestamp_type: TimestampType | None
    key: bytes | None
    value: bytes | None
    magic: int


class _Entry(NamedTuple):
    """An entry whose lengths and checksum are right; the value of a wrapper is still compressed."""

    offset: int
    magic: int
    codec_id: int
    timestamp: int | None
    timestamp_type: TimestampType | None
    key: memoryview | None
    value: memoryview | None
    position: int


def read_set(
    data: Buffer, *, allow_partial: bool = False, max_bytes: int = MAX_RECORDS_BYTES
) -> Iterator[LegacyRecord]:
    """Read the records of a message set, those in wrappers included.

    Args:
        data: entries of magic 0 and 1, and nothing else.
        allow_partial: the last entry may be cut off, as a fetch leaves it, and is then left out.
        max_bytes: what one wrapper may decompress to.

    Raises:
        ProtocolError: an entry is cut off or damaged; the records before it were yielded.
    """
    for entry in _entries(memoryview(data), "", allow_partial=allow_partial):
        if entry.codec_id:
            yield from _unwrapped(entry, max_bytes)
        else:
            yield _record(entry, entry.offset)


def _record(entry: _Entry, offset: int) -> LegacyRecord:
    return LegacyRecord(
        offset,
        entry.timestamp,
        entry.timestamp_type,
        None if entry.key is None else bytes(entry.key),
        None if entry.value is None else bytes(entry.value),
        entry.magic,
    )


def _unwrapped(wrapper: _Entry, max_bytes: int) -> Iterator[LegacyRecord]:
    where = f" of the wrapper at byte {wrapper.position}"
    if wrapper.value is None:
        raise _damaged(wrapper.position, "", "value", "a compressed set is null")
    payload: Buffer = wrapper.value
    if wrapper.magic == 0 and wrapper.codec_id == LZ4:
        payload = with_right_checksum(payload)
    inner = memoryview(decompress(wrapper.codec_id, payload, max_bytes))
    base = _base_offset(wrapper, inner, where)
    for entry in _entries(inner, where):
        _check_inner(entry, wrapper, where)
        offset = base + entry.offset
        if not 0 <= offset <= _INT64_MAX:
            raise _damaged(entry.position, where, "offset", f"{offset} is no offset")
        if wrapper.timestamp_type is TimestampType.LOG_APPEND_TIME:
            yield _record(
                entry._replace(timestamp=wrapper.timestamp, timestamp_type=wrapper.timestamp_type), offset
            )
        else:
            yield _record(entry, offset)


def _base_offset(wrapper: _Entry, inner: memoryview, where: str) -> int:
    """What is added to the offsets in a wrapper."""
    last = None
    for position, _ in _bounds(inner, where):
        last = position
    if last is None:
        raise _damaged(wrapper.position, "", "value", "a compressed set is empty")
    if wrapper.magic == 0 or wrapper.offset == 0:
        return 0
    (last_offset, _) = ENTRY_PREFIX.unpack_from(inner, last)
    return wrapper.offset - int(last_offset)


def _check_inner(entry: _Entry, wrapper: _Entry, where: str) -> None:
    if entry.magic != wrapper.magic:
        problem = f"{entry.magic} in a wrapper of magic {wrapper.magic}"
        raise _damaged(entry.position, where, "magic", problem)
    if entry.codec_id:
        raise _damaged(entry.position, where, "attributes", "a compressed message inside a compressed one")


def _entries(view: memoryview, where: str, *, allow_partial: bool = False) -> Iterator[_Entry]:
    for position, end in _bounds(view, where, allow_partial=allow_partial):
        yield _read_entry(view[position:end], position, where)


def _bounds(view: memoryview, where: str, *, allow_partial: bool = False) -> Iterator[tuple[int, int]]:
    """Where each entry begins and ends."""
    position = 0
    while position < len(view):
        left = len(view) - position
        size = -1
        if left >= PREFIX_SIZE:
            _, size = ENTRY_PREFIX.unpack_from(view, position)
            if size < MESSAGE_OVERHEAD[0]:
                problem = f"{size} is less than the {MESSAGE_OVERHEAD[0]} bytes of an empty message"
                raise _damaged(position, where, "message size", problem)
        if size < 0 or size > left - PREFIX_SIZE:
            if allow_partial:
                return
            problem = f"the message is cut off: only {left} bytes of its entry are there"
            raise _damaged(position, where, "message size", problem)
        yield position, position + PREFIX_SIZE + size
        position += PREFIX_SIZE + size


def _read_entry(entry: memoryview, position: int, where: str) -> _Entry:
    magic = entry[MAGIC_AT]
    if magic > NEWEST_LEGACY_MAGIC:
        raise _damaged(position, where, "magic", f"{magic} where a message set of magic 0 or 1 is expected")
    message = entry[PREFIX_SIZE:]
    crc, _, attributes = MESSAGE_HEAD.unpack_from(message)
    checksum = zlib.crc32(message[CRC_SIZE:])
    if checksum != crc:
        problem = f"the bytes have checksum {checksum:#010x}, the message says {crc:#010x}"
        raise _damaged(position, where, "crc", problem)
    if len(message) < MESSAGE_OVERHEAD[magic]:
        problem = f"{len(message)} is less than the {MESSAGE_OVERHEAD[magic]} bytes of an empty message"
        raise _damaged(position, where, "message size", problem)
    offset, _ = ENTRY_PREFIX.unpack_from(entry)
    if offset < 0:
        raise _damaged(position, where, "offset", f"{offset} is less than 0")
    codec_id = attributes & CODEC_MASK
    if codec_id >= ZSTD:
        known = ", ".join(row.name for row in CODECS[:ZSTD])
        raise _damaged(
            position, where, "attributes", f"codec {codec_id} is none of those of magic 1: {known}"
        )
    at = MESSAGE_HEAD.size
    timestamp: int | None = None
    timestamp_type: TimestampType | None = None
    if magic:
        (timestamp,) = TIMESTAMP.unpack_from(message, at)
        timestamp_type = TimestampType(int(bool(attributes & TIMESTAMP_TYPE_BIT)))
        at += TIMESTAMP.size
    key, at = _field(message, at, "key", position, where)
    value, at = _field(message, at, "value", position, where)
    if at != len(message):
        raise _damaged(position, where, "value", f"{len(message) - at} bytes follow it")
    return _Entry(offset, magic, codec_id, timestamp, timestamp_type, key, value, position)


def _field(
    message: memoryview, at: int, field: str, position: int, where: str
) -> tuple[memoryview | None, int]:
    """Bytes after their length, which is -1 for null, and the position behind them."""
    if at + FIELD_LENGTH.size > len(message):
        raise _damaged(position, where, f"{field} length", "it crosses the end of the message")
    (length,) = FIELD_LENGTH.unpack_from(message, at)
    at += FIELD_LENGTH.size
    if length == -1:
        return None, at
    if not 0 <= length <= len(message) - at:
        problem = f"{length} bytes, of which {len(message) - at} are there"
        raise _damaged(position, where, f"{field} length", problem)
    return message[at : at + length], at + length


def _damaged(position: int, where: str, field: str, problem: str) -> ProtocolError:
    return ProtocolError(f"damaged message set at byte {position}{where}, {field}: {problem}")
