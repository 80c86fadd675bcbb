# SPDX-License-Identifier: Apache-2.0
"""Secured listeners of a development broker: TLS, client certificates, SASL, and what a client must write to use them.

The plain listener stays, for the brokers among themselves and for tools; the secured ones are beside it, each with a
port of its own. Users and passwords are fixed: the broker is for tests, and listens on this machine only.

Nothing here touches a process; `certificates` makes the files that are named here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from penstock.devbroker.certificates import Certificates
from penstock.devbroker.settings import HOST, NodeAddress, properties_text

# What a certificate of ours names. A client that checks names must be told this one, and not the address.
TLS_HOST = "localhost"
# Names and passwords of PLAIN and SCRAM. OAUTHBEARER has no passwords: a token names its user.
USERS: Final = MappingProxyType({"alice": "alice-secret", "bob": "bob-secret", "admin": "admin-secret"})
# The one in the options that are printed.
USER = "alice"

PLAIN = "PLAIN"
SCRAM_256 = "SCRAM-SHA-256"
SCRAM_512 = "SCRAM-SHA-512"
OAUTHBEARER = "OAUTHBEARER"
_MODULES = "org.apache.kafka.common.security"
_SCRAM = (SCRAM_256, SCRAM_512)


@dataclass(frozen=True)
class Listener:
    """A kind of listener.

    Attributes:
        name: Kafka's name for it.
        protocol: the client's ``security.protocol``.
        mechanisms: SASL mechanisms that it offers.
        wants_certificate: whether clients must have a certificate.
    """

    name: str
    protocol: str
    mechanisms: tuple[str, ...] = ()
    wants_certificate: bool = False

    @property
    def has_tls(self) -> bool:
        return self.protocol.endswith("SSL")


@dataclass(frozen=True)
class Access:
    """One way to connect: a listener, and the mechanism used there.

    Attributes:
        listener: where.
        mechanism: SASL mechanism, None without SASL.
    """

    listener: Listener
    mechanism: str | None = None

    @property
    def name(self) -> str:
        """A name for people and files, e.g. ``sasl_ssl-scram-sha-256``."""
        kind = "mtls" if self.listener.wants_certificate else self.listener.protocol.lower()
        return kind if self.mechanism is None else f"{kind}-{self.mechanism.lower()}"


def _sasl(*mechanisms: str) -> tuple[Listener, ...]:
    return (
        Listener("SASLTLS", "SASL_SSL", mechanisms),
        Listener("SASLPLAIN", "SASL_PLAINTEXT", mechanisms),
    )


_TLS = Listener("TLS", "SSL")
_MTLS = Listener("MTLS", "SSL", wants_certificate=True)
# What can be asked for, and which listeners it means; the first one is what most people want of it.
CHOICES: Final[Mapping[str, tuple[Listener, ...]]] = MappingProxyType(
    {
        "tls": (_TLS,),
        "mtls": (_MTLS,),
        "sasl-plain": _sasl(PLAIN),
        "scram": _sasl(*_SCRAM),
        "oauth": _sasl(OAUTHBEARER),
        "all": (_TLS, _MTLS, *_sasl(PLAIN, *_SCRAM, OAUTHBEARER)),
    }
)


def accesses(listeners: Sequence[Listener]) -> list[Access]:
    """Every way to connect to these listeners."""
    return [
        Access(listener, mechanism)
        for listener in listeners
        for mechanism in (listener.mechanisms or (None,))
    ]


def how_to_have(access: str) -> str:
    """How to start a cluster that has a way to connect, as a further sentence; where none can, the ways there are.

    Args:
        access: its name.
    """
    for choice, listeners in CHOICES.items():
        if access in (way.name for way in accesses(listeners)):
            return (
                f". Start one that has it: DevCluster(security={choice!r}), or from the command line "
                f"`penstock broker start --security {choice}`"
            )
    return f". There are {', '.join(way.name for way in accesses(CHOICES['all']))}"


def listener_properties(
    node: NodeAddress, listeners: Sequence[Listener], certificates: Certificates
) -> dict[str, str]:
    """The broker's properties for its secured listeners; they replace some of ``settings.server_properties``.

    Args:
        node: the node, with a port for each listener.
        listeners: the secured ones.
        certificates: the files; they need not exist yet.
    """
    plain = f"PLAINTEXT://{HOST}:{node.port}"
    bound = [plain, *(f"{each.name}://{HOST}:{node.secured_ports[each.name]}" for each in listeners)]
    told = [plain, *(f"{each.name}://{address(node, each)}" for each in listeners)]
    kinds = ["PLAINTEXT:PLAINTEXT", *(f"{each.name}:{each.protocol}" for each in listeners)]
    properties = {
        "listeners": ",".join([*bound, f"CONTROLLER://{HOST}:{node.controller_port}"]),
        "advertised.listeners": ",".join(told),
        "listener.security.protocol.map": ",".join([*kinds, "CONTROLLER:PLAINTEXT"]),
        # A test of a wrong password need not wait.
        "connection.failed.authentication.delay.ms": "0",
    }
    if any(listener.has_tls for listener in listeners):
        properties |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(certificates.broker),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(certificates.authority),
        }
    for listener in listeners:
        properties |= _properties_of(listener)
    return properties


def _properties_of(listener: Listener) -> dict[str, str]:
    prefix = f"listener.name.{listener.name.lower()}"
    properties: dict[str, str] = {}
    if listener.wants_certificate:
        properties[f"{prefix}.ssl.client.auth"] = "required"
        properties[f"{prefix}.ssl.principal.mapping.rules"] = "RULE:^CN=([^,]+).*$/$1/,DEFAULT"
    if listener.mechanisms:
        properties[f"{prefix}.sasl.enabled.mechanisms"] = ",".join(listener.mechanisms)
    for mechanism in listener.mechanisms:
        properties[f"{prefix}.{mechanism.lower()}.sasl.jaas.config"] = broker_jaas(mechanism)
    return properties


def broker_jaas(mechanism: str) -> str:
    """The broker's side of a mechanism, as one module of JAAS."""
    if mechanism == PLAIN:
        users = " ".join(f'user_{name}="{password}"' for name, password in USERS.items())
        return f"{_MODULES}.plain.PlainLoginModule required {users};"
    if mechanism == OAUTHBEARER:
        # Without options it takes tokens that nobody has signed.
        return f"{_MODULES}.oauthbearer.OAuthBearerLoginModule required;"
    return f"{_MODULES}.scram.ScramLoginModule required;"


