# SPDX-License-Identifier: Apache-2.0
"""A record's bytes in plain Python, where to join a few pieces costs less than to write byte by byte."""

from __future__ import annotations

from typing import Final

NO_HEADERS: Final = b"\0"
_ATTRIBUTES: Final = b"\0"  # none are defined
_NULL: Final = b"\x01"  # the length -1
_MASK_64: Final = 0xFFFFFFFFFFFFFFFF
_MOST_KEPT: Final = 8192  # varints of one or two bytes


class _Varints(dict[int, bytes]):
    """The bytes of a varint by its value. Small ones are kept, because a look-up costs less than a loop."""

    def __missing__(self, value: int) -> bytes:
        data = bytearray()
        rest = ((value << 1) ^ (value >> 63)) & _MASK_64
        while rest >= 0x80:
            data.append(rest & 0x7F | 0x80)
            rest >>= 7
        data.append(rest)
        encoded = bytes(data)
        if 0 <= value < _MOST_KEPT:
            self[value] = encoded
        return encoded


_varints = _Varints()


def encode_record(
    timestamp_delta: int, offset_delta: int, key: bytes | None, value: bytes | None, headers: bytes
) -> bytes:
    """The record, its length first; the headers are encoded already."""
    body = b"".join(
        (
            _ATTRIBUTES,
            _varints[timestamp_delta],
            _varints[offset_delta],
            _NULL if key is None else _varints[len(key)],
            key or b"",
            _NULL if value is None else _varints[len(value)],
            value or b"",
            headers,
        )
    )
    return _varints[len(body)] + body
