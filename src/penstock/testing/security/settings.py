# SPDX-License-Identifier: Apache-2.0
"""How clients must connect to the fake brokers: in the clear or by TLS, and by whom."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from penstock.testing.security.rights import ANONYMOUS, EVERYTHING, NOTHING, Acl

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
# Trusted by clients of the fake cluster, and by its brokers.
CA_FILE: Final = Path(__file__).with_name("ca.pem")
# Key and chain of a client that is called alice.
CLIENT_FILE: Final = Path(__file__).with_name("client.pem")
_BROKER_FILE: Final = Path(__file__).with_name("broker.pem")
_SCRAM_ITERATIONS: Final = 4096


@dataclass(kw_only=True)
class FakeSecurity:
    """What clients of a fake cluster must do. Fields may be changed while it runs: the next connection sees it.

    Attributes:
        protocol: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.
        users: names and passwords for PLAIN and SCRAM; OAUTHBEARER takes any user whose token has not expired.
        acls: what each user may do. Without any, everybody may do everything; who has none of them may do nothing. A
            user is who SASL says; without SASL the common name of the client's certificate, or ANONYMOUS.
        mechanisms: which of SASL are enabled.
        wants_certificate: a client must have one that the fake cluster's authority has signed.
        session_seconds: how long an authentication is good for; 0 is for ever. Tokens have an end of their own.
        scram_iterations: as each user's credential has it.
        wrong_signature: prove with SCRAM what is not true, as a false broker would.
        tls: the brokers' side of TLS; None uses the certificates that come with this package.

    Raises:
        ValueError: no such protocol or mechanism.
    """

    protocol: str = "PLAINTEXT"
    users: dict[str, str] = field(default_factory=lambda: {"alice": "alice-secret"}, repr=False)
    acls: dict[str, Acl] | None = None
    mechanisms: tuple[str, ...] = MECHANISMS
    wants_certificate: bool = False
    session_seconds: float = 0.0
    scram_iterations: int = _SCRAM_ITERATIONS
    wrong_signature: bool = False
    tls: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        if self.protocol not in PROTOCOLS:
            raise ValueError(f"security is one of {', '.join(PROTOCOLS)}, not {self.protocol!r}")
        unknown = [name for name in self.mechanisms if name not in MECHANISMS]
        if unknown:
            raise ValueError(f"the fake cluster knows {', '.join(MECHANISMS)}, not {', '.join(unknown)}")
        if self.uses_tls and self.tls is None:
            self.tls = broker_context(wants_certificate=self.wants_certificate)

    def acl(self, user: str) -> Acl:
        """What a user may do; "" is one who has not said who it is."""
        return EVERYTHING if self.acls is None else self.acls.get(user or ANONYMOUS, NOTHING)

    @property
    def uses_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.protocol.endswith("SSL")

    @property
    def uses_sasl(self) -> bool:
        """Whether clients authenticate by SASL."""
        return self.protocol.startswith("SASL")

    def client_options(self, mechanism: str | None = None, user: str | None = None) -> dict[str, str]:
        """What a client writes, bootstrap.servers aside; without arguments the first mechanism and user."""
        options = {"security.protocol": self.protocol}
        if self.uses_tls:
            options |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(CA_FILE)}
        if self.wants_certificate:
            options |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(CLIENT_FILE)}
        if self.uses_sasl:
            options |= self._sasl_options(mechanism or self.mechanisms[0], user or next(iter(self.users), ""))
        return options

    def _sasl_options(self, mechanism: str, user: str) -> Mapping[str, str]:
        if mechanism == "OAUTHBEARER":
            module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
            jaas = f'{module} required unsecuredLoginStringClaim_sub="{user}";'
            return {"sasl.mechanism": mechanism, "sasl.jaas.config": jaas}
        return {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": self.users.get(user, "")}


def broker_context(*, wants_certificate: bool = False) -> ssl.SSLContext:
    """The brokers' side of TLS, with the certificates of this package: localhost and 127.0.0.1."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(_BROKER_FILE)
    if wants_certificate:
        context.load_verify_locations(CA_FILE)
        context.verify_mode = ssl.CERT_REQUIRED
    return context
