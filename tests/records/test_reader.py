# SPDX-License-Identifier: Apache-2.0
"""The reader: Java's batches as they are, and every kind of damage refused by name."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools

import pytest
from fix_impl import golden, load
from fix_records import fill, golden_records, record_lists, seal
from google_crc32c import value as crc32c
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ProtocolError
from penstock.records import format as layout
from penstock.records.compression import CODECS, codec
from penstock.records.format import BATCH_HEADER, HEADER_SIZE, BatchHeader
from penstock.records.reader import Record, read_batches
from penstock.types import Header

primitives = load("penstock._primitives_cy", "uncompiled")
batches = load("penstock.records._batch_cy", "uncompiled")

TIME = 1_700_000_000_000
CASES = golden("record_batch_v2.jsonl")
RECORDS = [
    Record(0, TIME, b"key", b"value", (Header("h", b"1"), Header("h", None))),
    Record(1, TIME + 70, None, b"", ()),
    Record(2, TIME - 3, b"", None, ()),
]


def varint(value: int) -> bytes:
    memory = bytearray(10)
    return bytes(memory[: primitives.put_varint(memory, 0, value)])


def field(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def record_body(
    *, offset: int = 0, time: int = 0, key: bytes = b"\x01", value: bytes = b"\x01", rest: bytes = b"\x00"
):
    return b"\x00" + varint(time) + varint(offset) + key + value + rest


def prefixed(body: bytes) -> bytes:
    return varint(len(body)) + body


def make_batch(section: bytes, **fields: int) -> bytes:
    """A batch around a records section, with a right checksum however wrong the rest is."""
    header = BatchHeader(
        base_offset=0,
        batch_length=HEADER_SIZE - layout.LENGTH_PREFIX_SIZE + len(section),
        partition_leader_epoch=-1,
        magic=2,
        crc=0,
        attributes=0,
        last_offset_delta=0,
        base_timestamp=TIME,
        max_timestamp=TIME,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        records_count=1,
    )._replace(**fields)
    batch = bytearray(BATCH_HEADER.pack(*header) + section)
    if "crc" not in fields:
        batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    return bytes(batch)


def read_one(data: bytes):
    [batch] = read_batches(data)
    return batch


def try_read_one(data: bytes):
    try:
        return read_one(data)
    except ProtocolError:
        return None


GOOD = prefixed(record_body())


# ---------------------------------------------------------------------------------------------------- what is right


@pytest.mark.parametrize("case", CASES)
def test_javas_batches_are_read(case):
    data = bytes.fromhex(case["hex"])
    batch = read_one(data)
    assert {name: getattr(batch, name) for name in case["header"]} == case["header"]
    assert batch.records() == golden_records(case)
    assert batch.codec == case["codec"]
    assert batch.is_transactional is case["is_transactional"]
    assert batch.last_sequence == case["last_sequence"]
    assert batch.next_sequence == case["next_sequence"]
    assert not batch.is_control
    assert batch.size == len(data)
    raw = batch.raw_records()
    assert len(raw) == case["records_size"]
    assert hashlib.sha256(raw).hexdigest() == case["records_sha256"]


def test_batches_one_behind_the_other_are_read():
    together = b"".join(bytes.fromhex(case.values[0]["hex"]) for case in CASES)
    read = list(read_batches(together))
    assert [batch.records() for batch in read] == [golden_records(case.values[0]) for case in CASES]
    assert [batch.position for batch in read[1:]] == [batch.position + batch.size for batch in read[:-1]]


@pytest.mark.parametrize("buffer", [bytes, bytearray, memoryview])
def test_any_buffer_is_read(buffer):
    assert read_one(buffer(seal(fill(batches, RECORDS)))).records() == RECORDS


def test_no_data_is_no_batch():
    assert list(read_batches(b"")) == []


def test_offsets_follow_from_the_base():
    batch = read_one(make_batch(GOOD, base_offset=1000, partition_leader_epoch=4))
    assert [record.offset for record in batch.records()] == [1000]
    assert batch.last_offset == 1000


def test_a_compacted_batch_keeps_its_offsets():
    section = prefixed(record_body(offset=3)) + prefixed(record_body(offset=1048576))
    batch = read_one(make_batch(section, base_offset=50, last_offset_delta=1048580, records_count=2))
    assert [record.offset for record in batch.records()] == [53, 1048626]
    assert batch.last_offset == 1048630


def test_a_batch_that_compaction_emptied_is_read():
    batch = read_one(make_batch(b"", last_offset_delta=5, records_count=0))
    assert batch.records() == []


def test_the_brokers_time_stands_for_all_records():
    section = prefixed(record_body(time=5)) + prefixed(record_body(time=9, offset=1))
    fields = {"max_timestamp": TIME + 777, "last_offset_delta": 1, "records_count": 2}
    batch = read_one(make_batch(section, attributes=layout.TIMESTAMP_TYPE_BIT, **fields))
    assert batch.is_log_append_time
    assert {record.timestamp for record in batch.records()} == {TIME + 777}


def test_control_batches_are_marked():
    marker = prefixed(record_body(key=field(b"\x00\x00\x00\x01"), value=field(b"\x00\x00\x00\x00\x00\x00")))
    flags = layout.CONTROL_BIT | layout.TRANSACTIONAL_BIT
    batch = read_one(make_batch(marker, attributes=flags, producer_id=9, producer_epoch=2))
    assert batch.is_control
    assert batch.is_transactional
    assert batch.last_sequence == -1


def test_attributes_of_the_future_are_left_alone():
    section = prefixed(b"\xff" + record_body()[1:])
    assert len(read_one(make_batch(section, attributes=0x40)).records()) == 1


# ---------------------------------------------------------------------------------------------------- cut off


@pytest.mark.parametrize("chosen", ["none", "zstd"])
def test_a_batch_cut_off_anywhere_is_refused_or_left_out(chosen):
    whole = seal(fill(batches, RECORDS), codec(chosen))
    for keep in range(1, len(whole)):
        data = whole + whole[:keep]
        assert len(list(read_batches(data, allow_partial=True))) == 1
        reading = read_batches(data)
        assert next(reading).records() == RECORDS
        with pytest.raises(ProtocolError, match=f"batch at byte {len(whole)}, batch_length: .*cut off"):
            next(reading)


def test_a_partial_batch_does_not_excuse_a_damaged_one():
    damaged = bytearray(seal(fill(batches, RECORDS)))
    damaged[-1] ^= 1
    with pytest.raises(ProtocolError, match="crc"):
        list(read_batches(damaged, allow_partial=True))


# ---------------------------------------------------------------------------------------------------- damage


@pytest.mark.parametrize("chosen", [row.name for row in CODECS])
def test_no_flipped_byte_goes_unnoticed(chosen):
    """Requirement 92."""
    whole = seal(fill(batches, RECORDS), codec(chosen), (7, 1, 5))
    good = dataclasses.replace(read_one(whole), payload=None)
    # What the broker sets is outside the checksum: damage there shows in the field itself.
    unchecked = {*range(8), *range(12, 16)}
    for at, flip in itertools.product(range(len(whole)), (0x01, 0x80, 0xFF)):
        data = bytearray(whole)
        data[at] ^= flip
        if at in unchecked and (read := try_read_one(data)):
            assert dataclasses.replace(read, payload=None) != good
        else:
            with pytest.raises(ProtocolError, match="damaged batch at byte 0"):
                read_one(data)


def test_a_wrong_checksum_tells_both():
    with pytest.raises(ProtocolError, match=r"batch at byte 0, crc: .* the header says 0x0000002a"):
        read_one(make_batch(GOOD, crc=42))


def test_the_place_of_a_later_batch_is_told():
    good = make_batch(GOOD)
    with pytest.raises(ProtocolError, match=f"batch at byte {2 * len(good)}, crc"):
        list(read_batches(good + good + make_batch(GOOD, crc=1)))


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        ("base_offset", -1, "base_offset: -1"),
        ("batch_length", -1, "batch_length: -1"),
        ("batch_length", 0, "batch_length: 0"),
        ("batch_length", 48, "batch_length: 48 is less than the 49"),
        ("batch_length", 2**31 - 1, "batch_length: .*cut off"),
        ("partition_leader_epoch", -2, "partition_leader_epoch: -2"),
        ("magic", 1, "magic: 1 where format version 2"),
        ("magic", 0, "magic: 0"),
        ("magic", 3, "magic: 3"),
        ("attributes", 5, "attributes: codec 5"),
        ("attributes", 7, "attributes: codec 7"),
        ("last_offset_delta", -1, "last_offset_delta: -1"),
        ("producer_id", -2, "producer_id: -2"),
        ("producer_epoch", -2, "producer_epoch: -2"),
        ("base_sequence", -2, "base_sequence: -2"),
        ("records_count", -1, "records_count: -1"),
        ("records_count", 2, "records_count: 2 records in 1 offsets"),
    ],
)
def test_bad_header_fields_are_refused(name, value, match):
    """Requirement 92."""
    with pytest.raises(ProtocolError, match=match):
        read_one(make_batch(GOOD, **{name: value}))


def test_offsets_beyond_64_bits_are_refused():
    with pytest.raises(ProtocolError, match="last_offset_delta"):
        read_one(make_batch(GOOD, base_offset=2**63 - 1, last_offset_delta=1))


HUGE = varint(2**40)
LONG = b"\x80" * 10 + b"\x00"

BAD_SECTIONS = [
    (
        "too many records",
        GOOD,
        {"records_count": 2, "last_offset_delta": 1},
        "2 records cannot fit into 7 bytes",
    ),
    ("huge count", GOOD, {"records_count": 2**31 - 1, "last_offset_delta": 2**31 - 1}, "cannot fit"),
    ("bytes left over", GOOD + b"\x00\x00", {}, "2 bytes follow the last record"),
    ("a record left over", GOOD + GOOD, {}, "7 bytes follow the last record"),
    ("record too long", varint(7) + record_body(), {}, "record length: 7 bytes, of which 6 are there"),
    ("record too short", varint(5) + record_body(), {}, "header count: it crosses the end of the record"),
    ("record length zero", varint(0) + record_body(), {}, "record attributes: it crosses the end"),
    ("record length negative", varint(-1) + record_body(), {}, "record length: -1 bytes"),
    ("record length huge", HUGE + record_body(), {}, "record length: 1099511627776 bytes"),
    ("record length without end", LONG, {}, "record length: a varint is longer than 64 bits"),
    (
        "record with leftovers",
        prefixed(record_body() + b"\x00"),
        {},
        "record length: 1 bytes of the record are left",
    ),
    ("timestamp beyond 64 bits", prefixed(record_body(time=2**63 - 1)), {}, "timestamp delta: .* no 64-bit"),
    ("offset negative", prefixed(record_body(offset=-1)), {}, "offset delta: -1 is not above -1"),
    ("offset beyond the last", prefixed(record_body(offset=1)), {}, "offset delta: 1 is not .* at most 0"),
    ("key length negative", prefixed(record_body(key=varint(-2))), {}, "key length: -2 bytes"),
    ("key too long", prefixed(record_body(key=varint(60))), {}, "key length: 60 bytes, of which 2"),
    ("key huge", prefixed(record_body(key=HUGE)), {}, "key length: 1099511627776"),
    ("value length negative", prefixed(record_body(value=varint(-7))), {}, "value length: -7 bytes"),
    ("value too long", prefixed(record_body(value=varint(2))), {}, "value length: 2 bytes, of which 1"),
    ("headers negative", prefixed(record_body(rest=varint(-1))), {}, "header count: -1 headers"),
    ("headers huge", prefixed(record_body(rest=HUGE)), {}, "header count: 1099511627776 headers"),
    ("header name null", prefixed(record_body(rest=b"\x02\x01\x01")), {}, "header name: null"),
    ("header name negative", prefixed(record_body(rest=b"\x02\x03\x01")), {}, "header name length: -2"),
    (
        "header name too long",
        prefixed(record_body(rest=b"\x02\x08\x01")),
        {},
        "header name length: 4 bytes, of which 1",
    ),
    (
        "header name not UTF-8",
        prefixed(record_body(rest=b"\x02\x02\xff\x01")),
        {},
        "header name: it is not UTF-8",
    ),
    ("header value negative", prefixed(record_body(rest=b"\x02\x02a\x05")), {}, "header value length: -3"),
    (
        "header value missing",
        prefixed(record_body(rest=b"\x02\x02a")),
        {},
        "header value length: the data ends",
    ),
    ("not gzip", GOOD, {"attributes": 1}, "damaged gzip data"),
    ("not snappy", GOOD, {"attributes": 2}, "damaged snappy data"),
    ("not lz4", GOOD, {"attributes": 3}, "damaged lz4 data"),
    ("not zstd", GOOD, {"attributes": 4}, "damaged zstd data"),
]


@pytest.mark.parametrize(
    ("section", "fields", "match"), [pytest.param(*bad[1:], id=bad[0]) for bad in BAD_SECTIONS]
)
def test_bad_records_are_refused(section, fields, match):
    """Requirement 92."""
    batch = read_one(make_batch(section, **fields))
    with pytest.raises(ProtocolError, match=match):
        batch.records()


def test_offsets_must_rise():
    """Requirement 91."""
    section = prefixed(record_body(offset=1)) + prefixed(record_body(offset=1))
    batch = read_one(make_batch(section, last_offset_delta=1, records_count=2))
    with pytest.raises(ProtocolError, match="byte 11 of the section, offset delta: 1 is not above 1"):
        batch.records()


def test_a_field_does_not_borrow_from_the_next_record():
    section = varint(5) + record_body() + prefixed(record_body(offset=1))
    batch = read_one(make_batch(section, last_offset_delta=1, records_count=2))
    with pytest.raises(ProtocolError, match="crosses the end of the record"):
        batch.records()


@pytest.mark.parametrize("chosen", [row.name for row in CODECS])
def test_what_a_batch_decompresses_to_is_bounded(chosen):
    records = [Record(0, TIME, None, bytes(100_000), ())]
    batch = read_one(seal(fill(batches, records), codec(chosen)))
    assert batch.records(max_bytes=101_000) == records
    with pytest.raises(ProtocolError, match="99000 bytes"):
        batch.records(max_bytes=99_000)


@given(section=st.binary(max_size=80), count=st.integers(0, 5))
def test_any_section_is_read_or_refused(section, count):
    batch = read_one(make_batch(section, records_count=count, last_offset_delta=5))
    try:
        assert len(batch.records()) == count
    except ProtocolError:
        pass


@given(data=st.binary(max_size=150), partial=st.booleans())
def test_any_data_is_read_or_refused(data, partial):
    try:
        list(read_batches(data, allow_partial=partial))
    except ProtocolError:
        pass


@given(records=record_lists(max_size=4), at=st.integers(0, 10**6), replacement=st.binary(max_size=3))
def test_damage_under_a_right_checksum_does_no_harm(records, at, replacement):
    section = bytearray(fill(batches, records).raw_records())
    at %= len(section)
    section[at : at + 1] = replacement
    count = len(records)
    batch = read_one(make_batch(bytes(section), last_offset_delta=count - 1, records_count=count))
    try:
        assert len(batch.records()) == count
    except ProtocolError:
        pass
