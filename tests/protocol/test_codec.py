# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import random
import struct
import tracemalloc
from typing import Any

import pytest
from protocol.golden_cases import GoldenCase, golden_requests, golden_responses
from protocol.random_bodies import random_body

from penstock.errors import ProtocolError
from penstock.protocol.codec import (
    decode_request_body,
    decode_response_body,
    encode_request_body,
    encode_response_body,
)
from penstock.protocol.messages import (
    API_BY_KEY,
    API_VERSIONS,
    END_TXN,
    FETCH,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    METADATA,
    PRODUCE,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
)
from penstock.protocol.schema import ApiSchema

# Cases with unknown tags have them in the header too: test_framing reads those.
_PLAIN_RESPONSES = [case for case in golden_responses() if not case.unknown_tags]

each_case = pytest.mark.parametrize(
    "case", [*golden_requests(), *_PLAIN_RESPONSES], ids=lambda case: case.name
)
each_response = pytest.mark.parametrize("case", _PLAIN_RESPONSES, ids=lambda case: case.name)
every_version = pytest.mark.parametrize(
    ("api", "version"),
    [
        (api, version)
        for api in API_BY_KEY.values()
        for version in range(api.min_version, api.max_version + 1)
    ],
    ids=lambda value: value.name if isinstance(value, ApiSchema) else f"v{value}",
)


def decode(case: GoldenCase, data: bytes) -> dict[str, Any]:
    return (decode_request_body if case.is_request else decode_response_body)(case.api, case.version, data)


def encode(case: GoldenCase, body: dict[str, Any]) -> bytes:
    return b"".join(
        (encode_request_body if case.is_request else encode_response_body)(case.api, case.version, body)
    )


# Golden bytes


@each_case
def test_golden_body_is_decoded(case: GoldenCase) -> None:
    assert decode(case, case.data[case.header_size :]) == case.complete_body


@each_case
def test_golden_body_is_encoded_byte_for_byte(case: GoldenCase) -> None:
    assert encode(case, case.body) == case.data[case.header_size :]


@each_response
def test_a_body_cut_off_anywhere_is_a_protocol_error(case: GoldenCase) -> None:
    body = b"".join(encode_response_body(case.api, case.version, case.body))
    for end in range(len(body)):
        if case.name == "ApiVersions-v2-unsupported-version" and end == 12:
            continue  # that much is the whole answer in version 0
        with pytest.raises(ProtocolError, match=f"{case.api.name} response v{case.version}"):
            decode_response_body(case.api, case.version, body[:end])


@each_response
def test_a_body_with_bytes_left_over_is_a_protocol_error(case: GoldenCase) -> None:
    body = b"".join(encode_response_body(case.api, case.version, case.body))
    with pytest.raises(ProtocolError, match="1 bytes too many"):
        decode_response_body(case.api, case.version, body + b"\1")
    with pytest.raises(ProtocolError, match="2 bytes too many"):
        decode_response_body(case.api, case.version, body + b"\0\0")


@each_response
def test_a_flexible_body_may_end_twice(case: GoldenCase) -> None:
    """As Metadata of librdkafka's mock cluster does, with an empty list of tagged fields."""
    body = b"".join(encode_response_body(case.api, case.version, case.body))
    once = decode_response_body(case.api, case.version, body)
    if case.api.is_flexible(case.version):
        assert decode_response_body(case.api, case.version, body + b"\0") == once
    else:
        with pytest.raises(ProtocolError, match="1 bytes too many"):
            decode_response_body(case.api, case.version, body + b"\0")


# Every API and version


@every_version
def test_what_was_encoded_is_decoded(api: ApiSchema, version: int) -> None:
    rng = random.Random(api.key * 100 + version)
    for _ in range(5):
        request = random_body(api.request, version, rng)
        assert (
            decode_request_body(api, version, b"".join(encode_request_body(api, version, request))) == request
        )
        response = random_body(api.response, version, rng)
        assert (
            decode_response_body(api, version, b"".join(encode_response_body(api, version, response)))
            == response
        )


