# SPDX-License-Identifier: Apache-2.0
"""The codecs: what they write is what other implementations read, and what they read cannot take too much memory."""

from __future__ import annotations

import gzip
import random
import struct
import sys
import tracemalloc

import lz4.frame
import pytest
import snappy
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError, ProtocolError
from penstock.records.compression import CODECS, CompressionRatioEstimator, codec, decompress

NAMES = [row.name for row in CODECS]
PACKING = [name for name in NAMES if name != "none"]
MB = 1024 * 1024
BOUND = 4 * MB


def text(size: int) -> bytes:
    words = [b"order", b"customer", b'"amount":', b"12.50", b"{}", b"\x00\x01", b"street", b"2024-11-15"]
    rng = random.Random(size)
    return b" ".join(rng.choices(words, k=size // 4 + 1))[:size]


def noise(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def read_by_another(name: str, data: bytes) -> bytes:
    """Decompress with a library that the package itself does not use."""
    if name == "gzip":
        return gzip.decompress(data)
    if name == "lz4":
        return lz4.frame.decompress(data)
    if name == "zstd":
        return zstandard.ZstdDecompressor().decompressobj().decompress(data)
    assert data[:16] == b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    raw, at = b"", 16
    while at < len(data):
        (length,) = struct.unpack_from(">i", data, at)
        block = snappy.uncompress(data[at + 4 : at + 4 + length])
        assert len(block) <= 32 * 1024
        raw += block
        at += 4 + length
    return raw


@pytest.mark.parametrize("size", [0, 1, 100, 32767, 32768, 32769, 65535, 65536, 65537, 200_000, MB])
@pytest.mark.parametrize("content", [text, noise, bytes])
@pytest.mark.parametrize("name", NAMES)
def test_round_trip(name, content, size):
    raw = content(size)
    chosen = codec(name)
    packed = bytes(chosen.compress(raw))
    assert decompress(chosen.id, packed, max(size, 1)) == raw
    if name != "none":
        assert read_by_another(name, packed) == raw


@pytest.mark.parametrize(
    "buffer", [bytes, bytearray, memoryview, lambda raw: memoryview(b"xx" + raw + b"y")[2:-1]]
)
@pytest.mark.parametrize("name", NAMES)
def test_any_buffer_is_taken(name, buffer):
    raw = text(70_000)
    chosen = codec(name)
    packed = chosen.compress(buffer(raw))
    assert len(packed) == memoryview(packed).nbytes
    assert decompress(chosen.id, packed, BOUND) == raw
    assert decompress(chosen.id, buffer(bytes(packed)), BOUND) == raw


@given(raw=st.binary(max_size=2000), name=st.sampled_from(NAMES))
def test_round_trip_of_anything(raw, name):
    chosen = codec(name)
    assert decompress(chosen.id, chosen.compress(raw), max(1, len(raw))) == raw


def test_without_a_codec_nothing_is_copied():
    raw = memoryview(bytearray(100))
    assert codec("none").compress(raw) is raw


LEVELS = [
    ("gzip", -1),
    ("gzip", 1),
    ("gzip", 9),
    ("zstd", -131072),
    ("zstd", -1),
    ("zstd", 1),
    ("zstd", 19),
    ("zstd", 22),
]


@pytest.mark.parametrize(("name", "level"), [*LEVELS, *(("lz4", level) for level in range(1, 18))])
def test_every_level_round_trips(name, level):
    raw = text(150_000)
    packed = bytes(codec(name, level).compress(raw))
    assert read_by_another(name, packed) == raw
    assert decompress(codec(name).id, packed, BOUND) == raw


@pytest.mark.parametrize(
    ("name", "low", "high"), [("gzip", 1, 9), ("lz4", 9, 1), ("lz4", 9, 17), ("zstd", 1, 15)]
)
def test_a_level_makes_a_difference(name, low, high):
    raw = text(150_000)
    assert len(codec(name, high).compress(raw)) < len(codec(name, low).compress(raw))


@pytest.mark.parametrize("level", [1, 8, 9, 17])
def test_lz4_frames_are_as_java_wants_them(level):
    info = lz4.frame.get_frame_info(bytes(codec("lz4", level).compress(text(200_000))))
    assert info["block_size"] == 64 * 1024
    assert info["block_linked"] is False  # Java refuses linked blocks
    assert info["content_checksum"] is False
    assert info["content_size"] == 0


def test_lz4_stores_what_does_not_compress():
    assert len(codec("lz4").compress(noise(200_000))) == 7 + 4 * 4 + 200_000 + 4


def test_levels_and_ids_by_default():
    assert [(row.name, row.id, codec(row.name).level) for row in CODECS] == [
        ("none", 0, None),
        ("gzip", 1, -1),
        ("snappy", 2, None),
        ("lz4", 3, 9),
        ("zstd", 4, 3),
    ]


@pytest.mark.parametrize(
    ("name", "level", "match"),
    [
        ("gzip", 0, r"compression\.gzip\.level must be from 1 to 9"),
        ("gzip", 10, r"gzip\.level"),
        ("gzip", -2, r"gzip\.level"),
        ("lz4", 0, r"lz4\.level must be from 1 to 17"),
        ("lz4", 18, r"lz4\.level"),
        ("zstd", 23, r"zstd\.level must be from -131072 to 22"),
        ("zstd", -131073, r"zstd\.level"),
        ("snappy", 1, "snappy has no levels"),
        ("none", 1, "none has no levels"),
        ("brotli", None, "none, gzip, snappy, lz4, zstd, not 'brotli'"),
    ],
)
def test_wrong_choices_are_refused(name, level, match):
    with pytest.raises(ConfigError, match=match):
        codec(name, level)


@pytest.mark.parametrize("name", ["snappy", "lz4", "zstd"])
def test_a_missing_library_is_named(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "cramjam", None)
    with pytest.raises(ConfigError, match=f"{name} needs the package cramjam.*pip install cramjam"):
        codec(name)
    with pytest.raises(ConfigError, match="pip install cramjam"):
        decompress(codec_id(name), b"data", 100)


def test_gzip_needs_no_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "cramjam", None)
    assert decompress(1, codec("gzip").compress(b"data"), 100) == b"data"


def codec_id(name: str) -> int:
    return NAMES.index(name)


@pytest.mark.parametrize("name", NAMES)
def test_the_bound_is_exact(name):
    raw = text(100_000)
    packed = codec(name).compress(raw)
    assert decompress(codec_id(name), packed, 100_000) == raw
    with pytest.raises(ProtocolError, match="99999 bytes"):
        decompress(codec_id(name), packed, 99_999)


@pytest.mark.parametrize("name", PACKING)
def test_bombs_are_refused(name):
    packed = bytes(codec(name).compress(bytes(8 * MB)))
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match=f"{MB} bytes"):
            decompress(codec_id(name), packed, MB)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * MB  # refused before it went off, not after


@pytest.mark.parametrize("name", ["gzip", "lz4", "zstd", "snappy"])
def test_frames_one_after_the_other_are_read(name):
    first, second = bytes(codec(name).compress(b"one ")), bytes(codec(name).compress(text(70_000)))
    assert decompress(codec_id(name), first + second, BOUND) == b"one " + text(70_000)
    with pytest.raises(ProtocolError):
        decompress(codec_id(name), first + second, 1000)


@pytest.mark.parametrize("name", PACKING)
@pytest.mark.parametrize("size", [300, 100_000])
def test_data_cut_off_is_refused(name, size):
    raw = text(size)
    packed = bytes(codec(name).compress(raw))
    for keep in {1, 4, 9, 17, 19, len(packed) // 2, len(packed) - 5, len(packed) - 1}:
        with pytest.raises(ProtocolError, match=f"{name} data"):
            decompress(codec_id(name), packed[:keep], BOUND)


@pytest.mark.parametrize("name", PACKING)
@pytest.mark.parametrize("junk", [b"\x00" * 40, b"\xff" * 40, b"junk that no codec has written, ever"])
def test_junk_is_refused(name, junk):
    with pytest.raises(ProtocolError, match=f"{name} data"):
        decompress(codec_id(name), junk, BOUND)


@given(data=st.binary(max_size=200), name=st.sampled_from(PACKING))
def test_nothing_else_than_a_protocol_error_comes_out(data, name):
    try:
        assert len(decompress(codec_id(name), data, 10_000)) <= 10_000
    except ProtocolError:
        pass


@pytest.mark.parametrize("name", PACKING)
@given(at=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_flipped_bits_do_no_harm(name, at, bit):
    packed = bytearray(codec(name).compress(text(500)))
    packed[at % len(packed)] ^= 1 << bit
    try:
        decompress(codec_id(name), packed, 10_000)
    except ProtocolError:
        pass


def test_snappy_without_the_stream_around_it_is_read():
    raw = text(5000)
    assert decompress(2, snappy.compress(raw), 5000) == raw
    with pytest.raises(ProtocolError, match="4999"):
        decompress(2, snappy.compress(raw), 4999)


def test_lz4_of_other_settings_is_read():
    raw = text(500_000)
    packed = lz4.frame.compress(
        raw, block_size=lz4.frame.BLOCKSIZE_MAX1MB, block_linked=True, content_checksum=True
    )
    assert decompress(3, packed, BOUND) == raw


def test_zstd_of_unknown_size_is_read():
    compressor = zstandard.ZstdCompressor(write_content_size=False, write_checksum=True)
    assert decompress(4, compressor.compress(text(500_000)), BOUND) == text(500_000)


@pytest.mark.parametrize("unknown", [5, 6, 7, -1])
def test_unknown_codecs_are_refused(unknown):
    with pytest.raises(ProtocolError, match=f"unknown codec {unknown}"):
        decompress(unknown, b"", 10)


LZ4, ZSTD = 3, 4


@pytest.fixture
def ratios():
    return CompressionRatioEstimator()


def test_a_new_topic_is_expected_not_to_compress(ratios):
    assert ratios.estimate("orders", ZSTD) == 1.0


@pytest.mark.parametrize(
    ("expected", "observed", "learned"),
    [
        (1.0, 0.4, 0.995),  # better: one small step
        (1.0, 0.997, 0.997),  # better by less than a step: what was seen
        (0.5, 0.52, 0.55),  # worse: at least one large step
        (0.5, 0.9, 0.9),  # much worse: what was seen
        (0.5, 0.5, 0.5),
        (1.0, 1.02, 1.05),  # data that grows
        (0.5, 0.501, 0.55),
    ],
)
def test_one_observation(ratios, expected, observed, learned):
    ratios.reset("orders", ZSTD, expected)
    assert ratios.observe("orders", ZSTD, observed) == pytest.approx(learned, abs=1e-12)
    assert ratios.estimate("orders", ZSTD) == pytest.approx(learned, abs=1e-12)


def test_good_results_are_approached_in_steps_and_not_passed(ratios):
    for _ in range(60):
        ratios.observe("orders", ZSTD, 0.75)
    assert ratios.estimate("orders", ZSTD) == 0.75
    for _ in range(10):
        ratios.observe("orders", ZSTD, 0.25)
    assert ratios.estimate("orders", ZSTD) == pytest.approx(0.70)


def test_topics_codecs_and_producers_are_apart(ratios):
    ratios.observe("orders", ZSTD, 0.5)
    assert ratios.estimate("orders", LZ4) == 1.0
    assert ratios.estimate("payments", ZSTD) == 1.0
    assert CompressionRatioEstimator().estimate("orders", ZSTD) == 1.0


def test_reset_forgets(ratios):
    ratios.observe("orders", ZSTD, 0.5)
    ratios.reset("orders", ZSTD)
    assert ratios.estimate("orders", ZSTD) == 1.0
    ratios.reset("orders", ZSTD, 1.3)
    assert ratios.estimate("orders", ZSTD) == 1.3
