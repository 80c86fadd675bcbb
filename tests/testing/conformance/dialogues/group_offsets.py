# SPDX-License-Identifier: Apache-2.0
"""AddOffsetsToTxn, TxnOffsetCommit and OffsetFetch: the offsets of a group that a transaction carries."""

from __future__ import annotations

from typing import Any

from testing.conformance.cases import Cases
from testing.conformance.raw import V1, V2, Body, Raw
from testing.wire import Producer

from penstock.protocol.messages import ADD_OFFSETS_TO_TXN, OFFSET_FETCH, TXN_OFFSET_COMMIT
from penstock.testing import Code

ADD = Cases(ADD_OFFSETS_TO_TXN)
COMMIT = Cases(TXN_OFFSET_COMMIT)
FETCHED = Cases(OFFSET_FETCH)

SECOND_PROTOCOL = 5  # from this version of TxnOffsetCommit on


def add(raw: Raw, producer: Producer, version: int = 4, **fields: Any) -> None:
    raw.call(ADD_OFFSETS_TO_TXN, identity(raw, producer) | fields, version)


def identity(raw: Raw, producer: Producer) -> Body:
    return {
        "transactional_id": raw.id,
        "producer_id": producer.id,
        "producer_epoch": producer.epoch,
        "group_id": raw.group,
    }


def commit(raw: Raw, producer: Producer, version: int = 5, **fields: Any) -> None:
    partitions = [
        {"partition_index": 0, "committed_offset": 7, "committed_metadata": "m"},
        {"partition_index": 1, "committed_offset": 8, "committed_metadata": "m" * 4097},
    ]
    body = identity(raw, producer) | {"topics": [{"name": raw.topic, "partitions": partitions}]} | fields
    raw.call(TXN_OFFSET_COMMIT, body, version)


def fetch(
    raw: Raw,
    version: int = 9,
    topics: list[Body] | str | None = "own",
    *,
    group: str | None = None,
    stable: bool = True,
) -> None:
    wanted = [{"name": raw.topic, "partition_indexes": [0, 1]}] if topics == "own" else topics
    row = {"group_id": raw.group if group is None else group, "topics": wanted}
    body: Body = {"groups": [row]} if version >= 8 else row
    if version >= 7:
        body["require_stable"] = stable
    raw.call(OFFSET_FETCH, body, version)


# ------------------------------------------------------------------------------------------------ AddOffsetsToTxn


@ADD.case("added", 0, 2, 3, 4)
def added(raw: Raw, version: int) -> None:
    add(raw, raw.init(), version)
    raw.describe()


@ADD.case("stranger", 0, 4)
def stranger(raw: Raw, version: int) -> None:
    producer = raw.init()
    add(raw, Producer(producer.id + 1_000_000, 0), version)


@ADD.case("nobody has the id", 0, 4)
def nobody(raw: Raw, version: int) -> None:
    add(raw, Producer(5_000_000, 0), version)


@ADD.case("fenced", 0, 1, 2, 4)
def fenced(raw: Raw, version: int) -> None:
    producer = raw.init()
    raw.init()
    add(raw, producer, version)


@ADD.case("empty names", 0, 4)
def empty_names(raw: Raw, version: int) -> None:
    producer = raw.init()
    add(raw, producer, version, transactional_id="")
    add(raw, producer, version, group_id="")


@ADD.case("twice, and ended", 3, 4)
def twice(raw: Raw, version: int) -> None:
    producer = raw.init()
    add(raw, producer, version)
    add(raw, producer, version)
    raw.end(producer, True, V1)
    raw.describe()


# ------------------------------------------------------------------------------------------------ TxnOffsetCommit


def add_dialogue(*, in_transaction: bool) -> None:
    name = "group that was added" if in_transaction else "group that was not added"

    @COMMIT.case(name, 0, 2, 3, 4, 5)
    def dialogue(raw: Raw, version: int) -> None:
        producer = raw.init()
        if in_transaction:
            add(raw, producer)
        commit(raw, producer, version)
        if version >= 3:
            commit(raw, producer, version, member_id="m", generation_id=1)
        raw.end(producer, True, V2 if version == SECOND_PROTOCOL else V1)
        raw.describe()
        fetch(raw)


add_dialogue(in_transaction=True)
add_dialogue(in_transaction=False)


@COMMIT.case("member that is not there", 3, 5)
def not_a_member(raw: Raw, version: int) -> None:
    producer = raw.init()
    add(raw, producer)
    commit(raw, producer, version, member_id="m")
    commit(raw, producer, version, generation_id=1)
    commit(raw, producer, version, group_instance_id="i", member_id="m", generation_id=1)


@COMMIT.case("stranger", 0, 3, 5)
def commit_of_stranger(raw: Raw, version: int) -> None:
    producer = raw.init()
    add(raw, producer)
    commit(raw, Producer(producer.id + 1_000_000, 0), version)


@COMMIT.case("fenced", 0, 3, 5)
def commit_of_fenced(raw: Raw, version: int) -> None:
    producer = raw.init()
    raw.init()
    commit(raw, producer, version)


@COMMIT.case("unknown topic", 0, 3, 5)
def commit_to_unknown(raw: Raw, version: int) -> None:
    producer = raw.init()
    add(raw, producer)
    raw.topic += "-missing"
    with raw.expecting(Code.UNKNOWN_TOPIC_OR_PARTITION):
        commit(raw, producer, version)


@COMMIT.case("aborted", 3, 5)
def aborted(raw: Raw, version: int) -> None:
    producer = raw.init()
    add(raw, producer)
    commit(raw, producer, version)
    raw.end(producer, False, V2 if version == SECOND_PROTOCOL else V1)
    raw.describe()
    fetch(raw)


# ------------------------------------------------------------------------------------------------ OffsetFetch


def commit_offsets(raw: Raw) -> None:
    producer = raw.init()
    commit(raw, producer)
    raw.end(producer, True, V2)
    raw.describe()


@FETCHED.case("committed", *range(1, 10))
def committed(raw: Raw, version: int) -> None:
    commit_offsets(raw)
    fetch(raw)  # waits for the end to be known to the group
    fetch(raw, version)


@FETCHED.case("all topics", 2, 5, 7, 8, 9)
def all_topics(raw: Raw, version: int) -> None:
    commit_offsets(raw)
    fetch(raw)
    fetch(raw, version, None)


@FETCHED.case("no topics", 1, 7, 9)
def no_topics(raw: Raw, version: int) -> None:
    commit_offsets(raw)
    fetch(raw)
    fetch(raw, version, [])


@FETCHED.case("unknown group", 1, 2, 5, 7, 8, 9)
def unknown_group(raw: Raw, version: int) -> None:
    fetch(raw, version, group=f"{raw.group}-missing")


@FETCHED.case("unknown topic", 1, 7, 9)
def unknown_topic(raw: Raw, version: int) -> None:
    commit_offsets(raw)
    fetch(raw)
    fetch(raw, version, [{"name": f"{raw.topic}-missing", "partition_indexes": [0]}])


@FETCHED.case("open transaction", 7, 9)
def open_transaction(raw: Raw, version: int) -> None:
    commit(raw, raw.init())
    with raw.expecting(Code.UNSTABLE_OFFSET_COMMIT):
        fetch(raw, version)
        fetch(raw, version, stable=False)
        fetch(raw, version, None)


@FETCHED.case("empty group", 1, 7, 9)
def empty_group(raw: Raw, version: int) -> None:
    fetch(raw, version, group="")
