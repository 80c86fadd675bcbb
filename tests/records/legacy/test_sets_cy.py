# SPDX-License-Identifier: Apache-2.0
"""Conversion to message sets: Java's bytes, every codec, and what the old formats cannot express refused by name."""

from __future__ import annotations

import random
import struct
import zlib
from types import ModuleType
from typing import Any

import pytest
from fix_impl import as_bytes, golden, implementations
from fix_records import fill, seal
from hypothesis import given
from hypothesis import strategies as st
from records.legacy.entries import CODECS, NO_CODEC, batch_of, batches, entry, plain_records

from penstock.errors import ProtocolError
from penstock.records.compression import codec, decompress
from penstock.records.format import BATCH_HEADER, HEADER_SIZE, TRANSACTIONAL_BIT, BatchHeader
from penstock.records.legacy.errors import LegacyFormatError, LegacyFormatReason
from penstock.records.legacy.reader import LegacyRecord, TimestampType, read_set
from penstock.records.reader import Record
from penstock.types import Header

sets = implementations("penstock.records.legacy._sets_cy")

TIME = 1_500_000_000_000
PLAIN = [
    Record(0, TIME, b"key", b"value", ()),
    Record(1, TIME + 70, None, b"", ()),
    Record(2, TIME - 3, b"", None, ()),
]


def from_producer(case: dict[str, Any]) -> bool:
    """Whether a producer would write the case: numbered from 0, with its own timestamps."""
    offsets = [record["offset"] for record in case["records"]]
    return offsets == list(range(len(offsets))) and case["timestamp_type"] == "create_time"


CASES = [case for case in golden("legacy_v0_v1.jsonl") if from_producer(case.values[0])]


def expected(records: list[Record], magic: int) -> list[LegacyRecord]:
    kind = TimestampType.CREATE_TIME if magic else None
    return [
        LegacyRecord(index, each.timestamp if magic else None, kind, each.key, each.value, magic)
        for index, each in enumerate(records)
    ]


def with_header(batch: bytes, **fields: int) -> bytes:
    header = BatchHeader(*BATCH_HEADER.unpack_from(batch))._replace(**fields)
    return BATCH_HEADER.pack(*header) + batch[HEADER_SIZE:]


# ---------------------------------------------------------------------------------------------------- what is right


@pytest.mark.parametrize("case", CASES)
def test_a_batch_becomes_the_set_that_java_writes(sets: ModuleType, case: dict[str, Any]) -> None:
    records = [
        Record(
            index, -1 if each["timestamp"] is None else each["timestamp"], as_bytes(each["key"]),
            as_bytes(each["value"]), (),
        )
        for index, each in enumerate(case["records"])
    ]  # fmt: skip
    converted = bytes(sets.convert(batch_of(records), case["magic"], codec(case["codec"])))
    golden_set = bytes.fromhex(case["hex"])
    if case["byte_exact"]:
        assert converted == golden_set
        return
    # The library may compress otherwise than Java's; what is compressed, and all around it, is the same.
    assert list(read_set(converted)) == list(read_set(golden_set))
    (message,) = case["messages"]
    head = 18 + 8 * case["magic"]
    assert converted[:8] == golden_set[:8]
    assert converted[16:head] == golden_set[16:head]
    assert converted[head : head + 4] == golden_set[head : head + 4] == b"\xff" * 4  # no key
    assert inner_set(converted, case) == inner_set(golden_set, case)
    if "lz4_header_checksum" in case:
        assert converted[head + 8 + 6] == case["lz4_header_checksum"]
    assert message["attributes"] == codec(case["codec"]).id


def inner_set(data: bytes, case: dict[str, Any]) -> bytes:
    payload = bytearray(data[26 + 8 * case["magic"] :])
    if "lz4_header_checksum" in case:
        assert payload[6] == case["lz4_header_checksum"]
        payload[6] = case["lz4_header_checksum_by_lz4_spec"]
    return decompress(codec(case["codec"]).id, bytes(payload), 1_000_000)


