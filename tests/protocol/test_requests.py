# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from penstock.protocol._produce_cy import PartitionBatch, ProduceRequest
from penstock.protocol.codec import encode_request_body, encode_response_body
from penstock.protocol.messages import END_TXN, SASL_AUTHENTICATE
from penstock.protocol.requests import Request, SchemaRequest


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
