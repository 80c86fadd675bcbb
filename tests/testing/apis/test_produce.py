# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import struct

import pytest
from google_crc32c import value as crc32c
from testing.batches import GOOD, NO_BATCH, OUT_OF_ORDER, SEQUENCES, P, changed
from testing.wire import NOW_MS, Producer, Wire, batch, make_cluster, produce_body

from penstock.protocol.messages import PRODUCE
from penstock.records import format as layout
from penstock.testing import Code

VERSIONS = range(3, 14)
HOUR_MS = 3_600_000


@pytest.fixture
def wire() -> Wire:
    return Wire(make_cluster(topics={"t": 2, "u": 1}))


@pytest.mark.parametrize("version", VERSIONS)
def test_appends_and_tells_the_offset_in_every_version(wire: Wire, version: int) -> None:
    assert wire.produce(batch(3), version=version)["base_offset"] == 0
    row = wire.produce(batch(2), version=version)
    assert (row["error_code"], row["base_offset"]) == (0, 3)
    assert [record.offset for record in wire.cluster.records("t", 0)] == [0, 1, 2, 3, 4]
    assert wire.cluster.records("t", 1) == []


@pytest.mark.parametrize("compression", ["gzip", "snappy", "lz4", "zstd"])
def test_takes_every_codec(wire: Wire, compression: str) -> None:
    assert wire.produce(batch(5, compression=compression))["error_code"] == 0
    assert [record.value for record in wire.cluster.records("t", 0)] == [b"v%d" % i for i in range(5)]


@pytest.mark.parametrize(
    ("data", "code"), [row[1:] for row in NO_BATCH], ids=[row[0].replace(" ", "-") for row in NO_BATCH]
)
def test_refuses_what_is_no_batch(wire: Wire, data: bytes | None, code: Code) -> None:
    row = wire.produce(data)
    assert (row["error_code"], row["base_offset"]) == (code, -1)
    assert wire.cluster.records("t", 0) == []


def test_zstd_needs_version_7(wire: Wire) -> None:
    data = batch(compression="zstd")
    assert wire.produce(data, version=6)["error_code"] == Code.UNSUPPORTED_COMPRESSION_TYPE
    assert wire.produce(data, version=7)["error_code"] == 0


def test_size_limit_of_the_topic(wire: Wire) -> None:
    wire.cluster.create_topic("small", configs={"max.message.bytes": "200"})
    assert wire.produce(batch([b"x" * 300]), topic="small")["error_code"] == Code.MESSAGE_TOO_LARGE
    assert wire.produce(batch([b"x" * 100]), topic="small")["error_code"] == 0


def test_timestamps_out_of_range_name_the_records(wire: Wire) -> None:
    row = wire.produce(batch(2, timestamp=NOW_MS + HOUR_MS + 1))
    assert row["error_code"] == Code.INVALID_TIMESTAMP
    assert [each["batch_index"] for each in row["record_errors"]] == [0, 1]
    assert wire.produce(batch(2, timestamp=NOW_MS + HOUR_MS))["error_code"] == 0


def test_compacted_topic_wants_keys(wire: Wire) -> None:
    wire.cluster.create_topic("compacted", configs={"cleanup.policy": "compact"})
    row = wire.produce(batch(1), topic="compacted")
    assert row["error_code"] == Code.INVALID_RECORD
    assert row["record_errors"][0]["batch_index"] == 0
    assert wire.produce(batch(1, key=b"k"), topic="compacted")["error_code"] == 0


def test_brokers_time_replaces_the_producers(wire: Wire) -> None:
    wire.cluster.create_topic("stamped", configs={"message.timestamp.type": "LogAppendTime"})
    row = wire.produce(batch(1, timestamp=5), topic="stamped")
    assert row["log_append_time_ms"] == NOW_MS
    assert wire.cluster.records("stamped", 0)[0].timestamp == NOW_MS
    assert wire.produce(batch(1, timestamp=5))["log_append_time_ms"] == -1


