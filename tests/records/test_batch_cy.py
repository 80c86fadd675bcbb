# SPDX-License-Identifier: Apache-2.0
"""The batch writer in every form: Java's bytes, its limits, and what it refuses."""

from __future__ import annotations

import hashlib

import pytest
from fix_impl import forms, golden, implementations, load
from fix_records import fill, golden_batch, golden_records, record_lists, seal
from hypothesis import given
from hypothesis import strategies as st

from penstock.records.compression import CODECS, codec
from penstock.records.format import HEADER_SIZE, TRANSACTIONAL_BIT, estimate_record_size
from penstock.records.reader import Record, read_batches
from penstock.types import Header

MODULE = "penstock.records._batch_cy"

batches = implementations(MODULE)
all_forms = [load(MODULE, form) for form in forms(MODULE)]

TIME = 1_700_000_000_000
SMALL = Record(0, TIME, b"key", b"value", ())


def test_forms_are_what_they_are_called():
    assert [module.is_compiled() for module in all_forms] == [form == "compiled" for form in forms(MODULE)]


# ---------------------------------------------------------------------------------------------------- golden bytes


@pytest.mark.parametrize("in_chunks", [False, True])
@pytest.mark.parametrize("case", golden("record_batch_v2.jsonl"))
def test_batches_are_javas(batches, case, in_chunks):
    """Requirement 92."""
    batch = golden_batch(batches, case, in_chunks=in_chunks)
    if case["byte_exact"]:
        assert batch.hex() == case["hex"]
    else:
        [decoded] = read_batches(batch)
        header = {field: getattr(decoded, field) for field in case["header"]}
        ours = {"batch_length": header["batch_length"], "crc": header["crc"]}
        assert header == case["header"] | ours
        assert decoded.records() == golden_records(case)


@pytest.mark.parametrize("case", golden("record_batch_v2.jsonl"))
def test_records_sections_are_javas_before_compression(batches, case):
    raw = fill(batches, golden_records(case)).raw_records()
    assert len(raw) == case["records_size"]
    assert hashlib.sha256(raw).hexdigest() == case["records_sha256"]


# A record that comes after a million others would take too long to reach; the reader's tests have that offset.
REACHABLE = [case for case in golden("sizes.jsonl") if case.values[0]["offset_delta"] < 20_000]


@pytest.mark.parametrize("case", REACHABLE)
def test_sizes_are_javas(batches, case):
    headers = tuple(Header(name, None if size is None else bytes(size)) for name, size in case["headers"])
    key, value = (None if case[field] is None else bytes(case[field]) for field in ("key_size", "value_size"))
    writer = batches.BatchWriter(bytearray(2_000_000), 2_000_000)
    # Only a second record can have a timestamp delta; the offset deltas 0 and 1 are of one length.
    for _ in range(max(case["offset_delta"], 1 if case["timestamp_delta"] else 0)):
        writer.append(TIME, None, None, None)
    assert writer.append(TIME + case["timestamp_delta"], key, value, headers) == case["record_size"]


# ---------------------------------------------------------------------------------------------------- round trips


@given(records=record_lists(), chosen=st.sampled_from([row.name for row in CODECS]))
def test_what_is_written_is_read_by_every_form(records, chosen):
    written = {seal(fill(module, records), codec(chosen), (7, 1, 5)) for module in all_forms}
    assert len(written) == 1
    [batch] = read_batches(written.pop())
    assert batch.codec == chosen
    assert batch.records() == records
    assert batch.base_timestamp == records[0].timestamp
    assert batch.max_timestamp == max(record.timestamp for record in records)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (7, 1, 5)


@given(records=record_lists(max_size=1))
def test_the_estimate_is_never_too_small(records):
    [record] = records
    size = estimate_record_size(
        *(None if data is None else len(data) for data in record[2:4]), record.headers
    )
    for module in all_forms:
        # In memory of exactly that size there is room, wherever in a batch the record comes.
        assert module.BatchWriter(bytearray(size), 1).append(*record[1:]) > 0


