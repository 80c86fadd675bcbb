# SPDX-License-Identifier: Apache-2.0
"""Requests without a version, what a broker says that it can do, and FindCoordinator in both of its forms."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import UnsupportedVersionError
from penstock.protocol._produce_cy import PartitionBatch, ProduceRequest
from penstock.protocol.codec import (
    decode_request_body,
    decode_response_body,
    encode_request_body,
    encode_response_body,
)
from penstock.protocol.messages import (
    API_VERSIONS,
    END_TXN,
    FIND_COORDINATOR,
    METADATA,
    PRODUCE,
    PUSH_TELEMETRY,
    SASL_AUTHENTICATE,
)
from penstock.protocol.requests import (
    CoordinatorKind,
    FindCoordinator,
    NodeApiVersions,
    Request,
    SchemaRequest,
)


def test_a_request_spans_the_versions_of_its_schema() -> None:
    request: Request = SchemaRequest.of(END_TXN, {"transactional_id": "t"})
    assert (request.api, request.min_version, request.max_version) == (END_TXN, 0, 5)
    assert request.expects_response


def test_bounds_narrow_the_versions_and_never_widen_them() -> None:
    narrow = SchemaRequest.of(END_TXN, {}, min_version=1, max_version=4)
    assert (narrow.min_version, narrow.max_version) == (1, 4)
    wide = SchemaRequest.of(END_TXN, {}, min_version=-1, max_version=40)
    assert (wide.min_version, wide.max_version) == (0, 5)


def test_bounds_without_a_version_between_them_are_refused() -> None:
    with pytest.raises(ValueError, match="EndTxn"):
        SchemaRequest.of(END_TXN, {}, min_version=6)


def test_encode_and_decode_use_the_version_given() -> None:
    body = {"transactional_id": "t", "producer_id": 7, "committed": True}
    request = SchemaRequest.of(END_TXN, body)
    for version in range(6):
        assert request.encode(version) == encode_request_body(END_TXN, version, body)
        answer = b"".join(encode_response_body(END_TXN, version, {"error_code": 47}))
        assert request.decode_response(version, memoryview(answer))["error_code"] == 47


def test_repr_does_not_show_credentials() -> None:
    assert "hunter2" not in repr(SchemaRequest.of(SASL_AUTHENTICATE, {"auth_bytes": b"hunter2"}))


def test_a_produce_request_is_a_request_too() -> None:
    batch = bytearray(61)
    batch[8:12] = (49).to_bytes(4, "big")
    batch[16] = 2
    request: Request = ProduceRequest(1, 1000, [PartitionBatch("t", bytes(16), 0, batch)])
    assert request.api.name == "Produce"


def node(**ranges: tuple[int, int]) -> NodeApiVersions:
    keys = {"produce": 0, "metadata": 3, "end_txn": 26}
    return NodeApiVersions({keys[name]: span for name, span in ranges.items()})


@pytest.mark.parametrize(
    ("offered", "lowest", "highest", "picked"),
    [
        ((0, 13), None, None, 13),
        ((0, 20), None, None, 13),
        ((3, 9), None, None, 9),
        ((0, 3), None, None, 3),
        ((0, 13), 3, 11, 11),
        ((0, 8), 7, 13, 8),
        ((12, 15), 3, 12, 12),
    ],
)
def test_the_highest_common_version_is_picked(
    offered: tuple[int, int], lowest: int | None, highest: int | None, picked: int
) -> None:
    assert node(produce=offered).pick(PRODUCE, lowest, highest) == picked


def test_bounds_of_the_request_do_not_widen_those_of_the_schema() -> None:
    assert node(produce=(0, 99)).pick(PRODUCE, 0, 99) == 13
    assert node(metadata=(0, 0), produce=(0, 3)).pick(PRODUCE, 0, 99) == 3


@pytest.mark.parametrize("lowest", [None, PRODUCE.min_version, 3])
def test_produce_below_3_is_not_picked_for_record_batches(lowest: int | None) -> None:
    with pytest.raises(UnsupportedVersionError, match=r"Produce.* 3 to 13.* 0 to 2.*newer broker"):
        node(produce=(0, 2)).pick(PRODUCE, lowest, PRODUCE.max_version)


@pytest.mark.parametrize(
    ("offered", "lowest", "picked"), [((0, 1), 0, 1), ((0, 2), 0, 2), ((0, 2), 2, 2), ((0, 0), 0, 0)]
)
def test_message_sets_are_sent_in_the_highest_version_that_takes_them(
    offered: tuple[int, int], lowest: int, picked: int
) -> None:
    assert node(produce=offered).pick(PRODUCE, lowest, 2) == picked


def test_magic_1_is_not_sent_to_a_broker_that_knows_only_magic_0() -> None:
    with pytest.raises(UnsupportedVersionError, match=r"Produce.* in 2 .* 0 to 1.*newer broker"):
        node(produce=(0, 1)).pick(PRODUCE, 2, 2)


def test_a_broker_that_is_too_new_asks_for_a_newer_client() -> None:
    with pytest.raises(UnsupportedVersionError, match=r"EndTxn.* 0 to 5.* 7 to 9.*newer client"):
        node(end_txn=(7, 9)).pick(END_TXN, 0, 5)


def test_a_request_that_needs_more_than_the_broker_has() -> None:
    with pytest.raises(
        UnsupportedVersionError, match=r"Metadata.* in 13 .*, .* 0 to 12.*do without"
    ) as caught:
        node(metadata=(0, 12)).pick(METADATA, 13, 13)
    assert caught.value.code == 35


def test_an_api_that_the_broker_lacks() -> None:
    with pytest.raises(UnsupportedVersionError, match="does not offer PushTelemetry"):
        node(produce=(0, 13)).pick(PUSH_TELEMETRY, 0, 0)


def test_ranges_and_features_come_from_the_response() -> None:
    answer = {
        "api_keys": [{"api_key": 0, "min_version": 0, "max_version": 13}],
        "finalized_features_epoch": 42,
        "finalized_features": [
            {"name": "transaction.version", "max_version_level": 2, "min_version_level": 1}
        ],
    }
    body = decode_response_body(API_VERSIONS, 4, b"".join(encode_response_body(API_VERSIONS, 4, answer)))
    versions = NodeApiVersions.from_response(body)
    assert versions.range(0) == (0, 13)
    assert versions.range(99) is None
    assert versions.finalized_features == {"transaction.version": 2}
    assert versions.finalized_features_epoch == 42


@pytest.mark.parametrize(
    ("identity", "expected"),
    [
        ({"cluster_id": "c1", "node_id": 7}, "03 6331 00000007"),
        ({}, "00 ffffffff"),
    ],
    ids=["known", "unknown"],
)
def test_version_5_says_which_cluster_and_node_is_meant(identity: dict[str, Any], expected: str) -> None:
    body = {"client_software_name": "me", "client_software_version": "1"} | identity
    software = bytes.fromhex("03 6d65 02 31")
    assert b"".join(encode_request_body(API_VERSIONS, 5, body)) == software + bytes.fromhex(expected + "00")
    assert b"".join(encode_request_body(API_VERSIONS, 4, body)) == software + b"\0"


def test_an_old_broker_has_no_features() -> None:
    body = decode_response_body(API_VERSIONS, 0, b"".join(encode_response_body(API_VERSIONS, 0, {})))
    versions = NodeApiVersions.from_response(body)
    assert versions.finalized_features == {}
    assert versions.finalized_features_epoch == -1


KIND = CoordinatorKind.TRANSACTION
ROW = {"node_id": 3, "host": "h", "port": 9, "error_code": 0, "error_message": None}


def asked(request: FindCoordinator, version: int) -> dict[str, Any]:
    return decode_request_body(FIND_COORDINATOR, version, b"".join(request.encode(version)))


def answered(request: FindCoordinator, version: int, body: dict[str, Any]) -> dict[str, Any]:
    data = b"".join(encode_response_body(FIND_COORDINATOR, version, body))
    return request.decode_response(version, memoryview(data))


@pytest.mark.parametrize("kind", CoordinatorKind)
@pytest.mark.parametrize("version", range(1, FIND_COORDINATOR.max_version + 1))
def test_one_key_can_be_asked_for_in_every_version(version: int, kind: CoordinatorKind) -> None:
    request = FindCoordinator(kind, ["a"])
    body = asked(request, version)
    assert body["key_type"] == kind
    assert (body["key"], body["coordinator_keys"]) == (("a", []) if version < 4 else ("", ["a"]))
    answer = ROW if version < 4 else {"coordinators": [{"key": "a", **ROW}]}
    told = answered(request, version, {"throttle_time_ms": 70, **answer})
    assert told["throttle_time_ms"] == 70
    (row,) = told["coordinators"].items()
    assert row[0] == "a"
    assert {name: row[1][name] for name in ROW} == ROW


def test_several_keys_need_version_4() -> None:
    request = FindCoordinator(KIND, ["a", "b"])
    assert (FindCoordinator(KIND, ["a"]).min_version, request.min_version) == (1, 4)
    assert asked(request, 4)["coordinator_keys"] == ["a", "b"]
    rows = [{"key": key, **ROW, "node_id": number} for number, key in enumerate("ba")]
    answer = answered(request, 4, {"coordinators": rows})["coordinators"]
    assert {key: row["node_id"] for key, row in answer.items()} == {"b": 0, "a": 1}


def test_the_answer_may_be_an_error() -> None:
    refused = {"node_id": -1, "host": "", "port": -1, "error_code": 15, "error_message": "not yet"}
    for version, body in ((3, refused), (4, {"coordinators": [{"key": "a", **refused}]})):
        row = answered(FindCoordinator(KIND, ["a"]), version, body)["coordinators"]["a"]
        assert (row["error_code"], row["error_message"]) == (15, "not yet")
