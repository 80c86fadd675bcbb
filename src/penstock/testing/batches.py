# SPDX-License-Identifier: Apache-2.0
"""Record batches as a broker handles them: checked on the way in, stamped with offset and epoch, control records made.

The checks come in Kafka's order, because which of two errors is told matters to a client: what the request may hold,
then size and checksum, then the header against itself, then every record. In a few things this is stricter than Kafka,
which repairs or ignores them: gaps between offset deltas, a wrong largest timestamp, unknown attribute bits and the bit
for the broker's time are refused here, since no good client writes them.
"""

from __future__ import annotations

import struct
from typing import Final

from penstock.error_codes import ErrorCode
from penstock.errors import ProtocolError
from penstock.records import format as layout
from penstock.records._crc_cy import crc32c
from penstock.records.compression import CODECS
from penstock.records.format import BATCH_HEADER, BatchHeader, Buffer
from penstock.records.reader import Record, RecordBatch, read_batches
from penstock.testing.refused import Refused
from penstock.testing.settings import TopicSettings

_SHORTEST_SET: Final = 14  # the smallest length that any message format allows
_ZSTD_ID: Final = 4
_FIRST_VERSION_WITH_ZSTD: Final = 7

_CRC = struct.Struct(">I")
_OFFSET = struct.Struct(">q")
_INT32 = struct.Struct(">i")
_INT16 = struct.Struct(">h")
_MARKER = struct.Struct(">hh")  # version, type
_MARKER_VALUE = struct.Struct(">hi")  # version, coordinator epoch
_ABORT, _COMMIT = 0, 1


def check_batch(
    data: Buffer | None, settings: TopicSettings, produce_version: int, now_ms: int
) -> RecordBatch:
    """The one batch that a client wants to append.

    Raises:
        Refused: it is not what the protocol, the topic or common sense allow.
    """
    header = _only_header(data, produce_version)
    assert data is not None
    if len(data) > settings.max_message_bytes:
        limit = settings.max_message_bytes
        raise Refused(
            ErrorCode.MESSAGE_TOO_LARGE, f"The batch has {len(data)} bytes, the topic takes at most {limit}"
        )
    if header.crc != crc32c(memoryview(data)[layout.CHECKED_FROM :]):
        raise Refused(ErrorCode.CORRUPT_MESSAGE, f"The checksum does not match (stored crc = {header.crc})")
    _check_header(header)
    try:
        (batch,) = read_batches(data)
        batch.raw_records()
    except ProtocolError as error:
        # A section that its codec cannot read ends Kafka's handler, not just the request's partition.
        raise Refused(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) from error
    try:
        records = batch.records()
    except ProtocolError as error:
        raise Refused(ErrorCode.INVALID_RECORD, str(error)) from error
    _check_records(batch, records, settings, now_ms)
    return batch


def _only_header(data: Buffer | None, produce_version: int) -> BatchHeader:
    """The header of the only batch; what a broker says when there is none, or another one behind it."""
    none = Refused(
        ErrorCode.INVALID_RECORD,
        f"Produce requests with version {produce_version} must have at least one record batch per partition",
        reached_log=False,
    )
    if data is None or len(data) < layout.LENGTH_PREFIX_SIZE:
        raise none
    (length,) = _INT32.unpack_from(data, layout.BATCH_LENGTH_AT)
    if length < _SHORTEST_SET:
        text = f"The batch length {length} is less than {_SHORTEST_SET}"
        raise Refused(ErrorCode.CORRUPT_MESSAGE, text, reached_log=False)
    size = layout.LENGTH_PREFIX_SIZE + length
    if size > len(data):
        raise none  # a batch that is cut off does not count
    magic = data[layout.MAGIC_AT]
    if magic != layout.MAGIC:
        raise Refused(
            ErrorCode.INVALID_RECORD,
            f"Produce requests with version {produce_version} take magic {layout.MAGIC} alone, not {magic}",
            reached_log=False,
        )
    if size < layout.HEADER_SIZE:
        raise Refused(ErrorCode.CORRUPT_MESSAGE, f"A batch of {size} bytes has no room for its header")
    if size != len(data):
        raise Refused(
            ErrorCode.INVALID_RECORD,
            f"Produce requests with version {produce_version} must have exactly one record batch per partition",
            reached_log=False,
        )
    header = BatchHeader(*BATCH_HEADER.unpack_from(data))
    codec_id = header.attributes & layout.CODEC_MASK
    if codec_id >= len(CODECS) or (codec_id == _ZSTD_ID and produce_version < _FIRST_VERSION_WITH_ZSTD):
        raise Refused(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"Codec {codec_id} is not allowed in Produce version {produce_version}",
            reached_log=False,
        )
    return header


def _check_header(header: BatchHeader) -> None:
    problem = None
    if header.base_offset != 0:
        problem = f"the base offset is {header.base_offset} and must be 0"
    elif header.records_count <= 0:
        problem = f"the count of records is {header.records_count}"
    elif header.records_count != header.last_offset_delta + 1:
        problem = f"{header.records_count} records do not fill {header.last_offset_delta + 1} offsets"
    elif header.attributes & layout.CONTROL_BIT:
        problem = "clients are not allowed to write control records"
    elif header.attributes & ~_KNOWN_ATTRIBUTES:
        problem = f"unknown attributes {header.attributes:#06x}"
    elif header.producer_id >= 0 and header.base_sequence < 0:
        problem = f"the sequence {header.base_sequence} is not possible with a producer id"
    elif header.producer_id >= 0 and header.producer_epoch < 0:
        problem = f"the epoch {header.producer_epoch} is not possible with a producer id"
    elif header.attributes & layout.TRANSACTIONAL_BIT and header.producer_id < 0:
        problem = "a transactional batch needs a producer id"
    if problem is not None:
        raise Refused(ErrorCode.INVALID_RECORD, f"Invalid batch: {problem}")


