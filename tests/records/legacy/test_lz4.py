# SPDX-License-Identifier: Apache-2.0
"""The lz4 frame of magic 0 and its checksum."""

from __future__ import annotations

import random

import lz4.frame
import pytest
from fix_impl import golden

from penstock.errors import ProtocolError
from penstock.records.compression import LZ4, codec, decompress
from penstock.records.legacy.lz4 import with_old_checksum, with_right_checksum

DATA = b"some text " * 100
FRAMES = [
    bytes(codec("lz4").compress(DATA)),
    bytes(codec("lz4", 3).compress(DATA)),
    lz4.frame.compress(DATA, store_size=True),
    lz4.frame.compress(DATA, store_size=False, block_linked=False, content_checksum=True),
    lz4.frame.compress(DATA, store_size=True, block_size=lz4.frame.BLOCKSIZE_MAX4MB),
]
frames = pytest.mark.parametrize("frame", FRAMES, ids=range(len(FRAMES)))
CASES = [case for case in golden("legacy_v0_v1.jsonl") if case.values[0]["codec"] == "lz4"]


@pytest.mark.parametrize("case", CASES)
def test_both_checksums_are_those_of_java(case):
    payload = bytes.fromhex(case["hex"])[26 + 8 * case["magic"] :]
    assert with_old_checksum(payload)[6] == 26
    right = with_right_checksum(with_old_checksum(payload))
    assert right[6] == case["lz4_header_checksum_by_lz4_spec"] == 130
    if case["magic"] == 0:
        assert with_old_checksum(payload) == payload


@frames
def test_the_old_checksum_changes_one_byte_and_back(frame):
    old = with_old_checksum(frame)
    assert len(old) == len(frame)
    assert [index for index in range(len(frame)) if old[index] != frame[index]] == [14 if frame[4] & 8 else 6]
    with pytest.raises(ProtocolError, match="damaged lz4 data"):
        decompress(LZ4, bytes(old), 10_000)
    assert bytes(with_right_checksum(old)) == frame
    assert decompress(LZ4, bytes(with_right_checksum(old)), 10_000) == DATA


@frames
def test_a_right_frame_stays_as_it_is(frame):
    assert with_right_checksum(frame) is frame


def test_a_checksum_that_is_neither_is_left_to_the_codec():
    frame = bytearray(FRAMES[0])
    frame[6] ^= 0x55
    assert with_right_checksum(frame) is frame
    with pytest.raises(ProtocolError, match="damaged lz4 data"):
        decompress(LZ4, bytes(frame), 10_000)


WITH_DICTIONARY = b"\x04\x22\x4d\x18\x61\x40" + bytes(20)


@pytest.mark.parametrize(
    "frame",
    [b"", b"\x04", FRAMES[0][:4], FRAMES[0][:6], FRAMES[2][:14], bytes(20), WITH_DICTIONARY],
    ids=range(7),
)
def test_what_has_no_such_checksum_is_left_alone(frame):
    assert with_right_checksum(frame) is frame
    with pytest.raises(ValueError, match="not an lz4 frame"):
        with_old_checksum(frame)


def test_any_bytes_may_come():
    rng = random.Random(3)
    for size in range(40):
        frame = b"\x04\x22\x4d\x18" + rng.randbytes(size)
        assert len(with_right_checksum(frame)) == len(frame)