@pytest.mark.parametrize("magic", [0, 1])
@given(
    records=plain_records(),
    before=st.sampled_from([*CODECS, "zstd"]),
    after=st.sampled_from(CODECS),
)
def test_every_record_comes_out_as_it_went_in(
    sets_forms: list[ModuleType], magic: int, records: list[Record], before: str, after: str
) -> None:
    batch = batch_of(records, codec(before))
    converted = [bytes(form.convert(batch, magic, codec(after))) for form in sets_forms]
    assert list(read_set(converted[0])) == expected(records, magic)
    assert set(converted) == {converted[0]}


@pytest.fixture(scope="module")
def sets_forms() -> list[ModuleType]:
    from fix_impl import forms, load

    name = "penstock.records.legacy._sets_cy"
    return [load(name, form) for form in forms(name)]


@pytest.mark.parametrize("magic", [0, 1])
def test_an_uncompressed_set_is_entries_one_behind_the_other(sets: ModuleType, magic: int) -> None:
    written = [
        entry(each.offset, each.key, each.value, magic=magic, timestamp=each.timestamp) for each in PLAIN
    ]
    assert bytes(sets.convert(batch_of(PLAIN), magic, NO_CODEC)) == b"".join(written)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("name", CODECS[1:])
def test_a_wrapper_has_the_last_number_and_the_latest_time(sets: ModuleType, magic: int, name: str) -> None:
    wrapper = bytes(sets.convert(batch_of(PLAIN), magic, codec(name)))
    offset, size, crc, found_magic, attributes = struct.unpack_from(">qiIbb", wrapper)
    assert (offset, size, found_magic, attributes) == (2, len(wrapper) - 12, magic, codec(name).id)
    assert crc == zlib.crc32(wrapper[16:])
    if magic:
        assert struct.unpack_from(">q", wrapper, 18) == (TIME + 70,)
    assert list(read_set(wrapper)) == expected(PLAIN, magic)


@pytest.mark.parametrize("level", [1, 3, 9, 12, 17])
@pytest.mark.parametrize("magic", [0, 1])
def test_every_level_of_lz4_can_be_read(sets: ModuleType, magic: int, level: int) -> None:
    records = [Record(0, TIME, None, b"text " * 50_000, ())]
    converted = sets.convert(batch_of_any_size(records), magic, codec("lz4", level))
    assert list(read_set(converted)) == expected(records, magic)


def batch_of_any_size(records: list[Record]) -> bytes:
    return seal(fill(batches, records, capacity=1_000_000))


def test_a_large_batch_is_converted_too(sets: ModuleType) -> None:
    """Beyond the size from which on the interpreter lock is released."""
    rng = random.Random(5)
    records = [Record(index, TIME + index, rng.randbytes(40), rng.randbytes(300), ()) for index in range(600)]
    assert list(read_set(sets.convert(batch_of_any_size(records), 1, NO_CODEC))) == expected(records, 1)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_is_converted(sets: ModuleType, kind: type) -> None:
    batch = batch_of(PLAIN)
    converted = sets.convert(kind(batch), 1, NO_CODEC)
    assert type(converted) is bytearray
    assert list(read_set(converted)) == expected(PLAIN, 1)


@pytest.mark.parametrize("timestamp", [-1, 0, 2**63 - 1])
def test_timestamps_at_the_edges(sets: ModuleType, timestamp: int) -> None:
    records = [Record(0, timestamp, None, b"v", ()), Record(1, 0, None, b"v", ())]
    assert list(read_set(sets.convert(batch_of(records), 1, NO_CODEC))) == expected(records, 1)


# ---------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize("magic", [0, 1])
def test_headers_are_refused_and_the_records_named(sets: ModuleType, magic: int) -> None:
    records = [*PLAIN, Record(3, TIME, b"k", b"v", (Header("h", b"1"),)), PLAIN[0], PLAIN[1]]
    records[5] = records[5]._replace(headers=(Header("h", None), Header("", b"")))
    with pytest.raises(LegacyFormatError, match=f"2 of 6 records have headers.*magic {magic}") as caught:
        sets.convert(batch_of(records), magic, NO_CODEC)
    assert caught.value.reason is LegacyFormatReason.HEADERS
    assert caught.value.indexes == (3, 5)


