# SPDX-License-Identifier: Apache-2.0
"""OAUTHBEARER: the token on the wire, and a broker that does not accept it."""

from __future__ import annotations

import threading
import time

import pytest
from security.oauth.tokens import jwt
from security.sasl.dialogue import MODERN, NODE, OLD, authenticated, begin, run, settle, token_of

from penstock.errors import AuthenticationError, ConfigError
from penstock.network.handshake import Aside
from penstock.security.oauth.settings import OAuthSettings
from penstock.security.sasl.authenticator import Authenticator
from penstock.security.sasl.oauthbearer import OAuthBearerCredentials
from penstock.security.sasl.settings import SaslSettings

INVALID = b'{"status":"invalid_token","scope":"kafka","openid-configuration":"https://idp/x"}'


@pytest.fixture
def credentials():
    made = []

    def make(provider=None, **more):
        kept = OAuthBearerCredentials(SaslSettings(mechanism="OAUTHBEARER", token_provider=provider, **more))
        made.append(kept)
        return kept

    yield make
    for kept in made:
        kept.close()


@pytest.mark.parametrize("versions", [MODERN, OLD], ids=["requests", "bare tokens"])
def test_the_token_and_the_extensions_are_sent(credentials, versions):
    kept = credentials(
        lambda: ("abc.def", time.time() + 60, "svc", {"traceId": "9"}),
        extensions={"logicalCluster": "lkc-1", "traceId": "0"},
    )
    mechanism = kept.mechanism("b")
    _, sent = run(mechanism, lambda _: b"", versions)
    assert sent == [b"n,,\x01auth=Bearer abc.def\x01logicalCluster=lkc-1\x01traceId=9\x01\x01"]
    assert mechanism.user == "svc"


def test_without_extensions(credentials):
    _, sent = run(credentials(lambda: "abc").mechanism("b"), lambda _: b"")
    assert sent == [b"n,,\x01auth=Bearer abc\x01\x01"]


def test_a_refusal_is_answered_so_that_the_error_follows(credentials):
    handshake, _ = begin(credentials(lambda: jwt(sub="svc")).mechanism("b"))
    answer = settle(handshake.on_answer(2, authenticated(INVALID)))
    assert token_of(answer) == b"\x01"
    with pytest.raises(AuthenticationError) as caught:
        handshake.on_answer(2, authenticated(code=58, text=INVALID.decode()))
    assert "invalid_token" in str(caught.value)
    assert "issuer, audience" in str(caught.value)
    assert (caught.value.mechanism, caught.value.user) == ("OAUTHBEARER", "svc")


@pytest.mark.parametrize(
    ("document", "shown"),
    [
        (INVALID, "status invalid_token, scope kafka, openid-configuration https://idp/x"),
        (b"{}", "no reason given"),
        (b"not json", "not json"),
        (b"[1]", "[1]"),
        (b"\xff" * 100_000, "\ufffd"),
        (b"[" * 100_000, "["),
    ],
)
def test_a_broker_that_sends_no_error_after_its_refusal(credentials, document, shown):
    mechanism = credentials(lambda: "abc").mechanism("b")
    mechanism.first()
    assert mechanism.next(document) == b"\x01"
    with pytest.raises(AuthenticationError) as caught:
        mechanism.next(b"")
    assert shown in str(caught.value)
    assert len(str(caught.value)) < 1500


def test_an_expired_token_is_named_as_such(credentials):
    mechanism = credentials(lambda: ("abc", time.time() - 100)).mechanism("b")
    handshake, _ = begin(mechanism)
    settle(handshake.on_answer(2, authenticated(INVALID)))
    with pytest.raises(AuthenticationError, match=r"the token expired 10\d s ago by this machine's clock"):
        handshake.on_answer(2, authenticated(code=58, text=INVALID.decode()))


@pytest.mark.parametrize(
    ("token", "words"),
    [
        (
            lambda: jwt(sub="svc", iss="https://idp/x", aud=["a", "b"], exp=time.time() + 100),
            ("iss https://idp/x", "aud ['a', 'b']", "sub svc", "by this machine's clock"),
        ),
        (lambda: jwt(sub="svc", iss="x\n" * 5000), ("iss x\\nx",)),
        (lambda: "opaque", ("this token is not a JWT",)),
    ],
    ids=["claims", "a claim without end", "opaque"],
)
def test_a_refusal_tells_what_the_token_has(credentials, token, words):
    handshake, _ = begin(credentials(token).mechanism("b"))
    settle(handshake.on_answer(2, authenticated(INVALID)))
    with pytest.raises(AuthenticationError) as caught:
        handshake.on_answer(2, authenticated(code=58, text=INVALID.decode()))
    assert [each for each in words if each not in str(caught.value)] == [], caught.value
    assert len(str(caught.value)) < 2000


