# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import random
import struct

import pytest
from protocol.golden_cases import GoldenCase, golden_requests, golden_responses

from penstock.errors import NotKafkaError, ProtocolError
from penstock.protocol._framing_cy import (
    FrameReader,
    frame_request,
    next_correlation_id,
    parse_response_header,
)
from penstock.protocol.codec import decode_response_body, encode_request_body
from penstock.protocol.messages import API_VERSIONS, END_TXN, METADATA, PRODUCE, SASL_HANDSHAKE

MAX = 100 * 1024 * 1024


def feed_all(reader: FrameReader, chunks: list[bytes]) -> None:
    for chunk in chunks:
        reader.feed(chunk)


def prefixed(frame: bytes) -> bytes:
    return struct.pack(">i", len(frame)) + frame


@pytest.mark.parametrize("case", golden_requests(), ids=lambda case: case.name)
def test_golden_request_is_framed_byte_for_byte(case: GoldenCase) -> None:
    body = encode_request_body(case.api, case.version, case.body)
    framed = frame_request(case.api, case.version, case.correlation_id, case.client_id, body)
    assert b"".join(framed) == prefixed(case.data)


@pytest.mark.parametrize("case", golden_responses(), ids=lambda case: case.name)
def test_golden_response_is_read(case: GoldenCase) -> None:
    correlation_id, body = parse_response_header(case.api, case.version, case.data)
    assert correlation_id == case.correlation_id
    assert decode_response_body(case.api, case.version, body) == case.complete_body


@pytest.mark.parametrize(
    "case", [case for case in golden_responses() if case.unknown_tags], ids=lambda case: case.name
)
def test_a_response_cut_off_anywhere_is_a_protocol_error(case: GoldenCase) -> None:
    for end in range(len(case.data)):
        with pytest.raises(ProtocolError):
            decode_response_body(*_body_of(case, case.data[:end]))


def _body_of(case: GoldenCase, data: bytes):
    return case.api, case.version, parse_response_header(case.api, case.version, data)[1]


def test_a_small_body_shares_the_buffer_of_the_header_and_a_large_one_is_not_copied() -> None:
    small, large = b"small", bytearray(1_000_000)
    first, second = frame_request(PRODUCE, 9, 1, "me", [small, large])
    assert bytes(first).endswith(small)
    assert second is large
    first, second = frame_request(PRODUCE, 9, 1, "me", [large])
    assert second is large
    assert struct.unpack(">i", first[:4]) == (len(first) - 4 + len(large),)


def test_size_counts_bytes_not_elements() -> None:
    wide = memoryview(bytearray(4000)).cast("I")
    first, _ = frame_request(PRODUCE, 9, 1, None, [wide])
    assert struct.unpack(">i", first[:4]) == (len(first) - 4 + 4000,)


def test_a_request_without_body_is_one_buffer() -> None:
    assert len(frame_request(API_VERSIONS, 0, 1, "me", [b""])) == 1
    assert len(frame_request(API_VERSIONS, 0, 1, "me", [])) == 1


def test_a_client_id_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="client id"):
        frame_request(METADATA, 1, 1, "x" * 40_000, [])


def test_header_versions() -> None:
    assert [METADATA.request_header_version(version) for version in (8, 9)] == [1, 2]
    assert [METADATA.response_header_version(version) for version in (8, 9)] == [0, 1]
    assert [API_VERSIONS.request_header_version(version) for version in (2, 3)] == [1, 2]
    assert [API_VERSIONS.response_header_version(version) for version in (2, 3)] == [0, 0]
    assert SASL_HANDSHAKE.request_header_version(1) == 1
    assert SASL_HANDSHAKE.response_header_version(1) == 0


def test_a_header_that_is_too_short_names_the_api() -> None:
    with pytest.raises(ProtocolError, match="EndTxn response v3"):
        parse_response_header(END_TXN, 3, b"\0\0\0")


# Correlation ids


def test_correlation_ids_count_up_and_skip_the_reserved_range() -> None:
    assert next_correlation_id(0) == 1
    assert next_correlation_id(2**31 - 10) == 2**31 - 9
    assert next_correlation_id(2**31 - 9) == 0
    assert next_correlation_id(2**31 - 1) == 0


# FrameReader


def test_frames_come_out_however_the_bytes_come_in() -> None:
    frames = [b"abcd", b"x" * 5000, b"efghi"]
    stream = b"".join(map(prefixed, frames))
    for chunk in (1, 3, 4, 7, 4999, len(stream)):
        reader = FrameReader(MAX)
        got = [frame for at in range(0, len(stream), chunk) for frame in reader.feed(stream[at : at + chunk])]
        assert [bytes(frame) for frame in got] == frames


def seasoned_reader() -> FrameReader:
    """One that has read a frame: what comes whole takes a shorter way from then on."""
    reader = FrameReader(MAX)
    assert [bytes(frame) for frame in reader.feed(prefixed(b"first"))] == [b"first"]
    return reader


def test_whole_frames_belong_to_the_reader_of_them() -> None:
    data = bytearray(prefixed(b"abcd") + prefixed(b"efghi"))
    frames = seasoned_reader().feed(data)
    data[:] = bytes(len(data))
    assert [bytes(frame) for frame in frames] == [b"abcd", b"efghi"]


def test_whole_frames_before_a_part_of_one() -> None:
    reader = seasoned_reader()
    stream = prefixed(b"abcd") + prefixed(b"efghi")
    for cut in range(len(stream)):
        got = [*reader.feed(stream[:cut]), *reader.feed(stream[cut:])]
        assert [bytes(frame) for frame in got] == [b"abcd", b"efghi"], cut


