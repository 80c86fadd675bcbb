# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
import struct

import pytest
from testing.wire import Wire, batch, make_cluster, produce_body

from penstock.errors import ProtocolError
from penstock.protocol._framing_cy import frame_request
from penstock.protocol.codec import encode_request_body
from penstock.protocol.messages import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    API_VERSIONS,
    CREATE_TOPICS,
    DESCRIBE_CONFIGS,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    FETCH,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    LIST_TRANSACTIONS,
    METADATA,
    OFFSET_FETCH,
    PRODUCE,
    TXN_OFFSET_COMMIT,
)
from penstock.protocol.schema import ApiSchema
from penstock.testing import Code, Fault
from penstock.types import TopicPartition


@pytest.fixture
def wire() -> Wire:
    return Wire(make_cluster(topics={"t": 2}))


def metadata_frame(version: int = 9, key: int = 3) -> bytes:
    buffers = frame_request(
        METADATA, version, 1, None, encode_request_body(METADATA, version, {"topics": []})
    )
    frame = bytearray(b"".join(buffers))
    struct.pack_into(">h", frame, 4, key)
    return bytes(frame)


# ------------------------------------------------------------------------------------------------ bytes


def test_bytes_may_come_one_by_one(wire: Wire) -> None:
    session = wire.session()
    for byte in metadata_frame() * 2:
        session.feed(bytes([byte]), wire.now)
    assert len(session.output(wire.now)) == 2
    assert session.output(wire.now) == []


def test_several_requests_are_answered_in_order(wire: Wire) -> None:
    sent = [wire.send(METADATA, {"topics": []}) for _ in range(5)]
    assert list(wire.answers()) == sent


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">i", -1),
        struct.pack(">i", 200 * 1024 * 1024),
        struct.pack(">i", 6) + b"\0\3\0\x09\0\0",
        metadata_frame(version=9, key=77),
        metadata_frame()[:-2] + b"\xff\xff",
    ],
    ids=["http", "negative", "huge", "short", "unknown-api", "bad-body"],
)
def test_what_is_no_request_closes_the_connection(wire: Wire, data: bytes) -> None:
    session = wire.session()
    session.feed(data, wire.now)
    assert session.closed
    assert session.close_reason
    assert session.output(wire.now) == []


def test_a_version_that_is_not_advertised_closes_the_connection() -> None:
    wire = Wire(make_cluster(release="2.4"))
    session = wire.session()
    wire.send(PRODUCE, produce_body(wire.cluster, batch()), 9)
    assert session.closed
    assert wire.produce(batch(), version=8)["error_code"] == 0


def test_requests_before_rubbish_are_answered(wire: Wire) -> None:
    session = wire.session()
    session.feed(metadata_frame() + b"\xff\xff\xff\xff", wire.now)
    assert session.closed
    assert len(session.output(wire.now)) == 1


def test_a_stopped_broker_closes_its_connections() -> None:
    wire = Wire(make_cluster(2))
    session = wire.session(1)
    wire.cluster.stop_broker(1)
    assert session.closed
    with pytest.raises(ConnectionRefusedError):
        wire.cluster.session(1)
    assert not wire.session(0).closed


def test_connections_can_be_dropped() -> None:
    wire = Wire(make_cluster(2))
    first, second = wire.session(0), wire.session(1)
    wire.cluster.drop_connections(0)
    assert (first.closed, second.closed) == (True, False)


def test_requests_are_remembered(wire: Wire) -> None:
    wire.call(METADATA, {"topics": []}, 9)
    (request,) = wire.cluster.received
    assert (request.api, request.version, request.client_id, request.broker_id) == (METADATA, 9, "wire", 0)


# ------------------------------------------------------------------------------------------------ faults


def test_an_error_takes_no_effect(wire: Wire) -> None:
    wire.cluster.faults.add(Fault(api=PRODUCE, error=Code.NOT_LEADER_OR_FOLLOWER))
    assert wire.produce(batch())["error_code"] == Code.NOT_LEADER_OR_FOLLOWER
    assert wire.cluster.records("t", 0) == []
    assert wire.produce(batch())["error_code"] == 0
    assert wire.cluster.faults.waiting == []


def test_an_error_after_the_effect(wire: Wire) -> None:
    code = Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    wire.cluster.faults.add(Fault(api=PRODUCE, error=code, took_effect=True))
    assert wire.produce(batch())["error_code"] == code
    assert len(wire.cluster.records("t", 0)) == 1


def test_an_error_for_one_partition(wire: Wire) -> None:
    fault = Fault(api=PRODUCE, error=Code.MESSAGE_TOO_LARGE, partitions=[TopicPartition("t", 1)])
    wire.cluster.faults.add(fault)
    body = produce_body(wire.cluster, batch())
    body["topic_data"][0]["partition_data"].append({"index": 1, "records": batch()})
    rows = wire.call(PRODUCE, body)["responses"][0]["partition_responses"]
    assert [row["error_code"] for row in rows] == [0, Code.MESSAGE_TOO_LARGE]
    assert wire.cluster.records("t", 1) == []


