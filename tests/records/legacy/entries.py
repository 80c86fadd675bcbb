# SPDX-License-Identifier: Apache-2.0
"""Message sets for tests: entries written field by field, and batches to be converted."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

from fix_impl import load
from fix_records import fill, seal
from hypothesis import strategies as st

from penstock.records.compression import Codec, codec
from penstock.records.reader import Record

batches = load("penstock.records._batch_cy", "uncompiled")

NO_CODEC = codec("none")
CODECS = ("none", "gzip", "snappy", "lz4")


def field(data: bytes | None) -> bytes:
    return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data


def entry(
    offset: int = 0,
    key: bytes | None = None,
    value: bytes | None = b"value",
    *,
    magic: int = 1,
    attributes: int = 0,
    timestamp: int = 1_500_000_000_000,
    body: bytes | None = None,
    crc: int | None = None,
) -> bytes:
    """An entry with a right size and checksum, however wrong the rest is."""
    if body is None:
        body = (struct.pack(">q", timestamp) if magic else b"") + field(key) + field(value)
    checked = struct.pack(">bb", magic, attributes) + body
    message = struct.pack(">I", zlib.crc32(checked) if crc is None else crc) + checked
    return struct.pack(">qi", offset, len(message)) + message


def batch_of(records: Sequence[Record], chosen: Codec = NO_CODEC) -> bytes:
    """A sealed batch of magic 2."""
    return seal(fill(batches, records), chosen)


_data = st.none() | st.binary(max_size=200)


@st.composite
def plain_records(draw: st.DrawFn, max_size: int = 20) -> list[Record]:
    """Records that the old formats can express."""
    drawn = draw(st.lists(st.tuples(st.integers(-1, 2**62), _data, _data), min_size=1, max_size=max_size))
    return [Record(offset, *fields, ()) for offset, fields in enumerate(drawn)]
