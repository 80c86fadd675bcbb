# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import gc
from typing import Any

import pytest
from protocol.golden_cases import GoldenCase, golden_requests, golden_responses

from penstock.errors import ProtocolError
from penstock.protocol._framing_cy import parse_response_header
from penstock.protocol._produce_cy import (
    PartitionBatch,
    PartitionResponse,
    ProduceRequest,
    ProduceResponse,
    is_compiled,
)
from penstock.protocol.codec import encode_request_body, encode_response_body
from penstock.protocol.messages import PRODUCE
from penstock.types import Node

NO_ID = bytes(16)
ORDERS_ID = bytes(range(16))
CLICKS_ID = bytes(range(16, 32))


def batch(*, size: int = 100, magic: int = 2, codec: int = 0, fill: int = 7) -> bytes:
    """The outline of a batch: what the request looks at is right, the rest is filling."""
    data = bytearray([fill]) * size
    data[8:12] = (size - 12).to_bytes(4, "big")
    data[16] = magic
    data[21:23] = codec.to_bytes(2, "big")
    return bytes(data)


def one(
    records: Any, topic: str = "orders", topic_id: bytes = NO_ID, partition: int = 0
) -> list[PartitionBatch]:
    return [PartitionBatch(topic, topic_id, partition, records)]


def table_body(batches: list[PartitionBatch], version: int, **fields: Any) -> dict[str, Any]:
    topics: dict[str, dict[str, Any]] = {}
    for each in batches:
        named = {"name": each.topic} if version < 13 else {"topic_id": each.topic_id}
        topic = topics.setdefault(each.topic, {**named, "partition_data": []})
        topic["partition_data"].append({"index": each.partition, "records": each.records})
    return {"topic_data": list(topics.values()), **fields}


BATCHES = [
    PartitionBatch("orders", ORDERS_ID, 0, batch()),
    PartitionBatch("clicks \u043a\u043b\u0438\u043a\u0438", CLICKS_ID, 2**31 - 1, batch(size=61)),
    PartitionBatch("orders", ORDERS_ID, 7, batch(size=20_000)),
    PartitionBatch("orders", ORDERS_ID, 3, batch(size=127)),
]


@pytest.mark.parametrize("version", range(3, 14))
@pytest.mark.parametrize("transactional_id", [None, "", "txn-1", "t" * 200])
def test_encoding_equals_that_of_the_table(version: int, transactional_id: str | None) -> None:
    request = ProduceRequest(-1, 30_000, BATCHES, transactional_id)
    body = table_body(BATCHES, version, acks=-1, timeout_ms=30_000, transactional_id=transactional_id)
    assert b"".join(request.encode(version)) == b"".join(encode_request_body(PRODUCE, version, body))


@pytest.mark.parametrize("version", range(3, 14))
def test_many_topics_and_partitions_equal_the_table(version: int) -> None:
    many = [
        PartitionBatch(
            f"topic-{topic}", (topic + 1).to_bytes(16, "big"), partition, batch(size=61 + partition)
        )
        for partition in range(3)
        for topic in range(150)
    ]
    body = table_body(many, version, acks=1, timeout_ms=1)
    assert b"".join(ProduceRequest(1, 1, many).encode(version)) == b"".join(
        encode_request_body(PRODUCE, version, body)
    )


def sendable(case: GoldenCase) -> bool:
    partitions = [each for topic in case.body["topic_data"] for each in topic["partition_data"]]
    return "random" not in case.name and bool(partitions) and all(each["records"] for each in partitions)


GOLDEN = [case for case in golden_requests() if case.api is PRODUCE and sendable(case)]


def test_there_is_a_golden_request_of_each_layout() -> None:
    # 6, 7 and 11 have only empty and random cases; they look like 5, 8 and 12.
    assert {case.version for case in GOLDEN} == {3, 4, 5, 8, 9, 10, 12, 13}


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case.name)
def test_golden_requests_are_written_byte_for_byte(case: GoldenCase) -> None:
    batches = [
        PartitionBatch(
            topic.get("name", topic.get("topic_id", b"").hex()),
            topic.get("topic_id", NO_ID),
            each["index"],
            each["records"],
        )
        for topic in case.body["topic_data"]
        for each in topic["partition_data"]
    ]
    request = ProduceRequest(
        case.body["acks"], case.body["timeout_ms"], batches, case.body["transactional_id"]
    )
    assert b"".join(request.encode(case.version)) == case.data[case.header_size :]


@pytest.mark.parametrize("version", [3, 9, 13])
def test_a_batch_in_several_pieces_is_written_as_in_one(version: int) -> None:
    whole = batch(size=500)
    pieces = [memoryview(whole)[:61], memoryview(whole)[61:90], memoryview(whole)[90:]]
    buffers = ProduceRequest(1, 1, one(pieces, topic_id=ORDERS_ID)).encode(version)
    assert [buffer for buffer in buffers if any(buffer is each for each in pieces)] == pieces
    assert b"".join(buffers) == b"".join(ProduceRequest(1, 1, one(whole, topic_id=ORDERS_ID)).encode(version))
    with pytest.raises(ValueError, match="cut off: 90 of 500 bytes"):
        ProduceRequest(1, 1, one(pieces[:2]))


