# SPDX-License-Identifier: Apache-2.0
"""Reads record batches, format v2, and checks every field.

Whatever a peer or a damaged disk may put into a batch ends in a ProtocolError that names the byte and the field; no
length is used before it is known to fit.

Rules:
1. The checksum is compared before any field that it covers is used.
2. A batch is yielded only when its header is sound; its records are parsed when `records()` is called.
3. The records fill the section exactly: as many as the header says, each exactly as long as its own length says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from penstock._primitives_cy import read_varint
from penstock.errors import ProtocolError
from penstock.records import format as layout
from penstock.records._crc_cy import crc32c
from penstock.records.compression import CODECS, decompress
from penstock.records.format import BATCH_HEADER, BatchHeader, Buffer
from penstock.types import Header

# What one batch may decompress to. Brokers take batches of 1 MiB unless told otherwise and 100 MiB is the largest
# request they read by default, so a section beyond this is an attack or a mistake.
MAX_RECORDS_BYTES = 256 * 1024 * 1024

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


class Record(NamedTuple):
    """A record as it is stored.

    Attributes:
        timestamp: milliseconds since the epoch, -1 where there is none; the broker's if the topic uses LogAppendTime.
    """

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """One batch: the header's fields in wire order, then the records section as it came.

    Attributes:
        payload: the records section, compressed where a codec is set; a view of the data that was read.
        position: where in that data the batch begins.
    """

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
    payload: memoryview
    position: int

    @property
    def codec(self) -> str:
        """The name of the codec: none, gzip, snappy, lz4 or zstd."""
        return CODECS[self.attributes & layout.CODEC_MASK].name

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return bool(self.attributes & layout.TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        """Whether the records are the broker's transaction markers instead of data."""
        return bool(self.attributes & layout.CONTROL_BIT)

    @property
    def is_log_append_time(self) -> bool:
        """Whether the broker's clock gave the timestamps."""
        return bool(self.attributes & layout.TIMESTAMP_TYPE_BIT)

    @property
    def last_offset(self) -> int:
        """The offset of the last record that the batch had when it was written."""
        return self.base_offset + self.last_offset_delta

    @property
    def last_sequence(self) -> int:
        """The sequence of that record; -1 for a batch without sequences."""
        return layout.last_sequence(self.base_sequence, self.last_offset_delta)

    @property
    def next_sequence(self) -> int:
        """The base sequence of the batch that follows; -1 for a batch without sequences."""
        return layout.next_sequence(self.base_sequence, self.last_offset_delta + 1)

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return layout.LENGTH_PREFIX_SIZE + self.batch_length

    def raw_records(self, max_bytes: int = MAX_RECORDS_BYTES) -> bytes:
        """The records section before compression.

        Raises:
            ProtocolError: it is damaged, or larger than `max_bytes`.
        """
        return decompress(self.attributes & layout.CODEC_MASK, self.payload, max_bytes)

    def records(self, max_bytes: int = MAX_RECORDS_BYTES) -> list[Record]:
        """Decompress and parse the records.

        Raises:
            ProtocolError: the section is damaged, larger than `max_bytes`, or not what the header says.
        """
        return list(self.iter_records(max_bytes))

    def iter_records(self, max_bytes: int = MAX_RECORDS_BYTES) -> Iterator[Record]:
        """The same, one by one: the tuples of many small records take far more memory than their bytes.

        Raises:
            ProtocolError: as `records`, perhaps after some were yielded.
        """
        raw = self.raw_records(max_bytes)
        if self.records_count * layout.MIN_RECORD_SIZE > len(raw):
            raise self._damaged(
                "records_count", f"{self.records_count} records cannot fit into {len(raw)} bytes"
            )
        cursor = _Cursor(raw, f"batch at byte {self.position}")
        previous_delta = -1
        for _ in range(self.records_count):
            record = self._read_record(cursor, previous_delta)
            previous_delta = record.offset - self.base_offset
            yield record
        if cursor.at != len(raw):
            raise self._damaged("records", f"{len(raw) - cursor.at} bytes follow the last record")

    def _read_record(self, cursor: _Cursor, previous_delta: int) -> Record:
        length = cursor.size("record length", len(cursor.data))
        end = cursor.at + length
        cursor.skip("record attributes", 1, end)
        timestamp = self.base_timestamp + cursor.number("timestamp delta", end)
        if not _INT64_MIN <= timestamp <= _INT64_MAX:
            raise cursor.damaged("timestamp delta", f"{timestamp} is no 64-bit timestamp")
        delta = cursor.number("offset delta", end)
        if not previous_delta < delta <= self.last_offset_delta:
            allowed = f"above {previous_delta} and at most {self.last_offset_delta}"
            raise cursor.damaged("offset delta", f"{delta} is not {allowed}")
        key = cursor.nullable_bytes("key", end)
        value = cursor.nullable_bytes("value", end)
        headers = _read_headers(cursor, end)
        if cursor.at != end:
            raise cursor.damaged("record length", f"{end - cursor.at} bytes of the record are left over")
        if self.is_log_append_time:
            timestamp = self.max_timestamp
        return Record(self.base_offset + delta, timestamp, key, value, headers)

    def _damaged(self, field: str, problem: str) -> ProtocolError:
        return _damaged(self.position, field, problem)


