# SPDX-License-Identifier: Apache-2.0
"""The reader of message sets: Java's sets as they are, and every kind of damage refused by name."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from fix_impl import as_bytes, golden
from hypothesis import given
from hypothesis import strategies as st
from records.legacy.entries import entry, field

from penstock.errors import ProtocolError
from penstock.records.compression import codec
from penstock.records.legacy.lz4 import with_old_checksum
from penstock.records.legacy.reader import LegacyRecord, TimestampType, read_set

CASES = golden("legacy_v0_v1.jsonl")
TIME = 1_500_000_000_000
LOG_APPEND_TIME = 0x08


def golden_records(case):
    kinds = {"create_time": TimestampType.CREATE_TIME, "log_append_time": TimestampType.LOG_APPEND_TIME}
    kind = kinds[case["timestamp_type"]] if case["magic"] else None
    return [
        LegacyRecord(
            record["offset"],
            record["timestamp"],
            kind,
            as_bytes(record["key"]),
            as_bytes(record["value"]),
            case["magic"],
        )
        for record in case["records"]
    ]


def read(data, **options):
    return list(read_set(data, **options))


def wrapper(inner: bytes, name: str = "gzip", *, offset: int = 0, magic: int = 1, **fields: int) -> bytes:
    payload = bytes(codec(name).compress(inner))
    if name == "lz4" and magic == 0:
        payload = bytes(with_old_checksum(payload))
    attributes = codec(name).id | fields.pop("attributes", 0)
    return entry(offset, None, payload, magic=magic, attributes=attributes, **fields)


# ---------------------------------------------------------------------------------------------------- what is right


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("buffer", [bytes, bytearray, memoryview])
def test_javas_sets_are_read(case, buffer):
    assert read(buffer(bytes.fromhex(case["hex"]))) == golden_records(case)


def test_sets_one_behind_the_other_are_read():
    together = b"".join(bytes.fromhex(case.values[0]["hex"]) for case in CASES)
    assert read(together) == [record for case in CASES for record in golden_records(case.values[0])]


def test_no_data_is_no_record():
    assert read(b"") == []


def test_an_entry_that_a_fetch_has_cut_off_is_left_out():
    whole = entry(0) + entry(1)
    for cut in range(1, len(entry(1)) + 1):
        assert [record.offset for record in read(whole[: len(whole) - cut], allow_partial=True)] == [0]
        if cut < len(entry(1)):
            with pytest.raises(ProtocolError, match="cut off"):
                read(whole[: len(whole) - cut])


def test_offsets_in_a_wrapper_of_magic_1_are_relative():
    inner = entry(0) + entry(3) + entry(7)
    assert [record.offset for record in read(wrapper(inner, offset=1007))] == [1000, 1003, 1007]


def test_a_wrapper_without_an_offset_begins_at_0():
    assert [record.offset for record in read(wrapper(entry(0) + entry(1), offset=0))] == [0, 1]


def test_offsets_in_a_wrapper_of_magic_0_are_absolute():
    inner = entry(500, magic=0) + entry(502, magic=0)
    assert [record.offset for record in read(wrapper(inner, offset=502, magic=0))] == [500, 502]


def test_the_brokers_time_stands_for_all_records_of_a_wrapper():
    inner = entry(0, timestamp=1) + entry(1, timestamp=2)
    records = read(wrapper(inner, offset=1, timestamp=TIME, attributes=LOG_APPEND_TIME))
    assert {(record.timestamp, record.timestamp_type) for record in records} == {
        (TIME, TimestampType.LOG_APPEND_TIME)
    }


def test_a_right_lz4_checksum_is_read_in_magic_0_too():
    payload = bytes(codec("lz4").compress(entry(0, magic=0)))
    assert len(read(entry(0, None, payload, magic=0, attributes=3))) == 1


# ---------------------------------------------------------------------------------------------------- what is wrong


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (entry()[:5], "message size: the message is cut off: only 5 bytes"),
        (entry()[:-1], "message size: the message is cut off"),
        (struct.pack(">qi", 0, 13) + b"\0" * 13, "message size: 13 is less than the 14 bytes"),
        (struct.pack(">qi", 0, -1) + b"\0" * 30, "message size: -1 is less than"),
        (struct.pack(">qi", 0, 2**31 - 1) + b"\0" * 30, "message size: the message is cut off"),
        (entry(crc=1), "crc: the bytes have checksum 0x[0-9a-f]{8}, the message says 0x00000001"),
        (entry(magic=2), "magic: 2 where a message set of magic 0 or 1"),
        (entry(magic=-1), "magic: 255 where"),
        (entry(-1), "offset: -1 is less than 0"),
        (entry(attributes=4), "attributes: codec 4 is none of those of magic 1: none, gzip, snappy, lz4"),
        (entry(attributes=7, magic=0), "attributes: codec 7"),
        (entry(body=struct.pack(">q", TIME)), "message size: 14 is less than the 22 bytes"),
        (entry(body=b"\0" * 8 + struct.pack(">ii", 1, -1)), "value length: it crosses the end"),
        (entry(body=b"\0" * 8 + struct.pack(">ii", -2, -1)), "key length: -2 bytes, of which 4 are there"),
        (entry(body=b"\0" * 8 + struct.pack(">ii", 9, -1)), "key length: 9 bytes, of which 4 are there"),
        (entry(body=b"\0" * 8 + field(b"k") + struct.pack(">i", 2**31 - 1)), "value length: 2147483647 bytes"),
        (entry(body=b"\0" * 8 + field(b"k") + field(b"v") + b"x"), "value: 1 bytes follow it"),
        (entry(attributes=1, value=None), "value: a compressed set is null"),
        (wrapper(b""), "value: a compressed set is empty"),
        (wrapper(entry()[:-1]), "of the wrapper at byte 0, message size: the message is cut off"),
        (wrapper(entry(crc=1)), "at byte 0 of the wrapper at byte 0, crc"),
        (wrapper(entry(magic=0)), "magic: 0 in a wrapper of magic 1"),
        (wrapper(entry(), magic=0), "magic: 1 in a wrapper of magic 0"),
        (wrapper(wrapper(entry())), "attributes: a compressed message inside a compressed one"),
        (wrapper(entry(0) + entry(9), offset=5), "offset: -4 is no offset"),
        (wrapper(entry(9) + entry(0), offset=2**63 - 1), "offset: 9223372036854775816 is no offset"),
        (entry(attributes=1, value=b"no gzip"), "damaged gzip data"),
        (entry(attributes=2, value=b"no snappy"), "damaged snappy data"),
        (entry(attributes=3, value=b"no lz4"), "damaged lz4 data"),
    ],
)  # fmt: skip
def test_damage_is_refused_by_name(data, message):
    with pytest.raises(ProtocolError, match=message):
        read(data)


def test_what_comes_before_the_damage_is_yielded():
    records = read_set(entry(0) + entry(1) + entry(2, crc=7))
    assert [next(records).offset, next(records).offset] == [0, 1]
    with pytest.raises(ProtocolError, match=f"at byte {2 * len(entry())}, crc"):
        next(records)


@pytest.mark.parametrize("name", ["gzip", "snappy", "lz4"])
@pytest.mark.parametrize("magic", [0, 1])
def test_a_wrapper_may_not_grow_without_bound(name, magic):
    bomb = wrapper(entry(0, None, b"\0" * 20_000_000, magic=magic), name, magic=magic)
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match="1000000 bytes allowed"):
            read(bomb, max_bytes=1_000_000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8_000_000


@given(data=st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data):
    try:
        read(data)
    except ProtocolError:
        pass  # one of the two ways in which it may end


@given(position=st.integers(0, 10_000), byte=st.integers(0, 255), case=st.sampled_from(CASES))
def test_a_changed_byte_is_found_by_its_checksum(position, byte, case):
    """All but the offset is under a checksum, or is a size that no longer fits."""
    data = bytearray.fromhex(case.values[0]["hex"])
    position %= len(data)
    changed = data[position] != byte
    data[position] = byte
    try:
        found = read(data)
    except ProtocolError:
        assert changed
        return
    if position >= 8 and len(case.values[0]["messages"]) == 1:
        assert not changed
    if not changed:
        assert found == golden_records(case.values[0])
