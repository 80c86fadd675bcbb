# SPDX-License-Identifier: Apache-2.0
"""FindCoordinator in its two ways: what a broker reads, and what its answer becomes."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.protocol.codec import decode_request_body, encode_response_body
from penstock.protocol.find_coordinator import CoordinatorKind, FindCoordinator
from penstock.protocol.messages import FIND_COORDINATOR

KIND = CoordinatorKind.TRANSACTION
ROW = {"node_id": 3, "host": "h", "port": 9, "error_code": 0, "error_message": None}


def asked(request: FindCoordinator, version: int) -> dict[str, Any]:
    return decode_request_body(FIND_COORDINATOR, version, b"".join(request.encode(version)))


def answered(request: FindCoordinator, version: int, body: dict[str, Any]) -> dict[str, dict[str, Any]]:
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
    (row,) = answered(request, version, answer).items()
    assert row[0] == "a"
    assert {name: row[1][name] for name in ROW} == ROW


def test_several_keys_need_version_4() -> None:
    request = FindCoordinator(KIND, ["a", "b"])
    assert (FindCoordinator(KIND, ["a"]).min_version, request.min_version) == (1, 4)
    assert asked(request, 4)["coordinator_keys"] == ["a", "b"]
    rows = [{"key": key, **ROW, "node_id": number} for number, key in enumerate("ba")]
    answer = answered(request, 4, {"coordinators": rows})
    assert {key: row["node_id"] for key, row in answer.items()} == {"b": 0, "a": 1}


def test_the_answer_may_be_an_error() -> None:
    refused = {"node_id": -1, "host": "", "port": -1, "error_code": 15, "error_message": "not yet"}
    for version, body in ((3, refused), (4, {"coordinators": [{"key": "a", **refused}]})):
        row = answered(FindCoordinator(KIND, ["a"]), version, body)["a"]
        assert (row["error_code"], row["error_message"]) == (15, "not yet")
