# SPDX-License-Identifier: Apache-2.0
"""What several integration tests need: the batches that went out, and the log files of a whole topic."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest
from fix_broker import LoggedBatch, parse_dump

from penstock.devbroker import DevCluster
from penstock.devbroker.settings import QUICK_JVM
from penstock.producer.io import _sender_cy as sender
from penstock.protocol._produce_cy import PartitionBatch, ProduceRequest

TOPIC_COMMAND = "org.apache.kafka.tools.TopicCommand"
CONSOLE_PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
_DUMP = "org.apache.kafka.tools.DumpLogSegments"

Place = tuple[str, int]


class SentBatches:
    """Notes every batch that producers put into a request, while it watches."""

    def __init__(self) -> None:
        self.by_partition: defaultdict[Place, list[bytes]] = defaultdict(list)

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        noted = self.by_partition

        class NotedRequest(ProduceRequest):
            def __init__(
                self, acks: int, timeout_ms: int, batches: Sequence[PartitionBatch], *args: Any, **kw: Any
            ):
                for batch in batches:
                    noted[batch.topic, batch.partition].append(bytes(batch.records))
                super().__init__(acks, timeout_ms, batches, *args, **kw)

        patch.setattr(sender, "ProduceRequest", NotedRequest)

    def checksums(self, topic: str, partition: int) -> list[tuple[int, int]]:
        """Size and checksum of each batch, in the order in which they went out."""
        return [
            (len(batch), int.from_bytes(batch[17:21], "big"))  # where the format has its checksum
            for batch in self.by_partition[topic, partition]
        ]


def dump_topic(cluster: DevCluster, topic: str) -> dict[int, list[LoggedBatch]]:
    """Read the log files of all partitions of a topic with one run of Kafka's log dump."""
    files = [
        str(name)
        for path in cluster.log_dirs().values()
        for name in sorted(path.glob(f"{topic}-[0-9]*/*.log"))
    ]
    done = cluster.run_tool(_DUMP, "--deep-iteration", "--files", ",".join(files), jvm=QUICK_JVM)
    assert done.returncode == 0, done.stderr
    found: defaultdict[int, list[LoggedBatch]] = defaultdict(list)
    for text in done.stdout.split("Dumping ")[1:]:
        name = re.match(r"\S*-(\d+)/\d+\.log\n", text)
        assert name is not None, text[:200]
        found[int(name[1])] += parse_dump(text)
    return dict(found)


def grow_topic(cluster: DevCluster, topic: str, partitions: int) -> None:
    """Give a topic more partitions."""
    done = cluster.run_tool(
        TOPIC_COMMAND,
        *("--bootstrap-server", cluster.bootstrap_servers, "--alter", "--topic", topic),
        *("--partitions", str(partitions)),
        jvm=QUICK_JVM,
    )
    assert done.returncode == 0, done.stdout + done.stderr