_KNOWN_ATTRIBUTES: Final = (
    layout.CODEC_MASK | layout.TIMESTAMP_TYPE_BIT | layout.TRANSACTIONAL_BIT | layout.CONTROL_BIT
)


def _check_records(batch: RecordBatch, records: list[Record], settings: TopicSettings, now_ms: int) -> None:
    if batch.is_log_append_time:
        # Kafka names every record of the batch; the first one says enough.
        text = "Producer should not set timestamp type to LogAppendTime"
        raise Refused(ErrorCode.INVALID_TIMESTAMP, text, [(0, text)])
    for index, record in enumerate(records):
        if record.offset != index:
            raise Refused(ErrorCode.INVALID_RECORD, f"Record {index} has the offset delta {record.offset}")
    if settings.compacted:
        keyless = [
            (index, "Compacted topic cannot accept message without key")
            for index, record in enumerate(records)
            if record.key is None
        ]
        if keyless:
            raise Refused(ErrorCode.INVALID_RECORD, "One or more records have been rejected", keyless)
    if not settings.log_append_time:
        _check_timestamps(records, settings, now_ms)
    if max(record.timestamp for record in records) != batch.max_timestamp:
        raise Refused(ErrorCode.INVALID_RECORD, f"The largest timestamp is not {batch.max_timestamp}")


def _check_timestamps(records: list[Record], settings: TopicSettings, now_ms: int) -> None:
    earliest = now_ms - settings.timestamp_before_max_ms
    latest = now_ms + settings.timestamp_after_max_ms
    wrong = [
        (index, f"Timestamp {record.timestamp} is out of range [{earliest}, {latest}]")
        for index, record in enumerate(records)
        if record.timestamp != layout.NO_TIMESTAMP and not earliest <= record.timestamp <= latest
    ]
    if wrong:
        raise Refused(ErrorCode.INVALID_TIMESTAMP, "One or more records have been rejected", wrong)


def looks_transactional(data: Buffer | None) -> bool:
    """Whether a batch that was not checked yet says that it belongs to a transaction."""
    if data is None or len(data) < layout.HEADER_SIZE or data[layout.MAGIC_AT] != layout.MAGIC:
        return False
    (attributes,) = _INT16.unpack_from(data, layout.ATTRIBUTES_AT)
    return bool(attributes & layout.TRANSACTIONAL_BIT)


def looks_numbered(data: Buffer | None) -> bool:
    """Whether a batch that was not checked yet has a producer id."""
    if data is None or len(data) < layout.HEADER_SIZE or data[layout.MAGIC_AT] != layout.MAGIC:
        return False
    (producer_id,) = _OFFSET.unpack_from(data, layout.PRODUCER_ID_AT)
    return bool(producer_id >= 0)


def stamp(data: Buffer, offset: int, leader_epoch: int, append_time_ms: int | None) -> bytes:
    """A batch as it is stored: with its place in the log, and with the broker's time where the topic says so."""
    stored = bytearray(data)
    _OFFSET.pack_into(stored, layout.BASE_OFFSET_AT, offset)
    _INT32.pack_into(stored, layout.PARTITION_LEADER_EPOCH_AT, leader_epoch)
    if append_time_ms is not None:
        (attributes,) = _INT16.unpack_from(stored, layout.ATTRIBUTES_AT)
        _INT16.pack_into(stored, layout.ATTRIBUTES_AT, attributes | layout.TIMESTAMP_TYPE_BIT)
        _OFFSET.pack_into(stored, layout.MAX_TIMESTAMP_AT, append_time_ms)
        _CRC.pack_into(stored, layout.CRC_AT, crc32c(memoryview(stored)[layout.CHECKED_FROM :]))
    return bytes(stored)


def control_batch(
    producer_id: int, producer_epoch: int, *, commit: bool, coordinator_epoch: int, now_ms: int
) -> bytes:
    """The marker that ends a transaction in one partition."""
    key = _MARKER.pack(0, _COMMIT if commit else _ABORT)
    value = _MARKER_VALUE.pack(0, coordinator_epoch)
    # Attributes, both deltas, key and value behind their lengths, no headers: all the numbers fit one zigzag byte.
    body = b"\0\0\0" + bytes([2 * len(key)]) + key + bytes([2 * len(value)]) + value + b"\0"
    record = bytes([2 * len(body)]) + body
    size = layout.HEADER_SIZE + len(record)
    attributes = layout.TRANSACTIONAL_BIT | layout.CONTROL_BIT
    header = BatchHeader(
        base_offset=0,
        batch_length=size - layout.LENGTH_PREFIX_SIZE,
        partition_leader_epoch=layout.NO_LEADER_EPOCH,
        magic=layout.MAGIC,
        crc=0,
        attributes=attributes,
        last_offset_delta=0,
        base_timestamp=now_ms,
        max_timestamp=now_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=layout.NO_SEQUENCE,
        records_count=1,
    )
    batch = bytearray(BATCH_HEADER.pack(*header) + record)
    _CRC.pack_into(batch, layout.CRC_AT, crc32c(memoryview(batch)[layout.CHECKED_FROM :]))
    return bytes(batch)


def is_commit(batch: RecordBatch) -> bool:
    """Whether a control batch says commit; else it says abort."""
    (record,) = batch.records()
    _, kind = _MARKER.unpack(record.key or b"")
    return bool(kind == _COMMIT)
