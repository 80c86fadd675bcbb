# SPDX-License-Identifier: Apache-2.0
# cython: boundscheck=False, wraparound=False, initializedcheck=False
"""Turns a record batch into a message set of magic 0 or 1, for brokers before 0.11. Compiled if possible.

`convert` makes the set. `codec_of_set` looks at its outline before it is sent.

Rules of the conversion:
1. Nothing is lost silently: headers, a producer's identity and zstd are refused. Only the timestamps have no place in
   magic 0; whether that may be is the caller's decision. So is whether headers may be dropped.
2. The batch comes from this process, so its checksum is not computed again. All lengths in it are checked.
3. Records are numbered from 0, and a wrapper has the number of its last record, as brokers expect it of a producer.
4. The batch is read twice: first all of it is measured and checked, then it is written into memory of that size.
"""

from __future__ import annotations

from typing import Any

from penstock.errors import ProtocolError
from penstock.records.compression import LZ4, Codec, decompress
from penstock.records.format import (
    BATCH_HEADER,
    CODEC_MASK,
    CONTROL_BIT,
    HEADER_SIZE,
    LENGTH_PREFIX_SIZE,
    MAGIC,
    NO_PRODUCER_ID,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Buffer,
)
from penstock.records.legacy.errors import LegacyFormatError, LegacyFormatReason
from penstock.records.legacy.format import (
    ATTRIBUTES_AT,
    ENTRY_OVERHEAD,
    MAGIC_AT,
    NEWEST_LEGACY_MAGIC,
    PREFIX_SIZE,
    SIZE_AT,
)
from penstock.records.legacy.lz4 import with_old_checksum
from penstock.records.reader import MAX_RECORDS_BYTES

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

if cython.compiled:
    from cython.cimports.cpython.buffer import PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING
    from cython.cimports.libc.string import memcpy
    from cython.cimports.penstock._primitives_cy import big_endian_at, put_big_endian
    from cython.cimports.penstock.records._crc_cy import crc32_at
else:
    import zlib

    def put_big_endian(memory: Any, at: int, value: int, size: int) -> int:
        """Write a number of `size` bytes; the position behind it."""
        memory[at : at + size] = (value & ((1 << 8 * size) - 1)).to_bytes(size, "big")
        return at + size

    def big_endian_at(data: Any, at: int, size: int) -> int:
        """The signed number in `size` bytes."""
        return int.from_bytes(data[at : at + size], "big", signed=True)


# C variables when compiled.
_SMALLEST_ENTRY = cython.declare(cython.Py_ssize_t, ENTRY_OVERHEAD[0])
_SMALLEST_ENTRY_WITH_TIME = cython.declare(cython.Py_ssize_t, ENTRY_OVERHEAD[1])
_PREFIX_SIZE = cython.declare(cython.Py_ssize_t, PREFIX_SIZE)
_SIZE_AT = cython.declare(cython.Py_ssize_t, SIZE_AT)
_MAGIC_AT = cython.declare(cython.Py_ssize_t, MAGIC_AT)
_ATTRIBUTES_AT = cython.declare(cython.Py_ssize_t, ATTRIBUTES_AT)
_CODEC_MASK = cython.declare(cython.int, CODEC_MASK)
_LAST_CODEC = cython.declare(cython.int, LZ4)
_LARGEST_SET = cython.declare(cython.longlong, 0x7FFFFFFF)
_LARGEST_TIME = cython.declare(cython.longlong, 0x7FFFFFFFFFFFFFFF)
# Bytes of records from which on other threads may run meanwhile: getting the lock back takes time, too.
_LONG = cython.declare(cython.Py_ssize_t, 128 * 1024)


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


