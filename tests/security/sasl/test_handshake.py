# SPDX-License-Identifier: Apache-2.0
"""The dialogue of SASL: versions, tokens, refusals."""

from __future__ import annotations

import gc
import time

import pytest
from security.sasl.dialogue import MODERN, NODE, OLD, authenticated, begin, run, settle, token_of

from penstock.errors import AuthenticationError, UnsupportedVersionError
from penstock.network.handshake import Aside
from penstock.network.states import AUTHENTICATING
from penstock.protocol.requests import NodeApiVersions
from penstock.security.sasl.handshake import MOST_TOKEN_BYTES, MOST_TOKENS, SaslHandshake


class Ping:
    """A mechanism that says what it is told to."""

    name = "X-PING"
    user = "ann"

    def __init__(self, *answers: bytes | None, first: bytes = b"ping") -> None:
        self.answers = list(answers)
        self.heard: list[bytes] = []
        self._first = first

    def first(self) -> bytes:
        return self._first

    def next(self, challenge: bytes) -> bytes | None:
        self.heard.append(challenge)
        return self.answers.pop(0)


class QuickPing(Ping):
    blocks = False


class Failing(Ping):
    def first(self) -> bytes:
        raise RuntimeError("the passphrase hunter2 is wrong")


@pytest.mark.parametrize(
    ("versions", "handshake_version", "token_version"),
    [
        ({17: (0, 1), 36: (0, 2)}, 1, 2),
        ({17: (0, 1), 36: (0, 0)}, 1, 0),
        ({17: (0, 1)}, 0, -1),
        ({17: (0, 0)}, 0, -1),
    ],
)
def test_the_versions_follow_from_what_the_broker_lists(versions, handshake_version, token_version):
    handshake = SaslHandshake(NODE, NodeApiVersions(versions), QuickPing())
    step = handshake.start()
    assert step.version == handshake_version
    assert step.request.body == {"mechanism": "X-PING"}
    token = handshake.on_answer(step.version, {"error_code": 0, "mechanisms": []})
    assert token.version == token_version
    assert token_of(token) == b"ping"
    assert handshake.state is AUTHENTICATING


def test_the_dialogue_goes_on_until_the_mechanism_is_satisfied():
    mechanism = Ping(b"one", b"two", None)
    handshake, sent = run(mechanism, lambda token: b"re:" + token)
    assert sent == [b"ping", b"one", b"two"]
    assert mechanism.heard == [b"re:ping", b"re:one", b"re:two"]
    assert handshake.session_lifetime_ms == 5000


def test_bare_tokens_are_answered_bare():
    mechanism = Ping(b"one", None)
    handshake, sent = run(mechanism, lambda token: b"re:" + token, OLD)
    assert sent == [b"ping", b"one"]
    assert mechanism.heard == [b"re:ping", b"re:one"]
    assert handshake.session_lifetime_ms == 0


def test_the_lifetime_is_that_of_the_last_answer_and_has_bounds():
    handshake, _ = begin(QuickPing(b"one", b"two", None))
    handshake.on_answer(2, authenticated(lifetime=7000))
    handshake.on_answer(2, authenticated(lifetime=-5))
    assert handshake.session_lifetime_ms == 0
    handshake.on_answer(2, authenticated(lifetime=2**63 - 1))
    assert 0 < handshake.session_lifetime_ms < 2**40


def test_what_may_block_is_done_aside():
    handshake = SaslHandshake(NODE, MODERN, Ping(None))
    handshake.start()
    step = handshake.on_answer(1, {"error_code": 0, "mechanisms": []})
    assert isinstance(step, Aside)
    assert token_of(step.work()) == b"ping"
    assert isinstance(handshake.on_answer(2, authenticated()), Aside)


def refused(answer: dict) -> AuthenticationError:
    handshake = SaslHandshake(NODE, MODERN, QuickPing())
    handshake.start()
    with pytest.raises(AuthenticationError) as caught:
        handshake.on_answer(1, answer)
    assert (caught.value.mechanism, caught.value.user) == ("X-PING", "ann")
    return caught.value


def test_a_mechanism_that_is_not_offered():
    text = str(refused({"error_code": 33, "mechanisms": ["PLAIN", "SCRAM-SHA-512"]}))
    assert "does not offer the SASL mechanism X-PING; it offers PLAIN, SCRAM-SHA-512" in text
    assert "sasl.mechanism" in text


