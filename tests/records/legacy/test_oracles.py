# SPDX-License-Identifier: Apache-2.0
"""Message sets against the readers and writers of other clients: kafka-python and aiokafka.

aiokafka has no lz4 in magic 0. kafka-python needs the package xxhash there, for the checksum of the frame's header:
it gets our checksum, which other tests hold against Java's.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from aiokafka.errors import UnsupportedCodecError
from aiokafka.record import legacy_records as aiokafka_sets
from fix_other_clients import kafka_python
from records.legacy.entries import CODECS, batch_of

from penstock.records.compression import codec
from penstock.records.legacy._sets_cy import convert
from penstock.records.legacy.lz4 import with_old_checksum, with_right_checksum
from penstock.records.legacy.reader import TimestampType, read_set
from penstock.records.reader import Record

ROUNDS = 12
TIME = 1_500_000_000_000

formats = pytest.mark.parametrize("magic", [0, 1])
codecs = pytest.mark.parametrize("name", CODECS)


class HeaderChecksum:
    """As much of xxhash as kafka-python uses."""

    def __init__(self, data: bytes) -> None:
        frame = (data if len(data) > 5 else b"\x04\x22\x4d\x18" + data) + bytes(1)
        checked = with_old_checksum(frame)
        self._byte = (checked if len(data) > 5 else with_right_checksum(checked))[-1]

    def digest(self) -> bytes:
        return struct.pack("BBBB", 0, 0, self._byte, 0)


@pytest.fixture(autouse=True)
def checksum_for_kafka_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_python.codec, "xxhash", SimpleNamespace(xxh32=HeaderChecksum))


class Seen(NamedTuple):
    """A record as a reader shows it."""

    offset: int
    timestamp: int | None
    timestamp_type: int | None
    key: bytes | None
    value: bytes | None


def random_records(rng: random.Random) -> list[Record]:
    """Few or many, small or large, that compress well or not at all."""

    def data(largest: int) -> bytes | None:
        size = rng.choice([0, 1, rng.randrange(largest), rng.randrange(1 + largest // 10)])
        kind = rng.randrange(4)
        if kind == 0:
            return None
        return rng.randbytes(size) if kind == 1 else bytes([rng.randrange(256)]) * size

    largest = rng.choice([20, 500, 40_000])
    return [
        Record(index, TIME + rng.randrange(-100, 10_000), data(largest // 4), data(largest), ())
        for index in range(rng.choice([1, 2, rng.randrange(1, 60)]))
        if index * largest * 2 < 150_000
    ]


def as_seen(records: list[Record], magic: int) -> list[Seen]:
    return [
        Seen(each.offset, each.timestamp if magic else None, 0 if magic else None, each.key, each.value)
        for each in records
    ]


def read_by_kafka_python(data: bytes) -> Iterator[Seen]:
    sets = kafka_python.record.memory_records.MemoryRecords(data)
    while sets.has_next():
        batch = sets.next_batch()
        assert batch.validate_crc()
        for record in batch:
            yield Seen(record.offset, record.timestamp, record.timestamp_type, record.key, record.value)


def read_by_aiokafka(data: bytes, magic: int) -> Iterator[Seen]:
    at = 0
    while at < len(data):
        end = at + 12 + int.from_bytes(data[at + 8 : at + 12], "big")
        batch = aiokafka_sets.LegacyRecordBatch(data[at:end], magic)
        assert batch.validate_crc()
        for record in batch:
            yield Seen(record.offset, record.timestamp, record.timestamp_type, record.key, record.value)
        at = end


@formats
@codecs
def test_kafka_python_and_aiokafka_read_what_we_convert(magic: int, name: str) -> None:
    rng = random.Random(f"{magic} {name}")
    for _ in range(ROUNDS):
        records = random_records(rng)
        converted = bytes(convert(batch_of(records, codec(rng.choice(CODECS))), magic, codec(name)))
        assert list(read_by_kafka_python(converted)) == as_seen(records, magic)
        if (magic, name) != (0, "lz4"):
            assert list(read_by_aiokafka(converted, magic)) == as_seen(records, magic)


@formats
@codecs
@pytest.mark.parametrize("client", ["kafka-python", "aiokafka"])
def test_we_read_what_kafka_python_and_aiokafka_write(magic: int, name: str, client: str) -> None:
    rng = random.Random(f"{magic} {name} {client}")
    if (magic, name, client) == (0, "lz4", "aiokafka"):
        with pytest.raises(UnsupportedCodecError):
            written_by(client, magic, codec(name).id, random_records(rng))
        return
    for _ in range(ROUNDS):
        records = random_records(rng)
        written = written_by(client, magic, codec(name).id, records)
        kinds = {None: None, TimestampType.CREATE_TIME: 0}
        read = [
            Seen(each.offset, each.timestamp, kinds[each.timestamp_type], each.key, each.value)
            for each in read_set(written)
        ]
        assert read == as_seen(records, magic)


def written_by(client: str, magic: int, codec_id: int, records: list[Record]) -> bytes:
    builder: Any
    if client == "kafka-python":
        sets = kafka_python.record.legacy_records
        builder = sets.LegacyRecordBatchBuilder(magic, codec_id, 1_000_000)
    else:
        builder = aiokafka_sets.LegacyRecordBatchBuilder(magic, codec_id, 1_000_000)
    for each in records:
        time = each.timestamp if magic else None
        assert builder.append(each.offset, timestamp=time, key=each.key, value=each.value) is not None
    return bytes(builder.build())


@formats
def test_uncompressed_sets_are_byte_for_byte_those_of_kafka_python(magic: int) -> None:
    records = random_records(random.Random(9))
    converted = bytes(convert(batch_of(records), magic, codec("none")))
    assert converted == written_by("kafka-python", magic, 0, records)