@pytest.mark.parametrize(
    ("fields", "version", "code"),
    [
        ({"topic": "nowhere"}, 12, Code.UNKNOWN_TOPIC_OR_PARTITION),
        ({"topic": "nowhere"}, 13, Code.UNKNOWN_TOPIC_ID),
        ({"partition": 2}, 13, Code.UNKNOWN_TOPIC_OR_PARTITION),
        ({"acks": 2}, 13, Code.INVALID_REQUIRED_ACKS),
    ],
)
def test_refuses_wrong_addresses(wire: Wire, fields: dict[str, object], version: int, code: Code) -> None:
    assert wire.produce(batch(), version=version, **fields)["error_code"] == code


def test_denied_topic(wire: Wire) -> None:
    wire.cluster.denied_topics.add("t")
    assert wire.produce(batch())["error_code"] == Code.TOPIC_AUTHORIZATION_FAILED


@pytest.mark.parametrize("version", [9, 10, 13])
def test_wrong_broker_names_the_leader_from_version_10(version: int) -> None:
    wire = Wire(make_cluster(2, {"t": 1}))
    leader = wire.cluster.partition("t", 0).leader
    body = produce_body(wire.cluster, batch())
    answer = wire.call(PRODUCE, body, version, broker=1 - leader)
    row = answer["responses"][0]["partition_responses"][0]
    assert row["error_code"] == Code.NOT_LEADER_OR_FOLLOWER
    hinted = version >= 10
    assert row["current_leader"]["leader_id"] == (leader if hinted else -1)
    assert [node["node_id"] for node in answer["node_endpoints"]] == ([leader] if hinted else [])


def test_one_partition_fails_and_the_others_do_not(wire: Wire) -> None:
    body = produce_body(wire.cluster, batch())
    body["topic_data"][0]["partition_data"].append({"index": 1, "records": b""})
    rows = wire.call(PRODUCE, body)["responses"][0]["partition_responses"]
    assert [row["error_code"] for row in rows] == [0, Code.INVALID_RECORD]


# ------------------------------------------------------------------------------------------------ acknowledgements


def test_without_acks_there_is_no_answer(wire: Wire) -> None:
    wire.send(PRODUCE, produce_body(wire.cluster, batch(), acks=0))
    assert wire.answers() == {}
    assert len(wire.cluster.records("t", 0)) == 1
    assert not wire.session().closed


def test_a_failure_without_acks_closes_the_connection(wire: Wire) -> None:
    session = wire.session()
    wire.send(PRODUCE, produce_body(wire.cluster, b"", acks=0))
    assert session.closed


def test_all_acks_need_enough_replicas() -> None:
    cluster = make_cluster(3)
    cluster.create_topic("safe", configs={"min.insync.replicas": "2"})
    wire = Wire(cluster)
    partition = cluster.partition("safe", 0)
    cluster.shrink_isr("safe", 0, [partition.leader])
    where = {"topic": "safe", "broker": partition.leader}
    assert wire.produce(batch(), **where)["error_code"] == Code.NOT_ENOUGH_REPLICAS
    assert wire.produce(batch(), acks=1, **where)["error_code"] == 0


@pytest.mark.parametrize(("release", "code"), [("3.0", Code.NOT_ENOUGH_REPLICAS), ("3.7", 0), ("4.3", 0)])
def test_no_more_replicas_are_needed_than_there_are(release: str, code: int) -> None:
    cluster = make_cluster(1, release=release)
    cluster.create_topic("safe", configs={"min.insync.replicas": "2"})
    assert Wire(cluster).produce(batch(), topic="safe")["error_code"] == code


def test_all_acks_wait_for_replication_and_hold_up_the_connection(wire: Wire) -> None:
    wire.cluster.hold_replication("t", 0)
    first = wire.send(PRODUCE, produce_body(wire.cluster, batch()))
    second = wire.send(PRODUCE, produce_body(wire.cluster, batch(), partition=1))
    assert wire.answers() == {}
    assert wire.cluster.records("t", 1) == []  # not even looked at
    wire.cluster.resume_replication("t", 0)
    assert list(wire.answers()) == [first, second]


