# SPDX-License-Identifier: Apache-2.0
"""Secured listeners of a broker with ZooKeeper: what ``security`` has for newer ones, in the words of older releases.

Before 0.10.2 a listener has no name but its protocol, so there is one of each. Keys are in a store of Java's, and the
broker's side of SASL is in a JAAS file. Users of SCRAM are kept in ZooKeeper.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from penstock.devbroker.certificates import STORE_PASSWORD, Certificates
from penstock.devbroker.machine import DevBrokerError
from penstock.devbroker.releases.release import Release
from penstock.devbroker.security import (
    CHOICES,
    OAUTHBEARER,
    PLAIN,
    SCRAM_256,
    SCRAM_512,
    USERS,
    Listener,
    address,
    broker_jaas,
)
from penstock.devbroker.settings import HOST, KAFKA_VERSION, NodeAddress

CONFIG_COMMAND = "kafka.admin.ConfigCommand"
JAAS_FILE = "jaas.conf"
# By mechanism: the release that it came with.
_SINCE = {PLAIN: (0, 10), SCRAM_256: (0, 10, 2), SCRAM_512: (0, 10, 2), OAUTHBEARER: (2, 0)}
_SCRAM = (SCRAM_256, SCRAM_512)


def listeners_of(release: Release, security: str) -> tuple[Listener, ...]:
    """The listeners that a choice means on a release with ZooKeeper; ``all`` means those that it can have.

    Raises:
        DevBrokerError: It can have none of them.
    """
    possible = []
    for listener in CHOICES[security]:
        # Tokens came when listeners had names, which those here have not.
        known = tuple(
            each for each in listener.mechanisms if each != OAUTHBEARER and release.number >= _SINCE[each]
        )
        if listener.wants_certificate or (listener.mechanisms and not known):
            continue
        possible.append(replace(listener, mechanisms=known))
    if not possible:
        raise DevBrokerError(
            f"a broker of Kafka {release} cannot be started with --security {security} here: leave out --kafka to "
            f"start {KAFKA_VERSION}, which can have all of them, or choose --security tls"
        )
    return tuple(possible)


def old_listener_properties(
    node: NodeAddress, listeners: Sequence[Listener], certificates: Certificates
) -> dict[str, str]:
    """The broker's properties for its secured listeners; they replace some of ``zookeeper_properties``."""
    plain = f"PLAINTEXT://{HOST}:{node.port}"
    bound = [f"{each.protocol}://{HOST}:{node.secured_ports[each.name]}" for each in listeners]
    told = [f"{each.protocol}://{address(node, each)}" for each in listeners]
    properties = {
        "listeners": ",".join([plain, *bound]),
        "advertised.listeners": ",".join([plain, *told]),
        "security.inter.broker.protocol": "PLAINTEXT",
    }
    if any(listener.has_tls for listener in listeners):
        properties |= {
            "ssl.keystore.type": "JKS",
            "ssl.keystore.location": str(certificates.broker_store),
            "ssl.keystore.password": STORE_PASSWORD,
            "ssl.key.password": STORE_PASSWORD,
        }
    mechanisms = mechanisms_of(listeners)
    if mechanisms:
        properties["sasl.enabled.mechanisms"] = ",".join(mechanisms)
    return properties


def mechanisms_of(listeners: Iterable[Listener]) -> list[str]:
    """All SASL mechanisms of these listeners, each once."""
    return list(dict.fromkeys(each for listener in listeners for each in listener.mechanisms))


def jaas_text(listeners: Sequence[Listener]) -> str:
    """The JAAS file of a broker: one module for PLAIN, one for all of SCRAM."""
    modules = dict.fromkeys(broker_jaas(mechanism) for mechanism in mechanisms_of(listeners))
    return "KafkaServer {\n" + "".join(f"  {module}\n" for module in modules) + "};\n"


def jaas_options(path: Path) -> tuple[str, ...]:
    """Options of Java that make a broker read its JAAS file; its ZooKeeper asks for no password."""
    return (f"-Djava.security.auth.login.config={path}", "-Dzookeeper.sasl.client=false")


def scram_commands(listeners: Sequence[Listener], zookeeper: str) -> list[list[str]]:
    """Arguments of Kafka's configuration command, one list for each user of SCRAM."""
    mechanisms = [each for each in mechanisms_of(listeners) if each in _SCRAM]
    if not mechanisms:
        return []
    return [
        [
            *("--zookeeper", zookeeper, "--alter", "--entity-type", "users", "--entity-name", name),
            *("--add-config", ",".join(f"{mechanism}=[password={password}]" for mechanism in mechanisms)),
        ]
        for name, password in USERS.items()
    ]