@given(records=record_lists(), data=st.data())
def test_segments_make_the_same_batch_as_one_piece(records, data):
    one = fill(all_forms[0], records)
    whole, sealed = bytes(one.raw_records()), seal(one, ids=(7, 1, 40))
    for module in all_forms:
        writer = module.BatchWriter(bytearray(2000), 200_000, data.draw(st.sampled_from([1.0, 0.5])))
        for record in records:
            while (size := writer.append(*record[1:])) == module.NEEDS_SEGMENT:
                writer.grow(bytearray(data.draw(st.integers(1500, 3000))))
            assert size > 0
        assert bytes(writer.raw_records()) == whole
        assert writer.held == sum(map(len, writer.segments))
        assert seal(writer, ids=(7, 1, 40)) == sealed
        [batch] = read_batches(seal(writer, codec("zstd")))
        assert batch.records() == records


# ---------------------------------------------------------------------------------------------------- counters


def test_a_new_writer_is_empty(batches):
    writer = batches.BatchWriter(bytearray(100), 100)
    assert (writer.count, writer.raw_size, writer.max_record_size) == (0, HEADER_SIZE, 0)
    assert (writer.base_timestamp, writer.max_timestamp) == (-1, -1)
    assert not writer.sealed
    assert not writer.is_full()


def test_counters_follow_the_records(batches):
    writer = batches.BatchWriter(bytearray(1000), 1000)
    sizes = [
        writer.append(TIME, b"k", b"v" * 40, None),
        writer.append(TIME + 9, None, b"v", ()),
        writer.append(TIME - 5, None, None, [Header("h", None)]),
    ]
    assert writer.count == 3
    assert writer.raw_size == HEADER_SIZE + sum(sizes) == HEADER_SIZE + len(writer.raw_records())
    assert writer.max_record_size == max(sizes) == sizes[0]
    assert (writer.base_timestamp, writer.max_timestamp) == (TIME, TIME + 9)


def test_nothing_is_written_beyond_the_records(batches):
    memory = bytearray(b"\xaa" * 500)
    writer = batches.BatchWriter(memory, 500)
    writer.append(*SMALL[1:])
    used = writer.raw_size
    writer.seal(0)
    assert memory[used:] == b"\xaa" * (500 - used)
    assert len(memory) == 500


# ---------------------------------------------------------------------------------------------------- room


def state(writer):
    counters = (
        writer.count,
        writer.raw_size,
        writer.base_timestamp,
        writer.max_timestamp,
        writer.max_record_size,
    )
    return (*counters, bytes(writer.raw_records()))


def test_a_record_fits_to_the_last_byte_and_not_beyond(batches):
    size = batches.BatchWriter(bytearray(500), 500).append(*SMALL[1:])
    for limit, capacity, answer in [
        (HEADER_SIZE + 2 * size, 500, size),
        (HEADER_SIZE + 2 * size - 1, 500, batches.NO_ROOM),
        (500, HEADER_SIZE + 2 * size, size),
        (500, HEADER_SIZE + 2 * size - 1, batches.NEEDS_SEGMENT),
    ]:
        writer = batches.BatchWriter(bytearray(capacity), limit)
        assert writer.append(*SMALL[1:]) == size
        before = state(writer)
        assert writer.append(*SMALL[1:]) == answer
        assert answer > 0 or state(writer) == before


def test_the_first_record_is_accepted_beyond_the_limit(batches):
    writer = batches.BatchWriter(bytearray(2000), 100)
    assert writer.append(TIME, None, b"v" * 1000, None) > 1000
    assert writer.is_full()
    assert writer.append(*SMALL[1:]) == batches.NO_ROOM


def test_a_first_record_that_the_memory_cannot_hold_is_refused(batches):
    writer = batches.BatchWriter(bytearray(100), 100)
    assert writer.append(TIME, None, b"v" * 100, None) == batches.NO_ROOM
    assert writer.count == 0


def test_is_full_at_the_limit(batches):
    size = batches.BatchWriter(bytearray(500), 500).append(*SMALL[1:])
    for limit, full in [(HEADER_SIZE + size, True), (HEADER_SIZE + size + 1, False)]:
        writer = batches.BatchWriter(bytearray(500), limit)
        writer.append(*SMALL[1:])
        assert writer.is_full() is full


def test_the_expected_ratio_makes_room(batches):
    def appended(ratio):
        writer = batches.BatchWriter(bytearray(100_000), 5_000, ratio)
        while writer.append(TIME, None, bytes(89), None) > 0:
            pass
        return writer.count

    assert appended(1.0) < appended(0.5) < appended(0.25)


def test_the_expected_size_has_five_percent_of_caution(batches):
    writer = batches.BatchWriter(bytearray(3000), 3000, 0.5)
    writer.append(TIME, None, bytes(1991), None)
    assert writer.raw_size == HEADER_SIZE + 2000
    assert writer.estimated_size() == HEADER_SIZE + 1050


