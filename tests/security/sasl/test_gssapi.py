# SPDX-License-Identifier: Apache-2.0
"""GSSAPI, with a stand-in for the package."""

from __future__ import annotations

import sys

import pytest
from security.sasl.dialogue import NODE, OLD, run
from security.sasl.stand_in_gssapi import World, make_module

from penstock.errors import AuthenticationError, ConfigError
from penstock.security.sasl.authenticator import Authenticator
from penstock.security.sasl.gssapi import GssapiCredentials, GssapiMechanism, KeptTickets
from penstock.security.sasl.settings import KerberosSettings, SaslSettings

OFFER = b"W:\x01\x00\x10\x00"


@pytest.fixture
def world(monkeypatch):
    made = World()
    monkeypatch.setitem(sys.modules, "gssapi", make_module(made))
    return made


def mechanism(host: str = "broker.example.", **kerberos) -> GssapiMechanism:
    settings = SaslSettings(mechanism="GSSAPI", kerberos=KerberosSettings(**kerberos))
    return GssapiCredentials(settings).mechanism(host)


def broker(offer: bytes = OFFER):
    answers = {b"client-1": b"server-1", b"": offer}
    return lambda token: answers.get(token, b"")


def test_the_dialogue(world):
    made = mechanism()
    _, sent = run(made, broker())
    assert sent == [b"client-1", b"", b"W:\x01\x00\x00\x00cached@REALM"]
    assert world.targets == ["kafka@broker.example"]
    assert world.credentials == []
    assert made.user == "cached@REALM"


def test_a_context_that_is_complete_at_once(world):
    world.rounds = 1
    made = mechanism()
    assert made.first() == b"client-1"
    assert made.next(OFFER) == b"W:\x01\x00\x00\x00cached@REALM"
    assert made.next(b"") is None


def test_a_keytab(world, tmp_path):
    keytab = tmp_path / "me.keytab"
    keytab.write_bytes(b"x")
    made = mechanism(keytab=str(keytab), principal="me@REALM", service_name="bus", host="alias")
    _, sent = run(made, broker())
    (asked,) = world.credentials
    assert asked["name"] == "me@REALM"
    assert asked["store"]["client_keytab"] == str(keytab)
    assert asked["store"]["ccache"].startswith("MEMORY:")
    assert world.targets == ["bus@alias"]
    assert sent[-1].endswith(b"me@REALM")


def test_tickets_of_a_keytab_that_a_broker_refuses_are_forgotten(world):
    kerberos = KerberosSettings(keytab=__file__, principal="me@R")
    credentials = GssapiCredentials(SaslSettings(mechanism="GSSAPI", kerberos=kerberos))
    first, second = (credentials.mechanism("broker") for _ in range(2))
    first.first()
    first.refused()
    second.refused()  # it was begun before, with the same tickets
    for _ in range(2):
        credentials.mechanism("broker").first()
    before, after, later = (asked["store"]["ccache"] for asked in world.credentials)
    assert before != after == later


def test_tickets_are_forgotten_ever_less_often_while_a_broker_goes_on_refusing():
    clock = [0.0]
    tickets = KeptTickets(lambda: clock[0])

    def forgotten(*times: float) -> list[float]:
        found = []
        for clock[0] in times:
            before = tickets.place
            tickets.forget(before)
            if tickets.place != before:
                found.append(clock[0])
        return found

    assert forgotten(*range(0, 7200, 5)) == [0, 10, 30, 70, 150, 310, 630, 1270, 2550, 5110]
    tickets.keep()
    assert forgotten(9000, 9005, 9010, 9025, 9030) == [9000, 9010, 9030]


def test_a_ticket_cache(world):
    run(mechanism(ticket_cache="/tmp/krb5cc_7"), broker())
    assert world.credentials == [{"usage": "initiate", "name": None, "store": {"ccache": "/tmp/krb5cc_7"}}]