def test_an_error_for_one_partition_after_the_effect(wire: Wire) -> None:
    code = Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    wire.cluster.faults.add(Fault(error=code, partitions=[TopicPartition("t", 1)], took_effect=True))
    body = produce_body(wire.cluster, batch())
    body["topic_data"][0]["partition_data"].append({"index": 1, "records": batch()})
    rows = wire.call(PRODUCE, body)["responses"][0]["partition_responses"]
    assert [row["error_code"] for row in rows] == [0, code]
    assert [len(wire.cluster.records("t", partition)) for partition in (0, 1)] == [1, 1]


def test_an_error_for_one_partition_passes_over_requests_that_are_no_produce(wire: Wire) -> None:
    wire.cluster.faults.add(Fault(error=Code.MESSAGE_TOO_LARGE, partitions=[TopicPartition("t", 0)]))
    wire.call(METADATA, {"topics": []})
    assert wire.produce(batch())["error_code"] == Code.MESSAGE_TOO_LARGE
    assert wire.cluster.faults.waiting == []


@pytest.mark.parametrize("version", [9, 13])
def test_an_error_for_one_partition_waits_for_a_request_with_records_for_it(wire: Wire, version: int) -> None:
    fault = Fault(error=Code.MESSAGE_TOO_LARGE, partitions=[TopicPartition("t", 1)])
    wire.cluster.faults.add(fault)
    assert wire.produce(batch(), version=version)["error_code"] == 0
    assert wire.cluster.faults.waiting == [fault]
    assert wire.produce(batch(), partition=1, version=version)["error_code"] == Code.MESSAGE_TOO_LARGE
    assert wire.cluster.faults.waiting == []


def test_a_late_answer_holds_up_those_behind_it(wire: Wire) -> None:
    wire.cluster.faults.add(Fault(api=PRODUCE, delay=2.0))
    first = wire.send(PRODUCE, produce_body(wire.cluster, batch()))
    second = wire.send(METADATA, {"topics": []})
    assert len(wire.cluster.records("t", 0)) == 1
    assert wire.answers() == {}
    assert wire.session().next_output_at() == wire.cluster.next_event_at() == wire.now + 2
    wire.now += 2
    assert list(wire.answers()) == [first, second]
    assert wire.session().next_output_at() == math.inf


@pytest.mark.parametrize(("cut", "written"), [("before", 0), ("after", 1)])
def test_a_connection_cut(wire: Wire, cut: str, written: int) -> None:
    wire.cluster.faults.add(Fault(api=PRODUCE, cut=cut))  # type: ignore[arg-type]
    session = wire.session()
    wire.send(PRODUCE, produce_body(wire.cluster, batch()))
    assert session.closed
    assert session.output(wire.now) == []
    assert len(wire.cluster.records("t", 0)) == written


def test_a_connection_cut_after_a_produce_without_acks(wire: Wire) -> None:
    wire.cluster.faults.add(Fault(api=PRODUCE, cut="after"))
    session = wire.session()
    wire.send(PRODUCE, produce_body(wire.cluster, batch(), acks=0))
    assert session.closed
    assert len(wire.cluster.records("t", 0)) == 1


def test_half_an_answer(wire: Wire) -> None:
    wire.cluster.faults.add(Fault(truncate=6))
    session = wire.session()
    session.feed(metadata_frame(), wire.now)
    (data,) = session.output(wire.now)
    assert len(data) == 6
    assert session.closed


def test_garbage_has_the_right_frame(wire: Wire) -> None:
    wire.cluster.faults.add(Fault(garbage=True))
    with pytest.raises(ProtocolError):
        wire.call(API_VERSIONS, {}, 0)
    assert not wire.session().closed


def test_throttling_tells_and_mutes(wire: Wire) -> None:
    wire.cluster.faults.add(Fault(api=PRODUCE, throttle_ms=500))
    answer = wire.call(PRODUCE, produce_body(wire.cluster, batch()))
    assert answer["throttle_time_ms"] == 500
    sent = wire.send(METADATA, {"topics": []})
    assert wire.answers() == {}
    assert wire.session().next_output_at() == wire.now + 0.5
    wire.now += 0.5
    assert list(wire.answers()) == [sent]


def test_faults_choose_their_requests(wire: Wire) -> None:
    def is_second_partition(request: object) -> bool:
        return request.body["topic_data"][0]["partition_data"][0]["index"] == 1  # type: ignore[attr-defined]

    wire.cluster.faults.add(Fault(api=PRODUCE, match=is_second_partition, error=Code.CORRUPT_MESSAGE))
    wire.cluster.faults.add(Fault(broker=5, error=Code.CORRUPT_MESSAGE))
    assert wire.produce(batch())["error_code"] == 0
    assert wire.produce(batch(), partition=1)["error_code"] == Code.CORRUPT_MESSAGE
    assert wire.produce(batch(), partition=1)["error_code"] == 0