def read_batches(data: Buffer, *, allow_partial: bool = False) -> Iterator[RecordBatch]:
    """Read batches that lie one behind the other.

    Args:
        data: whole batches and nothing else.
        allow_partial: the last one may be cut off, as a fetch leaves it, and is then left out.

    Raises:
        ProtocolError: a batch is cut off or damaged; those before it were yielded.
    """
    view = memoryview(data)
    position = 0
    while position < len(view):
        end = _end_of_batch(view, position)
        if end is None:
            if allow_partial:
                return
            left = len(view) - position
            raise _damaged(
                position, "batch_length", f"the batch is cut off: only {left} bytes of it are there"
            )
        yield _read_batch(view[position:end], position)
        position = end


def _end_of_batch(view: memoryview, position: int) -> int | None:
    """Where the batch ends; None when that is behind the data."""
    prefix = view[position : position + layout.LENGTH_PREFIX_SIZE]
    if len(prefix) < layout.LENGTH_PREFIX_SIZE:
        return None
    length = int.from_bytes(prefix[layout.BATCH_LENGTH_AT :], "big", signed=True)
    shortest = layout.HEADER_SIZE - layout.LENGTH_PREFIX_SIZE
    # Magic 0 and 1 have shorter headers; they are distinguished below, so that the message is the right one.
    if length < layout.MAGIC_AT + 1 - layout.LENGTH_PREFIX_SIZE:
        raise _damaged(position, "batch_length", f"{length} is less than the {shortest} bytes of a header")
    end = position + layout.LENGTH_PREFIX_SIZE + length
    if end > len(view):
        return None
    magic = view[position + layout.MAGIC_AT]
    if magic != layout.MAGIC:
        raise _damaged(position, "magic", f"{magic} where format version {layout.MAGIC} is expected")
    if length < shortest:
        raise _damaged(position, "batch_length", f"{length} is less than the {shortest} bytes of a header")
    return end


def _read_batch(batch: memoryview, position: int) -> RecordBatch:
    header = BatchHeader(*BATCH_HEADER.unpack_from(batch))
    checksum = crc32c(batch[layout.CHECKED_FROM :])
    if checksum != header.crc:
        problem = f"the bytes have checksum {checksum:#010x}, the header says {header.crc:#010x}"
        raise _damaged(position, "crc", problem)
    _check_header(header, position)
    return RecordBatch(*header, payload=batch[layout.HEADER_SIZE :], position=position)


