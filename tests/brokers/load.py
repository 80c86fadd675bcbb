# SPDX-License-Identifier: Apache-2.0
"""A producer that writes while something happens to its cluster."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from brokers.records import Sent
from penstock import Delivery, Producer, errors

PARTITIONS = 3
LIMIT = 180.0
_EACH_TIME = tuple(range(PARTITIONS)) * 5  # the partitions of the records between two pauses


class Load:
    """Writes numbered records, each to a given partition, until it is told to end.

    Attributes:
        totals: the producer's metrics at the end.
    """

    def __init__(self, servers: str, topic: str, **options: object) -> None:
        timeout = int(LIMIT * 1000)
        self._producer = Producer(bootstrap_servers=servers, delivery_timeout_ms=timeout, **options)
        self._topic = topic
        self.sent: list[list[Sent]] = [[] for _ in range(PARTITIONS)]
        self.deliveries: list[Delivery] = []
        self.failure: errors.KafkaError | None = None
        self.totals: Mapping[str, float] = {}
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def conversions(self) -> int:
        """How many records were converted for old leaders so far."""
        return int(self._producer.metrics()["producer-metrics"]["record-conversion-total"])

    def _run(self) -> None:
        number = 0
        try:
            while not self._ending.wait(0.005):
                for partition in _EACH_TIME:
                    record = Sent(b"%d" % number, b"value %d" % number)
                    self.sent[partition].append(record)
                    self.deliveries.append(
                        self._producer.send(self._topic, record.value, record.key, partition=partition)
                    )
                    number += 1
        except errors.KafkaError as error:
            self.failure = error

    def end(self) -> list[str]:
        """Stop writing, wait for all; what went wrong."""
        self._ending.set()
        self._thread.join(LIMIT)
        problems = [] if self.failure is None else [f"send: {self.failure}"]
        with self._producer:
            self._producer.flush(timeout=LIMIT)
            failed = [error for each in self.deliveries if (error := each.exception(timeout=0)) is not None]
            self.totals = self._producer.metrics()["producer-metrics"]
        if failed:
            problems.append(f"{len(failed)} of {len(self.deliveries)} records failed: {failed[0]}")
        return problems
