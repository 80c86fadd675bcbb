# SPDX-License-Identifier: Apache-2.0
"""A new broker that is frozen when a producer comes for the first time is not taken for an old one."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from brokers.readers import read_by_another_client
from brokers.records import Sent, difference
from brokers.scene import Warnings
from brokers.segments import end_offset, stored
from brokers.table import Cell
from brokers.traits import Traits
from penstock import Producer
from penstock.devbroker import KAFKA_VERSION, DevCluster

_TOPIC = "frozen"
_LIMIT = 120.0
_RECORDS = 200


class FrozenAtFirstContact:
    """One broker that is stopped (SIGSTOP) before a producer is made, and goes on after some seconds."""

    old = KAFKA_VERSION
    name = "frozen at first contact"
    seconds = (1.0, 4.0, 11.0, 30.0)

    def run(self, say: Callable[[str], None]) -> Cell:
        """Freeze it for each of these times; a cell of the table."""
        problems: list[str] = []
        sent: list[Sent] = []
        with DevCluster(kafka=self.old, heap_mb=256) as cluster:
            cluster.create_topic(_TOPIC, 1)
            for seconds in self.seconds:
                records = [Sent(b"%g" % seconds, b"%d" % number) for number in range(_RECORDS)]
                problems += [f"{seconds:g} s: {text}" for text in _contact(cluster, seconds, records)]
                sent += records
                say(f"{self.old}: was frozen for {seconds:g} s at first contact")
            entries = stored(cluster.nodes[0].log_dir, _TOPIC)
            without = [entry for entry in entries if entry.producer_id < 0]
            if without:
                problems.append(f"{len(without)} of {len(entries)} batches have no producer id")
            end = end_offset(entries)
            wrong = difference(
                sent, read_by_another_client(cluster.bootstrap_servers, Traits(self.old), _TOPIC, end)
            )
            if wrong is not None:
                problems.append(wrong)
        return Cell(self.name, self.old, "FAILED" if problems else "ok", problems)


def _contact(cluster: DevCluster, seconds: float, records: list[Sent]) -> list[str]:
    """Write records with default settings to a broker that is frozen; what went wrong."""
    warnings = Warnings()
    logger = logging.getLogger("penstock")
    logger.addHandler(warnings)
    node_id = cluster.nodes[0].node_id
    cluster.pause(node_id)
    thaw = threading.Timer(seconds, cluster.resume, [node_id])
    thaw.start()
    try:
        with Producer(
            bootstrap_servers=cluster.bootstrap_servers, max_block_ms=int(_LIMIT * 1000)
        ) as producer:
            deliveries = [producer.send(_TOPIC, record.value, record.key) for record in records]
            producer.flush(_LIMIT)
            failed = [error for each in deliveries if (error := each.exception(0)) is not None]
            enabled = producer.metrics()["producer-metrics"]["idempotence-enabled"]
    finally:
        thaw.join()
        logger.removeHandler(warnings)
    problems = [f"{len(failed)} records failed: {failed[0]}"] if failed else []
    if not enabled:
        problems.append("idempotence was switched off")
    return problems + [text for text in warnings.texts if "is taken for" in text]
