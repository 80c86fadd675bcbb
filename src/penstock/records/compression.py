# SPDX-License-Identifier: Apache-2.0
"""The codecs of Kafka: gzip, snappy, lz4 and zstd, in the framing that the Java client reads and writes.

No other module knows a codec library. gzip is Python's zlib; the other three come from cramjam, which is imported when
such a codec is first asked for. All of them compress outside the interpreter lock.

What is decompressed comes from a peer, so every codec has a bound on what it may grow to.

How well each topic compresses is learned from the batches sent so far (`CompressionRatioEstimator`). A batch is closed
by its size on the wire, which is only known once it is compressed. The estimate is cautious: it follows a worse result
at once and beyond, and a better one in small steps, because a batch that turns out too large costs a split and one that
turns out small costs little.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Container
from types import ModuleType
from typing import NamedTuple

from penstock.errors import ConfigError, ProtocolError
from penstock.records.format import Buffer

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)


class CodecRow(NamedTuple):
    """What can be chosen for one codec; the levels are those of the Java client's options."""

    name: str
    id: int
    default_level: int | None = None
    min_level: int | None = None
    max_level: int | None = None
    library: str | None = None


CODECS = (
    CodecRow("none", NONE),
    CodecRow("gzip", GZIP, default_level=-1, min_level=1, max_level=9),
    CodecRow("snappy", SNAPPY, library="cramjam"),
    CodecRow("lz4", LZ4, default_level=9, min_level=1, max_level=17, library="cramjam"),
    CodecRow("zstd", ZSTD, default_level=3, min_level=-131072, max_level=22, library="cramjam"),
)
_BY_NAME = {row.name: row for row in CODECS}


class Codec(NamedTuple):
    """One way to compress a batch; made by `codec`, which checks it.

    Attributes:
        name: as in `compression.type`.
        id: the number in a batch's attributes.
        level: the compression level, None for a codec that has none.
    """

    name: str
    id: int
    level: int | None = None

    def compress(self, raw: Buffer) -> Buffer:
        """Compress a records section, given as one piece; without a codec, that piece itself."""
        return _COMPRESSORS[self.id](raw, self.level)


def codec(name: str, level: int | None = None) -> Codec:
    """The codec of a configuration.

    Args:
        name: none, gzip, snappy, lz4 or zstd.
        level: None for the codec's default.

    Raises:
        ConfigError: there is no such codec or level, or the library it needs is not installed.
    """
    row = _BY_NAME.get(name)
    if row is None:
        raise ConfigError(
            f"compression.type must be one of {', '.join(_BY_NAME)}, not {name!r}", "compression.type"
        )
    if level is None or level == row.default_level:
        level = row.default_level
    elif row.min_level is None or row.max_level is None:
        raise ConfigError(
            f"compression.type {name} has no levels: {level!r} cannot be set", f"compression.{name}.level"
        )
    elif not row.min_level <= level <= row.max_level:
        allowed = f"from {row.min_level} to {row.max_level} ({row.default_level} is the default)"
        raise ConfigError(
            f"compression.{name}.level must be {allowed}, not {level}", f"compression.{name}.level"
        )
    if row.library is not None:
        _library(name)
    return Codec(row.name, row.id, level)


def decompress(codec_id: int, data: Buffer, max_size: int) -> bytes:
    """The records section of a batch as it was before compression.

    Args:
        codec_id: the number in the batch's attributes.
        data: the section as it is on the wire.
        max_size: bytes that the result may have at most.

    Raises:
        ProtocolError: the codec is unknown, the data is damaged, or the result would exceed `max_size`.
        ConfigError: the library that the codec needs is not installed.
    """
    decompressor = _DECOMPRESSORS.get(codec_id)
    if decompressor is None:
        raise ProtocolError(f"unknown codec {codec_id} in the attributes of a batch")
    return decompressor(data, max_size)


def _library(codec_name: str) -> ModuleType:
    try:
        import cramjam
    except ImportError as error:
        raise ConfigError(
            f"compression.type {codec_name} needs the package cramjam, which cannot be imported ({error}); "
            "install it with: pip install cramjam",
            "compression.type",
        ) from error
    return cramjam


def _too_large(name: str, max_size: int) -> ProtocolError:
    return ProtocolError(f"{name} data decompresses to more than the {max_size} bytes allowed")


# ---------------------------------------------------------------------------------------------------- none


def _keep(raw: Buffer, level: int | None) -> Buffer:
    del level
    return raw


def _kept(data: Buffer, max_size: int) -> bytes:
    if len(data) > max_size:
        raise ProtocolError(f"a records section of {len(data)} bytes exceeds the {max_size} bytes allowed")
    return bytes(data)


# ---------------------------------------------------------------------------------------------------- gzip

# Nobody writes more than one; each costs a copy of all that follow it.
_MAX_GZIP_MEMBERS = 1000
_GZIP_WRAPPER = 31  # zlib's way to say: the largest window, and gzip's header and trailer around the stream


