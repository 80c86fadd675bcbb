# SPDX-License-Identifier: Apache-2.0
"""Handshakes on a connection: work aside, bare tokens, sessions that end, and refusals."""

from __future__ import annotations

import itertools
import logging
import math
import random
import struct
from collections.abc import Callable
from typing import Any

import pytest
from network.fakes import FakeNetwork, FakeUpdater, Peer, Received, response_frame, take_requests
from network.harness import ANSWER, Harness, network_settings, question, with_bootstrap

from penstock.errors import AuthenticationError, KafkaTimeoutError, NetworkError
from penstock.network import NetworkClient
from penstock.network.handshake import Aside, HandshakeStep
from penstock.network.states import (
    AUTHENTICATING,
    AUTHENTICATION_FAILED,
    CHECKING_API_VERSIONS,
    READY,
    REAUTHENTICATING,
)
from penstock.network.transport import NOTHING, READ, RefusedError
from penstock.protocol.messages import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE
from penstock.protocol.requests import SchemaRequest

SECRET = "open-sesame"


def hello() -> HandshakeStep:
    return HandshakeStep(SchemaRequest.of(SASL_HANDSHAKE, {"mechanism": "TOKEN"}), 1)


def token(text: bytes = b"token") -> HandshakeStep:
    return HandshakeStep(SchemaRequest.of(SASL_AUTHENTICATE, {"auth_bytes": text}), 1)


class TokenHandshake:
    """A handshake as that of SASL: a mechanism, then a token that is found aside."""

    state = AUTHENTICATING

    def __init__(self, find: Callable[[], HandshakeStep | None] = token) -> None:
        self.session_lifetime_ms = 0
        self._find = find

    def start(self) -> HandshakeStep | Aside:
        return hello()

    def on_answer(self, version: int, body: dict[str, Any]) -> HandshakeStep | Aside | None:
        if "mechanisms" in body:
            return Aside(self._find)
        if body["error_code"]:
            raise AuthenticationError("wrong token", mechanism="TOKEN", user="alice")
        self.session_lifetime_ms = body["session_lifetime_ms"]
        return None


class HandshakeRig:
    """Makes the handshakes of a client, and lets brokers answer them."""

    def __init__(self, lifetime_ms: int = 0, **settings: Any) -> None:
        self.find: Callable[[], HandshakeStep | None] = token
        self.lifetime_ms = lifetime_ms
        self.refuses = False
        self.made: list[TokenHandshake] = []
        self.kind: type[TokenHandshake] = TokenHandshake
        self.h = Harness(authenticate=self.handshake, **settings)
        self.broker = self.h.brokers[0]
        self.broker.rules[SASL_HANDSHAKE.key] = lambda _: {"error_code": 0, "mechanisms": ["TOKEN"]}
        self.broker.rules[SASL_AUTHENTICATE.key] = self._admit

    def handshake(self, node: Any, versions: Any) -> TokenHandshake:
        self.made.append(self.kind(lambda: self.find()))  # noqa: PLW0108 - the test may change it later
        return self.made[-1]

    def _admit(self, request: Received) -> dict[str, Any]:
        return {
            "error_code": 58 if self.refuses else 0,
            "error_message": None,
            "auth_bytes": b"",
            "session_lifetime_ms": self.lifetime_ms,
        }

    def state(self) -> object:
        return self.h.client._pool.states.state_of(0)

    def names(self) -> list[str]:
        return [request.api.name for request in self.broker.seen]


# ---- aside


def test_work_aside_is_not_done_on_the_io_thread_and_its_result_is_sent():
    rig = HandshakeRig()
    h = rig.h
    h.network.aside_delay = 2.0
    found: list[float] = []
    rig.find = lambda: found.append(h.now) or token(b"found")
    h.client.ready(h.nodes[0], h.now)
    start = h.now
    h.poll_until(lambda: rig.state() is AUTHENTICATING)
    assert not found
    h.poll_until(lambda: rig.state() is READY, timeout=5)
    assert found == [pytest.approx(start + 2)]
    assert rig.broker.seen[-1].body["auth_bytes"] == b"found"
    assert h.client.metrics.authentications == 1


def test_work_aside_may_be_the_first_step_and_may_be_the_last():
    class Quiet(TokenHandshake):
        def start(self) -> Aside:
            return Aside(lambda: None)

    h = Harness(authenticate=lambda node, versions: Quiet())
    h.connect()
    assert [request.api.name for request in h.brokers[0].seen] == ["ApiVersions"]