@pytest.mark.parametrize("version", [3, 9, 13])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_batches_are_never_copied(version: int, kind: type) -> None:
    records = [kind(batch(size=size)) for size in (61, 500, 100_000)]
    batches = [PartitionBatch("orders", ORDERS_ID, index, each) for index, each in enumerate(records)]
    buffers = ProduceRequest(1, 1, batches).encode(version)
    assert [buffer for buffer in buffers if any(buffer is each for each in records)] == records


# What is refused


def test_a_request_without_batches_is_refused() -> None:
    """Requirement 93."""
    with pytest.raises(ValueError, match="at least one batch"):
        ProduceRequest(1, 1, [])


@pytest.mark.parametrize("records", [b"", b"\0" * 16, batch()[:30], batch()[:60]])
def test_a_partition_without_a_batch_is_refused(records: bytes) -> None:
    """Requirement 93."""
    with pytest.raises(ValueError, match="no record batch for partition 0 of topic 'orders'"):
        ProduceRequest(1, 1, one(records))


def test_more_than_one_batch_in_a_partition_is_refused() -> None:
    """Requirement 93."""
    with pytest.raises(ValueError, match="more than one record batch"):
        ProduceRequest(1, 1, one(batch() + batch()))
    with pytest.raises(ValueError, match="two batches for partition 4 of topic 'orders'"):
        ProduceRequest(1, 1, one(batch(), partition=4) + one(batch(), partition=4))


@pytest.mark.parametrize("magic", [3, 127])
def test_an_unknown_magic_is_refused(magic: int) -> None:
    """Requirement 93."""
    with pytest.raises(ValueError, match=f"magic {magic}, not 0, 1 or 2"):
        ProduceRequest(1, 1, one(batch(magic=magic)))


def test_zstd_is_not_sent_below_version_7() -> None:
    """Requirement 93."""
    request = ProduceRequest(1, 1, [*one(batch()), *one(batch(codec=4), partition=1)])
    assert request.min_version == 7
    request.encode(7)
    with pytest.raises(ValueError, match="versions 7 to 12, not in 6"):
        request.encode(6)
    with pytest.raises(ValueError, match="no Produce version between 7 and 6"):
        ProduceRequest(1, 1, one(batch(codec=4)), max_version=6)


@pytest.mark.parametrize("attributes", [0, 1, 2, 3, 8 | 3, 16 | 3])
def test_other_codecs_are_sent_from_version_3(attributes: int) -> None:
    request = ProduceRequest(1, 1, one(batch(codec=attributes)))
    assert request.min_version == 3
    request.encode(3)


@pytest.mark.parametrize("attributes", [4, 8 | 4, 16 | 4])
def test_zstd_is_seen_whatever_the_other_attributes(attributes: int) -> None:
    assert ProduceRequest(1, 1, one(batch(codec=attributes))).min_version == 7


def test_a_batch_that_is_cut_off_is_refused() -> None:
    with pytest.raises(ValueError, match="cut off: 90 of 100 bytes"):
        ProduceRequest(1, 1, one(batch(size=100)[:90]))


def test_topic_ids_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="two ids for topic"):
        ProduceRequest(1, 1, one(batch(), topic_id=ORDERS_ID) + one(batch(), topic_id=CLICKS_ID, partition=1))
    with pytest.raises(ValueError, match="same id"):
        ProduceRequest(
            1, 1, one(batch(), topic_id=ORDERS_ID) + one(batch(), topic="clicks", topic_id=ORDERS_ID)
        )
    with pytest.raises(ValueError, match="16 bytes"):
        ProduceRequest(1, 1, one(batch(), topic_id=b"short"))


@pytest.mark.parametrize("acks", [-2, 2])
def test_acks_is_all_none_or_one(acks: int) -> None:
    with pytest.raises(ValueError, match="acks"):
        ProduceRequest(acks, 1, one(batch()))


def test_a_name_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="too long"):
        ProduceRequest(1, 1, one(batch(), topic="t" * 32768))


# Versions


def test_topic_ids_are_used_only_when_all_are_known() -> None:
    known = one(batch(), topic_id=ORDERS_ID)
    assert ProduceRequest(1, 1, known).max_version == 13
    request = ProduceRequest(1, 1, known + one(batch(), topic="clicks"))
    assert request.max_version == 12
    with pytest.raises(ValueError, match="3 to 12, not in 13"):
        request.encode(13)


def test_the_caller_may_cap_the_version() -> None:
    assert ProduceRequest(1, 1, one(batch(), topic_id=ORDERS_ID), max_version=11).max_version == 11


@pytest.mark.parametrize(("acks", "expected"), [(0, False), (1, True), (-1, True)])
def test_no_response_is_expected_with_acks_0(acks: int, expected: bool) -> None:
    assert ProduceRequest(acks, 1, one(batch())).expects_response is expected


