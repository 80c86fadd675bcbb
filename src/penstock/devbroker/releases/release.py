# SPDX-License-Identifier: Apache-2.0
"""The releases of Apache Kafka that can be started, and in what they differ for the one who starts them.

All of them run on Java 17. A release that is not here is added by a row of ``_ROOTS`` and, written by
``tools/pin_kafka.py``, its jars in ``pinned``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Final

from penstock.devbroker.machine import DevBrokerError
from penstock.devbroker.releases.jars import Dependency, JarSet
from penstock.devbroker.releases.pinned import JARS
from penstock.devbroker.settings import KAFKA_VERSION

_LOG4J_1 = ("log4j:log4j:1.2.17", "org.slf4j:slf4j-api:1.7.30", "org.slf4j:slf4j-log4j12:1.7.30")
# Java 17 has no javax.xml.bind any more.
_XML_BINDING = "javax.xml.bind:jaxb-api:2.3.1"

# By release: the version of Scala, and the modules that are taken beside the server and what it depends on. One that
# the server depends on in another version is replaced.
_ROOTS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = MappingProxyType(
    {
        "0.9.0.1": ("2.11", _LOG4J_1),
        "0.10.0.1": ("2.11", _LOG4J_1),
        "0.10.2.2": ("2.12", (*_LOG4J_1, _XML_BINDING)),
        "0.11.0.3": ("2.12", (*_LOG4J_1, _XML_BINDING)),
        "1.1.1": ("2.12", _LOG4J_1),
        # The ZooKeeper 3.4.13 that it names cannot resolve addresses on Java 17.
        "2.1.1": ("2.12", (*_LOG4J_1, "org.apache.zookeeper:zookeeper:3.4.12")),
        "2.8.2": ("2.13", _LOG4J_1),
        # The tools are taken alone: what they need beyond the server's jars is Kafka Connect with a web server, twice
        # the download for one tool that is of no use here.
        "3.9.1": ("2.13", (*_LOG4J_1, "org.apache.kafka:kafka-tools:3.9.1")),
        # The log binding lets slf4j, Kafka's interface, reach log4j.
        "4.3.1": (
            "2.13",
            (
                "org.apache.kafka:kafka-tools:4.3.1",
                "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4",
            ),
        ),
    }
)

# What a broker writes to its log when it is up: with KRaft, from 1.1 on, and before.
_STARTED = re.compile(r"Kafka Server started|\[KafkaServer id=\d+\] started|\[Kafka Server \d+\], started")


@dataclass(frozen=True)
class Release:
    """A release of Apache Kafka.

    Attributes:
        version: such as ``2.8.2``.
    """

    version: str

    def __str__(self) -> str:
        return self.version

    @cached_property
    def number(self) -> tuple[int, ...]:
        """The version for comparisons: ``release.number >= (0, 10, 2)``."""
        return tuple(int(part) for part in self.version.split("."))

    @property
    def needs_zookeeper(self) -> bool:
        return self.number < (3, 3)

    @property
    def has_log4j_2(self) -> bool:
        return self.number >= (4,)

    @property
    def roots(self) -> tuple[Dependency, ...]:
        """The modules that its jars are resolved from, the server first; the others come alone."""
        scala, others = _ROOTS[self.version]
        server = Dependency("org.apache.kafka", f"kafka_{scala}", self.version, transitive=True)
        return (server, *map(Dependency.parse, others))

    @property
    def jars(self) -> JarSet:
        return JarSet.pinned(
            f"Apache Kafka {self.version}", f"kafka-{self.version}", JARS.get(self.version, {})
        )

    def can_read_data_of(self, other: Release) -> bool:
        """Whether its brokers can go on with the data of another release."""
        return self.needs_zookeeper == other.needs_zookeeper and self.number >= other.number

    def has_started(self, log: str) -> bool:
        """Whether a broker that has written this log is up."""
        return _STARTED.search(log) is not None


# From the oldest to the newest.
RELEASES: Final[tuple[str, ...]] = tuple(_ROOTS)
NEWEST: Final = Release(KAFKA_VERSION)


def find_release(version: str) -> Release:
    """Return a release by its version.

    Raises:
        DevBrokerError: It is not one of those that can be started.
    """
    if version not in _ROOTS:
        raise DevBrokerError(f"Kafka {version} cannot be started here; these can: {', '.join(RELEASES)}")
    return Release(version)
