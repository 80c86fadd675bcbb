# SPDX-License-Identifier: Apache-2.0
"""How much memory a producer takes whose batches are converted, while its broker is frozen and memory is used up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fix_flood import BUFFER_MEMORY, Outage, outage_under_load

from brokers.table import Cell
from penstock.devbroker import DevCluster

_TOPIC = "memory"
_SIZES = (1000, 10)  # of values; a small record takes more than twice its room when it is converted
_MOST = BUFFER_MEMORY + 40_000_000


@dataclass(frozen=True)
class MemoryWhileConverting:
    """One broker of an old release, and a process that sends as fast as it can."""

    old: str
    name: str = "memory while converting"

    def run(self, say: Callable[[str], None]) -> Cell:
        """Measure it for large and small records; a cell of the table."""
        problems = []
        # Else ZooKeeper gives up a broker that is frozen for some seconds.
        properties = {"zookeeper.session.timeout.ms": 60_000}
        with DevCluster(kafka=self.old, heap_mb=384, properties=properties) as cluster:
            for size in _SIZES:
                topic = f"{_TOPIC}-{size}"
                cluster.create_topic(topic, 6)
                options = {
                    "bootstrap.servers": cluster.bootstrap_servers,
                    "broker.version.fallback": "0.9.0",
                    "compression.type": "none" if size > 100 else "lz4",
                }
                outage = outage_under_load(cluster, options, topic, size=size, frozen=True)
                say(
                    f"{self.old}: values of {size} bytes: {outage.megabytes:.1f} MB above the idle interpreter, "
                    f"{sum(outage.settled['accepted'])} records, {outage.settled['converted']} converted"
                )
                problems += [f"values of {size} bytes: {text}" for text in too_much(outage)]
        return Cell(self.name, self.old, "FAILED" if problems else "ok", problems)


def too_much(outage: Outage) -> list[str]:
    """What is wrong with a run."""
    settled = outage.settled
    problems = []
    if outage.megabytes * 1e6 > _MOST:
        problems.append(f"{outage.megabytes:.1f} MB, more than buffer.memory and 40 MB")
    if settled["errors"] or settled["acknowledged"] != sum(settled["accepted"]):
        problems.append(f"{settled['acknowledged']} records were acknowledged, errors {settled['errors']}")
    if settled["converted"] < settled["acknowledged"]:
        problems.append(f"only {settled['converted']} records were converted")
    return problems


MEMORY = (MemoryWhileConverting("0.9.0.1"), MemoryWhileConverting("0.10.2.2"))
