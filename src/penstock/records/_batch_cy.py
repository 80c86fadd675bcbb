# SPDX-License-Identifier: Apache-2.0
# cython: boundscheck=False, wraparound=False, initializedcheck=False
"""Writes the records of one batch, format v2, into memory that the caller owns. Compiled if possible.

A batch is filled in segments: it begins in one, and grows by further ones. The first 61 bytes of the first segment stay
free for the header, which `seal` writes last, so that the batch is sent from where it is.

Rules:
1. A record never crosses from one segment into the next.
2. A record is written first and counted last: an interrupt between the two leaves a batch without that record, not
   with a part of it.
3. After `seal` nothing is appended any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

if cython.compiled:
    from cython.cimports.cpython.buffer import (
        PyBUF_SIMPLE,
        PyBUF_WRITABLE,
        PyBuffer_Release,
        PyObject_GetBuffer,
    )
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_GET_SIZE
    from cython.cimports.cpython.unicode import PyUnicode_AsUTF8String
    from cython.cimports.libc.string import memcpy
    from cython.cimports.penstock._primitives_cy import put_big_endian, put_varint, size_of_varint
    from cython.cimports.penstock.records._crc_cy import crc32c_at
    from cython.cimports.penstock.records._layout_cy import (
        ATTRIBUTES_AT,
        BASE_OFFSET_AT,
        BASE_SEQUENCE_AT,
        BASE_TIMESTAMP_AT,
        BATCH_LENGTH_AT,
        CHECKED_FROM,
        CRC_AT,
        HEADER_SIZE,
        LAST_OFFSET_DELTA_AT,
        LENGTH_PREFIX_SIZE,
        MAGIC,
        MAGIC_AT,
        MAX_TIMESTAMP_AT,
        NO_LEADER_EPOCH,
        PARTITION_LEADER_EPOCH_AT,
        PRODUCER_EPOCH_AT,
        PRODUCER_ID_AT,
        RECORDS_COUNT_AT,
        TRANSACTIONAL_BIT,
    )
else:
    from penstock._primitives_cy import put_varint, size_of_varint
    from penstock.records._crc_cy import crc32c
    from penstock.records.format import (
        BATCH_HEADER,
        CHECKED_FROM,
        CRC_AT,
        HEADER_SIZE,
        LENGTH_PREFIX_SIZE,
        MAGIC,
        NO_LEADER_EPOCH,
        TRANSACTIONAL_BIT,
        BatchHeader,
    )
    from penstock.records.plain_record import NO_HEADERS, encode_record

if TYPE_CHECKING:
    from penstock.types import Header

if not cython.compiled:
    # Why `append` wrote nothing; compiled code has them in the .pxd.
    NO_ROOM = -1  # the batch is full: it must be closed
    NEEDS_SEGMENT = -2  # the batch is not full by its estimate, but its segment is: `grow`

# Most batches have one segment.
_NONE_USED = cython.declare(list, [])
# Bytes: what the length field can say, which does not count those before its end. A C variable when compiled.
_LARGEST = cython.declare(cython.longlong, cython.cast(cython.longlong, 0x7FFFFFFF) + LENGTH_PREFIX_SIZE)


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


@cython.final
@cython.cclass
class BatchWriter:
    """Fills one batch.

    Attributes:
        count: records written.
        raw_size: bytes of those records, the header included, before compression.
        base_timestamp: of the first record; max_timestamp: the largest; both -1 while there is none.
        max_record_size: bytes of the largest record.
        segments: the memory, in order; `held`, its bytes.

    Args:
        buffer: the first segment, at least 61 bytes and the first record long.
        limit: bytes on the wire at which the batch is full. The first record is accepted whatever its size.
        ratio: the expected compressed size as a fraction of the raw one; 1.0 without compression.
    """

    def __init__(self, buffer: bytearray, limit: cython.Py_ssize_t, ratio: cython.double = 1.0) -> None:
        if len(buffer) < HEADER_SIZE:
            raise ValueError(f"a batch needs at least {HEADER_SIZE} bytes, not {len(buffer)}")
        self.segments = [buffer]
        self.held = len(buffer)
        self.limit = limit
        self.ratio = ratio
        self.count = 0
        self.raw_size = HEADER_SIZE
        self.base_timestamp = -1
        self.max_timestamp = -1
        self.max_record_size = 0
        self.sealed = False
        self._used: list[int] = _NONE_USED  # bytes, of the segments before the last; replaced, never changed
        # The writer holds the segment in `segments` and never resizes it, so the pointer stays good.
        self.memory = _memory_of(buffer)
        self.at = HEADER_SIZE
        self._end = len(buffer)

    def estimated_size(self) -> cython.Py_ssize_t:
        """Bytes on the wire as expected now; exact without compression."""
        if self.ratio == 1.0:
            return self.raw_size
        expected: cython.double = (self.raw_size - HEADER_SIZE) * self.ratio * 1.05
        if cython.compiled:
            return HEADER_SIZE + cython.cast(cython.Py_ssize_t, expected)
        return HEADER_SIZE + int(expected)

    def room(self) -> cython.Py_ssize_t:
        """Bytes that are free in the segment."""
        return self._end - self.at

    def add_rows(
        self,
        count: cython.Py_ssize_t,
        size: cython.Py_ssize_t,
        base_timestamp: cython.longlong,
        max_timestamp: cython.longlong,
        max_record_size: cython.Py_ssize_t,
    ) -> None:
        """Count records that somebody else has written, one behind the other, from `at` on.

        Args:
            count: how many.
            size: their bytes.
            base_timestamp: of the batch from now on, and so are `max_timestamp` and `max_record_size`.
        """
        if count == 0:
            return
        self.base_timestamp = base_timestamp
        self.max_timestamp = max_timestamp
        self.max_record_size = max_record_size
        self.at += size
        self.raw_size += size
        self.count += count

    def is_full(self) -> cython.bint:
        """Whether the estimate has reached the limit."""
        # Not more calls than are needed, here as in `append`: in plain Python each takes its time, for every record.
        estimated: cython.Py_ssize_t = self.raw_size if self.ratio == 1.0 else self.estimated_size()
        return estimated >= self.limit and self.count > 0

    def append(
        self,
        timestamp: cython.longlong,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header] | None,
    ) -> cython.Py_ssize_t:
        """Write one record; its size in bytes, or NO_ROOM or NEEDS_SEGMENT with nothing changed.

        Raises:
            ValueError: the batch is sealed.
        """
        if self.sealed:
            raise ValueError("the batch is sealed: nothing can be appended to it")
        count: cython.Py_ssize_t = self.count
        delta: cython.longlong = timestamp - self.base_timestamp if count else 0
        encoded: list | None
        record: bytes
        body: cython.Py_ssize_t
        size: cython.Py_ssize_t
        key_size: cython.Py_ssize_t
        value_size: cython.Py_ssize_t
        if cython.compiled:
            encoded = None
            key_size = -1 if key is None else len(key)
            value_size = -1 if value is None else len(value)
            body = (
                1
                + size_of_varint(delta)
                + size_of_varint(count)
                + size_of_varint(key_size)
                + size_of_varint(value_size)
            )
            if key_size > 0:
                body += key_size
            if value_size > 0:
                body += value_size
            if headers is None or len(headers) == 0:
                body += 1
            else:
                encoded = _encode_headers(headers)
                body += size_of_varint(len(encoded)) + _headers_size(encoded)
            size = size_of_varint(body) + body
        else:
            record = encode_record(
                delta, count, key, value, encode_headers(headers) if headers else NO_HEADERS
            )
            size = len(record)
        estimated: cython.Py_ssize_t = self.raw_size if self.ratio == 1.0 else self.estimated_size()
        if count and estimated + size > self.limit:
            return NO_ROOM
        at: cython.Py_ssize_t = self.at
        if at + size > self._end:
            return NEEDS_SEGMENT if count else NO_ROOM

        memory: cython.p_uchar = self.memory
        if cython.compiled:
            at = put_varint(memory, at, body)
            memory[at] = 0  # record attributes: none are defined
            at = put_varint(memory, at + 1, delta)
            at = put_varint(memory, at, count)
            at = put_varint(memory, at, key_size)
            if key_size > 0:
                at = _put_bytes(memory, at, key)
            at = put_varint(memory, at, value_size)
            if value_size > 0:
                at = _put_bytes(memory, at, value)
            if encoded is None:
                memory[at] = 0
                at += 1
            else:
                at = _put_headers(memory, at, encoded)
        else:
            memory[at : at + size] = record
            at += size

        if count == 0:
            self.base_timestamp = timestamp
            self.max_timestamp = timestamp
        elif timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        if size > self.max_record_size:
            self.max_record_size = size
        self.at = at
        self.raw_size += size
        self.count = count + 1
        return size

    def grow(self, buffer: bytearray) -> None:
        """Go on in a further segment."""
        # Calls first: Ctrl-C comes after calls, and would find half of the rest done.
        memory: cython.p_uchar = _memory_of(buffer)
        size: cython.Py_ssize_t = len(buffer)
        self._used = [*self._used, self.at]
        self.segments += [buffer]
        self.held += size
        self.memory = memory
        self.at = 0
        self._end = size

    def raw_records(self) -> bytes | memoryview:
        """The records section before compression, as one piece."""
        pieces: list = self._pieces()
        pieces[0] = pieces[0][HEADER_SIZE:]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _pieces(self) -> list:
        """The segments as far as they are filled."""
        if len(self.segments) == 1:
            return [memoryview(self.segments[0])[: self.at]]
        pieces: list = []
        end: cython.Py_ssize_t
        at: cython.Py_ssize_t
        for at in range(len(self.segments)):
            end = self._used[at] if at < len(self._used) else self.at
            if end > 0:
                pieces.append(memoryview(self.segments[at])[:end])
        return pieces

    def seal(
        self,
        attributes: cython.longlong,
        producer_id: Any = -1,
        producer_epoch: cython.longlong = -1,
        base_sequence: cython.longlong = -1,
        compressed: Any = None,
    ) -> Any:
        """Write header and checksum; the whole batch, ready to be sent: a memoryview, or a list of several.

        Args:
            compressed: with a codec, memory that holds 61 free bytes and then the compressed records section, in one
                piece or in a list of several. It may be segments, shortened by memoryviews' slices.

        Raises:
            ValueError: the batch is empty, or has a size that is not possible.
        """
        if self.count == 0:
            raise ValueError("a batch without records cannot be sealed")
        _check_identity(attributes, producer_id, producer_epoch, base_sequence)
        pieces: list
        if compressed is None:
            pieces = self._pieces()
        elif isinstance(compressed, list):
            pieces = compressed
        else:
            pieces = [memoryview(compressed)]
        size: cython.longlong = 0
        for piece in pieces:
            size += len(piece)
        if len(pieces[0]) < HEADER_SIZE or size > _LARGEST:
            raise ValueError(f"{size} bytes are no batch: from {HEADER_SIZE} to {_LARGEST} are possible")
        self.sealed = True
        if not cython.compiled:
            self.memory.release()  # the memory may soon be another batch's: nobody must write there any more
        self._write_header(pieces, size, attributes, producer_id, producer_epoch, base_sequence)
        return pieces[0] if len(pieces) == 1 else pieces

    def _write_header(
        self,
        pieces: list,  # type: ignore[type-arg]
        size: cython.longlong,
        attributes: cython.int,
        producer_id: cython.longlong,
        producer_epoch: cython.int,
        base_sequence: cython.int,
    ) -> None:
        """Write the header, and the checksum of what follows it last."""
        if not cython.compiled:
            header = BatchHeader(
                base_offset=0,
                batch_length=size - LENGTH_PREFIX_SIZE,
                partition_leader_epoch=NO_LEADER_EPOCH,
                magic=MAGIC,
                crc=0,
                attributes=attributes,
                last_offset_delta=self.count - 1,
                base_timestamp=self.base_timestamp,
                max_timestamp=self.max_timestamp,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                base_sequence=base_sequence,
                records_count=self.count,
            )
            first = pieces[0]
            BATCH_HEADER.pack_into(first, 0, *header)
            found = crc32c(first[CHECKED_FROM:])
            for piece in pieces[1:]:
                found = crc32c(piece, found)
            first[CRC_AT:CHECKED_FROM] = found.to_bytes(4, "big")
            return
        view = cython.declare(cython.Py_buffer)
        PyObject_GetBuffer(pieces[0], cython.address(view), PyBUF_WRITABLE)
        # `seal` has checked the size. Here it is checked again, because what follows writes without bounds.
        if view.len < HEADER_SIZE:
            PyBuffer_Release(cython.address(view))
            raise ValueError("a batch that has no room for its header")
        memory: cython.p_uchar = cython.cast(cython.p_uchar, view.buf)
        put_big_endian(memory, BASE_OFFSET_AT, 0, 8)
        put_big_endian(memory, BATCH_LENGTH_AT, size - LENGTH_PREFIX_SIZE, 4)
        put_big_endian(memory, PARTITION_LEADER_EPOCH_AT, NO_LEADER_EPOCH, 4)
        put_big_endian(memory, MAGIC_AT, MAGIC, 1)
        put_big_endian(memory, ATTRIBUTES_AT, attributes, 2)
        put_big_endian(memory, LAST_OFFSET_DELTA_AT, self.count - 1, 4)
        put_big_endian(memory, BASE_TIMESTAMP_AT, self.base_timestamp, 8)
        put_big_endian(memory, MAX_TIMESTAMP_AT, self.max_timestamp, 8)
        put_big_endian(memory, PRODUCER_ID_AT, producer_id, 8)
        put_big_endian(memory, PRODUCER_EPOCH_AT, producer_epoch, 2)
        put_big_endian(memory, BASE_SEQUENCE_AT, base_sequence, 4)
        put_big_endian(memory, RECORDS_COUNT_AT, self.count, 4)
        # With the interpreter lock held: this takes microseconds, and to get the lock back may take milliseconds.
        checksum: cython.uint = crc32c_at(memory + CHECKED_FROM, view.len - CHECKED_FROM, 0)
        at: cython.Py_ssize_t
        for at in range(1, len(pieces)):
            checksum = _checksum_on(pieces[at], checksum)
        put_big_endian(memory, CRC_AT, checksum, 4)
        PyBuffer_Release(cython.address(view))


@cython.cfunc
@cython.exceptval(check=True)
def _checksum_on(piece: object, before: cython.uint) -> cython.uint:
    """The checksum of a piece and what goes before it. Compiled code only."""
    view = cython.declare(cython.Py_buffer)
    PyObject_GetBuffer(piece, cython.address(view), PyBUF_SIMPLE)
    before = crc32c_at(cython.cast(cython.p_const_uchar, view.buf), view.len, before)
    PyBuffer_Release(cython.address(view))
    return before


@cython.cfunc
def _memory_of(buffer: bytearray) -> cython.p_uchar:
    if cython.compiled:
        return cython.cast(cython.p_uchar, PyByteArray_AS_STRING(buffer))
    return memoryview(buffer)  # a slice of the bytearray itself would be set by way of a copy


@cython.cfunc
def _check_identity(
    attributes: cython.longlong,
    producer_id: Any,  # of any size
    producer_epoch: cython.longlong,
    base_sequence: cython.longlong,
) -> Any:
    """Refuse an identity that a broker would refuse, or worse, take for another one."""
    if not -0x8000 <= attributes <= 0x7FFF:
        raise ValueError(f"attributes of more than 16 bits: {attributes}")
    if producer_id == -1:
        if producer_epoch != -1 or base_sequence != -1:
            raise ValueError("an epoch or a sequence number without a producer id")
        if attributes & TRANSACTIONAL_BIT:
            raise ValueError("a transactional batch needs a producer id")
    elif not (
        0 <= producer_id <= 0x7FFFFFFFFFFFFFFF
        and 0 <= producer_epoch <= 0x7FFF
        and 0 <= base_sequence <= 0x7FFFFFFF
    ):
        raise ValueError(
            f"not the identity of a batch: producer id {producer_id}, epoch {producer_epoch}, sequence {base_sequence}"
        )


@cython.cfunc
def _put_bytes(memory: cython.p_uchar, at: cython.Py_ssize_t, data: bytes) -> cython.Py_ssize_t:
    size: cython.Py_ssize_t
    if cython.compiled:
        size = PyBytes_GET_SIZE(data)
        memcpy(memory + at, PyBytes_AS_STRING(data), size)
    else:
        size = len(data)
        memory[at : at + size] = data
    return at + size


def encode_headers(headers: Sequence[Header]) -> bytes:
    """The headers section of a record, its count first."""
    encoded: list = _encode_headers(headers)
    section: bytearray = bytearray(size_of_varint(len(encoded)) + _headers_size(encoded))
    if cython.compiled:
        _put_headers(cython.cast(cython.p_uchar, PyByteArray_AS_STRING(section)), 0, encoded)
    else:
        _put_headers(section, 0, encoded)
    return bytes(section)


@cython.cfunc
def _encode_headers(headers: Sequence[Header]) -> list:  # type: ignore[type-arg]
    encoded: list = []
    for name, value in headers:
        # Compiled code does not look the method up: it takes longer than to encode a short name.
        encoded.append((PyUnicode_AsUTF8String(name) if cython.compiled else name.encode(), value))
    return encoded


@cython.cfunc
def _headers_size(encoded: list) -> cython.Py_ssize_t:  # type: ignore[type-arg]
    size: cython.Py_ssize_t = 0
    name: bytes
    value: bytes | None
    for name, value in encoded:
        size += size_of_varint(len(name)) + len(name)
        size += size_of_varint(-1) if value is None else size_of_varint(len(value)) + len(value)
    return size


@cython.cfunc
def _put_headers(memory: cython.p_uchar, at: cython.Py_ssize_t, encoded: list) -> cython.Py_ssize_t:  # type: ignore[type-arg]
    name: bytes
    value: bytes
    at = put_varint(memory, at, len(encoded))
    for name, value in encoded:
        at = put_varint(memory, at, len(name))
        at = _put_bytes(memory, at, name)
        if value is None:
            at = put_varint(memory, at, -1)
        else:
            at = put_varint(memory, at, len(value))
            at = _put_bytes(memory, at, value)
    return at
