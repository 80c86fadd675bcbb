# SPDX-License-Identifier: Apache-2.0
"""Corrupt answers, of every API and version: the request ends once, the connection is dropped, and the error says why.

Never a hang, a crash, memory that the bytes do not justify, or a success that the bytes do not hold.
"""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import pytest
from fuzz.cases import CASES, HANDSHAKES, Case
from fuzz.mutations import BOMBS, EFFORT, Mutation, corrupt, mutations
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from network.fakes import FakeTransport, Received, api_versions_body, response_frame
from network.harness import ANSWER, Harness, question

from penstock.errors import KafkaError, NetworkError, ProtocolError, RequestTimedOutError
from penstock.network import InFlightRequest
from penstock.protocol._produce_cy import ProduceResponse
from penstock.protocol.codec import decode_response_body, encode_response_body
from penstock.protocol.messages import (
    API_VERSIONS,
    FETCH,
    GET_TELEMETRY_SUBSCRIPTIONS,
    PRODUCE,
    PUSH_TELEMETRY,
)
from penstock.protocol.messages.produce import FIRST_VERSION_WITH_BATCHES
from penstock.protocol.requests import NodeApiVersions

few = settings(max_examples=15 * EFFORT, deadline=None, suppress_health_check=[HealthCheck.too_slow])
many = settings(max_examples=150 * EFFORT, deadline=None, suppress_health_check=[HealthCheck.too_slow])
seeds = st.integers(0, 2**20)

case_ids = pytest.mark.parametrize("case", CASES, ids=str)


def ask(case: Case, **options: Any) -> tuple[Harness, Received, FakeTransport]:
    """A client that has sent the request, the request as the broker has it, and the client's end of the connection."""
    h = Harness(request_timeout_ms=30_000, **options)
    if case.api is PRODUCE and case.version < FIRST_VERSION_WITH_BATCHES:
        # No other broker is sent message sets.
        old = api_versions_body(Produce=(0, FIRST_VERSION_WITH_BATCHES - 1))
        h.brokers[0].rules[API_VERSIONS.key] = lambda _: old
    elif case.api in (GET_TELEMETRY_SUBSCRIPTIONS, PUSH_TELEMETRY):
        # Only brokers that have a receiver for it are sent telemetry.
        asks = api_versions_body(**{case.api.name: (case.api.min_version, case.api.max_version)})
        h.brokers[0].rules[API_VERSIONS.key] = lambda _: asks
    h.connect()
    h.send(request=case.request())
    h.poll_until(lambda: h.brokers[0].waiting)
    (request,) = h.brokers[0].waiting
    assert (request.api, request.version) == (case.api, case.version)
    return h, request, h.network.transports[-1]


def end_of(h: Harness) -> InFlightRequest:
    """Take turns until the request has ended; it must, and only once."""
    h.poll_until(lambda: h.ended, timeout=31.0, turns=5)
    h.poll()
    (response,) = h.ended
    assert h.client.in_flight_count() == 0
    return response


def assert_dropped(h: Harness, transport: FakeTransport, error: KafkaError | None) -> None:
    assert isinstance(error, ProtocolError | NetworkError | RequestTimedOutError)
    assert "b0:9092" in str(error)
    assert transport.closed
    assert not h.client.is_ready(h.nodes[0], h.now)
    assert h.client.connection_error(0) is not None


def assert_usable_again(h: Harness) -> None:
    """The client still works: the next connection works."""
    h.ended.clear()
    h.clock.advance(60)
    h.connect()
    h.send(request=question())
    h.poll_until(lambda: h.brokers[0].waiting)
    h.brokers[0].answer(h.brokers[0].waiting[-1], ANSWER)
    assert end_of(h).body["port"] == ANSWER["port"]


def read_again(case: Case, body: Any) -> Any:
    """Write a decoded body and read it back: what was not in the bytes cannot be in the body."""
    raw = b"".join(bytes(part) for part in encode_response_body(case.api, case.version, body))
    return decode_response_body(case.api, case.version, raw)


