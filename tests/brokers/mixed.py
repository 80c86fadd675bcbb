# SPDX-License-Identifier: Apache-2.0
"""A cluster whose brokers store different message formats, under load: nothing is lost, doubled or reordered.

All brokers are of one release, and take batches with numbers; those with an older log.message.format.version refuse the
numbers and convert the rest themselves. So the producer converts nothing, and must go without numbers there, and only
there. Records with headers are refused there.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from brokers.load import PARTITIONS, Load
from brokers.readers import ReadingFailed, read_by_another_client
from brokers.records import difference
from brokers.scene import Warnings
from brokers.segments import Entry, end_offset, stored
from brokers.table import Cell
from brokers.traits import Traits
from penstock import Producer
from penstock.devbroker import DevCluster
from penstock.errors import InvalidRecordError

_TOPIC = "mixed"
_SECONDS = 6.0
_LIMIT = 60.0
_MAGIC_2 = 2


class MixedFormats:
    """Three brokers of one release, each with a message format of its own."""

    old = "2.8.2"
    name = "mixed message formats"
    formats = ("0.9.0", "0.10.2", "2.8")

    def run(self, say: Callable[[str], None]) -> Cell:
        """Start them, write for some seconds, and compare; a cell of the table."""
        problems: list[str] = []
        warnings = Warnings()
        logger = logging.getLogger("penstock")
        with DevCluster(3, kafka=self.old, heap_mb=192) as cluster:
            for node, version in zip(cluster.nodes, self.formats, strict=True):
                cluster.upgrade(node.node_id, self.old, {"log.message.format.version": version})
            cluster.create_topic(_TOPIC, PARTITIONS, len(self.formats))
            logger.addHandler(warnings)
            try:
                load = Load(cluster.bootstrap_servers, _TOPIC)
                time.sleep(_SECONDS)
                problems += load.end()
            finally:
                logger.removeHandler(warnings)
            entries = [stored(cluster.nodes[0].log_dir, _TOPIC, partition) for partition in range(PARTITIONS)]
            say(
                f"{self.old}: {len(load.deliveries)} records in formats "
                f"{[sorted({entry.magic for entry in found}) for found in entries]}, "
                f"{load.totals['record-conversion-total']:.0f} converted by the producer"
            )
            problems += wrong_formats(entries)
            problems += wrongly_told(load.totals["idempotence-enabled"], warnings.texts)
            for partition, sent in enumerate(load.sent):
                try:
                    found = read_by_another_client(
                        cluster.bootstrap_servers,
                        Traits(self.old),
                        _TOPIC,
                        end_offset(entries[partition]),
                        partition=partition,
                    )
                except ReadingFailed as error:
                    problems.append(str(error))
                    continue
                wrong = difference(sent, found)
                if wrong is not None:
                    problems.append(f"partition {partition}: {wrong}")
            problems += _lost_headers(cluster, entries)
        return Cell(self.name, self.old, "FAILED" if problems else "ok", problems)


def _lost_headers(cluster: DevCluster, partitions: list[list[Entry]]) -> list[str]:
    """Send a record with headers to each partition: one whose format has none must refuse it."""
    problems = []
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for partition, entries in enumerate(partitions):
            delivery = producer.send(_TOPIC, b"with headers", partition=partition, headers=[("h", b"1")])
            error = delivery.exception(_LIMIT)
            if (error is None) != (entries[0].magic == _MAGIC_2):
                problems.append(f"partition {partition}, magic {entries[0].magic}: headers, and {error!r}")
            elif error is not None and not isinstance(error, InvalidRecordError):
                problems.append(f"partition {partition}: headers are refused with {error!r}")
    return problems


def wrong_formats(partitions: list[list[Entry]]) -> list[str]:
    """Each partition has the format of its leader, and is numbered where the format has numbers."""
    magics = [sorted({entry.magic for entry in entries}) for entries in partitions]
    if sorted(magics) != [[0], [1], [_MAGIC_2]]:
        return [f"partitions are stored with magic {magics}"]
    unnumbered = [
        entry
        for entries in partitions
        for entry in entries
        if entry.magic == _MAGIC_2 and entry.producer_id < 0
    ]
    return [f"{len(unnumbered)} batches of magic 2 have no numbers"] if unnumbered else []


def wrongly_told(enabled: float, warnings: list[str]) -> list[str]:
    """That idempotence is off somewhere is said once, and by the metric."""
    told = [text for text in warnings if "idempotence is switched off" in text]
    problems = [] if len(told) == 1 else [f"that idempotence is off was said {len(told)} times: {warnings}"]
    return problems if not enabled else [*problems, "idempotence-enabled is not 0"]
