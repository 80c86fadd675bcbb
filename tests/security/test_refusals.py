# SPDX-License-Identifier: Apache-2.0
"""Everything that can be refused, as the call that waits is told it: soon, once, with the cause and the way out.

Each case is met by a producer and by the control client. A refusal of the identity is told at once, long before
`max.block.ms`; what may pass (nobody answers, a connection that is closed) is told when the time is up, with the cause.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from fix_patience import within
from security.oauth.tokens import jwt
from security.peers import (
    SECRET,
    V12,
    V13,
    Options,
    Peer,
    fake,
    hangs_up,
    nobody,
    scripted,
    silent,
    speaks_http,
    through,
    tls,
    tokens,
    without,
)
from security.proxies import http, socks5
from security.tls.certificates import DAY, NOW, make, other_ca, revocation_list, the_ca

from penstock import Producer
from penstock.control import ControlClient
from penstock.devbroker.security import USERS
from penstock.errors import AuthenticationError, KafkaError, KafkaTimeoutError
from penstock.protocol.messages import SASL_AUTHENTICATE, SASL_HANDSHAKE
from penstock.testing import FakeSecurity, Fault

PROMISED = 5.0  # seconds that a refusal may take, beyond the time-out that it is about, if it is about one


class Times(NamedTuple):
    """Time-outs: of the call, and of one connection."""

    block_ms: int
    setup_ms: int


# For a refusal that is told at once, and for one that is told when the time is up. The next ones are for a machine that
# is busy with other things, where the time was over before the client had learned anything.
AT_ONCE = (Times(90_000, 1_000), Times(90_000, 10_000), Times(90_000, 20_000))
IN_TIME = (Times(700, 350), Times(5_000, 2_500), Times(60_000, 30_000))


@dataclass(frozen=True)
class Refusal:
    """A case.

    Attributes:
        peer: who refuses, and the options of the client.
        words: what must be in the error.
        at_once: a refusal of the identity; otherwise it is told when the time is up.
        late: at once, but when the time for a connection is up.
    """

    peer: Peer
    words: tuple[str, ...]
    at_once: bool = True
    late: bool = False

    def seconds(self, times: Times) -> float:
        """How long it may take."""
        if not self.at_once:
            return PROMISED + times.block_ms / 1000
        return PROMISED + times.setup_ms / 1000 if self.late else PROMISED


def sasl(mechanism: str = "PLAIN", protocol: str = "SASL_PLAINTEXT", **more: Any) -> FakeSecurity:
    return FakeSecurity(protocol=protocol, mechanisms=(mechanism,), **more)


def bearer(provider: object, **changes: Any) -> Peer:
    """A client whose tokens come from a provider of its own."""
    more = without("sasl_jaas_config") | {"sasl_oauth_token_provider": provider} | changes
    return fake(sasl("OAUTHBEARER"), **more)


def raises() -> str:
    raise RuntimeError("the vault is sealed")


async def raises_later() -> str:
    raise RuntimeError("the vault is sealed")


RELEASE = threading.Event()


def hangs() -> str:
    RELEASE.wait(60)
    return jwt()


@pytest.fixture(autouse=True)
def released() -> Iterator[None]:
    """Nothing that hangs is left after its test."""
    RELEASE.clear()
    yield
    RELEASE.set()


PLAIN = FakeSecurity()
TLS = FakeSecurity(protocol="SSL")
WRONG = {"sasl_password": SECRET}
UNKNOWN = {"sasl_username": "mallory", "sasl_password": SECRET}
CLIENT_CERTIFICATE = ("wants a client certificate", "ssl.keystore.location")
NOT_TRUSTED = ("is not signed by a CA that is trusted here", "ssl.truststore.location")
PORT = ("security.protocol",)
NOT_TLS = ("does not speak TLS", "check the port", "set security.protocol to PLAINTEXT, or to SASL_PLAINTEXT")
ENDED = make("broker", the_ca(), ("127.0.0.1",), NOW - 9 * DAY, NOW - 2 * DAY)
TO_COME = make("broker", the_ca(), ("127.0.0.1",), NOW + 2 * DAY, NOW + 9 * DAY)
ELSEWHERE = make("broker", the_ca(), ("other.example", "10.0.0.1"))
NAMELESS = make("broker.example", the_ca())
MIDDLE = make("Middle CA", the_ca(), is_ca=True)
BELOW_MIDDLE = make("broker", MIDDLE, ("127.0.0.1",))
OF_ITS_OWN = make("broker", names=("127.0.0.1",))
REVOKED = make("broker", the_ca(), ("127.0.0.1",))
STRANGER = make("client", other_ca())
OLD_CLIENT = make("client", the_ca(), start=NOW - 9 * DAY, end=NOW - 2 * DAY)
EARLY_CLIENT = make("client", the_ca(), start=NOW + 2 * DAY, end=NOW + 40_000 * DAY)

OF_TLS = {
    "wrong CA, 1.2": Refusal(tls(trusted=other_ca().pem, versions="TLSv1.2"), NOT_TRUSTED),
    "wrong CA, 1.3": Refusal(tls(trusted=other_ca().pem, versions="TLSv1.3"), NOT_TRUSTED),
    "no CA given": Refusal(tls(trusted=""), (*NOT_TRUSTED, "roots of this system")),
    "signed by itself": Refusal(tls(OF_ITS_OWN), NOT_TRUSTED),
    "a chain with a gap": Refusal(tls(BELOW_MIDDLE), (*NOT_TRUSTED, "Middle CA")),
    "wrong name": Refusal(
        tls(ELSEWHERE), ("not for '127.0.0.1'", "other.example", "10.0.0.1", "bootstrap.servers")
    ),
    "no alternative name": Refusal(tls(NAMELESS), ("not for '127.0.0.1'", "no subject alternative names")),
    "expired": Refusal(tls(ENDED), ("has expired", f"{NOW - 2 * DAY:%Y-%m-%d}", "clock")),
    "not yet valid": Refusal(tls(TO_COME), ("is not valid yet", f"{NOW + 2 * DAY:%Y-%m-%d}", "clock")),
    "revoked": Refusal(
        tls(REVOKED, revocations=revocation_list(the_ca(), (REVOKED,))), ("revoked", "ssl.crl.location")
    ),
    "no client certificate, 1.2": Refusal(tls(wants_client_of=the_ca(), version=V12), CLIENT_CERTIFICATE),
    "no client certificate, 1.3": Refusal(tls(wants_client_of=the_ca(), version=V13), CLIENT_CERTIFICATE),
    "a stranger's certificate, 1.2": Refusal(
        tls(wants_client_of=the_ca(), version=V12, identity=STRANGER), ("trusts its CA",)
    ),
    "a stranger's certificate, 1.3": Refusal(
        tls(wants_client_of=the_ca(), version=V13, identity=STRANGER), ("trusts its CA",)
    ),
    "an expired client certificate": Refusal(
        tls(wants_client_of=the_ca(), version=V13, identity=OLD_CLIENT),
        ("client's certificate has expired", f"{NOW - 2 * DAY:%Y-%m-%d}"),
    ),
    "a client certificate that is not valid yet": Refusal(
        tls(wants_client_of=the_ca(), version=V12, identity=EARLY_CLIENT),
        ("client's certificate is not valid yet", f"{NOW + 40_000 * DAY:%Y-%m-%d}"),
    ),
    "only 1.2 there": Refusal(tls(version=V12, versions="TLSv1.3"), ("ssl.enabled.protocols",)),
    "only 1.3 there": Refusal(tls(version=V13, versions="TLSv1.2"), ("ssl.enabled.protocols",)),
    "no suite in common": Refusal(
        tls(
            version=V12,
            ciphers="ECDHE-ECDSA-AES256-GCM-SHA384",
            more={"ssl.cipher.suites": "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"},
        ),
        ("ssl.cipher.suites",),
    ),
    "TLS at a plain port": Refusal(fake(PLAIN, TLS), NOT_TLS),
    "TLS at a port with SASL": Refusal(fake(sasl(), TLS), NOT_TLS),
    "TLS and SASL at a plain port": Refusal(fake(PLAIN, sasl(protocol="SASL_SSL")), NOT_TLS),
    "plain at a port with TLS": Refusal(fake(TLS, PLAIN), ("expects TLS", "security.protocol")),
    "SASL without TLS at a port with both": Refusal(
        fake(sasl(protocol="SASL_SSL"), sasl()), ("expects TLS", "SASL_SSL")
    ),
    "TLS at a web server": Refusal(
        scripted(speaks_http, security_protocol="SSL"), ("is not TLS", "security.protocol")
    ),
    "a peer that hangs up": Refusal(
        scripted(hangs_up, security_protocol="SSL"), ("during the TLS handshake", *NOT_TLS)
    ),
    "a peer that is silent": Refusal(
        scripted(silent, security_protocol="SSL"), ("no answer within", "TLS handshake", *PORT), at_once=False
    ),
}

OF_SASL = {
    "wrong password, PLAIN": Refusal(fake(sasl(), **WRONG), ("PLAIN", "alice", "password")),
    "wrong password, SCRAM-SHA-256": Refusal(
        fake(sasl("SCRAM-SHA-256"), **WRONG), ("SCRAM-SHA-256", "alice", "password")
    ),
    "wrong password, SCRAM-SHA-512": Refusal(
        fake(sasl("SCRAM-SHA-512"), **WRONG), ("SCRAM-SHA-512", "alice", "password")
    ),
    "wrong password over TLS": Refusal(
        fake(sasl(protocol="SASL_SSL"), **WRONG), ("PLAIN", "alice", "password")
    ),
    "unknown user, PLAIN": Refusal(fake(sasl(), **UNKNOWN), ("PLAIN", "mallory", "user name")),
    "unknown user, SCRAM": Refusal(fake(sasl("SCRAM-SHA-256"), **UNKNOWN), ("mallory", "user name")),
    "a mechanism that is not enabled": Refusal(
        fake(sasl("SCRAM-SHA-512"), sasl("PLAIN")), ("PLAIN", "SCRAM-SHA-512", "sasl.mechanism")
    ),
    "SASL at a listener without": Refusal(fake(PLAIN, sasl()), ("security.protocol",)),
    "SASL at a listener with TLS alone": Refusal(
        fake(TLS, sasl(protocol="SASL_SSL")), ("security.protocol",)
    ),
    "no SASL at a listener with": Refusal(fake(sasl(), PLAIN), ("SASL_PLAINTEXT", "security.protocol")),
    "no SASL at a listener with both": Refusal(
        fake(sasl(protocol="SASL_SSL"), TLS), ("SASL_SSL", "security.protocol")
    ),
    "an impostor": Refusal(
        fake(sasl("SCRAM-SHA-256", wrong_signature=True)),
        ("did not prove that it knows the password", "SASL_SSL"),
    ),
    "too few iterations": Refusal(fake(sasl("SCRAM-SHA-256", scram_iterations=100)), ("100", "4096")),
    "too many iterations": Refusal(
        fake(sasl("SCRAM-SHA-256", scram_iterations=2_000_000)), ("2000000", "iterations")
    ),
    "a broker that hangs up at the token": Refusal(
        fake(sasl(), fault=Fault(api=SASL_AUTHENTICATE, cut="before", times=None)),
        ("closed the connection during authentication",),
        at_once=False,
    ),
    "a broker that hangs up at the mechanism": Refusal(
        fake(sasl(), fault=Fault(api=SASL_HANDSHAKE, cut="before", times=None)),
        ("closed the connection during authentication",),
        at_once=False,
    ),
    "rubbish for an answer": Refusal(
        fake(sasl(), fault=Fault(api=SASL_AUTHENTICATE, garbage=True, times=None)),
        ("sent data that cannot be read",),
        at_once=False,
    ),
}

OF_TOKENS = {
    "expired": Refusal(bearer(lambda: jwt(exp=time.time() - 60)), ("expired",)),
    "that the broker does not take": Refusal(bearer(lambda: jwt(sub=7)), ("sub",)),
    "a provider that raises": Refusal(bearer(raises), ("RuntimeError", "no token")),
    "a provider that raises later": Refusal(bearer(raises_later), ("RuntimeError", "no token")),
    "a provider that hangs": Refusal(bearer(hangs), ("has not given a token within",), late=True),
    "a provider with nothing": Refusal(bearer(lambda: None), ("no token", "nothing was given")),
    "a provider with a number": Refusal(bearer(lambda: 7), ("no token", "int")),
    "a provider with a token that is none": Refusal(bearer(lambda: f"two words {SECRET}"), ("no token",)),
    "a provider with a wrong expiry": Refusal(bearer(lambda: (jwt(), "tomorrow")), ("no token", "expir")),
    "an endpoint that says no": Refusal(
        tokens(status=401, content={"error": "invalid_client", "error_description": "who are you"}),
        ("401", "invalid_client", "who are you"),
    ),
    "an endpoint that fails": Refusal(tokens(status=503, content=b"busy"), ("503",)),
    "an endpoint without a token": Refusal(tokens(status=200, content={"ok": True}), ("access_token",)),
    "an endpoint with a web page": Refusal(tokens(status=200, content=b"<html>"), ("JSON",)),
    "an endpoint where nobody listens": Refusal(
        fake(
            sasl("OAUTHBEARER"),
            **without("sasl_jaas_config"),
            sasl_oauthbearer_token_endpoint_url="http://127.0.0.1:1/token",
            sasl_oauthbearer_client_id="me",
            sasl_oauthbearer_client_secret=SECRET,
            sasl_login_retry_backoff_max_ms="300",
        ),
        (
            "no connection to",
            "there is no token: the OIDC provider at http://127.0.0.1:1: it cannot be asked",
        ),
    ),
}

OF_PROXIES = {
    "SOCKS5 that reaches nobody": Refusal(
        through(socks5, "socks5"), ("proxy", "127.0.0.1", "host is unreachable"), at_once=False
    ),
    "HTTP that reaches nobody": Refusal(through(http, "http"), ("proxy", "502"), at_once=False),
    "SOCKS5 that wants a user": Refusal(
        through(socks5, "socks5", user="me", password="x"), ("proxy", "user")
    ),
    "HTTP that wants a user": Refusal(through(http, "http", user="me", password="x"), ("proxy", "407")),
    "SOCKS5 with a wrong password": Refusal(
        through(socks5, "socks5", f"me:{SECRET}@", user="me", password="x"), ("proxy", "password")
    ),
    "HTTP with a wrong password": Refusal(
        through(http, "http", f"me:{SECRET}@", user="me", password="x"), ("proxy", "407")
    ),
    "SOCKS5 that is silent": Refusal(
        through(silent, "socks5"), ("within", "SOCKS5 proxy", "does not answer"), at_once=False
    ),
    "HTTP that is silent": Refusal(
        through(silent, "http"), ("within", "HTTP proxy", "does not answer"), at_once=False
    ),
    "a proxy that hangs up": Refusal(through(hangs_up, "socks5"), ("proxy",), at_once=False),
    "a web server in place of SOCKS5": Refusal(
        through(speaks_http, "socks5"), ("SOCKS5 proxy", "does not speak SOCKS5", "scheme"), at_once=False
    ),
    "no proxy at all": Refusal(
        nobody(proxy_url="socks5://127.0.0.1:{port}"),
        ("SOCKS5 proxy", "cannot be reached", "refused"),
        at_once=False,
    ),
}

TABLE = {
    f"{kind}: {name}": refusal
    for kind, table in (("TLS", OF_TLS), ("SASL", OF_SASL), ("token", OF_TOKENS), ("proxy", OF_PROXIES))
    for name, refusal in table.items()
}


def common_options(times: Times) -> Options:
    block_ms, setup_ms = times
    return {
        "max.block.ms": block_ms,
        "request.timeout.ms": setup_ms,
        "delivery.timeout.ms": max(2_000, 2 * setup_ms),
        "socket.connection.setup.timeout.ms": setup_ms,
        "socket.connection.setup.timeout.max.ms": setup_ms,
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 100,
    }


def told_by_producer(options: Options, times: Times) -> KafkaError:
    with Producer(common_options(times) | options) as producer:
        with pytest.raises(KafkaError) as refused:
            producer.partitions_for("orders")
        producer.close(0)
    return refused.value


def told_by_control(options: Options, times: Times) -> KafkaError:
    client_options = {
        name: value
        for name, value in (common_options(times) | options).items()
        if name not in ("max.block.ms", "delivery.timeout.ms")
    }
    with ControlClient(client_options) as client, pytest.raises(KafkaError) as refused:
        client.brokers(timeout=times.block_ms / 1000)
    return refused.value


@pytest.mark.parametrize("ask", [told_by_producer, told_by_control], ids=["producer", "control"])
@pytest.mark.parametrize("refusal", TABLE.values(), ids=TABLE.keys())
def test_refused(ask: Any, refusal: Refusal, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    def refused(options: Options, times: Times) -> KafkaError:
        caplog.clear()
        error: KafkaError = ask(options, times)
        return error

    with refusal.peer(tmp_path) as options:
        for times in AT_ONCE if refusal.at_once else IN_TIME:
            error = within(refusal.seconds(times), partial(refused, options, times))
            text = str(error)
            assert isinstance(error, AuthenticationError if refusal.at_once else KafkaTimeoutError), repr(
                error
            )
            for secret in (SECRET, USERS["alice"]):
                assert secret not in text
                assert secret not in caplog.text
            missing = [words for words in refusal.words if words not in text]
            if not missing:
                break
    assert missing == [], text
    loud = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(loud) <= 2, "it is told once, and not with each attempt"
