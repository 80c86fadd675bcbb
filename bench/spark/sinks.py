# SPDX-License-Identifier: Apache-2.0
"""The sinks that are compared, and the connector's jars, which are fetched as the broker's are."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from penstock.devbroker.releases import fetch
from penstock.devbroker.releases.jars import Dependency, JarSet
from penstock.devbroker.settings import SCALA_VERSION, cache_home

# The newest Spark whose connector is there with all it needs. Newer ones run the same sinks, but have no connector yet.
SPARK_VERSION = "4.2.0"
BUFFER_MEMORY = 32 << 20  # Penstock's default
TUNED = {
    "kafka.acks": "all",
    "kafka.enable.idempotence": "true",
    "kafka.batch.size": str(128 * 1024),
    "kafka.linger.ms": "5",
}


@dataclass(frozen=True)
class Sink:
    """Somebody who takes rows from Spark.

    Attributes:
        settings: of its session, besides those that all have.
        options: of its writer.
        needs_jars: whether the connector's jars are put into its session.
        counts_at_broker: whether its rows end there.
    """

    name: str
    title: str
    format: str
    options: Mapping[str, str] = field(default_factory=dict)
    needs_jars: bool = False
    counts_at_broker: bool = True


PENSTOCK = Sink("penstock-spark", "Penstock, exactly once", "penstock", {**TUNED, "delivery": "exactly-once"})
CONNECTOR = Sink("spark-connector", "Spark's connector, tuned", "kafka", TUNED, needs_jars=True)
CONNECTOR_DEFAULT = Sink("spark-connector-default", "Spark's connector, default", "kafka", needs_jars=True)
AT_LEAST_ONCE = Sink(
    "penstock-spark-alo", "Penstock, at least once", "penstock", {**TUNED, "delivery": "at-least-once"}
)
COUNTING = Sink("spark-counting", "a Python sink that only counts", "bench-counting", counts_at_broker=False)

_SPARK = "org.apache.spark"
_CONNECTOR = f"spark-sql-kafka-0-10_{SCALA_VERSION}"
_TOKENS = f"spark-token-provider-kafka-0-10_{SCALA_VERSION}"
# The versions that the connector names, but for the token provider: that of 4.2.0 was never published. It is asked only
# when somebody uses delegation tokens, and 4.0.0 has the same methods.
CONNECTOR_JARS = JarSet(
    f"Spark's Kafka connector {SPARK_VERSION}",
    f"spark-kafka-{SPARK_VERSION}",
    (
        Dependency(_SPARK, _CONNECTOR, SPARK_VERSION, transitive=False),
        Dependency(_SPARK, _TOKENS, "4.0.0", transitive=False),
        Dependency("org.apache.kafka", "kafka-clients", "3.9.2", transitive=False),
        Dependency("org.apache.commons", "commons-pool2", "2.13.1", transitive=False),
    ),
    {
        f"{_CONNECTOR}-{SPARK_VERSION}.jar": "64539c45e5d39f7ddb747312c239f38f5208d08c1a0ddf7d70beb2fbd9373705",
        f"{_TOKENS}-4.0.0.jar": "f2be3b76f9e6cbe63379d4e4e0dc14f59dbf056ae2ad16ff15ac108004c86767",
        "kafka-clients-3.9.2.jar": "014b4ef36884478a932641818b080c36a8f8e2e92dc771e800c9d2694f4f83d8",
        "commons-pool2-2.13.1.jar": "f77a5060d6936a9144023584232f9de3f2248f1abfe156e9d31795f18770674f",
    },
)


def has_penstock() -> bool:
    """Whether Penstock has its data source: a module that Spark finds by its name."""
    return importlib.util.find_spec("pyspark_penstock") is not None


def jars_there() -> bool:
    """Whether this user has the connector's jars."""
    return fetch.is_complete(cache_home() / CONNECTOR_JARS.folder, CONNECTOR_JARS)


def connector_jars(stream: TextIO | None = None) -> list[Path]:
    """The connector's jars, after fetching them if need be.

    Raises:
        DevBrokerError: they could not be fetched.
    """
    return sorted(fetch.fetch_jars(CONNECTOR_JARS, stream=stream).glob("*.jar"))