def convert(batch: Buffer, magic: int, codec: Codec, *, drop_headers: bool = False) -> bytearray:
    """The records of one sealed batch as a message set.

    Args:
        batch: one whole batch of magic 2, compressed or not.
        magic: 0 or 1.
        codec: what the set is compressed with, whatever the codec of the batch.
        drop_headers: leave the headers of all records out.

    Raises:
        LegacyFormatError: the old formats cannot express what is in the batch.
        ProtocolError: the batch is damaged.
        ValueError: there is no such old format.
    """
    if not 0 <= magic <= NEWEST_LEGACY_MAGIC:
        raise ValueError(f"message sets have magic 0 or 1, not {magic}")
    if codec.id > LZ4:
        raise LegacyFormatError(
            f"{codec.name} cannot be used in message sets of magic {magic}", LegacyFormatReason.CODEC
        )
    view: memoryview = memoryview(batch)
    header = _checked_header(view, magic)
    raw: Any = view[HEADER_SIZE:]
    if header.attributes & CODEC_MASK:
        raw = decompress(header.attributes & CODEC_MASK, raw, MAX_RECORDS_BYTES)
    if not cython.compiled:
        return _packed(_converted(raw, len(raw), header, magic, drop_headers), header, magic, codec)
    memory = cython.declare(cython.Py_buffer)
    PyObject_GetBuffer(raw, cython.address(memory), PyBUF_SIMPLE)
    try:
        entries = _converted(
            cython.cast(cython.p_const_uchar, memory.buf), memory.len, header, magic, drop_headers
        )
    finally:
        PyBuffer_Release(cython.address(memory))
    return _packed(entries, header, magic, codec)


def _checked_header(view: memoryview, magic: int) -> BatchHeader:
    """The header of the batch, once it is sure that the batch can be converted as far as the header tells."""
    if len(view) < HEADER_SIZE:
        raise ProtocolError(f"{len(view)} bytes are no record batch")
    header = BatchHeader(*BATCH_HEADER.unpack_from(view))
    if header.magic != MAGIC:
        raise ProtocolError(f"a batch of magic {header.magic}, where magic {MAGIC} is expected")
    if header.batch_length + LENGTH_PREFIX_SIZE != len(view) or header.records_count < 1:
        raise ProtocolError(
            f"{len(view)} bytes are not one record batch: its header says "
            f"{header.batch_length + LENGTH_PREFIX_SIZE} bytes and {header.records_count} records"
        )
    if header.producer_id != NO_PRODUCER_ID or header.attributes & (TRANSACTIONAL_BIT | CONTROL_BIT):
        raise LegacyFormatError(
            f"the batch has the identity of a producer (id {header.producer_id}), "
            f"which message sets of magic {magic} cannot carry",
            LegacyFormatReason.IDENTITY,
        )
    return header


@cython.cfunc
def _converted(
    data: cython.p_const_uchar,
    size: cython.Py_ssize_t,
    header: Any,
    magic: cython.int,
    drop_headers: cython.bint,
) -> bytearray:
    """The entries of all records, uncompressed.

    Args:
        data: the records section, uncompressed.
        size: its bytes.
        drop_headers: whether records may have headers.
    """
    count: cython.Py_ssize_t = header.records_count
    overhead: cython.Py_ssize_t = ENTRY_OVERHEAD[magic]
    records: RecordWalk = RecordWalk(header.base_timestamp)
    records.start(data, size)
    total: cython.longlong
    if size < _LONG:
        total = _measured(records, count, overhead)
    else:
        with cython.nogil:
            total = _measured(records, count, overhead)
    if total < 0:
        raise ProtocolError(
            f"damaged records in a batch: record {records.index} of {count}, before byte {records.at} of {size}"
        )
    if records.with_headers and not drop_headers:
        raise _headers_refused(records, count, magic)
    if total > _LARGEST_SET:
        raise LegacyFormatError(
            f"a message set of {total} bytes is larger than the protocol can say", LegacyFormatReason.SIZE
        )
    entries: bytearray = bytearray(total)
    memory: cython.p_uchar
    if cython.compiled:
        memory = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(entries))
    else:
        memory = entries
    records.start(data, size)
    if size < _LONG:
        _write(records, count, magic, memory)
    else:
        with cython.nogil:
            _write(records, count, magic, memory)
    return entries


@cython.cfunc
def _headers_refused(records: RecordWalk, count: cython.Py_ssize_t, magic: int) -> Exception:
    """The error that names the records with headers."""
    indexes: list = []
    records.start(records.data, records.size)
    for index in range(count):
        records.step()
        if records.header_count:
            indexes.append(index)
    return LegacyFormatError(
        f"{len(indexes)} of {count} records have headers, which message sets of magic {magic} cannot carry",
        LegacyFormatReason.HEADERS,
        indexes,
    )