def _gzip(raw: Buffer, level: int | None) -> Buffer:
    return zlib.compress(raw, -1 if level is None else level, _GZIP_WRAPPER)


def _gunzip(data: Buffer, max_size: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    rest = bytes(data)
    while True:  # a gzip file may consist of several members, one after the other
        member = zlib.decompressobj(_GZIP_WRAPPER)
        try:
            piece = member.decompress(rest, max_size - size + 1)
        except zlib.error as error:
            raise ProtocolError(f"damaged gzip data: {error}") from error
        size += len(piece)
        pieces.append(piece)
        if size > max_size:
            raise _too_large("gzip", max_size)
        if not member.eof:
            raise ProtocolError("damaged gzip data: it ends inside the stream")
        rest = member.unused_data
        if rest and len(pieces) >= _MAX_GZIP_MEMBERS:
            raise ProtocolError(f"gzip data of more than {_MAX_GZIP_MEMBERS} members")
        if not rest:
            return b"".join(pieces)


# ---------------------------------------------------------------------------------------------------- snappy

# The stream of snappy-java: magic, version 1, readable from version 1 on; then blocks, each after its length.
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK = 32 * 1024
_XERIAL_LENGTH = struct.Struct(">I")
# A length that no block has: the first bytes of the magic, where one stream follows another.
_XERIAL_RESTART = _XERIAL_LENGTH.unpack_from(_XERIAL_MAGIC)[0]


def _snappy(raw: Buffer, level: int | None) -> Buffer:
    del level
    library = _library("snappy").snappy
    view = memoryview(raw)
    pieces: list[Buffer] = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK):
        block = memoryview(library.compress_raw(view[start : start + _XERIAL_BLOCK]))
        pieces += (_XERIAL_LENGTH.pack(len(block)), block)
    return b"".join(pieces)