def test_faults_count(wire: Wire) -> None:
    wire.cluster.faults.add(Fault(api=PRODUCE, error=Code.CORRUPT_MESSAGE, skip=1, times=2))
    codes = [wire.produce(batch())["error_code"] for _ in range(4)]
    assert codes == [0, Code.CORRUPT_MESSAGE, Code.CORRUPT_MESSAGE, 0]
    wire.cluster.faults.add(Fault(api=PRODUCE, error=Code.CORRUPT_MESSAGE, times=None))
    assert {wire.produce(batch())["error_code"] for _ in range(4)} == {Code.CORRUPT_MESSAGE}
    wire.cluster.faults.clear()
    assert wire.produce(batch())["error_code"] == 0


def test_faults_know_their_requests_by_name(wire: Wire) -> None:
    wire.cluster.faults.add(Fault(api="Produce", error=Code.CORRUPT_MESSAGE))
    wire.call(METADATA, {"topics": []})
    assert wire.produce(batch())["error_code"] == Code.CORRUPT_MESSAGE
    assert Fault(api="Produce", delay=1) == Fault(api=PRODUCE, delay=1)


def test_an_error_for_any_request_passes_over_those_that_open_a_connection(wire: Wire) -> None:
    wire.cluster.faults.add(Fault(error=Code.CORRUPT_MESSAGE))
    assert wire.call(API_VERSIONS, {}, 0)["error_code"] == 0
    assert wire.produce(batch())["error_code"] == Code.CORRUPT_MESSAGE
    for chosen in (
        Fault(api="ApiVersions", error=Code.UNSUPPORTED_VERSION),
        Fault(match=lambda request: True, error=Code.UNSUPPORTED_VERSION),
    ):
        wire.cluster.faults.add(chosen)
        assert wire.call(API_VERSIONS, {}, 0)["error_code"] == Code.UNSUPPORTED_VERSION


ODD_CODE = 31999  # no other number in an answer looks like it
TXN = {"transactional_id": "x", "producer_id": 1, "producer_epoch": 0}
T0 = {"name": "t", "partitions": [{"partition_index": 0}]}
REFUSABLE: list[tuple[ApiSchema, dict[str, object]]] = [
    (PRODUCE, {"acks": 1, "topic_data": [{"name": "t", "partition_data": [{"index": 0, "records": b""}]}]}),
    (FETCH, {"topics": [{"topic": "t", "partitions": [{"partition": 0}]}]}),
    (LIST_OFFSETS, {"topics": [T0]}),
    (METADATA, {"topics": [{"name": "t"}]}),
    (OFFSET_FETCH, {"groups": [{"group_id": "g", "topics": None}]}),
    (FIND_COORDINATOR, {"coordinator_keys": ["x"]}),
    (API_VERSIONS, {}),
    (CREATE_TOPICS, {"topics": [{"name": "n"}]}),
    (INIT_PRODUCER_ID, {"transactional_id": "x"}),
    (ADD_PARTITIONS_TO_TXN, {"v3_and_below_topics": [{"name": "t", "partitions": [0]}]}),
    (ADD_OFFSETS_TO_TXN, TXN | {"group_id": "g"}),
    (END_TXN, TXN | {"committed": True}),
    (TXN_OFFSET_COMMIT, TXN | {"group_id": "g", "topics": [T0]}),
    (DESCRIBE_CONFIGS, {"resources": [{"resource_type": 2, "resource_name": "t"}]}),
    (DESCRIBE_TRANSACTIONS, {"transactional_ids": ["x"]}),
    (LIST_TRANSACTIONS, {}),
]


@pytest.mark.parametrize(("api", "body"), REFUSABLE, ids=[api.name for api, _ in REFUSABLE])
def test_every_api_can_be_refused_in_every_version(api: ApiSchema, body: dict[str, object]) -> None:
    cluster = make_cluster()
    low, high = cluster.release.ranges[api.key]
    for version in range(low, high + 1):
        if not cluster.release.accepts(api, version):
            continue
        wire = Wire(cluster)
        cluster.faults.add(Fault(api=api, error=ODD_CODE))
        shaped = body
        if api is FIND_COORDINATOR and version < 4:
            shaped = {"key": "x"}
        elif api is OFFSET_FETCH and version < 8:
            shaped = {"group_id": "g", "topics": []}
        answer = wire.call(api, shaped, version)
        has_room_for_it = (api, version) not in [(OFFSET_FETCH, 1)]
        assert (str(ODD_CODE) in str(answer)) == has_room_for_it
