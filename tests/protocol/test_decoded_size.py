# SPDX-License-Identifier: Apache-2.0
"""What is made of an answer takes at most twenty times its bytes and a constant, or it is refused; of every API."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.errors import ProtocolError
from penstock.protocol.codec import decode_response_body, encode_response_body
from penstock.protocol.messages import API_BY_KEY, API_VERSIONS, METADATA, PRODUCE
from penstock.protocol.schema import STRING, ApiSchema, Array, Primitive, Struct
from penstock.records import format as format_module

# A small constant, so that small answers show what large ones would do.
CONSTANT = 32 * 1024
ANSWER_BYTES = 10_000


@pytest.fixture
def small_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(format_module, "DECODED_ANYWAY", CONSTANT)


def bodies(struct_: Struct, version: int, flexible: bool) -> Iterator[dict[str, Any]]:
    """Answers that consist of one list, each list of the struct in turn, with the smallest elements there are."""
    for each in struct_.fields:
        if not each.versions.includes(version) or (each.tag is not None and not flexible):
            continue
        if isinstance(each.type, Struct):
            for inner in bodies(each.type, version, flexible):
                yield {each.name: inner}
        elif isinstance(each.type, Array):
            element = each.type.element
            if isinstance(element, Primitive):
                width = struct.calcsize(">" + element.layout) if element.layout else 2
                yield {each.name: [element.zero] * (ANSWER_BYTES // width)}
                if element is STRING:
                    yield {each.name: ["x\U0001f600" + 100 * "x"] * (ANSWER_BYTES // 110)}
                continue
            yield {each.name: [{}] * (ANSWER_BYTES // 8)}
            for inner in bodies(element, version, flexible):
                yield {each.name: [inner]}
                name, value = next(iter(inner.items()))
                if isinstance(value, list) and not (isinstance(value[0], dict) and value[0]):
                    # Many short lists instead of a long one.
                    yield {each.name: [{name: value[:1]}] * (ANSWER_BYTES // 16)}


def memory_of(api: ApiSchema, version: int, raw: bytes) -> tuple[int, bool]:
    """The most memory that was taken while an answer was read, and whether it was taken for one."""
    tracemalloc.start()
    try:
        taken: Any = None
        problem = ""
        try:
            taken = decode_response_body(api, version, raw)
        except ProtocolError as error:
            problem = str(error)
        memory = tracemalloc.get_traced_memory()[1]
        assert taken is not None or "times as much memory" in problem
        return memory, taken is not None
    finally:
        tracemalloc.stop()


def versions_of(api: ApiSchema) -> list[int]:
    first_flexible = api.max_version if api.flexible_from is None else max(api.flexible_from, api.min_version)
    return sorted({api.min_version, min(first_flexible, api.max_version), api.max_version})


@pytest.mark.usefixtures("small_constant")
@pytest.mark.parametrize("api", API_BY_KEY.values(), ids=lambda api: api.name)
def test_no_answer_takes_more_than_twenty_times_its_bytes(api: ApiSchema) -> None:
    for version in versions_of(api):
        empty = b"".join(bytes(part) for part in encode_response_body(api, version, {}))
        decode_response_body(api, version, empty)  # makes the plan, which stays
        for body in bodies(api.response, version, api.is_flexible(version)):
            raw = b"".join(bytes(part) for part in encode_response_body(api, version, body))
            memory, _ = memory_of(api, version, raw)
            assert memory <= 20 * len(raw) + CONSTANT, (version, list(body), len(raw), memory)


def test_rows_without_content_are_refused_when_there_are_too_many() -> None:
    count = 200_000
    raw = struct.pack(">hi", 0, count) + b"\0\1\0\0\0\1" * count
    memory, taken = memory_of(API_VERSIONS, 0, raw)
    assert not taken
    assert memory <= 20 * len(raw) + 1024 * 1024


def test_short_lists_that_all_differ_are_paid_for() -> None:
    lists = ("replica_nodes", "isr_nodes", "offline_replicas")
    partitions = [
        {name: [5000 + 3 * number + place] for place, name in enumerate(lists)} for number in range(30_000)
    ]
    body = {"topics": [{"name": "t", "partitions": partitions}]}
    raw = b"".join(bytes(part) for part in encode_response_body(METADATA, 12, body))
    memory, taken = memory_of(METADATA, 12, raw)
    assert not taken
    assert memory <= 20 * len(raw) + 1024 * 1024


LARGE_METADATA = {
    "topics": [
        {
            "name": "large",
            "partitions": [
                {
                    "partition_index": number,
                    "leader_id": 1000 + number % 7,
                    "leader_epoch": 1000,
                    "replica_nodes": [1000 + number % 7],
                    "isr_nodes": [1000 + number % 7],
                }
                for number in range(40_000)
            ],
        }
    ]
}
MANY_BATCHES = {
    "responses": [
        {
            "name": "t",
            "partition_responses": [
                {"index": 1000 + number, "base_offset": 10**12 + number} for number in range(15_000)
            ],
        }
    ]
}


@pytest.mark.parametrize(
    ("api", "body", "version"),
    [
        *((METADATA, LARGE_METADATA, version) for version in (1, 9, 12)),
        *((PRODUCE, MANY_BATCHES, version) for version in (3, 8, 12)),
    ],
)
def test_the_largest_answers_of_real_brokers_are_read(api: ApiSchema, body: Any, version: int) -> None:
    raw = b"".join(bytes(part) for part in encode_response_body(api, version, body))
    answer = decode_response_body(api, version, raw)
    (rows,) = (value for value in answer.values() if isinstance(value, list) and value)
    assert len(next(value for value in rows[0].values() if isinstance(value, list))) >= 15_000


def test_what_is_the_same_is_kept_once() -> None:
    raw = b"".join(bytes(part) for part in encode_response_body(METADATA, 12, LARGE_METADATA))
    first, *_, last = decode_response_body(METADATA, 12, raw)["topics"][0]["partitions"][:8]
    assert first["replica_nodes"] == first["isr_nodes"] == last["replica_nodes"] == [1000]
    assert first["replica_nodes"] is last["replica_nodes"]
