# SPDX-License-Identifier: Apache-2.0
"""Where records without a key go when the user has no partitioner: uniform, sticky by bytes, adaptive, rack aware.

A topic stays with one partition for about batch.size bytes (`_queue_cy` counts them, under the partition's lock);
here is the choice of the next one. Uniform over the partitions that have a leader, or weighted so that partitions whose
queues are short, and thus whose brokers are fast, get more.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

from penstock.producer._queue_cy import TopicState
from penstock.producer.cluster import ClusterSnapshot


class PartitionerSettings(NamedTuple):
    """The options partitioner.* that concern records without a key."""

    adaptive: bool = True
    availability_timeout_ms: int = 0
    rack: str | None = None  # prefer leaders in this rack; None: racks do not matter


class LoadTable(NamedTuple):
    """Partitions, and running sums of their weights."""

    partitions: tuple[int, ...]
    cumulative: tuple[int, ...]

    @classmethod
    def of(cls, lengths: Sequence[tuple[int, int]]) -> LoadTable:
        """Weights from (partition, queue length): the longest queue weighs 1, each batch less adds 1."""
        partitions, counts = zip(*lengths, strict=True)
        most = max(counts) + 1
        return cls(partitions, tuple(accumulate([most - count for count in counts])))

    def pick(self, rng: random.Random) -> int:
        """One partition, by weight."""
        return self.partitions[bisect_right(self.cumulative, rng.randrange(self.cumulative[-1]))]


class TopicLoad(NamedTuple):
    """The load tables of a topic: of all partitions, and of those led from our rack where there are any."""

    everywhere: LoadTable
    in_rack: LoadTable | None


class BuiltInPartitioner:
    """Chooses the next sticky partition.

    Args:
        settings: the options.
        snapshot: gives the cluster as it is known now.
        rng: the source of chance.
    """

    def __init__(
        self, settings: PartitionerSettings, snapshot: Callable[[], ClusterSnapshot], rng: random.Random
    ) -> None:
        self._settings = settings
        self._snapshot = snapshot
        self._rng = rng

    def choose(self, topic: TopicState) -> int:
        """The partition for records without key from now on. Any thread; must not lock or wait."""
        load: TopicLoad | None = topic.load
        if load is not None:
            return self._existing(topic, (load.in_rack or load.everywhere).pick(self._rng))
        snapshot = self._snapshot()
        candidates = snapshot.available_partitions(topic.name)
        if self._settings.rack is not None:
            candidates = self._in_rack(snapshot, topic.name, candidates) or candidates
        if not candidates:
            return self._rng.randrange(len(topic.queues))
        return self._existing(topic, candidates[self._rng.randrange(len(candidates))])

    def _existing(self, topic: TopicState, chosen: int) -> int:
        """What was chosen by a snapshot or load table that may be older or newer than the topic's list of queues."""
        return chosen if chosen < len(topic.queues) else self._rng.randrange(len(topic.queues))

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

    @property
    def adaptive(self) -> bool:
        """Whether queue lengths matter."""
        return self._settings.adaptive

    @property
    def availability_timeout(self) -> float:
        """Seconds after which a partition whose broker takes nothing is left out; 0: never."""
        return self._settings.availability_timeout_ms / 1000

    def _in_rack(self, snapshot: ClusterSnapshot, topic: str, partitions: Sequence[int]) -> list[int]:
        chosen = []
        for partition in partitions:
            leader = snapshot.leader(topic, partition)
            if leader is not None and leader.rack == self._settings.rack:
                chosen.append(partition)
        return chosen
