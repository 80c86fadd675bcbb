# SPDX-License-Identifier: Apache-2.0
"""SCRAM, against the RFCs' examples and against a broker's side that is written apart."""

from __future__ import annotations

import base64
import hashlib
from functools import partial

import pytest
from security.sasl.dialogue import OLD, ScramServer, run

from penstock.config.kinds import Password
from penstock.errors import AuthenticationError, ConfigError
from penstock.security.sasl import scram
from penstock.security.sasl.scram import MOST_KEYS, ScramCredentials, ScramMechanism, derive_keys
from penstock.security.sasl.settings import SaslSettings

HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
ASKED = b"n,,n=user,r=abc"


def credentials(mechanism: str = "SCRAM-SHA-256", user: str = "alice", password: str = "s3cret", **more):
    return ScramCredentials(
        SaslSettings(mechanism=mechanism, username=user, password=Password(password), **more)
    )


def fresh(nonce: str = "abc") -> ScramMechanism:
    return ScramMechanism(
        "SCRAM-SHA-256",
        "user",
        "sha256",
        lambda: ("user", partial(derive_keys, "sha256", b"pw")),
        nonce=nonce,
    )


def test_the_example_of_rfc_7677():
    mechanism = ScramMechanism(
        "SCRAM-SHA-256",
        "user",
        "sha256",
        lambda: ("user", partial(derive_keys, "sha256", b"pencil")),
        nonce="rOprNGfwEbeRWgbNEkqO",
    )
    assert mechanism.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    reply = mechanism.next(
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    assert reply == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert mechanism.next(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=") is None


@pytest.mark.parametrize("name", HASHES)
@pytest.mark.parametrize("user", ["alice", "a=b,c", "=2C", ",=,=3D"])
@pytest.mark.parametrize("versions", [None, OLD], ids=["requests", "bare tokens"])
def test_a_broker_accepts_the_proof_and_is_accepted(name, user, versions):
    server = ScramServer(HASHES[name], {user: "päss,word="})
    mechanism = credentials(name, user, "päss,word=").mechanism("b")
    handshake, sent = run(mechanism, server, *([] if versions is None else [versions]))
    assert len(sent) == 2
    assert handshake.session_lifetime_ms == (5000 if versions is None else 0)


def test_names_are_escaped_and_nonces_are_new():
    first, second = (credentials(user="a=b,c").mechanism("b").first() for _ in range(2))
    assert first.startswith(b"n,,n=a=3Db=2Cc,r=")
    assert first != second
    assert len(first) > 40


def test_a_delegation_token_says_so_in_the_first_message():
    server = ScramServer("sha512", {"token-id": "aG1hYw=="})
    made = credentials("SCRAM-SHA-512", "token-id", "aG1hYw==", token_auth=True).mechanism("b")
    run(made, server)
    assert server.seen_bare.endswith(",tokenauth=true")
    assert "delegation token" in made.advice


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (b"r=xyz,s=c2FsdA==,i=4096", "did not add to the nonce"),
        (b"r=abc,s=c2FsdA==,i=4096", "did not add to the nonce"),
        (b"r=abcdef,s=c2FsdA==,i=4095", "asks for 4095 iterations"),
        (b"r=abcdef,s=c2FsdA==,i=0", "asks for 0 iterations"),
        (b"r=abcdef,s=c2FsdA==,i=1000001", "asks for 1000001 iterations"),
        (b"r=abcdef,s=c2FsdA==,i=999999999", "iterations"),
        (b"r=abcdef,s=c2FsdA==,i=9999999999", "not one of SCRAM"),
        (b"r=abcdef,s=c2FsdA==,i=-4096", "not one of SCRAM"),
        (b"r=abcdef,s=c2F=sdA,i=4096", "salt is not base64"),
        (b"r=abcdef,s=,i=4096", "not one of SCRAM"),
        (b"m=ext,r=abcdef,s=c2FsdA==,i=4096", "extension"),
        (b"e=other-error", "not one of SCRAM"),
        (b"", "not one of SCRAM"),
        (b"\xff\xfe", "not ASCII"),
        (b"r=abcdef,s=" + b"A" * 10_000 + b",i=4096", "bytes"),
    ],
)
def test_a_first_answer_that_breaks_the_rules_is_refused(answer, what, monkeypatch):
    monkeypatch.setattr(hashlib, "pbkdf2_hmac", lambda *_: pytest.fail("computed before it was checked"))
    mechanism = fresh()
    mechanism.first()
    with pytest.raises(AuthenticationError, match=what) as caught:
        mechanism.next(answer)
    assert (caught.value.mechanism, caught.value.user) == ("SCRAM-SHA-256", "user")


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (b"v=" + base64.b64encode(b"x" * 32), "did not prove that it knows the password"),
        (b"v=", "signature is not base64"),
        (b"v=!!!", "signature is not base64"),
        (b"e=invalid-proof", "refused: invalid-proof"),
        (b"", "not one of SCRAM"),
        (b"ok", "not one of SCRAM"),
    ],
)
def test_a_broker_that_does_not_prove_itself_is_refused(answer, what):
    mechanism = fresh()
    mechanism.first()
    assert mechanism.next(b"r=abcdef,s=c2FsdA==,i=4096")
    with pytest.raises(AuthenticationError, match=what):
        mechanism.next(answer)


