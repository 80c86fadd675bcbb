# SPDX-License-Identifier: Apache-2.0
"""TxnOffsetCommit 6, which is newer than the reference the other messages are checked against: its bytes, by hand."""

from __future__ import annotations

import pytest

from penstock.protocol.codec import (
    decode_request_body,
    decode_response_body,
    encode_request_body,
    encode_response_body,
)
from penstock.protocol.messages import TXN_OFFSET_COMMIT

TOPIC_ID = bytes(range(1, 17))
ORDERS = b"\x07orders"
REQUEST = {
    "transactional_id": "x",
    "group_id": "g",
    "producer_id": 4000,
    "producer_epoch": 2,
    "generation_id": 3,
    "member_id": "m",
    "topics": [
        {
            "name": "orders",
            "topic_id": TOPIC_ID,
            "partitions": [
                {"partition_index": 1, "committed_offset": 258, "committed_leader_epoch": 5, "committed_metadata": ""}
            ],
        }
    ],
}  # fmt: skip
RESPONSE = {
    "topics": [
        {
            "name": "orders",
            "topic_id": TOPIC_ID,
            "partitions": [{"partition_index": 1, "error_code": 100}],
        }
    ]
}
named = pytest.mark.parametrize(("version", "topic"), [(5, ORDERS), (6, TOPIC_ID)])


@named
def test_a_request_names_topics_by_id_from_version_6_on(version: int, topic: bytes) -> None:
    """Requirement 79."""
    expected = (
        b"\x02x\x02g"
        + (4000).to_bytes(8, "big")
        + b"\x00\x02\x00\x00\x00\x03\x02m\x00"
        + b"\x02" + topic
        + b"\x02\x00\x00\x00\x01" + (258).to_bytes(8, "big") + b"\x00\x00\x00\x05\x01\x00"
        + b"\x00\x00"
    )  # fmt: skip
    written = b"".join(encode_request_body(TXN_OFFSET_COMMIT, version, REQUEST))
    assert written == expected
    (read,) = decode_request_body(TXN_OFFSET_COMMIT, version, written)["topics"]
    assert (read["name"], read["topic_id"]) == (("orders", bytes(16)) if version == 5 else ("", TOPIC_ID))


@named
def test_so_does_the_response(version: int, topic: bytes) -> None:
    """Requirement 79."""
    expected = b"\x00\x00\x00\x00\x02" + topic + b"\x02\x00\x00\x00\x01\x00\x64\x00\x00\x00"
    written = b"".join(encode_response_body(TXN_OFFSET_COMMIT, version, RESPONSE))
    assert written == expected
    (read,) = decode_response_body(TXN_OFFSET_COMMIT, version, written)["topics"]
    assert (read["name"], read["topic_id"]) == (("orders", bytes(16)) if version == 5 else ("", TOPIC_ID))
    assert read["partitions"] == [{"partition_index": 1, "error_code": 100}]