def test_an_error_from_aside_is_told_with_the_broker_and_the_user():
    rig = HandshakeRig()

    def fail() -> HandshakeStep:
        raise AuthenticationError("the vault is closed", mechanism="TOKEN", user="alice")

    rig.find = fail
    h = rig.h
    h.client.ready(h.nodes[0], h.now)
    h.poll_until(lambda: h.updater.fatal, timeout=1)
    (error,) = h.updater.fatal
    assert isinstance(error, AuthenticationError)
    assert (error.broker, error.mechanism, error.user) == ("broker 0 at b0:9092", "TOKEN", "alice")
    assert "b0:9092" in str(error)
    assert "the vault is closed" in str(error)
    assert rig.state() is AUTHENTICATION_FAILED


def test_an_error_from_aside_that_may_pass_is_not_a_refusal():
    rig = HandshakeRig()

    def fail() -> HandshakeStep:
        raise KafkaTimeoutError("the vault takes long")

    rig.find = fail
    h = rig.h
    h.client.ready(h.nodes[0], h.now)
    h.poll_until(lambda: h.updater.connection_failures, timeout=1)
    assert not h.updater.fatal
    error = h.client.connection_error(0)
    assert isinstance(error, NetworkError)
    assert "the vault takes long" in str(error)


def test_the_text_of_an_unexpected_error_is_not_told_since_it_may_hold_the_secret(caplog):
    rig = HandshakeRig()

    def fail() -> HandshakeStep:
        raise ValueError(f"cannot encode {SECRET}")

    rig.find = fail
    h = rig.h
    with caplog.at_level(logging.DEBUG):
        h.client.ready(h.nodes[0], h.now)
        h.poll_until(lambda: h.updater.connection_failures, timeout=1)
    error = h.client.connection_error(0)
    assert isinstance(error, NetworkError)
    assert "ValueError (raised in fail" in str(error)
    texts = [caplog.text, str(error), repr(error), repr(error.__cause__), repr(error.__cause__.__context__)]
    assert not any(SECRET in text for text in texts)


def test_a_token_is_not_in_the_repr_of_a_step():
    assert SECRET not in repr(HandshakeStep(None, -1, SECRET.encode()))
    assert SECRET not in repr(token(SECRET.encode()))


# ---- the time to be ready


class ExplainsDelay(TokenHandshake):
    """One that can say what it means that its work aside does not end."""

    def late_error(self, seconds: float) -> AuthenticationError:
        return AuthenticationError(
            f"the vault is silent for {seconds:.0f} s", mechanism="TOKEN", user="alice"
        )


def until_given_up(rig: HandshakeRig, times: int = 1) -> None:
    """So many attempts whose work aside hangs."""
    h = rig.h
    for _ in range(times):
        before = len(h.updater.connection_failures)
        h.client.ready(h.nodes[0], h.now)
        h.poll_until(lambda before=before: len(h.updater.connection_failures) > before, timeout=10)
        h.clock.advance(2)


def test_the_setup_timeout_ends_work_aside_that_hangs_and_its_late_result_is_dropped():
    rig = HandshakeRig(connection_setup_timeout_ms=3000, connection_setup_timeout_max_ms=3000)
    h = rig.h
    h.network.aside_delay = 20
    start = h.now
    h.client.ready(h.nodes[0], h.now)
    h.poll_until(lambda: h.updater.connection_failures, timeout=10)
    assert h.now - start <= 3.7
    assert "authentication did not finish within" in str(h.client.connection_error(0))
    assert not h.updater.fatal
    h.network.aside_delay = 0
    h.clock.advance(20)
    h.poll()
    h.connect()
    seen = rig.names()
    h.clock.advance(100)
    for _ in range(5):
        h.poll()
    assert rig.names() == seen, "the result for the connection that is gone was sent on another"


def test_the_work_of_the_next_connection_waits_for_the_one_that_hangs_and_nothing_piles_up():
    rig = HandshakeRig(connection_setup_timeout_ms=3000, connection_setup_timeout_max_ms=3000)
    h = rig.h
    begun: list[float] = []
    rig.find = lambda: begun.append(h.now) or token()
    h.network.aside_delay = 30
    start = h.now
    until_given_up(rig, times=4)
    assert not begun
    h.network.aside_delay = 0
    h.client.ready(h.nodes[0], h.now)
    h.poll()
    h.clock.advance(start + 30 - h.now)
    h.poll_until(lambda: h.client._pool.get(0) is None or rig.state() is READY)
    h.clock.advance(2)
    h.connect()
    assert len(begun) == 1, "what nobody waits for is not begun, and of the others one at a time"


def test_the_work_that_waited_goes_on_when_the_one_before_comes_back():
    rig = HandshakeRig(connection_setup_timeout_ms=3000, connection_setup_timeout_max_ms=3000)
    h = rig.h
    h.network.aside_delay = 5
    until_given_up(rig)
    h.network.aside_delay = 0
    h.client.ready(h.nodes[0], h.now)
    h.poll_until(lambda: rig.state() is READY, timeout=1)
    assert len(rig.made) == 2
    assert rig.names().count("SaslAuthenticate") == 1


