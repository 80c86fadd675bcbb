# SPDX-License-Identifier: Apache-2.0
"""SaslHandshake and SaslAuthenticate on a listener that wants neither; `tests/testing/security` has the others."""

from __future__ import annotations

from testing.conformance.cases import Cases
from testing.conformance.raw import Raw

from penstock.protocol.messages import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE

MECHANISMS = Cases(SASL_HANDSHAKE, needs_topic=False)
TOKENS = Cases(SASL_AUTHENTICATE, needs_topic=False)


def ask_mechanism(raw: Raw, version: int, mechanism: str = "PLAIN") -> None:
    raw.call(SASL_HANDSHAKE, {"mechanism": mechanism}, version)


MECHANISMS.add("not wanted", ask_mechanism, 0, 1)
MECHANISMS.add("unknown mechanism", lambda raw, version: ask_mechanism(raw, version, "NO-SUCH"), 0, 1)
MECHANISMS.add("empty mechanism", lambda raw, version: ask_mechanism(raw, version, ""), 1)


@MECHANISMS.case("the connection stays", 0, 1)
def the_connection_stays(raw: Raw, version: int) -> None:
    ask_mechanism(raw, version)
    raw.call(API_VERSIONS, {}, 0)


@TOKENS.case("not wanted", 0, 1, 2)
def token_not_wanted(raw: Raw, version: int) -> None:
    raw.call(SASL_AUTHENTICATE, {"auth_bytes": b"\0alice\0secret"}, version)


@TOKENS.case("empty token", 0, 2)
def empty_token(raw: Raw, version: int) -> None:
    raw.call(SASL_AUTHENTICATE, {"auth_bytes": b""}, version)


@TOKENS.case("after a handshake", 2)
def after_a_handshake(raw: Raw, version: int) -> None:
    ask_mechanism(raw, 1)
    raw.call(SASL_AUTHENTICATE, {"auth_bytes": b"\0alice\0secret"}, version)