def format_arguments() -> list[str]:
    """Arguments with which Kafka's storage is made: the users of SCRAM are kept there.

    Also where no listener asks for them yet: the same data may be started with other listeners later.
    """
    return [
        argument
        for mechanism in _SCRAM
        for name, password in USERS.items()
        for argument in ("--add-scram", f"{mechanism}=[name={name},password={password}]")
    ]


def address(node: NodeAddress, listener: Listener) -> str:
    """Where clients find a listener."""
    return f"{TLS_HOST if listener.has_tls else HOST}:{node.secured_ports[listener.name]}"


def client_options(
    access: Access, nodes: Sequence[NodeAddress], certificates: Certificates
) -> dict[str, str]:
    """What a client writes to connect that way, by the names of Java's client."""
    listener, mechanism = access.listener, access.mechanism
    options = {
        "bootstrap.servers": ",".join(address(node, listener) for node in nodes),
        "security.protocol": listener.protocol,
    }
    if listener.has_tls:
        options |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(certificates.authority)}
    if listener.wants_certificate:
        options |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(certificates.client)}
    if mechanism is not None:
        options |= {"sasl.mechanism": mechanism, "sasl.jaas.config": _client_jaas(mechanism)}
    return options


def _client_jaas(mechanism: str) -> str:
    if mechanism == OAUTHBEARER:
        return (
            f'{_MODULES}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="{USER}";'
        )
    kind = "plain.Plain" if mechanism == PLAIN else "scram.Scram"
    return f'{_MODULES}.{kind}LoginModule required username="{USER}" password="{USERS[USER]}";'


def write_client_files(
    folder: Path, listeners: Sequence[Listener], nodes: Sequence[NodeAddress], certificates: Certificates
) -> dict[str, Path]:
    """Write a properties file for every way to connect; which file each has, by the name of the way."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    written: dict[str, Path] = {}
    for access in accesses(listeners):
        path = folder / f"{access.name}.properties"
        path.touch(mode=0o600)
        path.write_text(properties_text(client_options(access, nodes, certificates)), encoding="ascii")
        written[access.name] = path
    return written