def plain(value: Any) -> Any:
    """Views as bytes, so that bodies can be compared."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return bytes(value) if isinstance(value, memoryview) else value


def assert_success_is_in_the_bytes(case: Case, raw: bytes, response: InFlightRequest) -> None:
    body = decode_response_body(case.api, case.version, raw)
    assert plain(read_again(case, body)) == plain(body)
    if case.api is not PRODUCE:
        assert plain(response.body) == plain(body)
        return
    assert isinstance(response.body, ProduceResponse)
    told = [
        (row["index"], row["error_code"], row["base_offset"])
        for topic in body["responses"]
        for row in topic["partition_responses"]
    ]
    assert [(p.partition, p.error_code, p.base_offset) for p in response.body.partitions] == told


@case_ids
@few
@given(seed=seeds, changes=mutations)
def test_a_corrupt_answer_is_an_error_or_says_what_it_says(
    case: Case, seed: int, changes: list[Mutation]
) -> None:
    h, request, transport = ask(case)
    raw = corrupt(case.answer(seed), changes)
    h.brokers[0].answer(request, raw)
    response = end_of(h)
    if response.error is None:
        assert_success_is_in_the_bytes(case, raw, response)
        return
    assert response.body is None
    assert isinstance(response.error, ProtocolError)
    assert f"{case.api.name} response v{case.version}" in str(response.error)
    assert_dropped(h, transport, response.error)
    assert_usable_again(h)


@case_ids
def test_an_answer_that_ends_too_soon_or_too_late_names_the_field(case: Case) -> None:
    raw = case.answer(3)
    for corrupted in (raw[:-1], raw[: len(raw) // 2], raw + b"\1"):
        h, request, transport = ask(case)
        h.brokers[0].answer(request, corrupted)
        response = end_of(h)
        assert isinstance(response.error, ProtocolError), corrupted
        assert f"{case.api.name} response v{case.version}" in str(response.error)
        assert_dropped(h, transport, response.error)


@case_ids
def test_a_length_is_not_used_before_it_was_checked(case: Case) -> None:
    """A few bytes that announce millions of elements do not take the memory of millions of elements."""
    raw = case.answer(5)[:400]
    request = case.request()
    view = [memoryview(raw[:at] + bomb + raw[at:]) for bomb in BOMBS for at in range(min(len(raw), 24))]
    decode_quietly(request, case.version, view[0])  # what is built once is not counted
    tracemalloc.start()
    try:
        for corrupted in view:
            decode_quietly(request, case.version, corrupted)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


def decode_quietly(request: Any, version: int, raw: memoryview) -> None:
    try:
        request.decode_response(version, raw)
    except ProtocolError:
        pass  # that is one of the two ways in which it may end


@pytest.mark.parametrize("case", HANDSHAKES, ids=str)
@few
@given(seed=seeds, changes=mutations)
def test_a_corrupt_first_exchange_ends_in_a_connection_or_in_an_error(
    case: Case, seed: int, changes: list[Mutation]
) -> None:
    h = Harness(request_timeout_ms=30_000)
    raw = corrupt(case.answer(seed), changes)
    answers = [raw]
    # Asked again in an older version, the broker is silent: that must come to an end too.
    h.brokers[0].rules[API_VERSIONS.key] = lambda _: answers.pop() if answers else None
    h.client.ready(h.nodes[0], h.now)
    for _ in range(12):
        # Not is_ready(): an answer that throttles the client is an answer.
        if h.client.api_versions(0) is not None or h.client.connection_error(0) is not None:
            break
        h.poll(31.0)
    if h.client.connection_error(0) is None:
        assert isinstance(h.client.api_versions(0), NodeApiVersions)
        return
    error = h.client.connection_error(0)
    assert isinstance(error, KafkaError)
    assert "b0:9092" in str(error)
    assert h.network.transports[0].closed


@many
@given(frame=st.binary(max_size=200), closes=st.booleans())
@example(frame=b"", closes=True)
@example(frame=b"HTTP/1.1 400 Bad Request\r\n\r\n", closes=False)
@example(frame=struct.pack(">i", 2**31 - 1), closes=False)
@example(frame=struct.pack(">i", -1), closes=False)
@example(frame=struct.pack(">ii", 4, 0), closes=False)
def test_any_bytes_instead_of_an_answer(frame: bytes, closes: bool) -> None:
    h, request, transport = ask(CASES[0])
    request.peer.send(frame)
    if closes:
        request.peer.close()
    response = end_of(h)
    if response.error is None:
        assert struct.unpack_from(">i", frame, 4) == (request.correlation_id,)
        return
    assert_dropped(h, transport, response.error)
    assert_usable_again(h)


@many
@given(offset=st.integers(-(2**31), 2**31 - 1).filter(bool), pieces=st.lists(st.integers(1, 30), max_size=6))
def test_an_answer_with_another_correlation_id_is_nobodys_answer(offset: int, pieces: list[int]) -> None:
    case = next(case for case in CASES if case.api is FETCH)
    h, request, transport = ask(case)
    wrong = (request.correlation_id + offset + 2**31) % 2**32 - 2**31
    frame = response_frame(request._replace(correlation_id=wrong), case.answer(1))
    for size in pieces:
        request.peer.send(frame[:size])
        frame = frame[size:]
        h.poll()
    request.peer.send(frame)
    response = end_of(h)
    assert isinstance(response.error, NetworkError)
    assert f"correlation id {wrong}" in str(response.error)
    assert_dropped(h, transport, response.error)


@few
@given(changes=mutations, position=st.integers(0, 2))
def test_what_was_answered_before_the_nonsense_counts(changes: list[Mutation], position: int) -> None:
    """Three requests in flight, of which one gets a corrupt frame: those before it have their answer."""
    h = Harness()
    h.connect()
    for _ in range(3):
        h.send(request=question())
    h.poll_until(lambda: len(h.brokers[0].waiting) == 3)
    requests = list(h.brokers[0].waiting)
    frames = [response_frame(request, ANSWER) for request in requests]
    (size,) = struct.unpack_from(">i", frames[position])
    frames[position] = struct.pack(">i", size) + b"\xff" * 4 + corrupt(frames[position][8:], changes)
    requests[0].peer.send(b"".join(frames))
    h.poll_until(lambda: len(h.ended) == 3, timeout=31.0, turns=5)
    assert [response.error is None for response in h.ended] == [True] * position + [False] * (3 - position)


@pytest.mark.parametrize("size", [-(2**31), -1, 0, 3, 100_000_001, 2**31 - 1])
def test_a_size_that_no_answer_has_drops_the_connection_at_once(size: int) -> None:
    h, request, transport = ask(CASES[0], max_response_bytes=100_000_000)
    request.peer.send(struct.pack(">ii", size, request.correlation_id))
    before = h.now
    h.poll()
    (response,) = h.ended
    assert h.now == before
    assert f"a response of {size} bytes announced" in str(response.error)
    assert_dropped(h, transport, response.error)


def test_unasked_answers_drop_the_connection() -> None:
    h, request, transport = ask(CASES[0])
    frame = response_frame(request, CASES[0].answer(1))
    request.peer.send(frame + frame)
    assert end_of(h).error is None
    h.poll()
    assert transport.closed
    assert "no request waits" in str(h.client.connection_error(0))


def test_a_frame_that_is_announced_and_does_not_come_takes_no_memory() -> None:
    h, request, _ = ask(CASES[0])
    tracemalloc.start()
    try:
        request.peer.send(struct.pack(">i", 99_000_000) + b"x" * 100)
        h.poll()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000
    assert isinstance(end_of(h).error, KafkaError)
