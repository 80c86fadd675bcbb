# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import UnsupportedVersionError
from penstock.protocol.api_versions import NodeApiVersions
from penstock.protocol.codec import decode_response_body, encode_request_body, encode_response_body
from penstock.protocol.messages import API_VERSIONS, END_TXN, METADATA, PRODUCE, PUSH_TELEMETRY


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


def test_produce_below_3_is_advertised_but_never_picked() -> None:
    with pytest.raises(UnsupportedVersionError, match=r"Produce.* 3 to 13.* 0 to 2.*newer broker"):
        node(produce=(0, 2)).pick(PRODUCE, PRODUCE.min_version, PRODUCE.max_version)


def test_a_broker_that_is_too_new_asks_for_a_newer_client() -> None:
    with pytest.raises(UnsupportedVersionError, match=r"EndTxn.* 0 to 5.* 7 to 9.*newer client"):
        node(end_txn=(7, 9)).pick(END_TXN, 0, 5)


def test_a_request_that_needs_more_than_the_broker_has() -> None:
    with pytest.raises(UnsupportedVersionError, match=r"Metadata.* in 13, .* 0 to 12.*do without") as caught:
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