def test_a_flood_of_mechanisms_is_cut_before_it_is_looked_at():
    began = time.thread_time()
    text = str(refused({"error_code": 33, "mechanisms": ["a." * 10_000] * 1_000}))
    assert time.thread_time() - began < 1
    assert text.count("a." * 32 + "...") == 20
    assert "and 980 more" in text
    assert len(text) < 3_000


def test_a_long_message_of_a_broker_takes_no_time():
    handshake, _ = begin(QuickPing())
    began = time.thread_time()
    with pytest.raises(AuthenticationError) as caught:
        handshake.on_answer(2, authenticated(code=58, text="a." * 1_000_000))
    assert time.thread_time() - began < 1
    assert len(str(caught.value)) < 1_000


def test_a_list_of_mechanisms_that_is_absurd_is_bounded_and_harmless():
    text = str(refused({"error_code": 33, "mechanisms": ["A\x1b[2J" + "x" * 30_000] * 5000}))
    assert len(text) < 20_000
    assert "\x1b" not in text
    assert "4980 more" in text


def test_a_listener_without_sasl():
    text = str(refused({"error_code": 34, "mechanisms": []}))
    assert "the listener does not use SASL: set security.protocol to PLAINTEXT, or to SSL" in text


def test_a_renewal_that_comes_too_soon_is_not_taken_for_a_listener_without_sasl():
    handshake = SaslHandshake(NODE, MODERN, Ping())
    step = handshake.renew()
    assert step.request.body == {"mechanism": "X-PING"}
    with pytest.raises(AuthenticationError) as caught:
        handshake.on_answer(step.version, {"error_code": 34, "mechanisms": []})
    assert "the broker does not renew the session now" in str(caught.value)
    assert "security.protocol" not in str(caught.value)
    assert "PLAINTEXT" not in str(caught.value)


def test_a_mechanism_that_does_not_come_back_is_named():
    error = SaslHandshake(NODE, MODERN, Ping()).late_error(7.04)
    assert "authentication by X-PING as ann failed: the mechanism has not come back after 7.0 s" in str(error)
    assert (error.mechanism, error.user) == ("X-PING", "ann")


def test_another_refusal_of_the_mechanism():
    assert "UNKNOWN_SERVER_ERROR" in str(refused({"error_code": -1, "mechanisms": []}))


@pytest.mark.parametrize(
    ("code", "said", "expected"),
    [
        (
            58,
            "Authentication failed: Invalid username or password",
            "Invalid username or password; check the",
        ),
        (58, "Authentication failed: password not specified", "password not specified"),
        (58, None, "SASL_AUTHENTICATION_FAILED"),
        (58, "", "SASL_AUTHENTICATION_FAILED"),
        (34, "not now", "did not expect a token now: not now"),
        (-1, "oops", "oops (UNKNOWN_SERVER_ERROR"),
        (
            58,
            "Cannot change principals during re-authentication from User.a: User.b",
            "Cannot change principals",
        ),
    ],
)
def test_a_token_that_is_refused(code, said, expected):
    handshake, _ = begin(QuickPing(None))
    with pytest.raises(AuthenticationError) as caught:
        handshake.on_answer(2, authenticated(code=code, text=said))
    assert expected in str(caught.value)
    assert "authentication by X-PING as ann failed" in str(caught.value)


def test_a_mechanism_is_told_when_the_broker_refuses_and_only_then():
    for code, times in ((58, 1), (34, 0)):
        told: list[bool] = []
        mechanism = QuickPing()
        mechanism.refused = lambda told=told: told.append(True)  # type: ignore[attr-defined]
        handshake, _ = begin(mechanism)
        with pytest.raises(AuthenticationError):
            handshake.on_answer(2, authenticated(code=code, text="no"))
        assert len(told) == times


class Named(QuickPing):
    secrets = ("open-sesame",)


