# SPDX-License-Identifier: Apache-2.0
"""CreateTopics, and what Fetch and ListOffsets find in them."""

from __future__ import annotations

from testing.conformance.cases import Cases
from testing.conformance.raw import V1, V2, Body, Raw

from penstock.protocol.messages import CREATE_TOPICS, FETCH, LIST_OFFSETS
from penstock.testing import Code

CREATE = Cases(CREATE_TOPICS, needs_topic=False)
OFFSETS = Cases(LIST_OFFSETS)
READ = Cases(FETCH)


# ------------------------------------------------------------------------------------------------ CreateTopics


def create(raw: Raw, version: int, *rows: Body, validate_only: bool = True) -> None:
    plain = {"name": raw.topic, "num_partitions": 2, "replication_factor": 1}
    body = {"topics": [plain | row for row in rows], "validate_only": validate_only}
    raw.call(CREATE_TOPICS, body, version)


REFUSED: dict[str, Body] = {
    "illegal name": {"name": "a b"},
    "dots": {"name": ".."},
    "empty name": {"name": ""},
    "long name": {"name": "n" * 250},
    "no partitions": {"num_partitions": 0},
    "negative partitions": {"num_partitions": -2},
    "too many replicas": {"replication_factor": 4},
    "no replicas": {"replication_factor": 0},
    "numbers and assignment": {"assignments": [{"partition_index": 0, "broker_ids": [99]}]},
    "assigned to nobody": {
        "num_partitions": -1,
        "replication_factor": -1,
        "assignments": [{"partition_index": 0, "broker_ids": [99]}],
    },
    "assigned with a gap": {
        "num_partitions": -1,
        "replication_factor": -1,
        "assignments": [{"partition_index": 1, "broker_ids": [99]}],
    },
    "no number": {"configs": [{"name": "max.message.bytes", "value": "many"}]},
    "negative number": {"configs": [{"name": "max.message.bytes", "value": "-1"}]},
    "no choice": {"configs": [{"name": "message.timestamp.type", "value": "Never"}]},
    "null option": {"configs": [{"name": "max.message.bytes", "value": None}]},
    "unknown policy": {"configs": [{"name": "cleanup.policy", "value": "burn"}]},
    "unknown option": {"configs": [{"name": "no.such.option", "value": "1"}]},
}


def add_refused(name: str, row: Body, *versions: int) -> None:
    @CREATE.case(name, *versions)
    def refused(raw: Raw, version: int) -> None:
        create(raw, version, row)


for _name, _row in REFUSED.items():
    add_refused(_name, _row)
add_refused("illegal name", {"name": "a b"}, 2, 4, 5, 6)


@CREATE.case("made", 2, 4, 5, 6, 7)
def made(raw: Raw, version: int) -> None:
    create(raw, version, {}, validate_only=False)


@CREATE.case("made by default numbers", 4, 7)
def made_by_default(raw: Raw, version: int) -> None:
    create(raw, version, {"num_partitions": -1, "replication_factor": -1}, validate_only=False)


@CREATE.case("made with options", 2, 5, 7)
def made_with_options(raw: Raw, version: int) -> None:
    options = {"retention.ms": "1000", "cleanup.policy": "compact,delete", "min.insync.replicas": "1"}
    rows = [{"name": name, "value": value} for name, value in options.items()]
    create(raw, version, {"configs": rows}, validate_only=False)


@CREATE.case("only validated", 2, 5, 7)
def only_validated(raw: Raw, version: int) -> None:
    create(raw, version, {})
    create(raw, version, {}, validate_only=False)


@CREATE.case("exists", 2, 5, 7)
def exists(raw: Raw, version: int) -> None:
    create(raw, version, {}, validate_only=False)
    create(raw, version, {})
    create(raw, version, {}, validate_only=False)


@CREATE.case("named twice", 2, 7)
def named_twice(raw: Raw, version: int) -> None:
    create(raw, version, {}, {})


@CREATE.case("good and bad", 2, 7)
def good_and_bad(raw: Raw, version: int) -> None:
    create(raw, version, {"name": "a b"}, {}, {"name": f"{raw.topic}-0", "num_partitions": 0})


@CREATE.case("nothing", 2, 7)
def nothing(raw: Raw, version: int) -> None:
    create(raw, version)


# ------------------------------------------------------------------------------------------------ ListOffsets


@OFFSETS.case("by timestamp", 1, 2, 4, 7, 10)
def by_timestamp(raw: Raw, version: int) -> None:
    raw.produce(raw.batch(3, timestamp=1000))
    raw.produce(raw.batch(2, timestamp=2000))
    for timestamp in (-1, -2, 0, 1000, 1500, 2000, 2001):
        raw.offset_at(timestamp, version=version)


