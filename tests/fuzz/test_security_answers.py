# SPDX-License-Identifier: Apache-2.0
"""Wrong answers of brokers and token providers while a client authenticates: an error, in bounded time and memory.

Dialogues of the mechanisms alone are in `tests/security/sasl/test_hostile_brokers.py`, TLS in `tests/security/tls`.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any, Self

import pytest
from fuzz.mutations import EFFORT, Mutation, corrupt, mutations
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from network.fakes import Received
from network.harness import Harness

from penstock.config.kinds import Password
from penstock.errors import AuthenticationError, KafkaError, ProtocolError
from penstock.protocol.codec import encode_response_body
from penstock.protocol.messages import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE
from penstock.security.oauth.oidc import OidcSource
from penstock.security.oauth.settings import OAuthSettings
from penstock.security.oauth.token import NoTokenError, Token
from penstock.security.sasl.authenticator import Authenticator
from penstock.security.sasl.settings import SaslSettings

few = settings(max_examples=25 * EFFORT, deadline=None, suppress_health_check=[HealthCheck.too_slow])
many = settings(max_examples=100 * EFFORT, deadline=None, suppress_health_check=[HealthCheck.too_slow])
SECRET = "hunter2-hunter2"
PLAIN = Authenticator(SaslSettings(mechanism="PLAIN", username="u", password=Password(SECRET)))
SCRAM = Authenticator(SaslSettings(mechanism="SCRAM-SHA-256", username="u", password=Password(SECRET)))
# The largest frame that is read before a client is known, and what it may cost to look at it.
MOST_FRAME = 1024 * 1024


@contextlib.contextmanager
def memory_below(limit: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < limit


def body_of(api: Any, version: int, body: dict[str, Any]) -> bytes:
    return b"".join(bytes(part) for part in encode_response_body(api, version, body))


AGREED = body_of(SASL_HANDSHAKE, 1, {"error_code": 0, "mechanisms": ["PLAIN", "SCRAM-SHA-256"]})
TAKEN = body_of(
    SASL_AUTHENTICATE,
    2,
    {"error_code": 0, "error_message": "", "auth_bytes": b"r=x,s=c2FsdA==,i=4096", "session_lifetime_ms": 0},
)


def greeted(authenticator: Authenticator) -> Harness:
    h = Harness(authenticate=authenticator.handshake, request_timeout_ms=2000)
    h.brokers[0].rules[SASL_HANDSHAKE.key] = lambda _: AGREED
    return h


def outcome_of(h: Harness) -> KafkaError | None:
    """Take turns until there is a connection or the reason why there is none."""
    h.client.ready(h.nodes[0], h.now)
    for _ in range(40):
        error = h.client.connection_error(0)
        if error is not None or h.client.is_ready(h.nodes[0], h.now):
            return error
        h.poll(1.0)
    raise AssertionError("the dialogue does not end")


def assert_told(h: Harness, error: KafkaError | None) -> None:
    if error is None:
        return
    assert "b0:9092" in str(error)
    assert len(str(error)) < 3000
    assert SECRET not in f"{error} {error.__cause__!r}"
    assert h.network.transports[0].closed


@few
@given(changes=mutations)
def test_a_corrupt_list_of_mechanisms(changes: list[Mutation]) -> None:
    h = greeted(PLAIN)
    h.brokers[0].rules[SASL_HANDSHAKE.key] = lambda _: corrupt(AGREED, changes)
    h.brokers[0].rules[SASL_AUTHENTICATE.key] = lambda _: TAKEN
    assert_told(h, outcome_of(h))


@many
@pytest.mark.parametrize("authenticator", [PLAIN, SCRAM], ids=["PLAIN", "SCRAM"])
@given(changes=mutations)
def test_a_corrupt_answer_to_a_token_is_no_proof(
    authenticator: Authenticator, changes: list[Mutation]
) -> None:
    h = greeted(authenticator)
    h.brokers[0].rules[SASL_AUTHENTICATE.key] = lambda _: corrupt(TAKEN, changes)
    error = outcome_of(h)
    assert_told(h, error)
    if authenticator is SCRAM:
        assert error is not None, "no broker can prove by accident that it knows the password"


@many
@given(
    frame=st.binary(max_size=100),
    closes=st.booleans(),
    when=st.sampled_from([API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE]),
)
def test_any_bytes_in_place_of_an_answer(frame: bytes, closes: bool, when: Any) -> None:
    h = greeted(PLAIN)

    def rubbish(request: Received) -> None:
        request.peer.send(frame)
        if closes:
            request.peer.close()

    h.brokers[0].rules[when.key] = rubbish
    error = outcome_of(h)
    assert error is not None
    assert_told(h, error)


@pytest.mark.parametrize("when", [API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE])
@pytest.mark.parametrize("size", [100 * 1024 * 1024, MOST_FRAME + 1, 2**31 - 1, -1])
def test_a_frame_of_a_hundred_mebibytes_before_anybody_is_known_is_refused_by_its_length(
    when: Any, size: int
) -> None:
    h = greeted(PLAIN)
    h.brokers[0].rules[when.key] = lambda request: request.peer.send(struct.pack(">i", size) + bytes(60_000))
    began = h.now
    with memory_below(2_000_000):
        error = outcome_of(h)
    assert f"a response of {size} bytes announced" in str(error)
    assert_told(h, error)
    assert h.now == began, "by its length, not by a time-out"


@pytest.mark.parametrize(("code", "count"), [(0, 50_000), (33, 50_000), (33, (MOST_FRAME - 100) // 3)])
def test_a_list_of_all_mechanisms_that_fit_is_bounded(code: int, count: int) -> None:
    raw = struct.pack(">hi", code, count) + struct.pack(">h1s", 1, b"X") * count
    h = greeted(PLAIN)
    h.brokers[0].rules[SASL_HANDSHAKE.key] = lambda _: raw
    h.brokers[0].rules[SASL_AUTHENTICATE.key] = lambda _: TAKEN
    began = time.monotonic()
    with memory_below(64_000_000):
        error = outcome_of(h)
    assert time.monotonic() - began < 200
    assert isinstance(error, AuthenticationError | ProtocolError) or (code == 0 and error is None)
    assert_told(h, error)


def test_a_list_that_announces_a_million_and_holds_none() -> None:
    h = greeted(PLAIN)
    h.brokers[0].rules[SASL_HANDSHAKE.key] = lambda _: struct.pack(">hi", 0, 1_000_000)
    with memory_below(2_000_000):
        error = outcome_of(h)
    assert error is not None
    assert_told(h, error)


# ---- providers of tokens


class ScriptedServer:
    """A server that says whatever it is told to, to everybody."""

    def __init__(self, say: Callable[[socket.socket], None]) -> None:
        self._say = say
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/token"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(60)

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                with client, contextlib.suppress(OSError):
                    client.settimeout(5)
                    client.recv(65_536)
                    self._say(client)


def asked(url: str, seconds: float = 0.3) -> Token | NoTokenError:
    source = OidcSource(
        OAuthSettings(
            token_endpoint_url=url,
            client_id="orders",
            client_secret=Password(SECRET),
            read_timeout_ms=int(seconds * 1000),
            connect_timeout_ms=int(seconds * 1000),
            retry_backoff_max_ms=1,
        )
    )
    found: Token | NoTokenError
    try:
        found = source.fetch()
    except NoTokenError as error:
        found = error
    if isinstance(found, NoTokenError):
        assert len(str(found)) < 1500
        assert SECRET not in str(found)
        assert url.split("/")[2] in str(found)
    return found


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")


BODY = json.dumps({"access_token": "abc.def.ghi", "expires_in": 60}).encode()
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(BODY)
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
REDIRECT = b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/x\r\nContent-Length: 0\r\n\r\n"
REFUSAL = (
    b'HTTP/1.1 400 Bad\r\nContent-Length: 53\r\n\r\n{"error":"invalid_client","error_description":"nobody"}'
)


def test_corrupt_answers_of_a_provider() -> None:
    said: list[bytes] = [b""]
    with ScriptedServer(lambda client: client.sendall(said[0])) as server:

        @many
        @given(st.sampled_from([HEAD + BODY, CHUNKED, REDIRECT, REFUSAL]), mutations)
        @example(CHUNKED, [Mutation(0, 0, b"")])
        def run(answer: bytes, changes: list[Mutation]) -> None:
            said[0] = corrupt(answer, changes)
            found = asked(server.url)
            assert isinstance(found, NoTokenError) or found.value

        run()
        said[0] = CHUNKED
        assert isinstance(asked(server.url, 60), Token)
        for place in (b"http://[", b"file:///etc/passwd", b"\xff\xfe", b"//" * 10_000):
            said[0] = REDIRECT.replace(b"http://127.0.0.1:1/x", place)
            assert "302" in str(asked(server.url, 60))


def flood(piece: bytes) -> Callable[[socket.socket], None]:
    def say(client: socket.socket) -> None:
        while True:
            client.sendall(piece)

    return say


def drip(start: bytes, piece: bytes) -> Callable[[socket.socket], None]:
    def say(client: socket.socket) -> None:
        client.sendall(start)
        while True:
            client.sendall(piece)
            time.sleep(0.02)

    return say


def begun(start: bytes, piece: bytes) -> Callable[[socket.socket], None]:
    def say(client: socket.socket) -> None:
        client.sendall(start)
        flood(piece)(client)

    return say


@pytest.mark.parametrize(
    "say",
    [
        pytest.param(flood(b"HTTP/1.1 100 Continue\r\n\r\n"), id="interim answers without end"),
        pytest.param(flood(b"x" * 4096), id="a status line without end"),
        pytest.param(begun(b"HTTP/1.1 200 OK\r\n", b"X-Y: z\r\n"), id="headers without end"),
        pytest.param(begun(b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 65_536), id="a body without end"),
        pytest.param(
            begun(b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n", b"x" * 65_536), id="a huge body"
        ),
        pytest.param(
            begun(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffff\r\n", b"x" * 65_536),
            id="a huge chunk",
        ),
        pytest.param(drip(b"", b"H"), id="a slow status line"),
        pytest.param(drip(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"), id="slow headers"),
        pytest.param(drip(HEAD.replace(b"Content-Length: ", b"Content-Length: 9"), b" "), id="a slow body"),
        pytest.param(
            drip(b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"),
            id="slow interim answers",
        ),
        pytest.param(lambda client: time.sleep(1), id="silence"),
    ],
)
def test_a_provider_that_does_not_come_to_an_end(say: Callable[[socket.socket], None]) -> None:
    with ScriptedServer(say) as server:
        began = time.monotonic()
        with memory_below(8_000_000):
            found = asked(server.url, 0.5)
        assert time.monotonic() - began < 30
        assert isinstance(found, NoTokenError)