@cython.cfunc
def _packed(entries: bytearray, header: Any, magic: int, codec: Codec) -> bytearray:
    """The entries as they are, or compressed in a wrapper."""
    if codec.id == 0:
        return entries
    payload: Any = codec.compress(entries)
    if codec.id == LZ4 and magic == 0:
        payload = with_old_checksum(payload)
    size: cython.Py_ssize_t = len(payload)
    wrapper: bytearray = bytearray(ENTRY_OVERHEAD[magic] + size)
    last: cython.longlong = header.records_count - 1
    time: cython.longlong = header.max_timestamp
    attributes: cython.int = codec.id
    if not cython.compiled:
        _put_entry(wrapper, 0, last, magic, attributes, time, payload, 0, -1, 0, size)
        return wrapper
    view = cython.declare(cython.Py_buffer)
    PyObject_GetBuffer(payload, cython.address(view), PyBUF_SIMPLE)
    _put_entry(
        cython.cast(cython.p_uchar, PyByteArray_AS_STRING(wrapper)),
        0,
        last,
        magic,
        attributes,
        time,
        cython.cast(cython.p_const_uchar, view.buf),
        0,
        -1,
        0,
        size,
    )
    PyBuffer_Release(cython.address(view))
    return wrapper


# ---------------------------------------------------------------------------------------------- the outline of a set

# C variables when compiled.
_CUT_OFF = cython.declare(cython.int, -1)
_MIXED = cython.declare(cython.int, -2)
_UNKNOWN_CODEC = cython.declare(cython.int, -3)
_TWO_WRAPPERS = cython.declare(cython.int, -4)
_PROBLEMS = {
    _CUT_OFF: "it is cut off, or a size in it is wrong",
    _MIXED: "its messages differ in magic or codec",
    _UNKNOWN_CODEC: "its codec is not one of none, gzip, snappy and lz4",
    _TWO_WRAPPERS: "it has more than one compressed message",
}


def problem_of_set(problem: int) -> str:
    """What a negative result of `codec_of_set` means."""
    return _PROBLEMS[problem]


def codec_of_set(data: cython.p_const_uchar, size: cython.Py_ssize_t, magic: cython.int) -> cython.int:
    """The codec of a message set if its entries fill the memory exactly, and have one magic and codec; else a problem.

    Args:
        size: of the memory, more than 0.
    """
    smallest: cython.Py_ssize_t = _SMALLEST_ENTRY_WITH_TIME if magic else _SMALLEST_ENTRY
    codec: cython.int = 0
    at: cython.Py_ssize_t = 0
    length: cython.longlong
    attributes: cython.int
    while at < size:
        if size - at < smallest:
            return _CUT_OFF
        length = big_endian_at(data, at + _SIZE_AT, 4) + _PREFIX_SIZE
        if length < smallest or length > size - at:
            return _CUT_OFF
        attributes = big_endian_at(data, at + _ATTRIBUTES_AT, 1) & _CODEC_MASK
        if at == 0:
            codec = attributes
        if big_endian_at(data, at + _MAGIC_AT, 1) != magic or attributes != codec:
            return _MIXED
        if codec > _LAST_CODEC:
            return _UNKNOWN_CODEC
        if codec and at > 0:
            return _TWO_WRAPPERS
        at += length
    return codec


# ------------------------------------------------------------------------------------------------ reading records