def test_all_acks_time_out_although_the_records_stay(wire: Wire) -> None:
    wire.cluster.hold_replication("t", 0)
    sent = wire.send(PRODUCE, produce_body(wire.cluster, batch(), timeout_ms=500))
    assert wire.session().next_output_at() == wire.now + 0.5
    wire.now += 0.5
    row = wire.answers()[sent]["responses"][0]["partition_responses"][0]
    assert row["error_code"] == Code.REQUEST_TIMED_OUT
    assert wire.cluster.partition("t", 0).log.log_end_offset == 1


def test_one_ack_may_be_lost_with_the_leader() -> None:
    cluster = make_cluster(2, {"t": 1})
    wire = Wire(cluster)
    leader = cluster.partition("t", 0).leader
    wire.produce(batch([b"safe"]), broker=leader)
    cluster.hold_replication("t", 0)
    assert wire.produce(batch([b"lost"]), acks=1, broker=leader)["base_offset"] == 1
    cluster.stop_broker(leader)
    cluster.resume_replication("t", 0)
    assert wire.produce(batch([b"new"]), broker=1 - leader)["base_offset"] == 1
    assert [record.value for record in cluster.records("t", 0)] == [b"safe", b"new"]


def test_leader_lost_while_waiting() -> None:
    cluster = make_cluster(2, {"t": 1})
    wire = Wire(cluster)
    leader = cluster.partition("t", 0).leader
    cluster.hold_replication("t", 0)
    sent = wire.send(PRODUCE, produce_body(cluster, batch()), broker=leader)
    cluster.move_leader("t", 0, 1 - leader)
    row = wire.answers(leader)[sent]["responses"][0]["partition_responses"][0]
    assert row["error_code"] == Code.NOT_LEADER_OR_FOLLOWER
    assert row["current_leader"] == {"leader_id": 1 - leader, "leader_epoch": 1}


# ------------------------------------------------------------------------------------------------ sequences


def sequence_rows(wire: Wire, *steps: tuple[Producer, int, int]) -> list[tuple[int, int]]:
    """Produce (producer, sequence, count) one after the other; (error, base offset) of each."""
    rows = [wire.produce(batch(count, producer, sequence)) for producer, sequence, count in steps]
    return [(row["error_code"], row["base_offset"]) for row in rows]


@pytest.mark.parametrize("name", SEQUENCES)
def test_sequences(wire: Wire, name: str) -> None:
    steps = [step for step, _ in SEQUENCES[name]]
    assert sequence_rows(wire, *steps) == [expected for _, expected in SEQUENCES[name]]


def test_a_duplicate_is_told_the_time_of_its_records(wire: Wire) -> None:
    first, again = (wire.produce(batch(2, P, timestamp=5000)) for _ in range(2))
    assert (first["log_append_time_ms"], again["log_append_time_ms"]) == (-1, 5000)


@pytest.mark.parametrize(
    ("data", "log_start"), [(b"", -1), (changed(GOOD, layout.RECORDS_COUNT_AT, ">i", 3), 0)]
)
def test_the_log_is_told_of_only_when_it_was_asked(wire: Wire, data: bytes, log_start: int) -> None:
    row = wire.produce(data)
    assert (row["log_start_offset"], row["error_message"]) == (log_start, None)


def test_old_duplicates_can_be_told_apart() -> None:
    wire = Wire(make_cluster(settings={"tells_old_duplicates": True}))
    rows = sequence_rows(wire, *[(P, i, 1) for i in range(6)], (P, 0, 1), (P, 8, 1))
    assert rows[-2:] == [(Code.DUPLICATE_SEQUENCE_NUMBER, -1), OUT_OF_ORDER]


def test_unknown_producer_before_2_5() -> None:
    wire = Wire(make_cluster(release="2.4"))
    row = wire.produce(batch(1, P, 3))
    assert (row["error_code"], row["log_start_offset"]) == (Code.UNKNOWN_PRODUCER_ID, 0)


def test_retention_may_forget_the_producer(wire: Wire) -> None:
    sequence_rows(wire, (P, 0, 3))
    wire.cluster.delete_records("t", 0, before=3, forget_producers=True)
    row = wire.produce(batch(1, P, 9))
    assert (row["error_code"], row["base_offset"], row["log_start_offset"]) == (0, 3, 3)


