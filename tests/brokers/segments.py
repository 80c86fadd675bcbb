# SPDX-License-Identifier: Apache-2.0
"""What a broker has stored, read from its segment files: no client could hide there what another one wrote.

Every format has the offset, the size and, as byte 16 of an entry, the magic in the same place.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CODEC_NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
_HEAD = 12  # offset and size
_MAGIC = 16
_NO_PRODUCER = -1


@dataclass(frozen=True)
class Entry:
    """A batch of magic 2, or a message of magic 0 or 1, which may be a wrapper around compressed ones.

    Attributes:
        first_offset: of its first record; for a wrapper, the one after the entry before it.
        last_offset: of its last record.
        producer_id: -1 for none.
        is_control: whether it is a marker of a transaction.
    """

    first_offset: int
    last_offset: int
    magic: int
    codec: str
    producer_id: int = _NO_PRODUCER
    base_sequence: int = -1
    is_transactional: bool = False
    is_control: bool = False


def read_entries(data: bytes, *, first_offset: int = 0) -> list[Entry]:
    """Read one segment. The last entry may be missing its end, while the broker writes."""
    return list(_entries(data, first_offset))


def _entries(data: bytes, expected: int) -> Iterator[Entry]:
    at = 0
    while at + _HEAD <= len(data):
        offset, size = struct.unpack_from(">qi", data, at)
        end = at + _HEAD + size
        if size <= 0 or end > len(data):
            return
        magic = data[at + _MAGIC]
        if magic == 2:
            entry = _batch(data, at, offset)
        elif magic in (0, 1):
            entry = Entry(expected, offset, magic, CODEC_NAMES[data[at + 17] & 7])
        else:
            raise ValueError(f"magic {magic} at byte {at}")
        yield entry
        expected = entry.last_offset + 1
        at = end


def _batch(data: bytes, at: int, offset: int) -> Entry:
    attributes, last_delta = struct.unpack_from(">hi", data, at + 21)
    producer_id, _epoch, sequence = struct.unpack_from(">qhi", data, at + 43)
    return Entry(
        offset,
        offset + last_delta,
        2,
        CODEC_NAMES[attributes & 7],
        producer_id,
        sequence,
        bool(attributes & 0x10),
        bool(attributes & 0x20),
    )


def stored(log_dir: Path, topic: str, partition: int = 0) -> list[Entry]:
    """All entries of a partition, in order; none while it does not exist."""
    found: list[Entry] = []
    for path in sorted((log_dir / f"{topic}-{partition}").glob("*.log")):
        found += read_entries(path.read_bytes(), first_offset=int(path.stem))
    return found


def end_offset(entries: list[Entry]) -> int:
    """The offset of the next record."""
    return entries[-1].last_offset + 1 if entries else 0
