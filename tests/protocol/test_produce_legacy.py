# SPDX-License-Identifier: Apache-2.0
"""Produce 0 to 2, which carry message sets: their bytes, written out, and which sets go in which version."""

from __future__ import annotations

import struct

import pytest
from fix_impl import golden
from network.harness import batch
from records.legacy.entries import entry

from penstock.errors import ProtocolError
from penstock.protocol._produce_cy import PartitionBatch, ProduceRequest

NO_ID = bytes(16)
TOPIC_ID = bytes(range(16))


def text(name: str) -> bytes:
    return struct.pack(">h", len(name)) + name.encode()


def one(records: bytes, partition: int = 0, topic_id: bytes = NO_ID) -> PartitionBatch:
    return PartitionBatch("t", topic_id, partition, records)


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("topic_id", [NO_ID, TOPIC_ID])
def test_the_bytes_of_a_request(version: int, topic_id: bytes) -> None:
    records = entry(magic=0) + entry(1, magic=0)
    request = ProduceRequest(
        -1, 30_000, [one(records, 3, topic_id), one(entry(magic=0), 7, topic_id)]
    )  # fmt: skip
    expected = struct.pack(">hi", -1, 30_000)
    expected += struct.pack(">i", 1) + text("t") + struct.pack(">i", 2)
    expected += struct.pack(">ii", 3, len(records)) + records
    expected += struct.pack(">ii", 7, len(entry(magic=0))) + entry(magic=0)
    assert b"".join(request.encode(version)) == expected


@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_bytes_of_an_answer(version: int) -> None:
    raw = struct.pack(">i", 1) + text("t") + struct.pack(">i", 2)
    for row in ((3, 0, 42, 1_500_000_000_000), (7, 10, -1, -1)):
        raw += struct.pack(">ihq", *row[:3])
        if version >= 2:
            raw += struct.pack(">q", row[3])
    if version >= 1:
        raw += struct.pack(">i", 99)
    request = ProduceRequest(1, 1, [one(entry(magic=0))])
    answer = request.decode_response(version, memoryview(raw))
    assert answer.throttle_ms == (99 if version >= 1 else 0)
    found = [
        (each.topic, each.partition, each.error_code, each.base_offset, each.log_append_time_ms)
        for each in answer.partitions
    ]
    time = 1_500_000_000_000 if version >= 2 else -1
    assert found == [("t", 3, 0, 42, time), ("t", 7, 10, -1, -1)]
    for corrupted in (raw[:-1], raw + b"\0"):
        with pytest.raises(ProtocolError, match=f"Produce response v{version}"):
            request.decode_response(version, memoryview(corrupted))


@pytest.mark.parametrize(("magic", "versions"), [(0, (0, 2)), (1, (2, 2))])
@pytest.mark.parametrize("codec", [0, 1, 2, 3])
def test_a_magic_decides_about_the_versions(magic: int, versions: tuple[int, int], codec: int) -> None:
    request = ProduceRequest(1, 1, [one(entry(magic=magic, attributes=codec), topic_id=TOPIC_ID)])
    assert (request.min_version, request.max_version) == versions
    with pytest.raises(ValueError, match=f"versions {versions[0]} to 2, not in 3"):
        request.encode(3)


@pytest.mark.parametrize("case", golden("legacy_v0_v1.jsonl"))
def test_javas_sets_are_sent_as_they_are(case) -> None:
    records = bytes.fromhex(case["hex"])
    buffers = ProduceRequest(1, 1, [one(records)]).encode(2)
    assert any(buffer is records for buffer in buffers)


@pytest.mark.parametrize("others", [entry(magic=0), batch(100)])
def test_all_of_a_request_has_one_magic(others: bytes) -> None:
    with pytest.raises(ValueError, match="different magic in one produce request"):
        ProduceRequest(1, 1, [one(entry(magic=1)), one(others, 1)])


def test_message_sets_have_no_transactions() -> None:
    with pytest.raises(ValueError, match="cannot be part of a transaction"):
        ProduceRequest(-1, 1, [one(entry())], "txn")


def test_the_caller_may_cap_the_version() -> None:
    assert ProduceRequest(1, 1, [one(entry(magic=0))], max_version=1).max_version == 1
    with pytest.raises(ValueError, match="no Produce version between 2 and 1"):
        ProduceRequest(1, 1, [one(entry(magic=1))], max_version=1)


CUT_OFF = "cut off, or a size in it is wrong"


@pytest.mark.parametrize(
    ("records", "problem"),
    [
        (entry()[:17], CUT_OFF),
        (entry()[:-1], CUT_OFF),
        (entry() + b"\0", CUT_OFF),
        (entry() + entry()[:20], CUT_OFF),
        (bytes(60), CUT_OFF),
        (bytes(26), CUT_OFF),
        (entry(value=b"")[:8] + struct.pack(">i", -1) + entry(value=b"")[12:], CUT_OFF),
        (entry(body=b"") + entry(), CUT_OFF),
        (entry(magic=1) + entry(value=bytes(20), magic=0), "differ in magic or codec"),
        (entry(magic=1) + entry(magic=2), "differ in magic or codec"),
        (entry() + entry(attributes=1), "differ in magic or codec"),
        (entry(attributes=4), "not one of none, gzip, snappy and lz4"),
        (entry(attributes=1) + entry(attributes=1), "more than one compressed message"),
    ],
    ids=range(13),
)
def test_what_is_no_message_set_is_refused(records: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=f"partition 4 of topic 't': .*{problem}"):
        ProduceRequest(1, 1, [one(records, 4)])


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_sets_are_never_copied(kind: type) -> None:
    records = kind(entry() * 50)
    buffers = ProduceRequest(1, 1, [one(records)]).encode(2)
    assert [buffer for buffer in buffers if buffer is records] == [records]