def _unsnappy(data: Buffer, max_size: int) -> bytes:
    view = memoryview(data)
    if bytes(view[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        # Clients of other languages write one block without the stream around it, and Java reads that too.
        return _unsnappy_block(view, max_size, max_size)
    pieces: list[bytes] = []
    size = 0
    at = len(_XERIAL_HEADER)
    while at < len(view):
        if at + 4 > len(view):
            raise ProtocolError(f"damaged snappy data: it ends inside a block's length, at byte {at}")
        (length,) = _XERIAL_LENGTH.unpack_from(view, at)
        if length == _XERIAL_RESTART and bytes(view[at : at + len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC:
            at += len(_XERIAL_HEADER)
            continue
        at += 4
        if length > len(view) - at:
            left = len(view) - at
            raise ProtocolError(
                f"damaged snappy data: a block of {length} bytes at byte {at}, {left} are left"
            )
        piece = _unsnappy_block(view[at : at + length], max_size - size, max_size)
        pieces.append(piece)
        size += len(piece)
        at += length
    if at != len(view):
        raise ProtocolError("damaged snappy data: it ends inside a stream's header")
    return b"".join(pieces)


def _unsnappy_block(block: memoryview, room: int, max_size: int) -> bytes:
    cramjam = _library("snappy")
    try:
        # The block says how long it will be: look before the memory for it is taken.
        if cramjam.snappy.decompress_raw_len(block) > room:
            raise _too_large("snappy", max_size)
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise ProtocolError(f"damaged snappy data: {error}") from error


# ---------------------------------------------------------------------------------------------------- lz4

# A frame header: magic; version 1 with independent blocks and no checksums; blocks of 64 KiB; the header's checksum.
_LZ4_HEADER = b"\x04\x22\x4d\x18\x60\x40\x82"
_LZ4_BLOCK = 64 * 1024
_LZ4_LENGTH = struct.Struct("<I")
_LZ4_STORED = 0x8000_0000  # in a block's length: the block is not compressed
_LZ4_END = b"\x00\x00\x00\x00"

# Java has the fast compressor at its default level and the high-compression one at all others, from 1 to 17.
_LZ4_FAST_LEVEL = 9
_LZ4_HC_LEVELS = (
    3,
    12,
)  # the library's range for high compression: 1 and 2 mean the fast one, all above 12 mean 12


def _lz4(raw: Buffer, level: int | None) -> Buffer:
    if level is None or level == _LZ4_FAST_LEVEL:
        return _lz4_fast(raw)
    lowest, highest = _LZ4_HC_LEVELS
    # Its frame differs from the fast one's in a checksum per block, which cannot be switched off and which Java checks.
    compressor = _library("lz4").lz4.Compressor(
        level=min(max(level, lowest), highest), content_checksum=False, block_linked=False
    )
    compressor.compress(bytes(raw))
    return memoryview(compressor.finish())


def _lz4_fast(raw: Buffer) -> Buffer:
    # The frame is put together here: the library's own way takes more than twice the time, and bytes alone.
    compress_block = _library("lz4").lz4.compress_block
    view = memoryview(raw)
    pieces: list[Buffer] = [_LZ4_HEADER]
    for start in range(0, len(view), _LZ4_BLOCK):
        block = view[start : start + _LZ4_BLOCK]
        packed = memoryview(compress_block(block, store_size=False))
        if len(packed) < len(block):
            pieces += (_LZ4_LENGTH.pack(len(packed)), packed)
        else:
            pieces += (_LZ4_LENGTH.pack(len(block) | _LZ4_STORED), block)
    pieces.append(_LZ4_END)
    return b"".join(pieces)


def _unlz4(data: Buffer, max_size: int) -> bytes:
    cramjam = _library("lz4")
    unpack = _Unpacker("lz4", cramjam.lz4.decompress_into, cramjam.DecompressionError, _LZ4_EXPANSION)
    return unpack(data, max_size)


# ---------------------------------------------------------------------------------------------------- zstd


def _zstd(raw: Buffer, level: int | None) -> Buffer:
    return memoryview(_library("zstd").zstd.compress(raw, level))


def _unzstd(data: Buffer, max_size: int) -> bytes:
    cramjam = _library("zstd")
    unpack = _Unpacker("zstd", cramjam.zstd.decompress_into, cramjam.DecompressionError, _ZSTD_EXPANSION)
    return unpack(data, max_size)


# The most that a byte of each format can stand for: lz4 counts repetitions in steps of 255, and a block of zstd may say
# in four bytes that another one comes 128 Ki times.
_LZ4_EXPANSION = 255
_ZSTD_EXPANSION = 32 * 1024

_FIRST_GUESS = 64 * 1024
_GROWTH = 4


class _Unpacker(NamedTuple):
    """Decompresses into memory that grows up to a bound.

    Frames need not tell their size, and the library's own growth has no bound. It does not tell a damaged frame from
    too little memory either, so a failure is final only where the memory was as large as it may be.
    """

    name: str
    decompress_into: Callable[[Buffer, bytearray], int]
    library_error: type[Exception]
    expansion: int

    def __call__(self, data: Buffer, max_size: int) -> bytes:
        largest = min(max_size, _FIRST_GUESS + self.expansion * len(data))
        size = min(largest, max(_FIRST_GUESS, _GROWTH * len(data)))
        while True:
            memory = bytearray(size)
            try:
                written = self.decompress_into(data, memory)
            except self.library_error as error:
                if size == largest:
                    excess = f", or more than the {max_size} bytes allowed" if largest == max_size else ""
                    raise ProtocolError(f"damaged {self.name} data{excess}: {error}") from error
                size = min(largest, _GROWTH * size)
            else:
                return bytes(memoryview(memory)[:written])


_COMPRESSORS: tuple[Callable[[Buffer, int | None], Buffer], ...] = (_keep, _gzip, _snappy, _lz4, _zstd)
_DECOMPRESSORS: dict[int, Callable[[Buffer, int], bytes]] = {
    NONE: _kept,
    GZIP: _gunzip,
    SNAPPY: _unsnappy,
    LZ4: _unlz4,
    ZSTD: _unzstd,
}


# ---------------------------------------------------------------------------------------------------- the ratio

INITIAL_RATIO = 1.0
STEP_WORSE = 0.05
STEP_BETTER = 0.005


class CompressionRatioEstimator:
    """Expected compressed size as a fraction of the raw one, per topic and codec; one for each producer.

    The I/O thread writes and application threads read. Each entry is one float behind one dictionary operation, so a
    reader sees the old value or the new one, and no lock is needed.
    """

    __slots__ = ("_ratios",)

    def __init__(self) -> None:
        self._ratios: dict[tuple[str, int], float] = {}  # written by the I/O thread alone

    def estimate(self, topic: str, codec_id: int) -> float:
        """The ratio to expect of the next batch; 1.0 for a topic not seen yet."""
        return self._ratios.get((topic, codec_id), INITIAL_RATIO)

    def observe(self, topic: str, codec_id: int, ratio: float) -> float:
        """Learn from a batch that was just compressed; the new estimate.

        Args:
            topic: the batch's topic.
            codec_id: the number of its codec.
            ratio: compressed size of the records section divided by its raw size.
        """
        expected = self.estimate(topic, codec_id)
        if ratio > expected:
            learned = max(expected + STEP_WORSE, ratio)
        elif ratio < expected:
            learned = max(expected - STEP_BETTER, ratio)
        else:
            learned = expected
        self._ratios[topic, codec_id] = learned
        return learned

    def reset(self, topic: str, codec_id: int, ratio: float = INITIAL_RATIO) -> None:
        """Forget what was learned and expect `ratio`: after a batch proved too large and was split."""
        self._ratios[topic, codec_id] = ratio

    def keep_topics(self, kept: Container[str]) -> None:
        """Forget what was learned of other topics: it is learned anew when they are used again."""
        for key in [key for key in self._ratios if key[0] not in kept]:
            del self._ratios[key]
