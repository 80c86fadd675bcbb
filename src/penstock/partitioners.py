# SPDX-License-Identifier: Apache-2.0
"""Partitioners that can be chosen, and the base class for those that users write.

Without a partitioner the producer places records itself, as the Java producer does: records with a key by the hash of
the key, others in turns of about batch.size bytes per partition. The partitioners here are the ways of older and of
other clients; their short names are in `config/kinds.py`.
"""

from __future__ import annotations

import itertools
import random
import zlib
from collections.abc import Sequence
from typing import Any, Protocol

from penstock._locks import new_lock
from penstock._primitives_cy import partition_for_key

__all__ = ["ClusterView", "Crc32Partitioner", "Partitioner", "RoundRobinPartitioner", "StickyPartitioner"]


class ClusterView(Protocol):
    """What a partitioner may ask about the cluster."""

    def partition_count(self, topic: str) -> int | None:
        """How many partitions the topic has."""
        ...

    def available_partitions(self, topic: str) -> Sequence[int]:
        """The partitions that have a leader now."""
        ...


class Partitioner:
    """Chooses the partition of each record that was sent without one. Called from every thread that sends.

    Override `partition`; override `on_new_batch` to be told when a batch is about to be opened.
    """

    def partition(
        self,
        topic: str,
        key: Any,
        key_bytes: bytes | None,
        value: Any,
        value_bytes: bytes | None,
        cluster: ClusterView,
    ) -> int:
        """The partition's number, from 0 to the topic's partition count less one."""
        raise NotImplementedError

    def on_new_batch(self, topic: str, cluster: ClusterView, previous: int) -> None:
        """A record did not fit into the open batch of partition `previous`; `partition` is asked again after this."""

    def on_topic_forgotten(self, topic: str) -> None:
        """The producer has forgotten a topic that was not used for metadata.max.idle.ms: forget it, too.

        Called on the producer's I/O thread.
        """

    def close(self) -> None:
        """Called when the producer closes."""


class RoundRobinPartitioner(Partitioner):
    """One record to each partition in turn, whatever its key; partitions without a leader are left out."""

    def __init__(self) -> None:
        self._counters: dict[str, itertools.count[int]] = {}  # next() on a counter is atomic

    def partition(
        self,
        topic: str,
        key: Any,
        key_bytes: bytes | None,
        value: Any,
        value_bytes: bytes | None,
        cluster: ClusterView,
    ) -> int:
        """The next partition of the topic."""
        turn = next(self._counters.setdefault(topic, itertools.count()))
        available = cluster.available_partitions(topic)
        if available:
            return available[turn % len(available)]
        return turn % (cluster.partition_count(topic) or 1)

    def on_topic_forgotten(self, topic: str) -> None:
        """Begin with the first partition when the topic is used again."""
        self._counters.pop(topic, None)


class StickyPartitioner(Partitioner):
    """Stays with one partition until a batch of it is full, then picks another one at random; keys are hashed.

    With `hash_keys=False` records with keys are treated like the others.
    """

    def __init__(self, *, hash_keys: bool = True, rng: random.Random | None = None) -> None:
        self._hash_keys = hash_keys
        self._rng = rng or random.Random()
        self._lock: Any = new_lock()  # guards the choice, so that two full batches do not move on twice
        self._current: dict[str, int] = {}

    def partition(
        self,
        topic: str,
        key: Any,
        key_bytes: bytes | None,
        value: Any,
        value_bytes: bytes | None,
        cluster: ClusterView,
    ) -> int:
        """The key's partition, or the one that the topic stays with now."""
        if key_bytes is not None and self._hash_keys:
            return int(partition_for_key(key_bytes, cluster.partition_count(topic) or 1))
        current = self._current.get(topic)
        return self._move_on(topic, cluster, None) if current is None else current

    def on_new_batch(self, topic: str, cluster: ClusterView, previous: int) -> None:
        """Move on, unless another thread has done so already."""
        self._move_on(topic, cluster, previous)

    def on_topic_forgotten(self, topic: str) -> None:
        """Choose anew when the topic is used again."""
        self._current.pop(topic, None)

    def _move_on(self, topic: str, cluster: ClusterView, previous: int | None) -> int:
        with self._lock:
            current = self._current.get(topic)
            if current is not None and current != previous:
                return current
            candidates = list(cluster.available_partitions(topic)) or list(
                range(cluster.partition_count(topic) or 1)
            )
            others = [partition for partition in candidates if partition != current]
            chosen = self._rng.choice(others or candidates)
            self._current[topic] = chosen
            return chosen


class Crc32Partitioner(StickyPartitioner):
    """As librdkafka's `consistent_random`: a key by its CRC-32; without a key, or with an empty one, sticky.

    It is the default of confluent-kafka and of the other clients that are built on librdkafka. The producer does not
    call this class: it places such records itself, in compiled code, and those without a key as it always does. A
    subclass is called like any partitioner.
    """

    def partition(
        self,
        topic: str,
        key: Any,
        key_bytes: bytes | None,
        value: Any,
        value_bytes: bytes | None,
        cluster: ClusterView,
    ) -> int:
        """The key's partition, or the one that the topic stays with now."""
        if key_bytes:
            return zlib.crc32(key_bytes) % (cluster.partition_count(topic) or 1)
        return super().partition(topic, None, None, value, value_bytes, cluster)
