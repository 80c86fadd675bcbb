# SPDX-License-Identifier: Apache-2.0
"""Where records without a key go when the user has no partitioner: uniform, sticky by bytes, adaptive, rack aware.

A topic stays with one partition for about batch.size bytes (`_queue_cy` counts them, under the partition's lock);
here is the choice of the next one. Uniform over the partitions that have a leader, or weighted so that partitions whose
queues are short, and thus whose brokers are fast, get more.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock.producer.batch._choice_cy import LoadTable, StickyChoice, TopicLoad
from penstock.producer.batch._queue_cy import TopicState
from penstock.producer.metadata.cluster import ClusterSnapshot

__all__ = ["BuiltInPartitioner", "LoadTable", "PartitionerSettings", "TopicLoad"]


class PartitionerSettings(NamedTuple):
    """The options partitioner.* that concern records without a key."""

    adaptive: bool = True
    availability_timeout_ms: int = 0
    rack: str | None = None  # prefer leaders in this rack; None: racks do not matter


class BuiltInPartitioner(StickyChoice):
    """Chooses the next sticky partition.

    Args:
        settings: the options.
        snapshot: gives the cluster as it is known now.
        rng: the source of chance.

    Attributes:
        adaptive: whether queue lengths matter.
        availability_timeout: seconds after which a partition whose broker takes nothing is left out; 0: never.
        plain: whether, where every partition has a leader, nothing but lengths matters.
    """

    def __init__(
        self, settings: PartitionerSettings, snapshot: Callable[[], ClusterSnapshot], rng: random.Random
    ) -> None:
        super().__init__(rng)
        self._settings = settings
        self._snapshot = snapshot
        self.adaptive = settings.adaptive
        self.availability_timeout = settings.availability_timeout_ms / 1000
        self.plain = settings.adaptive and settings.rack is None and settings.availability_timeout_ms <= 0

    def candidates(self, topic: str) -> list[int]:
        """The partitions with a leader, or those of them that are led from our rack where there are any."""
        snapshot = self._snapshot()
        led = snapshot.available_partitions(topic)
        if self._settings.rack is None:
            return led
        return self._in_rack(snapshot, topic, led) or led

    def update_load(self, topic: TopicState, lengths: Sequence[tuple[int, int]], excluded: bool) -> None:
        """Take note of queue lengths. I/O thread.

        Args:
            topic: the topic; every partition of it has had a batch.
            lengths: (partition, batches waiting) of the partitions that may be chosen.
            excluded: some partitions were left out because their brokers do not take anything.
        """
        if not self._settings.adaptive or not lengths or len(topic.queues) < 2:
            topic.load = None
            return
        uneven = len({length for _, length in lengths}) > 1
        if not uneven and not excluded:
            topic.load = None
            return
        in_rack = None
        if self._settings.rack is not None:
            near = set(self._in_rack(self._snapshot(), topic.name, [partition for partition, _ in lengths]))
            nearby = [pair for pair in lengths if pair[0] in near]
            in_rack = LoadTable.of(nearby) if nearby else None
        topic.load = TopicLoad(LoadTable.of(lengths), in_rack)

    def _in_rack(self, snapshot: ClusterSnapshot, topic: str, partitions: Sequence[int]) -> list[int]:
        chosen = []
        for partition in partitions:
            leader = snapshot.leader(topic, partition)
            if leader is not None and leader.rack == self._settings.rack:
                chosen.append(partition)
        return chosen