@pytest.mark.parametrize(
    ("mechanism", "shown"),
    [
        (QuickPing(first=b"\0ann\0open-sesame"), "ann said (hidden)"),
        (QuickPing(first=b"ann open-sesame"), "ann said (hidden)"),
        (QuickPing(first=b"open-sesame"), "ann said (hidden)"),
        (Named(first=b"x=ann,y=open-sesame"), "ann said (hidden)"),
        (QuickPing(first=b"ann"), "ann said open-sesame"),
    ],
    ids=["parts", "words", "whole", "named", "nothing but the user"],
)
@pytest.mark.parametrize("code", [58, 34, -1])
def test_what_was_sent_does_not_show_where_the_broker_quotes_it(mechanism, shown, code):
    handshake, _ = begin(mechanism)
    with pytest.raises(AuthenticationError) as caught:
        handshake.on_answer(2, authenticated(code=code, text="LDAP: ann said open-sesame"))
    assert shown in str(caught.value)


def test_a_short_message_about_a_long_token_takes_no_time():
    handshake, _ = begin(QuickPing(first=b"s" * MOST_TOKEN_BYTES))
    gc.collect()  # what other tests have left takes time as well
    began = time.thread_time()
    with pytest.raises(AuthenticationError, match="no such token"):
        handshake.on_answer(2, authenticated(code=58, text="no such token"))
    assert time.thread_time() - began < 0.2


def test_with_bare_tokens_a_close_is_the_refusal():
    handshake, _ = begin(Ping(None), OLD)
    assert "refuses" in str(handshake.closed_error())
    assert SaslHandshake(NODE, OLD, Ping()).closed_error() is None
    handshake, _ = begin(Ping(None), MODERN)
    assert handshake.closed_error() is None


def test_a_mechanism_that_fails_is_a_refusal_without_its_secret():
    handshake = SaslHandshake(NODE, MODERN, Failing())
    handshake.start()
    step = handshake.on_answer(1, {"error_code": 0, "mechanisms": []})
    with pytest.raises(AuthenticationError, match="the mechanism failed: RuntimeError") as caught:
        settle(step)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


@pytest.mark.parametrize("rubbish", ["text", 7, bytearray(b"x")])
def test_a_mechanism_that_gives_rubbish(rubbish):
    with pytest.raises(AuthenticationError, match=f"gave {type(rubbish).__name__} for a token"):
        begin(Ping(first=rubbish))


def test_a_token_that_no_broker_takes():
    with pytest.raises(AuthenticationError, match=r"sasl\.server\.max\.receive\.size"):
        begin(Ping(first=b"x" * (MOST_TOKEN_BYTES + 1)))


def test_an_exchange_without_end():
    with pytest.raises(AuthenticationError, match="not come to an end"):
        run(Ping(*[b"again"] * 2 * MOST_TOKENS), lambda token: token)


def test_a_listener_that_does_not_list_sasl_has_none():
    with pytest.raises(AuthenticationError, match="the listener does not use SASL") as caught:
        SaslHandshake(NODE, NodeApiVersions({18: (0, 4)}), Ping()).start()
    assert "security.protocol to PLAINTEXT" in str(caught.value)
    assert "newer" not in str(caught.value)
    assert (caught.value.mechanism, caught.value.user) == ("X-PING", "ann")


def test_a_broker_of_the_far_future():
    with pytest.raises(UnsupportedVersionError):
        SaslHandshake(NODE, NodeApiVersions({17: (8, 9), 36: (8, 9)}), Ping()).start()


def test_a_mechanism_that_needs_requests_is_refused_with_an_old_broker():
    mechanism = Ping()
    mechanism.needs_sasl_authenticate = True  # type: ignore[attr-defined]
    with pytest.raises(AuthenticationError, match=r"older than 1\.0"):
        SaslHandshake(NODE, OLD, mechanism).start()
    SaslHandshake(NODE, MODERN, mechanism).start()


class RefusesChallenge(Ping):
    def next(self, challenge: bytes) -> bytes | None:
        raise AuthenticationError("the broker lies", mechanism="X-PING", user="ann")


def test_what_a_mechanism_refuses_names_mechanism_and_user():
    handshake, _ = begin(RefusesChallenge())
    with pytest.raises(AuthenticationError) as caught:
        settle(handshake.on_answer(2, authenticated()))
    assert str(caught.value) == "authentication by X-PING as ann failed: the broker lies"
    assert (caught.value.mechanism, caught.value.user) == ("X-PING", "ann")