# The smallest value of each signed field; -1 is "none" where it is allowed. Timestamps may be anything, and a sequence
# without a producer id is meaningless but harmless: some clients write 0.
_SMALLEST = {
    "base_offset": 0,
    "partition_leader_epoch": layout.NO_LEADER_EPOCH,
    "last_offset_delta": 0,
    "producer_id": layout.NO_PRODUCER_ID,
    "producer_epoch": layout.NO_PRODUCER_EPOCH,
    "base_sequence": layout.NO_SEQUENCE,
    "records_count": 0,
}


def _check_header(header: BatchHeader, position: int) -> None:
    for field, smallest in _SMALLEST.items():
        value = getattr(header, field)
        if value < smallest:
            raise _damaged(position, field, f"{value} is less than {smallest}")
    if header.base_offset + header.last_offset_delta > _INT64_MAX:
        raise _damaged(position, "last_offset_delta", "the last offset exceeds 64 bits")
    # Fewer records than offsets is what compaction leaves behind; more cannot be.
    if header.records_count > header.last_offset_delta + 1:
        problem = f"{header.records_count} records in {header.last_offset_delta + 1} offsets"
        raise _damaged(position, "records_count", problem)
    codec_id = header.attributes & layout.CODEC_MASK
    if codec_id >= len(CODECS):
        raise _damaged(position, "attributes", f"codec {codec_id} is not known")


def _read_headers(cursor: _Cursor, end: int) -> tuple[Header, ...]:
    # A header takes two bytes at least, which bounds the count before anything is made of it.
    count = cursor.number("header count", end)
    if not 0 <= count <= (end - cursor.at) // 2:
        raise cursor.damaged("header count", f"{count} headers cannot fit into {end - cursor.at} bytes")
    headers = []
    for _ in range(count):
        name = cursor.nullable_bytes("header name", end)
        if name is None:
            raise cursor.damaged("header name", "null is not allowed")
        try:
            text = name.decode()
        except UnicodeDecodeError as error:
            raise cursor.damaged("header name", f"it is not UTF-8: {error.reason}") from error
        headers.append(Header(text, cursor.nullable_bytes("header value", end)))
    return tuple(headers)


class _Cursor:
    """A place in a raw records section. `end` is always the end of the record: no field may cross it."""

    __slots__ = ("at", "data", "where")

    def __init__(self, data: bytes, where: str) -> None:
        self.data = data
        self.where = where
        self.at = 0

    def number(self, field: str, end: int) -> int:
        try:
            value, after = read_varint(self.data, self.at)
        except ValueError as error:
            raise self.damaged(field, str(error)) from error
        if after > end:
            raise self.damaged(field, "it crosses the end of the record")
        self.at = after
        return int(value)

    def size(self, field: str, end: int) -> int:
        """A varint that counts bytes which must be there."""
        value = self.number(field, end)
        if not 0 <= value <= end - self.at:
            raise self.damaged(field, f"{value} bytes, of which {end - self.at} are there")
        return value

    def skip(self, field: str, count: int, end: int) -> None:
        """Pass over bytes that mean nothing to us."""
        if count > end - self.at:
            raise self.damaged(field, "it crosses the end of the record")
        self.at += count

    def nullable_bytes(self, field: str, end: int) -> bytes | None:
        """Bytes after their length, which is -1 for null."""
        length = self.number(f"{field} length", end)
        if length == -1:
            return None
        start = self.at
        if not 0 <= length <= end - start:
            raise self.damaged(f"{field} length", f"{length} bytes, of which {end - start} are there")
        self.at = start + length
        return self.data[start : self.at]

    def damaged(self, field: str, problem: str) -> ProtocolError:
        return ProtocolError(
            f"damaged records in the {self.where}, byte {self.at} of the section, {field}: {problem}"
        )


def _damaged(position: int, field: str, problem: str) -> ProtocolError:
    return ProtocolError(f"damaged batch at byte {position}, {field}: {problem}")