@every_version
def test_damaged_bytes_raise_nothing_but_protocol_errors(api: ApiSchema, version: int) -> None:
    rng = random.Random(api.key * 100 + version)
    for _ in range(20):
        damaged = bytearray(
            b"".join(encode_response_body(api, version, random_body(api.response, version, rng)))
        )
        for _ in range(rng.randrange(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.choice((0, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        try:
            decode_response_body(api, version, bytes(damaged))
        except ProtocolError:
            pass


@every_version
def test_an_empty_body_means_defaults(api: ApiSchema, version: int) -> None:
    encoded = b"".join(encode_response_body(api, version, {}))
    assert decode_response_body(api, version, encoded) == api.response.defaults()


def test_decoded_bodies_share_no_lists() -> None:
    data = b"".join(encode_response_body(FIND_COORDINATOR, 1, {}))
    first = decode_response_body(FIND_COORDINATOR, 1, data)
    first["coordinators"].append("mine")
    assert decode_response_body(FIND_COORDINATOR, 1, data)["coordinators"] == []


# Decoding


@pytest.mark.parametrize(
    ("version", "data", "path"),
    [
        (1, struct.pack(">i", 2**31 - 1), "brokers: 2147483647 elements cannot"),
        (1, struct.pack(">i", 100_000) + bytes(1_000_000), "brokers: 100000 elements cannot"),
        (1, struct.pack(">iih", 1, 1, 32767) + bytes(20), r"brokers\[0\]\.host"),
        (9, bytes(4) + b"\xff\xff\xff\xff\x0f", "brokers: 4294967294 elements cannot"),
        (9, bytes(4) + b"\x02" + bytes(4) + b"\xff\xff\xff\xff\x0f" + bytes(20), r"brokers\[0\]\.host"),
    ],
)
def test_a_length_that_the_frame_cannot_hold_is_refused_before_allocating(
    version: int, data: bytes, path: str
) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match=rf"Metadata response v{version}, field {path}"):
            decode_response_body(METADATA, version, data)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_the_error_names_api_version_and_field() -> None:
    replicas = [1] * 20  # long enough that only the bytes themselves can show that something is missing
    body = {"brokers": [{"host": "a"}], "topics": [{"partitions": [{"replica_nodes": replicas}, {}]}]}
    data = b"".join(encode_response_body(METADATA, 7, body))
    with pytest.raises(
        ProtocolError, match=r"Metadata response v7, field topics\[0\]\.partitions\[1\]\.leader_epoch"
    ):
        decode_response_body(METADATA, 7, data[: -4 * 3 - 1])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\xff\xff\xff\xff", "null where"),
        (b"\xff\xff\xff\xfe", "negative length -2"),
        (b"\0\0\0\1\0\2\xc3\x28", "not UTF-8"),
    ],
)
def test_broken_lists_and_strings_are_refused(data: bytes, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        decode_response_body(SASL_HANDSHAKE, 0, b"\0\0" + data)


@pytest.mark.parametrize("number", [b"\x80\x80\x80\x80\x80\x00", b"\xff\xff\xff\xff\x1f", b"\x80"])
def test_a_variable_length_number_beyond_32_bits_is_refused(number: bytes) -> None:
    with pytest.raises(ProtocolError, match="number"):
        decode_response_body(END_TXN, 3, bytes(6) + number)


def test_a_tagged_field_must_fill_its_size() -> None:
    rest = bytes(2) + b"\x01" + bytes(4)
    assert decode_response_body(API_VERSIONS, 3, rest + b"\1\3\1\1")["zk_migration_ready"] is True
    with pytest.raises(ProtocolError, match="zk_migration_ready"):
        decode_response_body(API_VERSIONS, 3, rest + b"\1\3\2\1\1")


def test_more_tagged_fields_than_the_frame_can_hold_are_refused() -> None:
    with pytest.raises(ProtocolError, match="tagged fields"):
        decode_response_body(END_TXN, 3, bytes(6) + b"\xff\xff\xff\xff\x0f")


def test_unknown_error_codes_stay_numbers() -> None:
    assert decode_response_body(END_TXN, 0, bytes(4) + struct.pack(">h", 31999))["error_code"] == 31999


def test_a_refused_api_versions_request_is_read_in_version_0() -> None:
    # A broker that does not know version 4 answers in version 0, whatever was asked.
    answer = {"error_code": 35, "api_keys": [{"api_key": 18, "min_version": 0, "max_version": 3}]}
    data = b"".join(encode_response_body(API_VERSIONS, 0, answer))
    body = decode_response_body(API_VERSIONS, 4, data)
    assert body["error_code"] == 35
    assert body["api_keys"] == answer["api_keys"]


def test_an_api_versions_error_in_the_version_asked_is_read_too() -> None:
    answer = {"error_code": 35, "throttle_time_ms": 7}
    assert (
        decode_response_body(API_VERSIONS, 3, b"".join(encode_response_body(API_VERSIONS, 3, answer)))[
            "throttle_time_ms"
        ]
        == 7
    )


def test_decoded_records_are_not_copied() -> None:
    records = bytes(range(256)) * 8
    body = {"responses": [{"partitions": [{"records": records}]}]}
    data = b"".join(encode_response_body(FETCH, 12, body))
    found = decode_response_body(FETCH, 12, data)["responses"][0]["partitions"][0]["records"]
    assert isinstance(found, memoryview)
    assert found.obj is data
    assert found == records


# Encoding


@pytest.mark.parametrize("size", [0, 1, 100_000])
def test_records_are_not_copied(size: int) -> None:
    records = bytearray(size)
    body = {"topic_data": [{"name": "t", "partition_data": [{"index": 0, "records": records}]}]}
    assert any(buffer is records for buffer in encode_request_body(PRODUCE, 9, body))


@pytest.mark.parametrize(
    ("api", "version", "body", "message"),
    [
        (END_TXN, 3, {"commit": True}, "EndTxn request v3, field commit: no such field"),
        (END_TXN, 3, {"committed": 1}, "field committed: not a bool"),
        (END_TXN, 3, {"producer_epoch": 2**15}, "field producer_epoch: 32768 does not fit in int16"),
        (END_TXN, 3, {"producer_id": "1"}, "field producer_id: not a int64"),
        (END_TXN, 0, {"transactional_id": "x" * 32768}, "field transactional_id: too long"),
        (END_TXN, 3, {"transactional_id": "x" * 32768}, "field transactional_id: too long"),
        (END_TXN, 3, {"transactional_id": None}, "field transactional_id: it may not be null"),
        (END_TXN, 3, {"transactional_id": "\ud800"}, "field transactional_id: the text"),
        (END_TXN, 3, {"transactional_id": b"x"}, "field transactional_id: a str expected, not bytes"),
        (SASL_AUTHENTICATE, 2, {"auth_bytes": "x"}, "field auth_bytes: bytes expected, not str"),
        (METADATA, 10, {"topics": [{"topic_id": b"short"}]}, r"field topics\[0\]\.topic_id: not a uuid"),
        (METADATA, 1, {"topics": ["orders"]}, r"field topics\[0\]: a dict expected, not str"),
        (METADATA, 1, {"topics": "orders"}, "field topics: a list expected, not str"),
        (
            METADATA,
            3,
            {"allow_auto_topic_creation": False},
            "field allow_auto_topic_creation: this version has no",
        ),
        (INIT_PRODUCER_ID, 2, {"producer_id": 7}, "field producer_id: this version has no such field"),
        (
            FETCH,
            14,
            {"replica_state": {"replica_id": 1}},
            "field replica_state: this version has no such field",
        ),
    ],
)
def test_what_cannot_be_encoded_is_a_value_error_that_names_the_field(
    api: ApiSchema, version: int, body: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        encode_request_body(api, version, body)


def test_a_default_may_be_given_where_the_version_has_no_such_field() -> None:
    body = {"producer_id": -1, "transactional_id": "t"}
    expected = encode_request_body(INIT_PRODUCER_ID, 2, {"transactional_id": "t"})
    assert encode_request_body(INIT_PRODUCER_ID, 2, body) == expected
    assert encode_request_body(FETCH, 14, {"replica_state": {"replica_id": -1}}) == encode_request_body(
        FETCH, 14, {}
    )


def test_an_ignorable_value_is_dropped_where_the_version_has_no_such_field() -> None:
    assert encode_request_body(API_VERSIONS, 0, {"client_software_name": "penstock"}) == [b""]


def test_a_tagged_field_with_its_default_is_not_written() -> None:
    body = {
        "responses": [{"partition_responses": [{"current_leader": {"leader_id": -1}}]}],
        "node_endpoints": [],
    }
    without = {"responses": [{"partition_responses": [{}]}]}
    assert encode_response_body(PRODUCE, 10, body) == encode_response_body(PRODUCE, 10, without)


@pytest.mark.parametrize("version", [-1, 14])
def test_a_version_that_the_schema_does_not_know_is_refused(version: int) -> None:
    with pytest.raises(ValueError, match="0 to 13"):
        encode_request_body(PRODUCE, version, {})
    with pytest.raises(ValueError, match="0 to 13"):
        decode_response_body(PRODUCE, version, b"")
