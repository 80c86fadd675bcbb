# SPDX-License-Identifier: Apache-2.0
"""The register of mechanisms, with one of a user's."""

from __future__ import annotations

import subprocess
import sys

import pytest
from security.sasl.dialogue import MODERN, NODE, authenticated, settle, token_of

from penstock.config.kinds import Password
from penstock.errors import ConfigError
from penstock.security.sasl import mechanism as register
from penstock.security.sasl.authenticator import Authenticator
from penstock.security.sasl.mechanism import known_mechanisms, mechanism_factory, register_mechanism
from penstock.security.sasl.plain import PlainCredentials
from penstock.security.sasl.scram import ScramCredentials
from penstock.security.sasl.settings import SaslSettings


@pytest.fixture(autouse=True)
def _own_register(monkeypatch):
    monkeypatch.setattr(register, "_registered", {})


class TicketCredentials:
    """A user's mechanism: a ticket, and a question that is answered backwards."""

    closed = 0

    def __init__(self, settings: SaslSettings) -> None:
        self._ticket = str(settings.properties["sasl.ticket"])

    def mechanism(self, host: str) -> TicketMechanism:
        return TicketMechanism(f"{self._ticket}@{host}")

    def close(self) -> None:
        self.closed += 1


class TicketMechanism:
    name = "X-TICKET"
    user = "holder"

    def __init__(self, ticket: str) -> None:
        self._ticket = ticket

    def first(self) -> bytes:
        return self._ticket.encode()

    def next(self, challenge: bytes) -> bytes | None:
        return challenge[::-1] or None


def test_a_mechanism_of_the_users_own():
    register_mechanism("X-TICKET", TicketCredentials)
    assert "X-TICKET" in known_mechanisms()
    authenticator = Authenticator(SaslSettings(mechanism="X-TICKET", properties={"sasl.ticket": "t"}))
    handshake = authenticator.handshake(NODE, MODERN)
    step = handshake.start()
    assert step.request.body == {"mechanism": "X-TICKET"}
    first = settle(handshake.on_answer(1, {"error_code": 0, "mechanisms": ["X-TICKET"]}))
    assert token_of(first) == b"t@broker-3.example"
    assert token_of(settle(handshake.on_answer(2, authenticated(b"abc")))) == b"cba"
    assert settle(handshake.on_answer(2, authenticated(b"", lifetime=9))) is None
    assert handshake.session_lifetime_ms == 9
    authenticator.close()
    assert authenticator._credentials.closed == 1
    assert "X-TICKET" in repr(authenticator)


def test_a_built_in_one_may_be_replaced():
    register_mechanism("PLAIN", TicketCredentials)
    assert mechanism_factory("PLAIN") is TicketCredentials


def test_built_in_ones_are_found_in_any_case():
    assert mechanism_factory("plain") is PlainCredentials
    assert mechanism_factory("Scram-Sha-512") is ScramCredentials


def test_an_unknown_one_is_answered_with_those_known():
    with pytest.raises(
        ConfigError, match="GSSAPI, OAUTHBEARER, PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"
    ) as caught:
        mechanism_factory("DIGEST-MD5")
    assert caught.value.option == "sasl.mechanism"


@pytest.mark.parametrize(
    ("name", "factory"), [("lower", TicketCredentials), ("", TicketCredentials), ("X-A", 7)]
)
def test_what_cannot_be_registered(name, factory):
    with pytest.raises(ConfigError):
        register_mechanism(name, factory)


def test_a_mechanism_without_credentials_is_refused_when_the_client_is_made():
    with pytest.raises(ConfigError, match="needs a username"):
        Authenticator(SaslSettings(mechanism="PLAIN", password=Password("p")))


def test_built_in_ones_are_imported_when_they_are_asked_for():
    program = (
        "import sys, penstock.security.sasl.mechanism as m; m.mechanism_factory('PLAIN'); "
        "print([n for n in sys.modules if n.startswith('penstock.security.sasl.')], 'gssapi' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert "sasl.plain" in shown
    assert "sasl.scram" not in shown
    assert "sasl.oauthbearer" not in shown
    assert "False" in shown