# The response

FIELDS = (
    "topic",
    "partition",
    "error_code",
    "base_offset",
    "log_append_time_ms",
    "log_start_offset",
    "record_errors",
    "error_message",
    "leader_id",
    "leader_epoch",
)


def values(response: PartitionResponse) -> dict[str, Any]:
    found = {name: getattr(response, name) for name in FIELDS}
    return found | {"record_errors": list(response.record_errors)}


def answer(request: ProduceRequest, version: int, body: dict[str, Any]):
    return request.decode_response(
        version, memoryview(b"".join(encode_response_body(PRODUCE, version, body)))
    )


def test_a_response_is_read_with_everything_in_it() -> None:
    partition = {
        "index": 7,
        "error_code": 87,
        "base_offset": -1,
        "log_append_time_ms": 1_700_000_000_123,
        "log_start_offset": 5,
        "record_errors": [
            {"batch_index": 2, "batch_index_error_message": "no key"},
            {"batch_index": 3, "batch_index_error_message": None},
        ],
        "error_message": "refused",
        "current_leader": {"leader_id": 4, "leader_epoch": 12},
    }
    body = {
        "responses": [{"topic_id": ORDERS_ID, "partition_responses": [partition]}],
        "throttle_time_ms": 99,
        "node_endpoints": [{"node_id": 4, "host": "b4", "port": 9094, "rack": "r"}],
    }
    response = answer(ProduceRequest(1, 1, BATCHES), 13, body)
    assert response.throttle_ms == 99
    assert response.node_endpoints == [Node(4, "b4", 9094, "r")]
    (read,) = response.partitions
    assert values(read) == {
        "topic": "orders",
        "partition": 7,
        "error_code": 87,
        "base_offset": -1,
        "log_append_time_ms": 1_700_000_000_123,
        "log_start_offset": 5,
        "record_errors": [(2, "no key"), (3, None)],
        "error_message": "refused",
        "leader_id": 4,
        "leader_epoch": 12,
    }


@pytest.mark.parametrize("version", range(3, 14))
def test_what_an_old_version_does_not_say_has_a_neutral_value(version: int) -> None:
    named = {"name": "orders"} if version < 13 else {"topic_id": ORDERS_ID}
    body = {"responses": [{**named, "partition_responses": [{"index": 0, "base_offset": 42}]}]}
    (partition,) = answer(ProduceRequest(1, 1, BATCHES), version, body).partitions
    assert values(partition) == values(PartitionResponse("orders", 0, base_offset=42))
    assert list(values(partition).values()) == ["orders", 0, 0, 42, -1, -1, [], None, -1, -1]


def test_a_topic_id_that_was_not_sent_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError, match=f"topic id {'ff' * 16}"):
        answer(ProduceRequest(1, 1, BATCHES), 13, {"responses": [{"topic_id": b"\xff" * 16}]})


@pytest.mark.parametrize(
    "case",
    [case for case in golden_responses() if case.api is PRODUCE and case.version < 13],
    ids=lambda case: case.name,
)
def test_golden_responses_are_read(case: GoldenCase) -> None:
    _, body = parse_response_header(PRODUCE, case.version, case.data)
    response = ProduceRequest(1, 1, BATCHES).decode_response(case.version, body)
    expected = [
        (topic["name"], each["index"], each["error_code"], each["base_offset"], each["log_append_time_ms"])
        for topic in case.body["responses"]
        for each in topic["partition_responses"]
    ]
    assert [tuple(values(each).values())[:5] for each in response.partitions] == expected


@pytest.mark.parametrize("count", [0, 1, 126, 127, 300, 17_000])
def test_an_ordinary_answer_is_read_number_by_number(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many partitions there are, compiled code reads it without the table."""
    expected = [
        PartitionResponse("orders", number, 6 * (number % 2), 2**40 + number, -1 - number, 2**62)
        for number in range(count)
    ]
    rows = [
        {
            "index": each.partition,
            "error_code": each.error_code,
            "base_offset": each.base_offset,
            "log_append_time_ms": each.log_append_time_ms,
            "log_start_offset": each.log_start_offset,
        }
        for each in expected
    ]
    body = {
        "responses": [{"topic_id": ORDERS_ID, "partition_responses": rows}],
        "throttle_time_ms": 2**31 - 1,
    }
    if is_compiled():
        monkeypatch.delattr("penstock.protocol._produce_cy.decode_response_body")
    response = answer(ProduceRequest(1, 1, BATCHES), 13, body)
    gc.collect()
    assert type(response) is ProduceResponse
    assert (response.throttle_ms, response.node_endpoints) == (2**31 - 1, [])
    assert all(type(each) is PartitionResponse for each in response.partitions)
    assert [values(each) for each in response.partitions] == [values(each) for each in expected]


def test_what_is_no_batch_at_all_is_refused() -> None:
    with pytest.raises(TypeError, match="not a PartitionBatch"):
        ProduceRequest(1, 1, ["orders"])
