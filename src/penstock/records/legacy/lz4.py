# SPDX-License-Identifier: Apache-2.0
"""The lz4 frame of magic 0, whose header has a wrong checksum on purpose (KAFKA-3160).

Kafka up to 0.9 computes the checksum of the frame's header over the magic number too, which the lz4 format leaves out.
Its brokers refuse a frame with the right one; from 0.10 on, both are taken in magic 0. Magic 1 has the right one.
"""

from __future__ import annotations

import struct
from typing import Final

from penstock.records.format import Buffer

_MAGIC: Final = b"\x04\x22\x4d\x18"
_FLAGS_AT: Final = len(_MAGIC)
_FLAGS_AND_BLOCK_SIZE: Final = 2
_CONTENT_SIZE_FLAG, _CONTENT_SIZE_BYTES = 0x08, 8
_DICTIONARY_FLAG: Final = 0x01

# xxHash32, for less than 16 bytes: longer input has a further stage.
_WORD: Final = struct.Struct("<I")
_PRIME_1, _PRIME_2, _PRIME_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
_PRIME_4, _PRIME_5 = 0x27D4EB2F, 0x165667B1
_MASK: Final = 0xFFFFFFFF


def with_old_checksum(frame: Buffer) -> bytearray:
    """A copy of a frame, with the checksum that Kafka 0.9 wants.

    Raises:
        ValueError: it is not an lz4 frame, or one with a dictionary.
    """
    at = _checksum_at(frame)
    if at is None:
        raise ValueError("not an lz4 frame that a broker before 0.10 could read")
    changed = bytearray(frame)
    changed[at] = _checksum(bytes(changed[:at]))
    return changed


def with_right_checksum(frame: Buffer) -> Buffer:
    """A frame of magic 0 as lz4 wants it. One that is damaged stays as it is, for the codec to refuse."""
    at = _checksum_at(frame)
    if at is None:
        return frame
    head = bytes(frame[:at])
    if frame[at] != _checksum(head):
        return frame
    changed = bytearray(frame)
    changed[at] = _checksum(head[_FLAGS_AT:])
    return changed


def _checksum_at(frame: Buffer) -> int | None:
    """Where the checksum of the header is; None: there is none, or the header has what Kafka never writes."""
    if len(frame) <= _FLAGS_AT or bytes(frame[:_FLAGS_AT]) != _MAGIC or frame[_FLAGS_AT] & _DICTIONARY_FLAG:
        return None
    at = _FLAGS_AT + _FLAGS_AND_BLOCK_SIZE
    if frame[_FLAGS_AT] & _CONTENT_SIZE_FLAG:
        at += _CONTENT_SIZE_BYTES
    return at if at < len(frame) else None


def _checksum(data: bytes) -> int:
    """The second byte of the xxHash32 of less than 16 bytes."""
    value = _PRIME_5 + len(data)
    words = len(data) // 4 * 4
    for at in range(0, words, 4):
        value += _WORD.unpack_from(data, at)[0] * _PRIME_3
        value = _rotated(value, 17) * _PRIME_4
    for byte in data[words:]:
        value += byte * _PRIME_5
        value = _rotated(value, 11) * _PRIME_1
    value &= _MASK
    value = (value ^ value >> 15) * _PRIME_2 & _MASK
    value = (value ^ value >> 13) * _PRIME_3 & _MASK
    value ^= value >> 16
    return value >> 8 & 0xFF


def _rotated(value: int, bits: int) -> int:
    value &= _MASK
    return (value << bits | value >> 32 - bits) & _MASK