@pytest.mark.parametrize("ratio", [1.0, 0.5])
def test_a_batch_asks_for_a_segment_only_while_it_is_not_full(batches, ratio):
    writer = batches.BatchWriter(bytearray(200), 1000, ratio)
    writer.append(TIME, None, bytes(100), None)
    before = state(writer)
    assert writer.append(TIME, None, bytes(100), None) == batches.NEEDS_SEGMENT
    assert writer.append(TIME, None, bytes(1000), None) == batches.NO_ROOM
    assert state(writer) == before


# ---------------------------------------------------------------------------------------------------- refusals


def test_memory_must_hold_a_header(batches):
    with pytest.raises(ValueError, match="at least 61 bytes, not 60"):
        batches.BatchWriter(bytearray(60), 1000)


def test_a_sealed_batch_takes_no_record(batches):
    """Requirement 91."""
    writer = fill(batches, [SMALL])
    sealed = bytes(writer.seal(0))
    assert writer.sealed
    with pytest.raises(ValueError, match="sealed"):
        writer.append(*SMALL[1:])
    assert writer.count == 1
    assert bytes(writer.seal(0)) == sealed


def test_an_empty_batch_is_not_sealed(batches):
    """Requirement 91."""
    writer = batches.BatchWriter(bytearray(100), 100)
    with pytest.raises(ValueError, match="without records"):
        writer.seal(0)
    assert writer.append(TIME, None, None, None) > 0


def test_the_header_is_in_one_piece(batches):
    writer = fill(batches, [SMALL])
    with pytest.raises(ValueError, match="are no batch"):
        writer.seal(1, compressed=[memoryview(bytearray(60)), memoryview(bytearray(60))])


def test_a_batch_can_be_sealed_again_with_new_ids(batches):
    """Requirement 92."""
    # What happens after the producer's epoch was raised: the records stay, the header and the checksum change.
    writer = fill(batches, [SMALL])
    first = seal(writer, ids=(7, 0, 41))
    [again] = read_batches(seal(writer, ids=(7, 1, 0)))
    assert (again.producer_epoch, again.base_sequence) == (1, 0)
    assert again.records() == [SMALL]
    assert again.crc != next(read_batches(first)).crc


@pytest.mark.parametrize("headers", [[(None, b"v")], [(b"name", b"v")], [("name", "text")], [("name",)], [7]])
def test_bad_headers_leave_the_batch_as_it_was(batches, headers):
    writer = fill(batches, [SMALL])
    before = state(writer)
    with pytest.raises((TypeError, ValueError, AttributeError)):
        writer.append(TIME, b"k", b"v", headers)
    assert state(writer) == before
    [batch] = read_batches(seal(writer))
    assert batch.records() == [SMALL]


@pytest.mark.parametrize(
    ("attributes", "ids"),
    [
        (0, (7, -1, 0)),  # a producer id without an epoch
        (0, (7, 0, -1)),  # or without a sequence
        (0, (-2, 0, 0)),
        (TRANSACTIONAL_BIT, (-1, -1, -1)),  # a transaction without a producer id
        (0, (2**63, 0, 0)),
        (0, (7, 2**15, 0)),
        (0, (7, 0, 2**31)),
    ],
)
def test_bad_ids_are_refused(batches, attributes, ids):
    """Requirement 91."""
    writer = fill(batches, [SMALL])
    with pytest.raises(ValueError):
        writer.seal(attributes, *ids)
    assert not writer.sealed


@pytest.mark.parametrize("size", [0, 10, 60])
def test_memory_without_room_for_the_header_is_refused(batches, size):
    writer = fill(batches, [SMALL])
    with pytest.raises(ValueError, match="no batch"):
        writer.seal(1, compressed=bytearray(size))
    assert not writer.sealed


@pytest.mark.parametrize("attributes", [0x8000, -0x8001, 2**40])
def test_attributes_that_do_not_fit_are_refused(batches, attributes):
    writer = fill(batches, [SMALL])
    with pytest.raises(ValueError, match="attributes"):
        writer.seal(attributes)
    assert not writer.sealed


def test_a_sealed_batch_is_held_by_nobody_else(batches):
    writer = fill(batches, [SMALL])
    sealed = writer.seal(0)
    memory = sealed.obj
    sealed.release()
    memory.extend(b"x")  # which Python refuses while anybody has a view of it
