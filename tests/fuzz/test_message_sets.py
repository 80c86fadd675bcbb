# SPDX-License-Identifier: Apache-2.0
"""Corrupt message sets, and corrupt batches that are to be converted to them."""

from __future__ import annotations

import random
import struct
import zlib

from fuzz.mutations import EFFORT, Mutation, corrupt, mutations
from fuzz.set_rounds import one_round
from google_crc32c import value as crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from records.legacy.entries import CODECS, batch_of, entry, plain_records

from penstock.errors import ProtocolError
from penstock.protocol._produce_cy import PartitionBatch, ProduceRequest
from penstock.records.compression import codec
from penstock.records.format import BATCH_LENGTH_AT, HEADER_SIZE, LENGTH_PREFIX_SIZE
from penstock.records.legacy._sets_cy import convert
from penstock.records.legacy.errors import LegacyFormatError
from penstock.records.legacy.lz4 import with_old_checksum
from penstock.records.legacy.reader import LegacyRecord, read_set
from penstock.records.reader import Record, read_batches

many = settings(max_examples=100 * EFFORT, deadline=None)
magics = st.integers(0, 1)
codecs = st.sampled_from(CODECS)
MAX_BYTES = 1_000_000


def read(data: bytes) -> list[LegacyRecord] | None:
    """The records, or None when the set was refused, which is the only other way in which it may end."""
    try:
        return list(read_set(data, max_bytes=MAX_BYTES))
    except ProtocolError:
        return None


@many
@given(records=plain_records(6), magic=magics, name=codecs, changes=mutations)
def test_a_corrupt_set_is_refused_or_says_what_it_says(
    records: list[Record], magic: int, name: str, changes: list[Mutation]
) -> None:
    data = corrupt(bytes(convert(batch_of(records), magic, codec(name))), changes)
    found = read(data)
    try:
        ProduceRequest(1, 1, [PartitionBatch("t", bytes(16), 0, data)])
    except ValueError:
        return
    if found is not None and name == "none" and magic == data[16] < 2 and not any(data[17:18]):
        written = b"".join(
            entry(each.offset, each.key, each.value, magic=each.magic, timestamp=each.timestamp or 0)
            for each in found
        )
        assert len(written) == len(data)


@many
@given(records=plain_records(6), magic=magics, name=st.sampled_from(CODECS[1:]), changes=mutations)
def test_what_is_in_a_wrapper_is_checked_too(
    records: list[Record], magic: int, name: str, changes: list[Mutation]
) -> None:
    """The inner entries are corrupted before they are compressed, so that no checksum of the wrapper tells."""
    inner = corrupt(bytes(convert(batch_of(records), magic, codec("none"))), changes)
    payload = bytes(codec(name).compress(inner))
    if magic == 0 and name == "lz4":
        payload = bytes(with_old_checksum(payload))
    offset = len(records) - 1
    found = read(entry(offset, None, payload, magic=magic, attributes=codec(name).id))
    if found is not None:
        assert sum(26 + 8 * magic + len(each.key or b"") + len(each.value or b"") for each in found) == len(
            inner
        )


@many
@given(data=st.binary(min_size=1, max_size=120), magic=magics, attributes=st.integers(0, 15))
def test_any_body_under_a_right_checksum(data: bytes, magic: int, attributes: int) -> None:
    found = read(entry(magic=magic, attributes=attributes, body=data))
    if found is not None and not attributes & 7:
        (record,) = found
        assert len(data) == 8 + 8 * magic + len(record.key or b"") + len(record.value or b"")


@many
@given(records=plain_records(6), magic=magics, name=st.sampled_from([*CODECS, "zstd"]), changes=mutations)
def test_a_corrupt_batch_is_refused_or_converted_as_it_is_read(
    records: list[Record], magic: int, name: str, changes: list[Mutation]
) -> None:
    batch = batch_of(records, codec(name))
    data = bytearray(batch[:HEADER_SIZE] + corrupt(batch[HEADER_SIZE:], changes))
    struct.pack_into(">i", data, BATCH_LENGTH_AT, len(data) - LENGTH_PREFIX_SIZE)
    try:
        converted = convert(data, magic, codec("none"))
    except (ProtocolError, LegacyFormatError):
        return
    struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    expected = as_read(bytes(data))
    if expected is not None:  # the reader also looks at offset deltas and names of headers
        assert [(each.key, each.value) for each in read_set(converted)] == expected


def as_read(data: bytes) -> list[tuple[bytes | None, bytes | None]] | None:
    try:
        (batch,) = read_batches(data)
        return [(each.key, each.value) for each in batch.iter_records(MAX_BYTES)]
    except ProtocolError:
        return None


def test_rounds_of_damaged_batches() -> None:
    """What `make fuzz` does with the address sanitizer, for a moment."""
    converted = [one_round(seed) for seed in range(150 * EFFORT)]
    assert 10 < sum(converted) < len(converted)


def test_random_bytes_with_right_checksums() -> None:
    rng = random.Random(11)
    for _ in range(2000 * EFFORT):
        body = struct.pack(">bb", rng.randrange(2), rng.randrange(4)) + rng.randbytes(rng.randrange(60))
        message = struct.pack(">I", zlib.crc32(body)) + body
        read(struct.pack(">qi", rng.randrange(3), len(message)) + message)