def test_zstd_is_refused(sets: ModuleType) -> None:
    with pytest.raises(LegacyFormatError, match="zstd cannot be used in message sets of magic 1") as caught:
        sets.convert(batch_of(PLAIN), 1, codec("zstd"))
    assert (caught.value.reason, caught.value.indexes) == (LegacyFormatReason.CODEC, ())


@pytest.mark.parametrize("attributes", [0, TRANSACTIONAL_BIT])
def test_the_identity_of_a_producer_is_refused(sets: ModuleType, attributes: int) -> None:
    batch = seal(fill(batches, PLAIN), ids=(7, 0, 3), attributes=attributes)
    with pytest.raises(LegacyFormatError, match="identity of a producer") as caught:
        sets.convert(batch, 1, NO_CODEC)
    assert (caught.value.reason, caught.value.indexes) == (LegacyFormatReason.IDENTITY, ())


@pytest.mark.parametrize("magic", [-1, 2, 3])
def test_there_are_two_old_formats(sets: ModuleType, magic: int) -> None:
    with pytest.raises(ValueError, match=f"magic 0 or 1, not {magic}"):
        sets.convert(batch_of(PLAIN), magic, NO_CODEC)


@pytest.mark.parametrize(
    "corrupted",
    [
        b"",
        batch_of(PLAIN)[:60],
        batch_of(PLAIN)[:-1],
        batch_of(PLAIN) + b"\0",
        batch_of(PLAIN) * 2,
        with_header(batch_of(PLAIN), magic=1),
        with_header(batch_of(PLAIN), records_count=0),
        with_header(batch_of(PLAIN), records_count=2),
        with_header(batch_of(PLAIN), records_count=4),
        with_header(batch_of(PLAIN), records_count=2**31 - 1),
        with_header(batch_of(PLAIN), attributes=1),
        with_header(batch_of(PLAIN), attributes=7),
        with_header(batch_of(PLAIN), base_timestamp=2**63 - 1),
        with_header(batch_of(PLAIN), base_timestamp=-(2**63)),
    ],
)
def test_what_is_not_one_whole_batch_is_refused(sets: ModuleType, corrupted: bytes) -> None:
    with pytest.raises(ProtocolError):
        sets.convert(corrupted, 1, NO_CODEC)


def test_a_length_that_does_not_fit_names_the_record(sets: ModuleType) -> None:
    batch = bytearray(batch_of([PLAIN[0], PLAIN[0]]))
    second = HEADER_SIZE + 1 + batch[HEADER_SIZE] // 2
    batch[second + 4] = 0x7E  # the length of its key: 63 bytes
    with pytest.raises(ProtocolError, match="record 2 of 2"):
        sets.convert(bytes(batch), 1, NO_CODEC)


@pytest.mark.parametrize("excess", [1, 2, 20])
def test_a_record_that_reaches_beyond_the_batch_is_refused(sets: ModuleType, excess: int) -> None:
    """Both its own length and that of its value say so."""
    batch = bytearray(batch_of([Record(0, TIME, None, b"", ())]))
    batch[HEADER_SIZE] += 2 * excess
    batch[-2] += 2 * excess
    with pytest.raises(ProtocolError, match="record 0 of 1"):
        sets.convert(bytes(batch), 1, NO_CODEC)


@given(position=st.integers(HEADER_SIZE, len(batch_of(PLAIN)) - 1), byte=st.integers(0, 255))
def test_any_byte_may_be_wrong(sets_forms: list[ModuleType], position: int, byte: int) -> None:
    """All forms agree on what is damaged, and on what is not."""
    batch = bytearray(batch_of(PLAIN))
    batch[position] = byte
    found = set()
    for form in sets_forms:
        try:
            found.add(bytes(form.convert(batch, 1, NO_CODEC)))
        except (ProtocolError, LegacyFormatError) as error:
            found.add(f"{type(error)} {error}")
    assert len(found) == 1