# As MIT's library said it, to a real key distribution centre.
UNAVAILABLE = (
    "Major (458752): No credentials were supplied, or the credentials were unavailable or ..., Minor "
)
UNSPECIFIED = "Major (851968): Unspecified GSS failure.  Minor code may provide more information, Minor "


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        (UNSPECIFIED + "(2529638944): Ticket expired", "run kinit again"),
        (UNAVAILABLE + "(2529639107): No credentials cache found", "run kinit, or set useKeyTab"),
        (UNAVAILABLE + "(2529639068): Cannot contact any KDC for realm 'R'", "check the network to the KDC"),
        (
            UNSPECIFIED + "(2529638919): Server bus/h@R not found in Kerberos database",
            "sasl.kerberos.service.name",
        ),
        (UNSPECIFIED + "(2529638918): Client 'x@R' not found in Kerberos database", "check the principal"),
        ("Clock skew too great", "set the clocks of this machine, the KDC and the broker"),
        (UNSPECIFIED + "(2529638919): Server krbtgt/B@A not found in Kerberos database", "[domain_realm]"),
        (UNAVAILABLE + "(2529638930): Client's credentials have been revoked", "ask the administrator"),
        (UNAVAILABLE + "(2529638913): Client's entry in database has expired", "ask the administrator"),
        (
            UNAVAILABLE + "(2529638943): Decrypt integrity check failed",
            "the key of the principal may have been",
        ),
        (UNAVAILABLE + "(39756032): Principal in credential cache does not match desired name", "run kinit,"),
        ("KDC has no support for encryption type", "klist -ke"),
        ("something new", "the broker's own principal is kafka/broker.example"),
    ],
)
def test_what_goes_wrong_names_the_principal_that_was_asked_for(world, said, advice):
    world.fail_step = said
    with pytest.raises(AuthenticationError) as caught:
        mechanism(principal="me@R").first()
    text = str(caught.value)
    assert "for the service kafka/broker.example" in text
    assert said in text
    assert advice in text
    assert caught.value.user == "me@R"
    assert caught.value.__cause__ is None


def test_a_keytab_without_the_key(world):
    world.fail_step = UNAVAILABLE + "(2529639107): No credentials cache found"
    with pytest.raises(AuthenticationError, match=f"check principal and keyTab: `klist -k {__file__}`"):
        mechanism(keytab=__file__, principal="me@R").first()


@pytest.mark.parametrize(
    ("offer", "why"),
    [
        (b"W:\x06\x00\x10\x00", "insists on a layer"),
        (b"W:\x01\x00", "has 2 bytes, not 4"),
        (b"W:", "has 0 bytes"),
        (b"not wrapped", "invalid Message Integrity Check"),
    ],
)
def test_an_offer_that_cannot_be_taken(world, offer, why):
    with pytest.raises(AuthenticationError, match=why):
        run(mechanism(), broker(offer))


def test_a_broker_that_says_nothing_or_too_much(world):
    made = mechanism()
    made.first()
    with pytest.raises(AuthenticationError, match="said nothing"):
        made.next(b"")
    with pytest.raises(AuthenticationError, match="600000 bytes"):
        made.next(b"x" * 600_000)
    made = mechanism()
    made.first()
    made.next(b"server-1")
    made.next(OFFER)
    with pytest.raises(AuthenticationError, match="had ended"):
        made.next(b"more")


def test_a_broker_before_1_0_cannot_be_served(world):
    settings = SaslSettings(mechanism="GSSAPI", kerberos=KerberosSettings())
    with pytest.raises(AuthenticationError, match=r"older than 1\.0"):
        Authenticator(settings).handshake(NODE, OLD).start()


@pytest.mark.parametrize(
    ("kerberos", "why"),
    [
        ({"service_name": ""}, "sasl.kerberos.service.name"),
        ({"keytab": "/nowhere/x", "principal": "p"}, "cannot be read"),
        ({"keytab": __file__}, "needs a principal"),
    ],
)
def test_what_is_missing_is_told_when_the_client_is_made(world, kerberos, why):
    with pytest.raises(ConfigError, match=why):
        mechanism(**kerberos)


def test_without_the_package_the_extra_and_the_headers_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "gssapi", None)
    with pytest.raises(ConfigError, match=r"'\.\[gssapi\].*libkrb5-dev") as caught:
        mechanism()
    assert caught.value.option == "sasl.mechanism"