def test_nothing_comes_after_the_end():
    kept = credentials()
    server = ScramServer("sha256", {"alice": "s3cret"})
    mechanism = kept.mechanism("b")
    run(mechanism, server)
    with pytest.raises(AuthenticationError, match="had ended"):
        mechanism.next(b"v=again")


def test_the_bounds_themselves_are_allowed():
    for iterations in (4096, 1_000_000):
        seen = []

        def keys(salt, asked, seen=seen):
            seen.append(asked)
            return derive_keys("sha256", b"pw", salt, 1)

        mechanism = ScramMechanism(
            "SCRAM-SHA-256", "user", "sha256", partial(tuple, ("user", keys)), nonce="abc"
        )
        mechanism.first()
        assert mechanism.next(b"r=abcdef,s=c2FsdA==,i=%d" % iterations)
        assert seen == [iterations]


def test_keys_are_derived_once_for_a_salt(monkeypatch):
    derived = []
    real = derive_keys

    def counted(*args):
        derived.append(args)
        return real(*args)

    monkeypatch.setattr(scram, "derive_keys", counted)
    kept = credentials()
    server = ScramServer("sha256", {"alice": "s3cret"})
    for _ in range(3):
        run(kept.mechanism("b"), server)
    assert len(derived) == 1
    server.salt = b"another salt"
    run(kept.mechanism("b"), server)
    assert len(derived) == 2


def test_a_broker_with_ever_new_salts_does_not_fill_the_memory(monkeypatch):
    monkeypatch.setattr(scram, "derive_keys", lambda *_: scram.ScramKeys(b"c", b"s", b"k"))
    kept = credentials()
    for number in range(3 * MOST_KEYS):
        kept.keys(b"s3cret", b"%d" % number, 4096)
    assert len(kept._keys) == MOST_KEYS
    assert (b"s3cret", b"%d" % (3 * MOST_KEYS - 1), 4096) in kept._keys


def test_a_wrong_password_is_refused_by_the_broker_side():
    server = ScramServer("sha256", {"alice": "other"})
    with pytest.raises(AuthenticationError, match="invalid-proof"):
        run(credentials().mechanism("b"), server)


def test_a_name_that_no_broker_can_know_is_refused_before_it_is_sent():
    with pytest.raises(ConfigError, match="outside ASCII"):
        credentials(user="üser")


def test_no_secret_shows():
    kept = credentials()
    keys = kept.keys(b"s3cret", b"salt", 4096)
    assert "s3cret" not in f"{kept!r} {kept.mechanism('b')!r}"
    assert repr(keys) == "<ScramKeys>"


def test_a_password_that_is_replaced_is_used_from_then_on():
    now = ["one"]
    settings = SaslSettings(
        mechanism="SCRAM-SHA-256", username="alice", password=Password("one", lambda: now[0])
    )
    kept = ScramCredentials(settings)
    for password in ("one", "one", "two"):
        now[0] = password
        run(kept.mechanism("b"), ScramServer("sha256", {"alice": password}))
    now[0] = ""
    with pytest.raises(AuthenticationError, match="needs a password"):
        kept.mechanism("b").first()