@pytest.mark.parametrize("size", [-1, MAX + 1])
def test_whole_frames_before_a_length_that_cannot_be_one(size: int) -> None:
    reader = seasoned_reader()
    bad = struct.pack(">i", size)
    assert [bytes(frame) for frame in reader.feed(prefixed(b"abcd") + bad + b"rest")] == [b"abcd"]
    assert reader.trouble is not None
    with pytest.raises(ProtocolError):
        reader.feed(prefixed(b"efgh"))


@pytest.mark.parametrize("data", [b"\0\0\0\7", b"\0\0\0\7\1", b"\0\0\0\7\1\5"])
def test_a_header_without_its_tagged_fields_names_the_api(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="EndTxn response v3"):
        parse_response_header(END_TXN, 3, data)


def test_tagged_fields_of_a_header_are_passed_over() -> None:
    correlation_id, body = parse_response_header(END_TXN, 3, b"\0\0\0\7\1\5\2ab" + b"body")
    assert (correlation_id, bytes(body)) == (7, b"body")
    assert parse_response_header(END_TXN, 1, b"\0\0\0\7")[0] == 7


def test_golden_responses_survive_random_chunks() -> None:
    rng = random.Random(7)
    stream = b"".join(prefixed(case.data) for case in golden_responses())
    reader, got, at = FrameReader(MAX), [], 0
    while at < len(stream):
        size = rng.choice((1, 2, 5, 100, 3000))
        got += reader.feed(stream[at : at + size])
        at += size
    assert [bytes(frame) for frame in got] == [case.data for case in golden_responses()]


def test_frames_do_not_change_when_the_receive_buffer_is_used_again() -> None:
    buffer = bytearray(prefixed(b"abcd"))
    (frame,) = FrameReader(MAX).feed(memoryview(buffer))
    buffer[:] = bytes(len(buffer))
    assert bytes(frame) == b"abcd"


def test_nothing_comes_out_before_the_last_byte() -> None:
    reader = FrameReader(MAX)
    for byte in prefixed(b"abcd")[:-1]:
        assert reader.feed(bytes([byte])) == []
    assert reader.feed(b"") == []
    assert [bytes(frame) for frame in reader.feed(b"d")] == [b"abcd"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "HTTP"),
        (bytes.fromhex("15030300020228"), "TLS"),
        (bytes.fromhex("15030100020246"), "TLS"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "SSH-"),
        (struct.pack(">i", -1), "-1 bytes"),
        (struct.pack(">i", 3), "3 bytes"),
        (struct.pack(">i", MAX + 1), "bytes"),
    ],
)
@pytest.mark.parametrize("one_by_one", [False, True])
def test_what_does_not_speak_kafka_is_told_apart(data: bytes, message: str, one_by_one: bool) -> None:
    reader = FrameReader(MAX)
    chunks = [bytes([byte]) for byte in data] if one_by_one else [data]
    with pytest.raises(NotKafkaError, match=message) as caught:
        feed_all(reader, chunks)
    assert "does not speak Kafka" not in str(caught.value), "the connection says so, with the address"
    assert ("security.protocol" in caught.value.advice) == (message == "TLS")
    assert ("the host and the port" in caught.value.advice) == (message == "HTTP")


def test_text_is_told_apart_even_where_its_length_would_be_allowed() -> None:
    with pytest.raises(NotKafkaError, match="HTTP"):
        FrameReader(2**31 - 1).feed(b"HTTP/1.1 200 OK")


def test_a_bad_length_later_on_is_a_protocol_error_but_not_another_protocol() -> None:
    reader = FrameReader(1000)
    reader.feed(prefixed(b"abcd"))
    with pytest.raises(ProtocolError, match="1001") as caught:
        reader.feed(struct.pack(">i", 1001))
    assert not isinstance(caught.value, NotKafkaError)


def test_frames_before_a_bad_length_are_handed_over_first() -> None:
    reader = FrameReader(1000)
    stream = prefixed(b"abcd") + prefixed(b"efgh") + struct.pack(">i", -5) + b"garbage"
    assert [bytes(frame) for frame in reader.feed(stream)] == [b"abcd", b"efgh"]
    assert "-5 bytes" in str(reader.trouble)
    for _ in range(2):
        with pytest.raises(ProtocolError, match="-5 bytes"):
            reader.feed(b"")


def test_a_bad_length_that_follows_no_frame_is_told_at_once() -> None:
    reader = FrameReader(1000)
    assert reader.trouble is None
    with pytest.raises(NotKafkaError):
        reader.feed(struct.pack(">i", -5))
    assert isinstance(reader.trouble, NotKafkaError)


def test_the_largest_frame_is_allowed() -> None:
    assert len(FrameReader(1000).feed(prefixed(bytes(1000)))) == 1


def test_frames_without_a_header_may_be_empty_where_they_are_expected() -> None:
    reader = FrameReader(MAX)
    reader.allow_bare()
    assert reader.feed(prefixed(b"") + prefixed(b"abc") + prefixed(b"")[:2]) == [b"", b"abc"]
    assert reader.feed(prefixed(b"")[2:]) == [b""]
    reader.allow(MAX)
    with pytest.raises(ProtocolError, match="a response of 3 bytes announced, 4 to"):
        reader.feed(prefixed(b"abc"))