@OFFSETS.case("open transaction", 2, 5, 10)
def open_transaction(raw: Raw, version: int) -> None:
    raw.produce(raw.batch(3, timestamp=1000))
    raw.begin(V2)
    for timestamp in (-1, -2, 0, 1500):
        for isolation in (0, 1):
            raw.offset_at(timestamp, isolation, version=version)


@OFFSETS.case("largest timestamp", 7, 10)
def largest_timestamp(raw: Raw, version: int) -> None:
    raw.offset_at(-3, version=version)
    raw.produce(raw.batch(3, timestamp=2000))
    raw.produce(raw.batch(2, timestamp=1000))
    raw.offset_at(-3, version=version)


@OFFSETS.case("empty partition", 1, 6, 10)
def empty_partition(raw: Raw, version: int) -> None:
    for timestamp in (-1, -2, 0):
        raw.offset_at(timestamp, version=version)


@OFFSETS.case("nobody there", 1, 4, 10)
def nobody_there(raw: Raw, version: int) -> None:
    with raw.expecting(Code.UNKNOWN_TOPIC_OR_PARTITION):
        raw.offset_at(-1, partition=9, version=version)
        raw.topic += "-missing"
        raw.offset_at(-1, version=version)


@OFFSETS.case("leader epochs", 4, 10)
def leader_epochs(raw: Raw, version: int) -> None:
    raw.offset_at(-1, version=version, leader_epoch=0)
    raw.offset_at(-1, version=version, leader_epoch=7)


@OFFSETS.case("timestamps with a meaning", 1, 6, 7, 8, 9, 10)
def timestamps_with_a_meaning(raw: Raw, version: int) -> None:
    raw.produce(raw.batch(3, timestamp=2000))
    for timestamp in (-3, -4, -5, -6, -7):
        raw.offset_at(timestamp, version=version)


# ------------------------------------------------------------------------------------------------ Fetch


@READ.case("records", 4, 5, 7, 11, 12, 13, 16, 17)
def records(raw: Raw, version: int) -> None:
    raw.produce(raw.batch(3, key=b"k", timestamp=1000))
    raw.produce(raw.batch([b"", None], compression="lz4", timestamp=2000))
    for offset in (0, 1, 3, 4, 5):
        raw.fetch(offset, version)


@READ.case("empty partition", 4, 12, 17)
def nothing_to_read(raw: Raw, version: int) -> None:
    raw.fetch(0, version)
    raw.fetch(0, version, committed=True)


@READ.case("out of range", 4, 12, 17)
def out_of_range(raw: Raw, version: int) -> None:
    raw.produce(raw.batch(3))
    for offset in (4, -1):
        raw.fetch(offset, version)


@READ.case("nobody there", 4, 12, 13, 17)
def read_nobody_there(raw: Raw, version: int) -> None:
    with raw.expecting(Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNKNOWN_TOPIC_ID):
        raw.fetch(0, version, partition=9)
        raw.topic, raw.topic_id = f"{raw.topic}-missing", b"\x07" * 16
        raw.fetch(0, version)


@READ.case("leader epochs", 9, 12, 17)
def read_leader_epochs(raw: Raw, version: int) -> None:
    raw.fetch(0, version, leader_epoch=0)
    raw.fetch(0, version, leader_epoch=7)


@READ.case("limits", 4, 17)
def limits(raw: Raw, version: int) -> None:
    for _ in range(3):
        raw.produce(raw.batch([b"v" * 100]))
    size = 2 * len(raw.batch([b"v" * 100]))
    for limit in (1, size, size + 1):
        raw.fetch(0, version, max_bytes=limit)


@READ.case("unknown session", 7, 12, 17)
def unknown_session(raw: Raw, version: int) -> None:
    raw.fetch(0, version, session_id=77, session_epoch=3)


@READ.case("open transaction", 4, 17)
def read_open_transaction(raw: Raw, version: int) -> None:
    raw.produce(raw.batch(1))
    raw.begin(V2)
    raw.fetch(0, version, committed=True)
    raw.fetch(0, version)


def add_ended(protocol: int, commit: bool) -> None:
    @READ.case(f"{'committed' if commit else 'aborted'} by protocol {1 if protocol == V1 else 2}", 4, 11, 17)
    def ended(raw: Raw, version: int) -> None:
        producer = raw.begin(protocol)
        raw.write(protocol, producer, 1)
        raw.end(producer, commit, protocol)
        raw.describe()
        raw.fetch(0, version, committed=True)
        raw.fetch(0, version)
        raw.fetch(2, version, committed=True)
        raw.fetch(3, version, committed=True)


for _protocol in (V1, V2):
    for _commit in (True, False):
        add_ended(_protocol, _commit)
