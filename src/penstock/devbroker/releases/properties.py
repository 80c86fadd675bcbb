# SPDX-License-Identifier: Apache-2.0
"""The properties of a broker that keeps its cluster's state in ZooKeeper.

``settings.server_properties`` has those of brokers that do not. A property that a release does not know is left out:
it would only be warned about, but a reader would take it for a setting.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from penstock.devbroker.releases.release import Release
from penstock.devbroker.settings import HOST, NodeAddress


def zookeeper_properties(
    release: Release, node: NodeAddress, size: int, log_dir: Path, extra: Mapping[str, object]
) -> dict[str, str]:
    """Return the properties of one broker; ZooKeeper has the controller port of its address.

    Args:
        release: What the broker runs.
        node: The broker.
        size: How many brokers there are.
        log_dir: Where Kafka keeps its records.
        extra: Properties of the caller; they win over the ones chosen here.
    """
    copies = min(3, size)
    chosen: dict[str, object] = {
        "broker.id": node.node_id,
        "listeners": f"PLAINTEXT://{HOST}:{node.port}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{node.port}",
        "zookeeper.connect": f"{HOST}:{node.controller_port}",
        "zookeeper.connection.timeout.ms": 30_000,
        # A killed broker may not come back before its old session has ended.
        "zookeeper.session.timeout.ms": 4000,
        "controlled.shutdown.retry.backoff.ms": 500,
        "log.dirs": log_dir,
        "auto.create.topics.enable": "true",
        "delete.topic.enable": "true",
        "offsets.topic.replication.factor": copies,
        "offsets.topic.num.partitions": 4,
        "num.network.threads": 2,
        "num.io.threads": 4,
        "background.threads": 2,
        "num.recovery.threads.per.data.dir": 1,
        "log.cleaner.threads": 1,
        "log.cleaner.dedupe.buffer.size": 4 * 1024 * 1024,
    }
    if release.number >= (0, 11):
        chosen |= {
            "group.initial.rebalance.delay.ms": 0,
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": min(2, size),
            "transaction.state.log.num.partitions": 4,
        }
    return {name: str(value) for name, value in {**chosen, **extra}.items()}