@cython.final
@cython.cclass
class RecordWalk:
    """A place in the records section of a batch; `step` reads the record there and goes on to the next.

    Attributes:
        at: where the next record begins; `index`: its number.
        damaged: a length does not fit. From then on nothing that was read may be used.
        with_headers: how many of the records so far have headers.
    """

    data: cython.p_const_uchar
    size: cython.Py_ssize_t
    at: cython.Py_ssize_t
    index: cython.Py_ssize_t
    damaged: cython.bint
    with_headers: cython.Py_ssize_t
    # Of the record that was read last. Sizes are -1 for null.
    timestamp: cython.longlong
    key_at: cython.Py_ssize_t
    key_size: cython.Py_ssize_t
    value_at: cython.Py_ssize_t
    value_size: cython.Py_ssize_t
    header_count: cython.longlong
    _end: cython.Py_ssize_t
    _base_timestamp: cython.longlong

    def __init__(self, base_timestamp: cython.longlong) -> None:
        self._base_timestamp = base_timestamp

    @cython.cfunc
    def start(self, data: cython.p_const_uchar, size: cython.Py_ssize_t) -> cython.void:
        """Go to the first record of a section, which the caller keeps in memory."""
        self.data = data
        self.size = size
        self.at = 0
        self.index = 0
        self.damaged = False
        self.with_headers = 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def step(self) -> cython.void:
        self._end = self.size
        length: cython.longlong = self._number()
        if self.damaged or length < 1 or length > self.size - self.at:
            self.damaged = True
            return
        self._end = self.at + length
        self.at += 1  # record attributes: none are defined
        delta: cython.longlong = self._number()
        if delta > 0:
            if self._base_timestamp > _LARGEST_TIME - delta:
                self.damaged = True
                return
        elif self._base_timestamp < -_LARGEST_TIME - 1 - delta:
            self.damaged = True
            return
        self.timestamp = self._base_timestamp + delta
        self._number()  # the offset delta: records of a producer are numbered from 0 without a gap
        self.key_size = self._number_of_bytes()
        self.key_at = self.at
        if self.key_size > 0:
            self.at += self.key_size
        self.value_size = self._number_of_bytes()
        self.value_at = self.at
        if self.value_size > 0:
            self.at += self.value_size
        self.header_count = self._number()
        if self.header_count:
            self.with_headers += 1
        elif self.at != self._end:
            self.damaged = True
        self.at = self._end
        self.index += 1

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _number_of_bytes(self) -> cython.Py_ssize_t:
        """A length that fits into the record; -1 for null."""
        size: cython.longlong = self._number()
        if size < -1 or size > self._end - self.at:
            self.damaged = True
            return _CUT_OFF
        return size

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _number(self) -> cython.longlong:
        """A varint; 0 if the record ends before it does."""
        shift: cython.int = 0
        rest: cython.ulonglong = 0
        byte: cython.ulonglong
        value: cython.longlong
        while True:
            if self.at >= self._end:
                self.damaged = True
                return 0
            byte = self.data[self.at]
            self.at += 1
            if shift == 63 and byte > 1:
                self.damaged = True
                return 0
            rest |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
        value = rest >> 1
        return -value - 1 if rest & 1 else value


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _measured(records: RecordWalk, count: cython.Py_ssize_t, overhead: cython.Py_ssize_t) -> cython.longlong:
    """Bytes of the entries of all records; -1: the section is not that many records."""
    total: cython.longlong = count * overhead
    for _ in range(count):
        records.step()
        if records.damaged:
            return _CUT_OFF
        if records.key_size > 0:
            total += records.key_size
        if records.value_size > 0:
            total += records.value_size
    return total if records.at == records.size else -1


# ------------------------------------------------------------------------------------------------ writing entries


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _write(
    records: RecordWalk, count: cython.Py_ssize_t, magic: cython.int, memory: cython.p_uchar
) -> cython.void:
    """Write the entries of all records; the caller has measured them."""
    at: cython.Py_ssize_t = 0
    index: cython.Py_ssize_t
    for index in range(count):
        records.step()
        at = _put_entry(
            memory,
            at,
            index,
            magic,
            0,
            records.timestamp,
            records.data,
            records.key_at,
            records.key_size,
            records.value_at,
            records.value_size,
        )


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _put_entry(
    memory: cython.p_uchar,
    at: cython.Py_ssize_t,
    offset: cython.longlong,
    magic: cython.int,
    attributes: cython.int,
    timestamp: cython.longlong,
    data: cython.p_const_uchar,
    key_at: cython.Py_ssize_t,
    key_size: cython.Py_ssize_t,
    value_at: cython.Py_ssize_t,
    value_size: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Write one entry, whose key and value are in `data`; the position behind it."""
    size_at: cython.Py_ssize_t = put_big_endian(memory, at, offset, 8)
    crc_at: cython.Py_ssize_t = size_at + 4
    checked: cython.Py_ssize_t = crc_at + 4
    at = put_big_endian(memory, checked, magic, 1)
    at = put_big_endian(memory, at, attributes, 1)
    if magic:
        at = put_big_endian(memory, at, timestamp, 8)
    at = _put_field(memory, at, data, key_at, key_size)
    at = _put_field(memory, at, data, value_at, value_size)
    put_big_endian(memory, size_at, at - crc_at, 4)
    checksum: cython.longlong
    if cython.compiled:
        checksum = crc32_at(memory + checked, at - checked, 0)
    else:
        checksum = zlib.crc32(memoryview(memory)[checked:at])
    put_big_endian(memory, crc_at, checksum, 4)
    return at


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _put_field(
    memory: cython.p_uchar,
    at: cython.Py_ssize_t,
    data: cython.p_const_uchar,
    start: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Write bytes after their length, which is -1 for null; the position behind them."""
    at = put_big_endian(memory, at, size, 4)
    if size <= 0:
        return at
    if cython.compiled:
        memcpy(memory + at, data + start, size)
    else:
        memory[at : at + size] = data[start : start + size]
    return at + size
