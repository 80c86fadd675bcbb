# SPDX-License-Identifier: Apache-2.0
"""The partitioners that users can choose, and the base class of their own."""

from __future__ import annotations

import random
import threading
from collections import Counter

import pytest
from fix_impl import golden

from penstock._primitives_cy import partition_for_key
from penstock.partitioners import Crc32Partitioner, Partitioner, RoundRobinPartitioner, StickyPartitioner


class Cluster:
    """Topics with some partitions, of which some have a leader."""

    def __init__(self, count: int, available: list[int] | None = None) -> None:
        self.count = count
        self.available = list(range(count)) if available is None else available

    def partition_count(self, topic: str) -> int | None:
        return self.count or None

    def available_partitions(self, topic: str) -> list[int]:
        return self.available


def ask(partitioner: Partitioner, cluster: Cluster, key: bytes | None = None, topic: str = "orders") -> int:
    return partitioner.partition(topic, key, key, "value", b"value", cluster)


def test_the_base_class_chooses_nothing():
    partitioner = Partitioner()
    with pytest.raises(NotImplementedError):
        ask(partitioner, Cluster(3))
    partitioner.on_new_batch("orders", Cluster(3), 0)
    partitioner.close()


# ---------------------------------------------------------------------------------------------- round robin


def test_round_robin_takes_turns_from_zero_on():
    """Requirement 38."""
    partitioner, cluster = RoundRobinPartitioner(), Cluster(3)
    assert [ask(partitioner, cluster) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_round_robin_does_not_care_for_keys():
    """Requirement 38."""
    partitioner, cluster = RoundRobinPartitioner(), Cluster(3)
    assert [ask(partitioner, cluster, b"same") for _ in range(3)] == [0, 1, 2]


def test_round_robin_is_even_over_the_available_partitions():
    """Requirement 38."""
    partitioner, cluster = RoundRobinPartitioner(), Cluster(5, [0, 2, 3])
    assert Counter(ask(partitioner, cluster) for _ in range(300)) == {0: 100, 2: 100, 3: 100}


def test_round_robin_uses_all_partitions_where_none_is_available():
    """Requirement 38."""
    partitioner, cluster = RoundRobinPartitioner(), Cluster(3, [])
    assert Counter(ask(partitioner, cluster) for _ in range(30)) == {0: 10, 1: 10, 2: 10}


def test_round_robin_counts_each_topic_by_itself():
    """Requirement 38."""
    partitioner, cluster = RoundRobinPartitioner(), Cluster(3)
    assert [ask(partitioner, cluster, topic="a") for _ in range(2)] == [0, 1]
    assert [ask(partitioner, cluster, topic="b") for _ in range(2)] == [0, 1]
    assert ask(partitioner, cluster, topic="a") == 2


def test_round_robin_follows_a_topic_that_grows():
    """Requirement 38."""
    partitioner = RoundRobinPartitioner()
    assert [ask(partitioner, Cluster(2)) for _ in range(2)] == [0, 1]
    assert {ask(partitioner, Cluster(4)) for _ in range(4)} == {0, 1, 2, 3}


def test_round_robin_is_even_with_many_threads():
    """Requirement 38."""
    partitioner, cluster = RoundRobinPartitioner(), Cluster(4)
    chosen: list[int] = []
    threads = [
        threading.Thread(target=lambda: chosen.extend(ask(partitioner, cluster) for _ in range(500)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert Counter(chosen) == dict.fromkeys(range(4), 500)


# ---------------------------------------------------------------------------------------------- sticky


def sticky(**options: bool) -> StickyPartitioner:
    return StickyPartitioner(rng=random.Random(4), **options)


def test_sticky_stays_until_a_batch_is_full():
    partitioner, cluster = sticky(), Cluster(5)
    first = ask(partitioner, cluster)
    assert {ask(partitioner, cluster) for _ in range(50)} == {first}
    partitioner.on_new_batch("orders", cluster, first)
    second = ask(partitioner, cluster)
    assert second != first
    assert {ask(partitioner, cluster) for _ in range(50)} == {second}


def test_sticky_moves_once_for_two_threads_that_find_the_same_batch_full():
    partitioner, cluster = sticky(), Cluster(5)
    first = ask(partitioner, cluster)
    partitioner.on_new_batch("orders", cluster, first)
    second = ask(partitioner, cluster)
    partitioner.on_new_batch("orders", cluster, first)  # the other thread
    assert ask(partitioner, cluster) == second


def test_sticky_reaches_every_partition():
    partitioner, cluster = sticky(), Cluster(5)
    chosen: Counter[int] = Counter()
    for _ in range(1000):
        current = ask(partitioner, cluster)
        chosen[current] += 1
        partitioner.on_new_batch("orders", cluster, current)
    assert set(chosen) == set(range(5))
    assert min(chosen.values()) > 120


def test_sticky_avoids_partitions_without_leader():
    partitioner, cluster = sticky(), Cluster(5, [1, 3])
    for _ in range(20):
        current = ask(partitioner, cluster)
        assert current in (1, 3)
        partitioner.on_new_batch("orders", cluster, current)


@pytest.mark.parametrize("cluster", [Cluster(1), Cluster(5, [2]), Cluster(0, [])])
def test_sticky_stays_where_there_is_no_other(cluster):
    partitioner = sticky()
    current = ask(partitioner, cluster)
    partitioner.on_new_batch("orders", cluster, current)
    assert ask(partitioner, cluster) == current


def test_sticky_uses_all_partitions_where_none_is_available():
    partitioner, cluster = sticky(), Cluster(3, [])
    chosen = set()
    for _ in range(50):
        chosen.add(current := ask(partitioner, cluster))
        partitioner.on_new_batch("orders", cluster, current)
    assert chosen == {0, 1, 2}


def test_sticky_hashes_keys_over_all_partitions():
    partitioner, cluster = sticky(), Cluster(5, [1])
    for number in range(20):
        key = b"key-%d" % number
        assert ask(partitioner, cluster, key) == partition_for_key(key, 5)


def test_sticky_can_ignore_keys():
    partitioner, cluster = sticky(hash_keys=False), Cluster(5)
    assert len({ask(partitioner, cluster, b"key-%d" % number) for number in range(20)}) == 1


def test_sticky_remembers_each_topic_by_itself():
    partitioner, cluster = sticky(), Cluster(50)
    one, other = ask(partitioner, cluster, topic="a"), ask(partitioner, cluster, topic="b")
    partitioner.on_new_batch("a", cluster, one)
    assert ask(partitioner, cluster, topic="a") != one
    assert ask(partitioner, cluster, topic="b") == other


# ---------------------------------------------------------------------------------------------- as librdkafka


def test_crc32_sticks_without_a_key_or_with_an_empty_one():
    partitioner, cluster = Crc32Partitioner(rng=random.Random(4)), Cluster(5)
    first = ask(partitioner, cluster)
    assert {ask(partitioner, cluster, key) for key in (None, b"", None, b"")} == {first}
    partitioner.on_new_batch("orders", cluster, first)
    assert ask(partitioner, cluster, b"") != first


@pytest.mark.parametrize("case", golden("crc32.jsonl"), ids=lambda case: case["name"])
def test_crc32_places_keys_over_all_partitions(case):
    partitioner = Crc32Partitioner()
    found = {n: ask(partitioner, Cluster(int(n), [0]), bytes.fromhex(case["key"])) for n in case["partition"]}
    assert found == case["partition"]
