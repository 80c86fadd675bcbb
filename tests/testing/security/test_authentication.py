# SPDX-License-Identifier: Apache-2.0
"""SASL of the fake cluster, byte by byte and in virtual time."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from testing.wire import NOW_MS, Wire, make_cluster

from penstock.config.kinds import Password
from penstock.protocol.messages import API_VERSIONS, METADATA, SASL_AUTHENTICATE, SASL_HANDSHAKE
from penstock.security.sasl.scram import ScramCredentials
from penstock.security.sasl.settings import SaslSettings
from penstock.testing import Code, FakeSecurity, Fault

PLAIN_TOKEN = b"\0alice\0alice-secret"
SOFTWARE = {"client_software_name": "test", "client_software_version": "1"}


def secured(**options: Any) -> Wire:
    return Wire(make_cluster(security=FakeSecurity(protocol="SASL_PLAINTEXT", **options)))


def handshake(wire: Wire, mechanism: str, version: int = 1) -> dict[str, Any]:
    return wire.call(SASL_HANDSHAKE, {"mechanism": mechanism}, version)


def authenticate(wire: Wire, token: bytes) -> dict[str, Any]:
    return wire.call(SASL_AUTHENTICATE, {"auth_bytes": token})


def known(**options: Any) -> Wire:
    """A connection whose client is known."""
    wire = secured(**options)
    handshake(wire, "PLAIN")
    assert authenticate(wire, PLAIN_TOKEN)["error_code"] == 0
    return wire


def is_served(wire: Wire) -> bool:
    session = wire.session()
    wire.send(METADATA, {"topics": []})
    return bool(session.output(wire.now)) and not session.closed


def unsigned(claims: dict[str, Any]) -> bytes:
    def part(value: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    return f"n,,\x01auth=Bearer {part({'alg': 'none'})}.{part(claims)}.\x01\x01".encode()


def test_a_client_that_is_known_is_served() -> None:
    wire = known()
    assert is_served(wire)
    assert wire.session().authentication.user == "alice"


def test_versions_are_told_before_anybody_is_known() -> None:
    wire = secured()
    assert wire.call(API_VERSIONS, SOFTWARE)["error_code"] == 0
    assert handshake(wire, "PLAIN")["error_code"] == 0


def test_any_other_request_of_an_unknown_client_ends_the_connection_without_an_answer() -> None:
    wire = secured()
    session = wire.session()
    wire.send(METADATA, {"topics": []})
    assert session.output(wire.now) == []
    assert session.closed


@pytest.mark.parametrize(
    ("token", "text"),
    [
        (b"\0alice\0wrong", "Invalid username or password"),
        (b"\0nobody\0alice-secret", "Invalid username or password"),
        (b"\0alice\0", "password not specified"),
        (b"alice", "expected 3 tokens, got 1"),
    ],
)
def test_a_wrong_password_is_told_and_ends_the_connection(token: bytes, text: str) -> None:
    wire = secured()
    handshake(wire, "PLAIN")
    session = wire.session()
    answer = authenticate(wire, token)
    assert answer["error_code"] == Code.SASL_AUTHENTICATION_FAILED
    assert text in answer["error_message"]
    assert session.closed


def test_a_password_that_was_changed_counts_for_the_next_connection() -> None:
    security = FakeSecurity(protocol="SASL_PLAINTEXT")
    wire = Wire(make_cluster(security=security))
    security.users["alice"] = "new"
    handshake(wire, "PLAIN")
    assert authenticate(wire, PLAIN_TOKEN)["error_code"] == Code.SASL_AUTHENTICATION_FAILED
    handshake(wire, "PLAIN")
    assert authenticate(wire, b"\0alice\0new")["error_code"] == 0


def test_a_mechanism_that_is_not_enabled_is_answered_with_those_that_are() -> None:
    wire = secured(mechanisms=("PLAIN",))
    session = wire.session()
    answer = handshake(wire, "OAUTHBEARER")
    assert answer == {"error_code": Code.UNSUPPORTED_SASL_MECHANISM, "mechanisms": ["PLAIN"]}
    assert session.closed


def test_a_cluster_without_sasl_says_so_and_goes_on() -> None:
    wire = Wire(make_cluster())
    assert handshake(wire, "PLAIN") == {"error_code": Code.ILLEGAL_SASL_STATE, "mechanisms": []}
    assert is_served(wire)


def test_nothing_but_tokens_is_taken_between_handshake_and_token() -> None:
    wire = secured()
    handshake(wire, "PLAIN")
    session = wire.session()
    answer = wire.call(METADATA, {"topics": []})
    assert answer["error_code"] == Code.ILLEGAL_SASL_STATE
    assert session.closed


@pytest.mark.parametrize("name", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_scram_convinces_both_sides(name: str) -> None:
    wire = secured(users={"a,b=c": "secret"})
    settings = SaslSettings(mechanism=name, username="a,b=c", password=Password("secret"))
    mechanism = ScramCredentials(settings).mechanism("localhost")
    handshake(wire, name)
    first = authenticate(wire, mechanism.first())
    token = mechanism.next(bytes(first["auth_bytes"]))
    assert token is not None
    final = authenticate(wire, token)
    assert mechanism.next(bytes(final["auth_bytes"])) is None
    assert wire.session().authentication.user == "a,b=c"


def test_scram_refuses_a_wrong_password() -> None:
    wire = secured()
    settings = SaslSettings(mechanism="SCRAM-SHA-256", username="alice", password=Password("wrong"))
    mechanism = ScramCredentials(settings).mechanism("localhost")
    handshake(wire, "SCRAM-SHA-256")
    first = authenticate(wire, mechanism.first())
    token = mechanism.next(bytes(first["auth_bytes"]))
    assert token is not None
    final = authenticate(wire, token)
    assert final["error_code"] == Code.SASL_AUTHENTICATION_FAILED
    assert "invalid credentials" in final["error_message"]


def test_a_token_names_its_user_and_its_end() -> None:
    wire = secured()
    handshake(wire, "OAUTHBEARER")
    answer = authenticate(wire, unsigned({"sub": "carol", "exp": NOW_MS / 1000 + 3}))
    assert (answer["error_code"], answer["session_lifetime_ms"]) == (0, 3000)
    assert wire.session().authentication.user == "carol"


@pytest.mark.parametrize(
    "claims", [{"sub": "carol", "exp": NOW_MS / 1000 - 1}, {"exp": NOW_MS}, {"sub": "carol"}]
)
def test_a_bad_token_is_explained_first_and_refused_then(claims: dict[str, Any]) -> None:
    wire = secured()
    handshake(wire, "OAUTHBEARER")
    session = wire.session()
    answer = authenticate(wire, unsigned(claims))
    assert (answer["error_code"], bytes(answer["auth_bytes"])) == (0, b'{"status":"invalid_token"}')
    assert authenticate(wire, b"\x01")["error_code"] == Code.SASL_AUTHENTICATION_FAILED
    assert session.closed


def test_bare_tokens_follow_a_handshake_of_version_0() -> None:
    wire = secured()
    handshake(wire, "PLAIN", version=0)
    session = wire.session()
    session.feed(len(PLAIN_TOKEN).to_bytes(4, "big") + PLAIN_TOKEN, wire.now)
    assert session.output(wire.now) == [b"\0\0\0\0"]
    assert is_served(wire)


def test_a_bare_token_that_is_wrong_ends_the_connection_without_an_answer() -> None:
    wire = secured()
    handshake(wire, "PLAIN", version=0)
    session = wire.session()
    session.feed(b"\0\0\0\x05wrong", wire.now)
    assert session.output(wire.now) == []
    assert session.closed


def test_a_session_ends_at_the_next_request() -> None:
    wire = known(session_seconds=5.0)
    wire.now += 4.9
    assert is_served(wire)
    wire.now += 0.1
    session = wire.session()
    wire.send(METADATA, {"topics": []})
    assert session.closed


def test_a_session_can_be_renewed_even_after_its_end() -> None:
    wire = known(session_seconds=5.0)
    wire.now += 6
    assert handshake(wire, "PLAIN")["error_code"] == 0
    assert authenticate(wire, PLAIN_TOKEN)["session_lifetime_ms"] == 5000
    wire.now += 4
    assert is_served(wire)


def test_a_second_renewal_within_a_second_is_refused_and_the_connection_stays() -> None:
    wire = known(session_seconds=5.0)
    handshake(wire, "PLAIN")
    authenticate(wire, PLAIN_TOKEN)
    wire.now += 0.5
    assert handshake(wire, "PLAIN")["error_code"] == Code.ILLEGAL_SASL_STATE
    assert is_served(wire)


def test_without_an_end_there_is_nothing_to_renew() -> None:
    assert handshake(known(), "PLAIN")["error_code"] == Code.ILLEGAL_SASL_STATE


def test_the_user_of_a_connection_stays_the_same() -> None:
    wire = known(session_seconds=5.0, users={"alice": "alice-secret", "bob": "b"})
    handshake(wire, "PLAIN")
    answer = authenticate(wire, b"\0bob\0b")
    assert answer["error_code"] == Code.SASL_AUTHENTICATION_FAILED
    assert "Cannot change principals" in answer["error_message"]


def test_a_fault_refuses_to_order() -> None:
    wire = secured()
    wire.cluster.faults.add(Fault(api=SASL_AUTHENTICATE, error=Code.SASL_AUTHENTICATION_FAILED))
    handshake(wire, "PLAIN")
    assert authenticate(wire, PLAIN_TOKEN)["error_code"] == Code.SASL_AUTHENTICATION_FAILED


@pytest.mark.parametrize(
    ("options", "text"),
    [({"protocol": "TLS"}, "one of PLAINTEXT"), ({"mechanisms": ("GSSAPI",)}, "knows PLAIN, .* not GSSAPI")],
)
def test_what_the_fake_cannot_do_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        FakeSecurity(**options)