def test_work_aside_that_hangs_for_a_minute_is_taken_for_lost():
    rig = HandshakeRig(connection_setup_timeout_ms=3000, connection_setup_timeout_max_ms=3000)
    h = rig.h
    h.network.aside_delay = math.inf
    start = h.now
    until_given_up(rig, times=2)
    h.network.aside_delay = 0
    while h.now < start + 59:
        until_given_up(rig)
    h.clock.advance(2)
    h.connect()


def test_work_aside_that_hangs_is_told_as_such():
    rig = HandshakeRig(connection_setup_timeout_ms=3000, connection_setup_timeout_max_ms=3000)
    rig.kind = ExplainsDelay
    h = rig.h
    h.network.aside_delay = math.inf
    until_given_up(rig, times=2)
    first, second = h.updater.fatal
    assert isinstance(first, AuthenticationError)
    assert str(first) == "no connection to broker 0 at b0:9092: the vault is silent for 3 s"
    assert (first.mechanism, first.user, first.broker) == ("TOKEN", "alice", "broker 0 at b0:9092")
    assert "the vault is silent for 8 s" in str(second), "the second waits for the first"
    assert rig.state() is AUTHENTICATION_FAILED


def test_work_aside_is_not_blamed_for_a_broker_that_has_taken_the_time():
    rig = HandshakeRig(connection_setup_timeout_ms=3000, connection_setup_timeout_max_ms=3000)
    rig.kind = ExplainsDelay
    h = rig.h
    rig.broker.latency = 1.4  # two answers, and hardly anything is left
    h.network.aside_delay = math.inf
    until_given_up(rig)
    assert not h.updater.fatal
    assert isinstance(h.client.connection_error(0), NetworkError)


def test_the_same_error_of_our_own_is_logged_once_and_not_as_a_listener_that_cannot_be_reached(caplog):
    rig = HandshakeRig()
    rig.find = lambda: 1 / 0
    h = rig.h
    with caplog.at_level(logging.INFO):
        until_given_up(rig, times=5)
    (record,) = caplog.records
    assert "ZeroDivisionError (raised in " in record.getMessage()
    assert "advertised" not in record.getMessage()
    assert not h.updater.fatal


def test_what_would_end_a_thread_ends_the_connection():
    rig = HandshakeRig()

    def leave() -> HandshakeStep:
        raise SystemExit(SECRET)

    rig.find = leave
    h = rig.h
    until_given_up(rig)
    (error,) = h.updater.fatal
    assert isinstance(error, AuthenticationError)
    assert "SystemExit (raised in leave" in str(error)
    assert SECRET not in str(error)


@pytest.mark.parametrize(
    "silent", [API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE], ids=lambda schema: schema.name
)
def test_the_setup_timeout_covers_all_that_comes_before_ready(silent):
    rig = HandshakeRig(connection_setup_timeout_ms=3000, connection_setup_timeout_max_ms=30_000)
    h = rig.h
    h.network.aside_delay = 1.0  # a part of the time is used up before
    key = silent.key
    rule = rig.broker.rules.pop(key)
    start = h.now
    h.client.ready(h.nodes[0], h.now)
    h.poll_until(lambda: h.updater.connection_failures, timeout=10)
    assert 2.4 <= h.now - start <= 3.6
    # Each failed attempt has more time, until one succeeds.
    h.clock.advance(10)
    start = h.now
    h.client.ready(h.nodes[0], h.now)
    h.poll_until(lambda: len(h.updater.connection_failures) > 1, timeout=20)
    assert 4.8 <= h.now - start <= 7.2
    rig.broker.rules[key] = rule
    h.clock.advance(10)
    h.client.ready(h.nodes[0], h.now)
    h.poll_until(lambda: rig.state() is READY, timeout=2)


def test_a_connection_that_is_being_set_up_for_longer_than_one_may_be_idle_is_waited_for():
    """And nothing spins until then: the idle time is not for connections that are not ready."""
    rig = HandshakeRig(connections_max_idle_ms=500)
    h = rig.h
    h.network.aside_delay = 3.0
    h.client.ready(h.nodes[0], h.now)
    h.poll_until(lambda: rig.state() is READY, timeout=10, turns=8)


def test_a_connection_that_is_ready_has_no_setup_timeout():
    h = Harness(connection_setup_timeout_ms=1000, connection_setup_timeout_max_ms=1000)
    h.connect()
    h.send()
    h.poll(20)
    assert h.client.in_flight_count() == 1


# ---- bare tokens


