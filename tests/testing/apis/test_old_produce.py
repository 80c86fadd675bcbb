# SPDX-License-Identifier: Apache-2.0
"""Produce 0 to 2 and message sets, as each release of the fake cluster takes, stores and refuses them."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path

import pytest
from testing.message_sets import message_set, wrapped
from testing.wire import NOW_MS, Producer, Wire, batch, make_cluster, produce_body

from penstock.protocol.messages import API_VERSIONS, METADATA, PRODUCE
from penstock.testing import Code
from penstock.testing.refused import Refused
from penstock.testing.releases import RELEASES, release_named

VECTORS = Path(__file__).parents[2] / "golden" / "legacy_v0_v1.jsonl"
BEFORE_BATCHES = ["0.9.0", "0.10.0", "0.10.2"]
WITH_SETS = [*BEFORE_BATCHES, "0.11.0", "1.1", "2.1", "2.8", "3.9"]


def wire_of(release: str, **options: object) -> Wire:
    return Wire(make_cluster(release=release, **options))


def formats(wire: Wire, topic: str = "t") -> list[int]:
    return list(wire.cluster.partition(topic, 0).log.formats.values())


def highest_of_sets(release: str) -> int:
    return min(2, RELEASES[release].ranges[PRODUCE.key][1])


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("release", WITH_SETS)
def test_message_sets_are_stored_in_the_format_of_the_release(release: str, magic: int) -> None:
    wire = wire_of(release)
    for version in range(highest_of_sets(release) + 1):
        row = wire.produce(message_set([b"a", None], magic=magic), version=version)
        assert (row["error_code"], row["base_offset"]) == (0, 2 * version)
    stored = RELEASES[release].message_format
    # 0.9 does not look at the magic: it stores what comes.
    assert set(formats(wire)) == {magic if release == "0.9.0" else stored}
    found = wire.cluster.records("t", 0)
    assert [record.value for record in found[:2]] == [b"a", None]
    assert {record.timestamp for record in found} == {77 if magic else -1}


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("release", WITH_SETS)
def test_compressed_sets(release: str, magic: int) -> None:
    wire = wire_of(release)
    row = wire.produce(wrapped([b"a", b"b"], magic=magic), version=highest_of_sets(release))
    assert row["error_code"] == 0
    assert [record.value for record in wire.cluster.records("t", 0)] == [b"a", b"b"]


@pytest.mark.parametrize("release", ["4.0", "4.3"])
def test_kafka_4_lists_the_old_versions_and_closes_the_connection(release: str) -> None:
    wire = wire_of(release)
    assert release_named(release).ranges[PRODUCE.key][0] == 0
    for version in range(3):
        wire.send(PRODUCE, produce_body(wire.cluster, message_set([b"a"])), version)
        assert wire._sessions[0].closed
    assert wire.cluster.records("t", 0) == []


@pytest.mark.parametrize(
    ("release", "code"),
    [("0.9.0", 2), ("0.10.0", 2), ("0.10.2", 2), ("0.11.0", 0), ("1.1", 0), ("2.8", 0), ("3.9", 0)],
)
def test_batches_in_the_old_versions(release: str, code: int) -> None:
    assert wire_of(release).produce(batch(2), version=highest_of_sets(release))["error_code"] == code


@pytest.mark.parametrize(
    ("release", "code"), [("0.11.0", None), ("1.1", None), ("2.1", 2), ("2.3", 2), ("2.8", 87), ("3.9", 87)]
)
def test_message_sets_in_newer_versions(release: str, code: int | None) -> None:
    wire = wire_of(release)
    body = produce_body(wire.cluster, message_set([b"a" * 50]))
    wire.send(PRODUCE, body, 3)
    if code is None:
        assert wire._sessions[0].closed
    else:
        ((_, answer),) = wire.answers().items()
        assert answer["responses"][0]["partition_responses"][0]["error_code"] == code
    assert wire.cluster.records("t", 0) == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data[:20] + bytes([data[20] ^ 1]) + data[21:],
        lambda data: data[:8] + b"\xff" * 4 + data[12:],
    ],
    ids=["cut", "checksum", "length"],
)
def test_damaged_sets_are_refused(damage: object) -> None:
    wire = wire_of("0.10.2")
    row = wire.produce(damage(message_set([b"abc"])), version=2)  # type: ignore[operator]
    assert (row["error_code"], row["base_offset"]) == (Code.CORRUPT_MESSAGE, -1)
    assert wire.cluster.records("t", 0) == []


def test_each_message_has_the_limit_of_the_topic() -> None:
    wire = wire_of("0.10.2")
    wire.cluster.create_topic("small", configs={"max.message.bytes": "300"})
    many = message_set([b"x" * 100] * 10)
    assert wire.produce(many, topic="small", version=2)["error_code"] == 0
    large = message_set([b"x" * 100, b"x" * 300])
    assert wire.produce(large, topic="small", version=2)["error_code"] == Code.MESSAGE_TOO_LARGE
    assert len(wire.cluster.records("small", 0)) == 10


def test_compacted_topics_want_keys() -> None:
    wire = wire_of("0.10.2")
    wire.cluster.create_topic("compacted", configs={"cleanup.policy": "compact"})
    assert wire.produce(message_set([b"a"]), topic="compacted", version=2)["error_code"] == 2
    row = wire.produce(message_set([b"a"], key=b"k"), topic="compacted", version=2)
    assert row["error_code"] == 0


@pytest.mark.parametrize("version", [0, 1, 2])
def test_answers_of_the_old_versions(version: int) -> None:
    wire = wire_of("0.10.2")
    answer = wire.call(PRODUCE, produce_body(wire.cluster, message_set([b"a"])), version)
    assert answer["responses"][0]["partition_responses"][0]["base_offset"] == 0


def test_lz4_of_magic_0_needs_the_checksum_of_its_time_on_0_9() -> None:
    """The set is from a client of that time; with the right checksum, brokers of 0.9 refuse it."""
    rows = [json.loads(line) for line in VECTORS.read_text().splitlines()]
    (raw,) = (bytes.fromhex(row["hex"]) for row in rows if row["name"] == "v0-lz4-one")
    at = raw.index(bytes.fromhex("04224d186040"))
    right = raw[: at + 6] + b"\x82" + raw[at + 7 :]
    checksum = struct.pack(">I", zlib.crc32(right[16:]))
    right = right[:12] + checksum + right[16:]
    assert raw != right
    for release, data, code in (("0.9.0", right, 2), ("0.9.0", raw, 0), ("0.10.2", raw, 0), ("2.8", raw, 0)):
        wire = wire_of(release)
        row = wire.produce(data, version=highest_of_sets(release))
        assert row["error_code"] == code, release
        assert len(wire.cluster.records("t", 0)) == (0 if code else 1)


# ------------------------------------------------------------------------------------------------ topic formats


@pytest.mark.parametrize(("version", "magic"), [("0.8.2", 0), ("0.9.0", 0), ("0.10.1-IV2", 1), ("0.11.0", 2)])
def test_a_topic_may_have_an_older_format(version: str, magic: int) -> None:
    wire = wire_of("2.8")
    wire.cluster.create_topic("old", configs={"message.format.version": version})
    assert wire.produce(batch(2), topic="old")["error_code"] == 0
    assert formats(wire, "old") == [magic]
    assert {record.timestamp for record in wire.cluster.records("old", 0)} == {NOW_MS if magic else -1}
    producer: Producer = wire.init(None)
    code = Code.NONE if magic == 2 else Code.UNSUPPORTED_FOR_MESSAGE_FORMAT
    assert wire.produce(batch(2, producer), topic="old")["error_code"] == code


def test_the_option_is_ignored_from_3_0_on() -> None:
    wire = wire_of("3.9")
    wire.cluster.create_topic("old", configs={"message.format.version": "0.10.2"})
    assert wire.produce(batch(2, wire.init(None)), topic="old")["error_code"] == 0
    assert formats(wire, "old") == [2]


def test_an_option_that_is_no_release_is_refused() -> None:
    cluster = make_cluster(release="2.8")
    with pytest.raises(Refused, match=r"message\.format\.version"):
        cluster.create_topic("old", configs={"message.format.version": "new"})


# ------------------------------------------------------------------------------------------------ which versions


def test_0_9_drops_what_it_does_not_know() -> None:
    wire = wire_of("0.9.0")
    for version in (0, 3, 4):
        wire.send(API_VERSIONS, {"client_software_name": "a", "client_software_version": "1"}, version)
    assert wire.answers() == {}
    assert wire.call(METADATA, {"topics": [{"name": "t"}]}, 0)["topics"][0]["error_code"] == 0


@pytest.mark.parametrize(
    ("release", "hint"), [("0.10.0", None), ("1.1", None), ("2.3", None), ("2.4", 3), ("3.9", 4)]
)
def test_a_refused_version_of_api_versions(release: str, hint: int | None) -> None:
    wire = wire_of(release)
    highest = RELEASES[release].ranges[API_VERSIONS.key][1]
    wire.send(
        API_VERSIONS, {"client_software_name": "a", "client_software_version": "1"}, min(4, highest + 1)
    )
    if highest == 4:
        return
    (data,) = wire._sessions[0].output(wire.now)
    assert data[8:10] == b"\0\x23"
    assert (len(data) > 14) == (hint is not None)


@pytest.mark.parametrize("release", RELEASES)
def test_advertised_versions_are_answered(release: str) -> None:
    row = release_named(release)
    for key, (low, high) in row.ranges.items():
        assert low <= high, key
    assert row.accepts(METADATA, row.ranges[METADATA.key][1])
    assert release_named(f"{release}.1") is row


def test_brokers_of_a_cluster_may_differ() -> None:
    cluster = make_cluster(2, release="2.8")
    cluster.assign_topic("u", [[0], [1]])
    cluster.set_release(1, "0.10.2")
    wire = Wire(cluster)
    assert wire.produce(batch(1), topic="u", version=9)["error_code"] == 0
    assert wire.produce(message_set([b"a"]), topic="u", partition=1, version=2, broker=1)["error_code"] == 0
    wire.send(PRODUCE, produce_body(cluster, batch(1), "u", 1), 9, broker=1)
    assert wire._sessions[1].closed
    with pytest.raises(ValueError, match="no broker 7"):
        cluster.set_release(7, "2.8")
    with pytest.raises(ValueError, match=r"no Kafka 0\.7"):
        cluster.set_release(0, "0.7")