def test_after_a_refusal_the_next_token_is_a_new_one(credentials):
    numbers = iter(range(9))
    kept = credentials(lambda: (f"t{next(numbers)}", time.time() + 60))
    kept._refresher._quite_new_seconds = 0.0
    first = kept.mechanism("b")
    assert b"t0" in first.first()
    first.next(INVALID)
    assert b"t1" in kept.mechanism("b").first()


def failure(credentials, provider, **more) -> AuthenticationError:
    handshake_of = credentials(provider, **more).mechanism("b")
    with pytest.raises(AuthenticationError) as caught:
        begin(handshake_of)
    return caught.value


def test_a_provider_that_raises(credentials):
    def provider():
        raise ConnectionError("token=hunter2 was not accepted")

    error = failure(credentials, provider)
    assert "the token provider failed: ConnectionError" in str(error)
    assert "hunter2" not in str(error)
    assert error.__cause__ is None


def test_a_provider_that_hangs(credentials):
    release = threading.Event()
    began = time.monotonic()
    error = failure(credentials, lambda: release.wait(60), token_timeout_ms=50)
    release.set()
    assert "the token provider has not given a token within" in str(error)
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("rubbish", [None, 7, "", "two words", ("a", "b"), object()])
def test_a_provider_that_gives_rubbish(credentials, rubbish):
    assert "gave no token that can be used" in str(failure(credentials, lambda: rubbish))


def test_the_provider_is_never_asked_on_the_thread_of_the_handshake(credentials):
    threads = []

    def provider():
        threads.append(threading.current_thread())
        return "abc"

    kept = credentials(provider)
    mechanism = kept.mechanism("b")
    assert threads == []
    mechanism.first()
    assert threads[0] is not threading.current_thread()


def test_the_handshake_does_not_block():
    authenticator = Authenticator(
        SaslSettings(mechanism="OAUTHBEARER", token_provider=lambda: time.sleep(60), token_timeout_ms=50)
    )
    handshake = authenticator.handshake(NODE, MODERN)
    handshake.start()
    assert isinstance(handshake.on_answer(1, {"error_code": 0, "mechanisms": []}), Aside)
    authenticator.close()


@pytest.mark.parametrize(
    "settings",
    [
        SaslSettings(mechanism="OAUTHBEARER"),
        SaslSettings(mechanism="OAUTHBEARER", oauth=OAuthSettings()),
        SaslSettings(mechanism="OAUTHBEARER", token_provider=7),
        SaslSettings(mechanism="OAUTHBEARER", token_provider=lambda: "a", extensions={"auth": "x"}),
        SaslSettings(mechanism="OAUTHBEARER", oauth=OAuthSettings(token_endpoint_url="https://idp/token")),
    ],
    ids=["nothing", "no source", "no provider", "extension", "no client id"],
)
def test_what_is_missing_is_told_when_the_client_is_made(settings):
    with pytest.raises(ConfigError):
        Authenticator(settings)


def test_no_token_shows(credentials):
    kept = credentials(lambda: "s3cret")
    mechanism = kept.mechanism("b")
    mechanism.first()
    assert "s3cret" not in f"{kept!r} {mechanism!r} {vars(mechanism)!r}"


@pytest.mark.parametrize("said", ["Unable to validate %s", '{"status":"%s is revoked"}', '["%s"]'])
def test_a_broker_that_quotes_the_token_does_not_make_it_shown(credentials, said):
    value = jwt(sub="svc")
    provider = lambda: value  # noqa: E731
    handshake, _ = begin(credentials(provider).mechanism("b"))
    with pytest.raises(AuthenticationError) as at_once:
        handshake.on_answer(2, authenticated(code=58, text=said % value))
    mechanism = credentials(provider).mechanism("b")
    mechanism.first()
    mechanism.next((said % value).encode())
    with pytest.raises(AuthenticationError) as after_its_json:
        mechanism.next(b"")
    for caught in (at_once, after_its_json):
        assert "(hidden)" in str(caught.value)
        assert value not in str(caught.value)


def test_a_token_refused_without_json_is_fetched_anew_as_well(credentials):
    numbers = iter(range(9))
    kept = credentials(lambda: (f"t{next(numbers)}", time.time() + 60))
    kept._refresher._quite_new_seconds = 0.0
    for number in range(3):
        handshake, first = begin(kept.mechanism("b"))
        assert b"Bearer t%d" % number in token_of(first)
        with pytest.raises(AuthenticationError):
            handshake.on_answer(2, authenticated(code=58, text="Access denied"))


def test_that_a_token_was_refused_is_told_without_waiting(credentials):
    kept = credentials(lambda: ("abc", time.time() + 60))
    mechanism = kept.mechanism("b")
    mechanism.refused()  # before there is one
    mechanism.first()
    told = threading.Event()
    with kept._refresher._lock:  # as while the refresher starts a thread
        threading.Thread(target=lambda: (mechanism.refused(), told.set()), daemon=True).start()
        assert told.wait(60)