class BareTokens(TokenHandshake):
    """SaslHandshake v0, then two tokens without headers."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[bytes] = []

    def on_answer(self, version: int, body: Any) -> HandshakeStep | Aside | None:
        if isinstance(body, dict):
            return HandshakeStep(None, -1, b"first")
        assert version == -1
        self.heard.append(body)
        return HandshakeStep(None, -1, b"") if len(self.heard) == 1 else None

    def closed_error(self) -> AuthenticationError:
        return AuthenticationError("old brokers refuse by closing", mechanism="TOKEN")


def bare_harness(on_token: Callable[[Peer, bytes], None]) -> tuple[Harness, list[BareTokens]]:
    made: list[BareTokens] = []

    def authenticate(node: Any, versions: Any) -> BareTokens:
        made.append(BareTokens())
        return made[-1]

    h = Harness(authenticate=authenticate)
    broker = h.brokers[0]

    def on_bare(peer: Peer) -> None:
        while len(peer.received) >= 4:
            (size,) = struct.unpack_from(">i", peer.received)
            frame = bytes(peer.received[4 : 4 + size])
            if len(frame) < size:
                return
            del peer.received[: 4 + size]
            on_token(peer, frame)

    def on_hello(request: Received) -> dict[str, Any]:
        request.peer.on_data = on_bare
        return {"error_code": 0, "mechanisms": ["TOKEN"]}

    broker.rules[SASL_HANDSHAKE.key] = on_hello
    return h, made


def test_bare_tokens_go_both_ways_and_requests_have_headers_again_afterwards():
    tokens: list[bytes] = []

    def on_token(peer: Peer, frame: bytes) -> None:
        tokens.append(frame)
        if len(tokens) == 2:
            peer.on_data = h.brokers[0]._on_data
        # The second answer is as long as a header, and begins with a number that is no correlation id.
        answer = b"challenge" if len(tokens) == 1 else b"\x7f\xff\xff\xff"
        peer.send(struct.pack(">i", len(answer)) + answer)

    h, made = bare_harness(on_token)
    h.connect()
    assert tokens == [b"first", b""]
    assert made[0].heard == [b"challenge", b"\x7f\xff\xff\xff"]
    h.send()
    h.brokers[0].answer(h.brokers[0].waiting[0], ANSWER)
    h.poll()
    assert h.ended[0].error is None


def test_a_bare_answer_may_be_empty_and_no_other_may():
    """As the one to PLAIN is."""
    tokens: list[bytes] = []

    def on_token(peer: Peer, frame: bytes) -> None:
        tokens.append(frame)
        if len(tokens) == 2:
            peer.on_data = h.brokers[0]._on_data
        peer.send(struct.pack(">i", 0))

    h, made = bare_harness(on_token)
    h.connect()
    assert made[0].heard == [b"", b""]
    h.send()
    h.brokers[0].waiting[0].peer.send(struct.pack(">i", 0))
    h.poll()
    assert "a response of 0 bytes announced, 4 to" in str(h.ended[0].error)


def test_a_handshake_says_what_it_means_that_the_broker_closes():
    h, _ = bare_harness(lambda peer, frame: peer.close())
    h.client.ready(h.nodes[0], h.now)
    h.poll_until(lambda: h.updater.fatal, timeout=1)
    (error,) = h.updater.fatal
    assert isinstance(error, AuthenticationError)
    assert error.mechanism == "TOKEN"
    assert "old brokers refuse by closing" in str(error)


# ---- sessions that end


def five_questions(rig: HandshakeRig) -> list[Received]:
    for _ in range(5):
        rig.h.send()
    return rig.broker.waiting[-5:]


def until_renewing(rig: HandshakeRig) -> None:
    rig.h.poll_until(lambda: rig.state() is REAUTHENTICATING, timeout=100)


def test_a_session_is_renewed_behind_what_is_in_flight_and_nothing_else_is_written():
    rig = HandshakeRig(lifetime_ms=10_000)
    h = rig.h
    h.connect()
    start = h.now
    asked = five_questions(rig)
    rig.broker.rules.pop(SASL_HANDSHAKE.key)
    until_renewing(rig)
    assert 8.5 <= h.now - start <= 9.5
    assert rig.names()[-6:] == ["FindCoordinator"] * 5 + ["SaslHandshake"]
    assert not h.client.is_ready(h.nodes[0], h.now)
    for request in asked:  # in the order of the requests, before the renewal's
        rig.broker.answer(request, ANSWER)
    h.poll()
    assert [ended.error for ended in h.ended] == [None] * 5
    assert [ended.correlation_id for ended in h.ended] == sorted(ended.correlation_id for ended in h.ended)
    assert not h.client.is_ready(h.nodes[0], h.now), "a request now would be refused by the broker"
    (hello_again,) = rig.broker.waiting
    rig.broker.answer(hello_again, {"error_code": 0, "mechanisms": []})
    h.poll_until(lambda: rig.state() is READY)
    assert rig.names()[-1] == "SaslAuthenticate"
    assert len(rig.broker.peers) == 1
    assert rig.names().count("ApiVersions") == 1
    assert (h.client.metrics.reauthentications, h.client.metrics.authentications) == (1, 1)
    h.send()
    assert rig.names()[-1] == "FindCoordinator"


def test_a_session_is_renewed_again_and_again_until_a_broker_says_that_it_has_no_end():
    rig = HandshakeRig(lifetime_ms=2000)
    h = rig.h
    h.connect()
    start = h.now
    for count in range(1, 6):
        h.poll_until(lambda count=count: h.client.metrics.reauthentications == count, timeout=100)
    assert 5 * 1.7 <= h.now - start <= 5 * 1.9 + 0.1
    rig.lifetime_ms = 0
    h.poll_until(lambda: h.client.metrics.reauthentications == 6, timeout=100)
    h.poll(200)
    assert h.client.metrics.reauthentications == 6
    assert len(rig.broker.peers) == 1


def test_clients_do_not_all_renew_at_the_same_part_of_a_session():
    rig = HandshakeRig(lifetime_ms=1000)
    states = rig.h.client._pool.states
    parts = [states.renewal_delay(10_000) / 10 for _ in range(200)]
    assert 0.85 <= min(parts) < 0.87
    assert 0.93 < max(parts) <= 0.95
    assert states.renewal_delay(0) == states.renewal_delay(-5) == math.inf


def test_no_session_is_renewed_within_a_second():
    states = HandshakeRig().h.client._pool.states
    assert {states.renewal_delay(lifetime) for lifetime in (1, 300, 600, 1000, 1052)} == {math.inf}
    assert all(1.0 <= states.renewal_delay(lifetime) <= lifetime / 1000 for lifetime in range(1053, 1300))


def test_a_session_that_is_too_short_to_be_renewed_ends_with_the_connection():
    rig = HandshakeRig(lifetime_ms=600)
    h = rig.h
    h.connect()
    h.poll(5.0)
    assert rig.state() is READY
    assert rig.names().count("SaslHandshake") == 1
    rig.broker.rules[10] = lambda request: request.peer.close()  # the session is over
    h.send()
    h.poll_until(lambda: h.ended, timeout=1)
    assert isinstance(h.ended[0].error, NetworkError)
    assert not h.updater.fatal
    h.clock.advance(1)
    h.connect()


def test_a_handshake_that_renews_a_session_is_told_so():
    class Renewing(TokenHandshake):
        renewed = 0

        def renew(self) -> HandshakeStep:
            Renewing.renewed += 1
            return hello()

    rig = HandshakeRig(lifetime_ms=10_000)
    rig.kind = Renewing
    h = rig.h
    h.connect()
    assert Renewing.renewed == 0
    h.poll_until(lambda: h.client.metrics.reauthentications == 1, timeout=30)
    assert Renewing.renewed == 1


@pytest.mark.parametrize("how", ["refused", "closed", "asked wrongly"])
def test_a_renewal_that_fails_means_a_new_connection_and_no_fatal_error(how):
    rig = HandshakeRig(lifetime_ms=10_000)
    h = rig.h
    h.connect()
    five_questions(rig)
    if how == "refused":
        rig.refuses = True
    elif how == "closed":
        rig.broker.rules[SASL_HANDSHAKE.key] = lambda request: request.peer.close()
    else:
        rig.find = lambda: 1 / 0
    if how != "closed":
        rig.broker.rules.pop(SASL_HANDSHAKE.key)
    until_renewing(rig)
    for request in list(rig.broker.waiting):  # in the order of the requests
        again = request.api is SASL_HANDSHAKE
        rig.broker.answer(request, {"error_code": 0, "mechanisms": []} if again else ANSWER)
    h.poll_until(lambda: h.client._pool.get(0) is None, timeout=1)
    answered = [ended for ended in h.ended if ended.error is None]
    assert len(h.ended) == 5
    assert all(isinstance(ended.error, NetworkError | None) for ended in h.ended)
    if how != "closed":
        assert len(answered) == 5, "what was answered before the renewal failed counts"
    assert not h.updater.fatal
    assert h.client.metrics.reauthentications_failed == 1
    assert h.client.metrics.authentications_failed == 0
    assert isinstance(h.client.connection_error(0), NetworkError)
    rig.refuses, rig.find = False, token
    rig.broker.rules[SASL_HANDSHAKE.key] = lambda _: {"error_code": 0, "mechanisms": []}
    h.clock.advance(1)
    h.connect()
    assert len(rig.broker.peers) == 2


def test_a_renewal_waits_for_the_end_of_a_request_that_is_partly_written():
    rig = HandshakeRig(lifetime_ms=10_000)
    h = rig.h
    h.connect()
    (peer,) = rig.broker.peers
    peer.limit_writes(7)
    h.send()
    start = h.now
    h.poll(20.0)
    while h.now < start + 20:
        h.poll(1.0)
    assert rig.state() is READY
    assert "SaslHandshake" not in rig.names()[3:]
    rig.broker.rules[10] = lambda _: ANSWER
    peer.limit_writes(None)
    h.poll_until(lambda: h.client.metrics.reauthentications == 1)
    assert rig.names()[-3:] == ["FindCoordinator", "SaslHandshake", "SaslAuthenticate"]


def test_a_renewal_waits_for_the_end_of_a_throttle():
    rig = HandshakeRig(lifetime_ms=10_000)
    h = rig.h
    h.connect()
    rig.broker.rules[10] = lambda _: ANSWER | {"throttle_time_ms": 15_000}
    start = h.now
    h.send()
    h.poll_until(lambda: h.client.metrics.reauthentications == 1, timeout=5)
    assert 15 <= h.now - start <= 15.5


def test_a_client_that_nobody_polled_for_long_renews_before_it_sends():
    rig = HandshakeRig(lifetime_ms=10_000)
    h = rig.h
    h.connect()
    h.clock.advance(60)  # as a control client between two calls
    assert not h.client.ready(h.nodes[0], h.now)
    h.poll_until(lambda: h.client.ready(h.nodes[0], h.now))
    assert h.client.metrics.reauthentications == 1
    assert len(rig.broker.peers) == 1


def test_renewals_do_not_keep_an_unused_connection_open():
    rig = HandshakeRig(lifetime_ms=2000, connections_max_idle_ms=9000)
    h = rig.h
    h.connect()
    start = h.now
    h.poll_until(lambda: h.client._pool.get(0) is None, timeout=100)
    assert 9 <= h.now - start < 11.5
    assert h.client.metrics.reauthentications >= 4


def test_a_renewal_whose_work_aside_hangs_ends_with_the_connection():
    rig = HandshakeRig(lifetime_ms=10_000, request_timeout_ms=4000)
    h = rig.h
    h.connect()
    h.network.aside_delay = math.inf
    until_renewing(rig)
    start = h.now
    h.poll_until(lambda: h.client._pool.get(0) is None, timeout=10)
    assert h.now - start <= 4.5
    assert not h.updater.fatal
    assert "took too long" in str(h.client.connection_error(0))


def test_metadata_waits_for_a_renewal_and_does_not_start_again_from_the_bootstrap_servers():
    rig = HandshakeRig(lifetime_ms=10_000)
    h = rig.h
    h.connect()
    h.network.aside_delay = 3
    until_renewing(rig)
    rig.lifetime_ms = 0
    h.updater.due_at = h.now
    h.poll_until(lambda: "Metadata" in rig.names(), timeout=10)
    assert h.updater.rebootstraps == 0
    assert rig.names()[-2:] == ["SaslAuthenticate", "Metadata"]
    assert len(rig.broker.peers) == 1


def test_many_sessions_with_five_requests_in_flight_lose_and_reorder_nothing():
    rig = HandshakeRig(lifetime_ms=2000)
    h = rig.h
    h.connect()
    rig.broker.latency = 0.05
    number = itertools.count()
    sent: list[int] = []
    told: list[int] = []
    rig.broker.rules[10] = lambda request: ANSWER | {"node_id": int(request.body["key"])}
    end = h.now + 60
    while h.now < end:
        while h.client.ready(h.nodes[0], h.now):
            sent.append(next(number))
            request = SchemaRequest.of(question().api, {"key": str(sent[-1]), "key_type": 1}, max_version=3)
            h.send(request=request)
        h.poll(0.01)
        told += [ended.body["node_id"] for ended in h.ended if ended.error is None]
        assert all(ended.error is None for ended in h.ended)
        h.ended.clear()
    assert h.client.metrics.reauthentications > 25
    assert len(rig.broker.peers) == 1
    assert told == sent[: len(told)]
    assert len(sent) - len(told) <= 5
    assert len(sent) > 3000


# ---- refusals by the transport


def test_a_refused_identity_in_the_transport_is_told_at_once_with_its_advice():
    h = Harness()
    h.client.ready(h.nodes[0], h.now)
    h.network.transports[0].broken = RefusedError("the certificate is for another name", "Use b1.")
    h.poll()
    (error,) = h.updater.fatal
    assert isinstance(error, AuthenticationError)
    assert error.broker == "broker 0 at b0:9092"
    assert str(error) == "no connection to broker 0 at b0:9092: the certificate is for another name. Use b1."
    assert isinstance(error.__cause__, RefusedError)
    h.clock.advance(10)
    h.connect()
    assert h.client.connection_error(0) is None


def test_a_transport_that_cannot_even_be_made_for_that_name_is_a_refusal(monkeypatch):
    h = Harness()

    def connect(address: Any, endpoint: Any) -> Any:
        raise RefusedError(f"no certificate can be for {endpoint.host}")

    pool = h.client._pool
    monkeypatch.setattr(pool, "_backend", pool._backend._replace(connect=connect))
    h.client.ready(h.nodes[0], h.now)
    h.poll()
    assert "no certificate can be for b0" in str(h.updater.fatal[0])
    assert first_node_state(h) is AUTHENTICATION_FAILED
    assert h.client.metrics.authentications_failed == 1


@pytest.mark.parametrize("where", ["reading", "writing"])
def test_a_refusal_that_comes_after_the_handshake_of_the_transport_is_one_too(where):
    h = Harness()
    h.brokers[0].rules.clear()
    h.client.ready(h.nodes[0], h.now)
    transport = h.network.transports[0]
    if where == "writing":
        transport.send_some = lambda buffers: (_ for _ in ()).throw(BrokenPipeError(32, "Broken pipe"))
        transport.recv_some = lambda size: (_ for _ in ()).throw(RefusedError("no certificate", "Give one."))
    else:
        h.poll_until(lambda: first_node_state(h) is CHECKING_API_VERSIONS)
        transport.broken = RefusedError("no certificate", "Give one.")
    h.poll_until(lambda: h.updater.fatal)
    assert "no certificate. Give one." in str(h.updater.fatal[0])


def first_node_state(h: Harness) -> object:
    return h.client._pool.states.state_of(0)


def test_the_same_error_on_a_connection_in_use_is_only_a_loss():
    h = Harness()
    h.connect()
    h.network.transports[0].broken = RefusedError("late", "")
    h.poll_until(lambda: h.updater.connection_failures)
    assert not h.updater.fatal
    assert isinstance(h.client.connection_error(0), NetworkError)


def test_a_transport_that_has_more_to_say_before_it_is_connected_is_waited_for():
    h = Harness(connection_setup_timeout_ms=3000, connection_setup_timeout_max_ms=3000)
    h.client.ready(h.nodes[0], h.now)
    transport = h.network.transports[0]
    answers = [READ, READ, NOTHING]
    finish = transport.finish_connect

    def shake_hands() -> int:
        finish()
        return answers.pop(0)

    transport.finish_connect = shake_hands
    h.poll()
    transport.peer.send(b"?")
    h.poll()
    assert answers == [NOTHING]
    transport.inbound.clear()
    start = h.now
    h.poll_until(lambda: h.updater.connection_failures, timeout=10)
    assert 2.4 <= h.now - start <= 3.6, "a handshake that stalls ends in time, and nothing spins until then"


class TwoServers:
    """Two servers, of which the first refuses the authentication."""

    def __init__(self) -> None:
        self.h = Harness(2, connection_setup_timeout_ms=3000, connection_setup_timeout_max_ms=3000)
        h = self.h
        h.client.ready(h.nodes[0], h.now)
        h.network.transports[0].broken = RefusedError("the certificate is for another name", "Use b1.")
        h.poll()
        assert first_node_state(h) is AUTHENTICATION_FAILED

    def told(self) -> list[str]:
        return [str(error) for error in self.h.updater.fatal]


def test_a_refusal_is_not_told_while_another_server_may_accept():
    rig = TwoServers()
    h = rig.h
    assert not rig.told()
    assert h.client.refusal() is None
    (failed,) = h.updater.connection_failures
    assert isinstance(failed[1], AuthenticationError), "it is kept as the reason of a time-out"
    h.connect(h.nodes[1])
    assert not rig.told()
    h.clock.advance(10)
    h.client.ready(h.nodes[0], h.now)
    h.network.transports[-1].broken = RefusedError("the certificate is for another name", "Use b1.")
    h.poll()
    assert first_node_state(h) is AUTHENTICATION_FAILED
    assert not rig.told(), "the other server is connected"


def test_a_refusal_is_told_once_the_other_server_has_refused_too():
    rig = TwoServers()
    h = rig.h
    h.client.ready(h.nodes[1], h.now)
    h.network.transports[-1].broken = RefusedError("the certificate is for another name", "Use b1.")
    h.poll()
    (text,) = rig.told()
    assert "broker 1" in text
    assert h.client.refusal() is h.updater.fatal[0]


def test_a_refusal_is_told_once_the_other_server_cannot_be_reached():
    rig = TwoServers()
    h = rig.h
    h.client.ready(h.nodes[1], h.now)
    h.network.transports[-1].broken = ConnectionRefusedError(111, "Connection refused")
    h.poll()
    (text,) = rig.told()
    assert "broker 0" in text
    assert isinstance(h.client.refusal(), AuthenticationError)
    h.poll(1.0)
    assert len(rig.told()) == 1


def test_a_refusal_from_before_another_server_accepted_is_forgotten():
    rig = TwoServers()
    h = rig.h
    h.connect(h.nodes[1])
    h.brokers[1].peers[0].close()
    h.poll_until(lambda: h.client._pool.get(1) is None)
    h.clock.advance(10)
    h.client.ready(h.nodes[1], h.now)
    h.network.transports[-1].broken = ConnectionRefusedError(111, "Connection refused")
    h.poll()
    assert not rig.told()


def test_a_server_that_has_moved_may_accept():
    rig = TwoServers()
    h = rig.h
    h.client.ready(h.nodes[1], h.now)
    h.network.transports[-1].broken = ConnectionRefusedError(111, "Connection refused")
    h.updater.known = [h.nodes[0], h.nodes[1]._replace(host="elsewhere")]
    h.poll()
    assert not rig.told()


# ---- a listener that wants SASL


def test_a_broker_that_closes_after_each_first_request_is_told_to_want_sasl(caplog):
    h = Harness()
    h.brokers[0].rules[10] = lambda request: request.peer.close()
    for turn in range(5):
        h.connect()
        h.send()
        h.poll_until(lambda: h.client._pool.get(0) is None)
        assert "A listener that wants SASL does that" in str(h.client.connection_error(0))
        assert bool(h.updater.fatal) == (turn >= 2)
        h.clock.advance(10)
    assert isinstance(h.updater.fatal[0], AuthenticationError)
    assert "security.protocol to SASL_SSL (SASL_PLAINTEXT" in str(h.updater.fatal[0])
    assert len([record for record in caplog.records if record.levelno >= logging.INFO]) == 2
    h.brokers[0].rules[10] = lambda _: ANSWER
    h.connect()
    h.send()
    h.poll()
    h.brokers[0].peers[-1].close()
    h.poll_until(lambda: h.client._pool.get(0) is None)
    assert "SASL" not in str(h.client.connection_error(0))
    assert h.client._pool.states.get(0).unanswered == 0


@pytest.mark.parametrize("where", ["the broker itself", "a bootstrap server", "a bootstrap server in use"])
def test_a_broker_that_has_answered_is_not_told_to_want_sasl(where):
    h = Harness()
    (bootstrap,) = with_bootstrap(h)
    first = h.nodes[0] if where == "the broker itself" else bootstrap
    h.brokers[0].rules[10] = lambda _: ANSWER
    h.connect(first)
    h.send(first)
    h.poll_until(lambda: h.ended)
    if where != "a bootstrap server in use":
        h.disconnect(first)
    h.brokers[0].rules[10] = lambda request: request.peer.close()
    for turn in range(5):
        h.clock.advance(10)
        h.connect()
        h.send()
        h.poll_until(lambda: h.client._pool.get(0) is None)
        text = str(h.client.connection_error(0))
        assert "closed the connection instead of answering the first request" in text
        assert "SASL" not in text
        assert (f"{turn + 1} times, although it has answered before" in text) == (turn >= 2)
    assert not h.updater.fatal


def test_a_broker_at_another_address_has_not_answered_for_this_one():
    h = Harness(brokers=2)
    h.brokers[1].rules[10] = lambda _: ANSWER
    h.connect(h.nodes[1])
    h.send(h.nodes[1])
    h.poll_until(lambda: h.ended)
    h.brokers[0].rules[10] = lambda request: request.peer.close()
    h.connect()
    h.send()
    h.poll_until(lambda: h.client._pool.get(0) is None)
    assert "A listener that wants SASL does that" in str(h.client.connection_error(0))


def test_a_broker_that_goes_down_while_it_is_asked_is_not_taken_for_one_that_refuses():
    h = Harness()
    for _ in range(4):
        h.connect()
        h.send()
        h.brokers[0].answer(h.brokers[0].waiting[-1], ANSWER)
        h.send()
        h.poll()
        h.brokers[0].peers[-1].close()
        h.poll_until(lambda: h.client._pool.get(0) is None)
        h.clock.advance(10)
    assert not h.updater.fatal
    assert take_requests(h.brokers[0].peers[-1]) == []
    assert response_frame(h.brokers[0].seen[-1], ANSWER)


# ---- the end


def test_what_authentication_has_in_the_background_ends_with_the_client(caplog):
    ended: list[str] = []

    def end() -> None:
        ended.append("ended")
        raise ValueError(SECRET)

    network = FakeNetwork()
    backend = network.backend()._replace(close_security=end)
    client = NetworkClient(network_settings(), backend, FakeUpdater([]), network.clock, random.Random(1))
    client.close()
    client.close()
    assert ended == ["ended"]
    assert network.closed
    assert "ValueError" in caplog.text
    assert SECRET not in caplog.text
