# SPDX-License-Identifier: Apache-2.0
"""Message sets as clients of Kafka 0.8 to 0.10 wrote them, put together by hand."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Sequence


def entry(
    value: bytes | None,
    key: bytes | None = None,
    *,
    magic: int = 1,
    offset: int = 0,
    timestamp: int = 77,
    attributes: int = 0,
) -> bytes:
    """Encode one message of a message set."""
    checked = struct.pack(">bb", magic, attributes) + (struct.pack(">q", timestamp) if magic else b"")
    for part in (key, value):
        checked += struct.pack(">i", -1) if part is None else struct.pack(">i", len(part)) + part
    message = struct.pack(">I", zlib.crc32(checked)) + checked
    return struct.pack(">qi", offset, len(message)) + message


def message_set(
    values: Sequence[bytes | None], *, magic: int = 1, timestamp: int = 77, key: bytes | None = None
) -> bytes:
    """Several, one after the other."""
    return b"".join(
        entry(value, key, magic=magic, offset=index, timestamp=timestamp)
        for index, value in enumerate(values)
    )


def wrapped(values: Sequence[bytes | None], *, magic: int = 1) -> bytes:
    """The same, compressed with gzip."""
    inner = gzip.compress(message_set(values, magic=magic))
    return entry(inner, magic=magic, offset=len(values) - 1, attributes=1)
