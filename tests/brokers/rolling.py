# SPDX-License-Identifier: Apache-2.0
"""A rolling upgrade under load: three brokers go from one release to another, one by one, while records are written.

Between two steps the cluster is one of mixed releases, and so of mixed message formats where the older one knows no
magic 2. Every broker is waited for until all replicas are in sync again, as an operator would.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from brokers.load import LIMIT, PARTITIONS, Load
from brokers.readers import ReadingFailed, read_by_another_client
from brokers.records import difference, without_repeats
from brokers.segments import end_offset, stored
from brokers.table import Cell
from brokers.traits import Traits
from penstock.devbroker import DevCluster
from penstock.devbroker.releases.probe import try_view

TOPIC = "rolling"


@dataclass(frozen=True)
class Upgrade:
    """From a release to another; both keep the cluster's state in ZooKeeper."""

    old: str
    new: str

    @property
    def name(self) -> str:
        return f"rolling upgrade to {self.new}"

    def run(self, say: Callable[[str], None]) -> Cell:
        return run_upgrade(self, say)

    def properties(self, protocol: str) -> dict[str, object]:
        """What all brokers have while they use the protocol of a release among themselves."""
        version = ".".join(protocol.split(".")[: 3 if protocol.startswith("0.") else 2])
        formats = {"log.message.format.version": version} if Traits(self.new).number < (3,) else {}
        return {"inter.broker.protocol.version": version, "min.insync.replicas": 2, **formats}


UPGRADES = (Upgrade("0.10.2.2", "0.11.0.3"), Upgrade("2.8.2", "3.9.1"))


def run_upgrade(upgrade: Upgrade, say: Callable[[str], None]) -> Cell:
    """Upgrade a cluster of three; a cell of the table."""
    properties = upgrade.properties(upgrade.old)
    with DevCluster(3, kafka=upgrade.old, heap_mb=192, properties=properties) as cluster:
        cluster.create_topic(TOPIC, PARTITIONS, 3)
        # Without idempotence only one request at a time keeps the order.
        numbered = Traits(upgrade.old).has_idempotence
        options = {} if numbered else {"max_in_flight_requests_per_connection": 1}
        load = Load(cluster.bootstrap_servers, TOPIC, **options)
        problems = []
        try:
            for node in cluster.nodes:
                cluster.upgrade(node.node_id, upgrade.new)
                _wait_until_in_sync(cluster)
                say(f"{upgrade.old}: node {node.node_id} runs {upgrade.new}; {len(load.deliveries)} records")
            converted = load.conversions()
            for node in cluster.nodes:
                cluster.upgrade(node.node_id, upgrade.new, upgrade.properties(upgrade.new))
                _wait_until_in_sync(cluster)
        finally:
            problems += load.end()
        problems += miscounted(upgrade, load, converted)
        say(
            f"{upgrade.old}: {len(load.deliveries)} records were written over six restarts, "
            f"{load.totals['record-conversion-total']:.0f} of them converted"
        )
        problems += _compare(cluster, upgrade, load)
    return Cell(upgrade.name, upgrade.old, "FAILED" if problems else "ok", problems)


def miscounted(upgrade: Upgrade, load: Load, when_all_were_new: int) -> list[str]:
    """What is wrong with the number of conversions: only old leaders need them."""
    total = int(load.totals["record-conversion-total"])
    if Traits(upgrade.old).magic == Traits(upgrade.new).magic:
        return [f"{total} records were converted, and none had to be"] if total else []
    if not total:
        return ["no record was converted, although leaders were old"]
    if total >= len(load.deliveries):
        return [f"{total} of {len(load.deliveries)} records were converted, also for new leaders"]
    late = total - when_all_were_new
    return [f"{late} records were converted when all leaders were new"] if late else []


def _wait_until_in_sync(cluster: DevCluster) -> None:
    deadline = time.monotonic() + LIMIT
    while True:
        view = try_view(cluster.nodes[0].port, TOPIC)
        if view is not None and [view.in_sync.get((TOPIC, p)) for p in range(PARTITIONS)] == [3] * PARTITIONS:
            return
        if time.monotonic() >= deadline:
            raise ReadingFailed("the replicas did not come back into sync")
        time.sleep(0.1)


def _compare(cluster: DevCluster, upgrade: Upgrade, load: Load) -> list[str]:
    """Lost, doubled or reordered records, by partition."""
    problems = []
    for partition, sent in enumerate(load.sent):
        try:
            end = end_offset(stored(cluster.nodes[0].log_dir, TOPIC, partition))
            found = read_by_another_client(
                cluster.bootstrap_servers, Traits(upgrade.new), TOPIC, end, partition=partition
            )
        except ReadingFailed as error:
            problems.append(str(error))
            continue
        wrong = difference(sent, found if Traits(upgrade.old).has_idempotence else without_repeats(found))
        if wrong is not None:
            problems.append(f"partition {partition}: {wrong}")
    return problems