def test_retention_keeps_sequences_otherwise(wire: Wire) -> None:
    sequence_rows(wire, (P, 0, 3))
    wire.cluster.delete_records("t", 0, before=3)
    assert sequence_rows(wire, (P, 9, 1), (P, 3, 1)) == [OUT_OF_ORDER, (0, 3)]


# ------------------------------------------------------------------------------------------------ transactions


@pytest.mark.parametrize(
    ("version", "code"),
    [(10, Code.INVALID_TXN_STATE), (11, Code.TRANSACTION_ABORTABLE), (12, Code.NONE), (13, Code.NONE)],
)
def test_partition_that_was_not_added(wire: Wire, version: int, code: Code) -> None:
    data = batch(1, wire.init(), transactional=True)
    assert wire.produce(data, version=version, transactional_id="x")["error_code"] == code
    assert wire.describe()["transaction_state"] == ("Ongoing" if version >= 12 else "Empty")


def test_old_releases_do_not_look_it_up() -> None:
    wire = Wire(make_cluster(release="3.0"))
    data = batch(1, wire.init(), transactional=True)
    assert wire.produce(data, transactional_id="x")["error_code"] == 0


def test_transactional_batch_needs_a_producer_id(wire: Wire) -> None:
    data = changed(GOOD, layout.ATTRIBUTES_AT, ">h", layout.TRANSACTIONAL_BIT)
    assert wire.produce(data)["error_code"] == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert wire.produce(data, transactional_id="x")["error_code"] == Code.INVALID_RECORD


def test_transactional_batch_needs_an_id(wire: Wire) -> None:
    data = batch(1, wire.init(), transactional=True)
    assert wire.produce(data)["error_code"] == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    wire.cluster.denied_transactional_ids.add("x")
    row = wire.produce(data, transactional_id="x")
    assert row["error_code"] == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_plain_batch_inside_a_transaction(wire: Wire) -> None:
    producer = wire.init()
    wire.produce(batch(1, producer, transactional=True), transactional_id="x")
    assert wire.produce(batch(1, producer, 1))["error_code"] == Code.INVALID_TXN_STATE


@pytest.mark.parametrize(
    ("version", "code"), [(11, Code.NOT_ENOUGH_REPLICAS), (12, Code.CONCURRENT_TRANSACTIONS)]
)
def test_while_markers_are_written(version: int, code: Code) -> None:
    wire = Wire(make_cluster(topics={"t": 2}, settings={"marker_delay": 1.0}))
    producer = wire.init()
    wire.add(producer)
    wire.end(producer, True, 3)
    data = batch(1, producer, transactional=True)
    row = wire.produce(data, partition=1, version=version, transactional_id="x")
    assert row["error_code"] == code


def test_another_producer_in_a_transaction(wire: Wire) -> None:
    wire.init()
    data = batch(1, Producer(5, 0), transactional=True)
    row = wire.produce(data, transactional_id="x")
    assert row["error_code"] == Code.INVALID_PRODUCER_ID_MAPPING


def test_second_protocol_starts_each_epoch_at_zero(wire: Wire) -> None:
    producer = wire.init()

    def code(sequence: int) -> int:
        data = batch(1, producer, sequence, transactional=True)
        return wire.produce(data, transactional_id="x")["error_code"]

    assert [code(3), code(0), code(1)] == [Code.OUT_OF_ORDER_SEQUENCE_NUMBER, 0, 0]


def test_records_are_judged_too(wire: Wire) -> None:
    good = bytearray(batch([b"a", b"b"]))
    assert (
        good[-5] == 2
    )  # the offset delta, before null key, length, value and no headers; 1 as a zigzag number
    good[-5] = 0
    struct.pack_into(">I", good, layout.CRC_AT, crc32c(bytes(good[layout.CHECKED_FROM :])))
    assert wire.produce(bytes(good))["error_code"] == Code.INVALID_RECORD
