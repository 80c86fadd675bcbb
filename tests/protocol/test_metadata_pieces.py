# SPDX-License-Identifier: Apache-2.0
"""A Metadata response in pieces says what the codec decodes at once."""

from __future__ import annotations

import random
from typing import Any

import pytest
from protocol.random_bodies import random_body

from penstock.errors import ProtocolError
from penstock.protocol.codec import decode_response_body, encode_response_body
from penstock.protocol.messages import METADATA
from penstock.protocol.requests import MetadataResponse

VERSIONS = range(METADATA.min_version, METADATA.max_version + 1)


def encoded(version: int, body: dict[str, Any]) -> bytes:
    return b"".join(map(bytes, encode_response_body(METADATA, version, body)))


def in_pieces(version: int, raw: bytes, most: int = 2) -> tuple[list[dict[str, Any]], MetadataResponse]:
    """The topics, put together again."""
    response = MetadataResponse(version, raw)
    topics: list[dict[str, Any]] = []
    partitions: list[dict[str, Any]] = []
    for topic, piece, is_last in response.pieces(most):
        assert len(piece) <= most
        partitions += piece
        if is_last:
            topics.append({**topic, "partitions": partitions})
            partitions = []
    assert not partitions
    return topics, response


@pytest.mark.parametrize("version", VERSIONS)
def test_pieces_say_what_the_whole_says(version: int) -> None:
    rng = random.Random(version)
    for _ in range(30):
        raw = encoded(version, random_body(METADATA.response, version, rng))
        whole = decode_response_body(METADATA, version, raw)
        topics, response = in_pieces(version, raw)
        operations = [topic.pop("topic_authorized_operations") for topic in whole["topics"]]
        assert len(operations) == len(topics)
        assert topics == whole["topics"]
        for name in ("brokers", "cluster_id", "error_code"):
            assert getattr(response, name) == whole[name]
        assert response.throttle_ms == whole["throttle_time_ms"]


@pytest.mark.parametrize("version", [0, 8, 9, 13])
def test_what_is_cut_off_or_too_long_is_refused(version: int) -> None:
    partitions = [{"partition_index": number, "replica_nodes": [1]} for number in range(5)]
    topics = [{"name": name, "partitions": partitions} for name in ("a", "b")]
    raw = encoded(version, {"brokers": [{"node_id": 1, "host": "h"}], "topics": topics})
    assert len(in_pieces(version, raw)[0]) == 2
    for broken in (*(raw[:size] for size in range(len(raw))), raw + b"\0\0\0"):
        with pytest.raises(ProtocolError, match="cannot decode Metadata response"):
            in_pieces(version, broken)


def test_an_error_says_where_it_is() -> None:
    partitions = [{"partition_index": number} for number in range(5)]
    raw = encoded(8, {"topics": [{"name": "a"}, {"name": "b", "partitions": partitions}]})
    with pytest.raises(ProtocolError, match=r"field topics\[1\]\.partitions\[4:\]\[0\]\.isr_nodes"):
        in_pieces(8, raw[:-16] + b"\xff\xff\xff\xfb" + raw[-12:])
