# SPDX-License-Identifier: Apache-2.0
"""The SASL mechanism PLAIN."""

from __future__ import annotations

import pytest
from security.sasl.dialogue import MODERN, NODE, OLD, authenticated, begin, run, token_of

from penstock.config.kinds import Password
from penstock.errors import AuthenticationError, ConfigError
from penstock.network.handshake import Aside, HandshakeStep
from penstock.security.sasl.handshake import SaslHandshake
from penstock.security.sasl.plain import PlainCredentials
from penstock.security.sasl.settings import SaslSettings


def credentials(user: str | None = "alice", password: str | None = "s3cret") -> PlainCredentials:
    secret = None if password is None else Password(password)
    return PlainCredentials(SaslSettings(mechanism="PLAIN", username=user, password=secret))


def test_user_and_password_are_sent_in_one_token():
    handshake, sent = run(credentials("älice", "päss").mechanism("b"), lambda _: b"")
    assert sent == ["\0älice\0päss".encode()]
    assert handshake.session_lifetime_ms == 5000


def test_a_broker_before_1_0_gets_the_bare_token():
    handshake, sent = run(credentials().mechanism("b"), lambda _: b"", OLD)
    assert sent == [b"\0alice\0s3cret"]
    assert handshake.session_lifetime_ms == 0


def test_it_is_not_run_aside():
    mechanism = credentials().mechanism("b")
    handshake, _ = run(mechanism, lambda _: b"")
    assert isinstance(handshake.start(), HandshakeStep)
    assert mechanism.blocks is False


def test_a_password_that_is_read_from_a_file_is_read_aside():
    reads: list[str] = []

    def read() -> str:
        reads.append("read")
        return "replaced"

    password = Password("s3cret", read)
    found = PlainCredentials(SaslSettings(mechanism="PLAIN", username="alice", password=password))
    reads.clear()
    mechanism = found.mechanism("b")
    handshake = SaslHandshake(NODE, MODERN, mechanism)
    step = handshake.start()
    aside = handshake.on_answer(step.version, {"error_code": 0, "mechanisms": []})
    assert isinstance(aside, Aside)
    assert not reads, "the I/O thread does not wait for a file"
    assert token_of(aside.work()) == b"\0alice\0replaced"


@pytest.mark.parametrize(
    ("user", "password", "option"),
    [
        (None, "p", "sasl.username"),
        ("", "p", "sasl.username"),
        ("u", None, "sasl.password"),
        ("u", "", "sasl.password"),
        ("u\0", "p", "sasl.username"),
        ("u", "p4ss\0word", "sasl.password"),
        ("u", "p4ss\ud800word", "sasl.password"),
    ],
)
def test_what_cannot_be_sent_is_refused_when_the_client_is_made(user, password, option):
    with pytest.raises(ConfigError) as caught:
        credentials(user, password)
    assert caught.value.option == option
    assert "p4ss" not in str(caught.value)


def test_a_broker_that_asks_for_more_is_refused():
    with pytest.raises(AuthenticationError, match="nothing to ask"):
        run(credentials().mechanism("b"), lambda _: b"more")


def test_no_secret_shows():
    kept = credentials()
    assert "s3cret" not in f"{kept!r} {kept.mechanism('b')!r}"
    assert "s3cret" not in repr(SaslSettings(mechanism="PLAIN", username="u", password=Password("s3cret")))


def test_a_password_that_is_replaced_is_used_from_then_on():
    now = ["one"]
    settings = SaslSettings(mechanism="PLAIN", username="alice", password=Password("one", lambda: now[0]))
    kept = PlainCredentials(settings)
    assert kept.mechanism("b").first() == b"\0alice\0one"
    now[0] = "two"
    assert kept.mechanism("b").first() == b"\0alice\0two"
    now[0] = ""
    with pytest.raises(AuthenticationError, match="needs a password"):
        kept.mechanism("b").first()


def test_a_broker_that_quotes_the_password_does_not_make_it_shown():
    handshake, _ = begin(credentials().mechanism("b"))
    with pytest.raises(AuthenticationError) as caught:
        handshake.on_answer(2, authenticated(code=58, text="LDAP bind of alice with s3cret failed"))
    assert "LDAP bind of alice with (hidden) failed" in str(caught.value)
