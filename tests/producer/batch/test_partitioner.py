# SPDX-License-Identifier: Apache-2.0
"""Where records without a key go: uniform, sticky by bytes, adaptive, near."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from producer.fakes_core import NO_LEADER, TOPIC, Core, cluster, value_for

from penstock.producer.batch._partitioner_cy import (
    BuiltInPartitioner,
    LoadTable,
    LoadWatch,
    PartitionerSettings,
    RandomNumbers,
    TopicState,
)
from penstock.producer.metadata.cluster import ClusterSnapshot
from penstock.records.format import HEADER_SIZE

RACKS = {1: "a", 2: "b", 3: "b"}


class Chooser:
    """A partitioner with a topic of as many queues as the cluster has partitions, or as told."""

    def __init__(
        self,
        snapshot: ClusterSnapshot,
        settings: PartitionerSettings | None = None,
        queues: int | None = None,
        seed: int = 1,
    ) -> None:
        self.snapshot = snapshot
        self.partitioner = BuiltInPartitioner(
            settings or PartitionerSettings(), lambda: self.snapshot, random.Random(seed)
        )
        self.topic = TopicState(TOPIC, 1024, self.partitioner.choose)
        self.topic.queues = [None] * (queues or snapshot.partition_count(TOPIC) or 1)

    def choices(self, count: int = 6000) -> Counter[int]:
        return Counter(self.partitioner.choose(self.topic) for _ in range(count))

    def load(self, lengths: Sequence[tuple[int, int]], excluded: bool = False) -> None:
        self.partitioner.update_load(self.topic, lengths, excluded)


def near(counts: Counter[int], shares: dict[int, float]) -> bool:
    """Whether choices are distributed like that, within five standard deviations."""
    total = counts.total()
    return set(counts) == set(shares) and all(
        abs(counts[partition] - total * share) < 5 * (total * share * (1 - share)) ** 0.5
        for partition, share in shares.items()
    )


# ---------------------------------------------------------------------------------------------- uniform


def test_choices_are_uniform():
    """Requirement 30."""
    assert near(Chooser(cluster([1, 2, 3, 1])).choices(), dict.fromkeys(range(4), 0.25))


def test_partitions_without_leader_are_avoided():
    """Requirement 37."""
    chooser = Chooser(cluster([1, NO_LEADER, 3]))
    assert near(chooser.choices(), {0: 0.5, 2: 0.5})


def test_where_no_partition_has_a_leader_all_are_chosen():
    """Requirement 37."""
    assert near(Chooser(cluster([NO_LEADER] * 3)).choices(), dict.fromkeys(range(3), 1 / 3))


def test_a_topic_that_vanished_is_still_served():
    chooser = Chooser(cluster([1, 1]))
    chooser.snapshot = cluster(topic="other")
    assert near(chooser.choices(), {0: 0.5, 1: 0.5})


def test_a_partition_that_has_no_queue_yet_is_not_chosen():
    assert set(Chooser(cluster([1, 1, 1, 1]), queues=2).choices()) == {0, 1}


def test_the_same_seed_makes_the_same_choices():
    one, other = Chooser(cluster([1] * 10)), Chooser(cluster([1] * 10))
    assert [one.partitioner.choose(one.topic) for _ in range(50)] == [
        other.partitioner.choose(other.topic) for _ in range(50)
    ]


# ---------------------------------------------------------------------------------------------- racks


def test_leaders_in_the_own_rack_are_preferred():
    """Requirement 37."""
    chooser = Chooser(cluster([1, 2, 3, 1], racks=RACKS), PartitionerSettings(rack="b"))
    assert near(chooser.choices(), {1: 0.5, 2: 0.5})


@pytest.mark.parametrize("rack", ["c", None])
def test_without_leaders_in_the_own_rack_all_are_chosen(rack):
    """Requirement 37."""
    chooser = Chooser(cluster([1, 2, 3], racks=RACKS), PartitionerSettings(rack=rack))
    assert near(chooser.choices(), dict.fromkeys(range(3), 1 / 3))


def test_a_rack_whose_brokers_lead_nothing_now_is_no_reason_to_wait():
    """Requirement 37."""
    chooser = Chooser(cluster([1, NO_LEADER], racks=RACKS), PartitionerSettings(rack="b"))
    assert set(chooser.choices(100)) == {0}


# ---------------------------------------------------------------------------------------------- adaptive


def test_short_queues_get_more():
    """Requirement 30."""
    chooser = Chooser(cluster([1, 2, 3]))
    chooser.load([(0, 0), (1, 3), (2, 1)])
    assert near(chooser.choices(), {0: 4 / 8, 1: 1 / 8, 2: 3 / 8})


def test_even_queues_are_chosen_uniformly():
    """Requirement 30."""
    chooser = Chooser(cluster([1, 2]))
    chooser.load([(0, 5), (1, 5)])
    assert chooser.topic.load is None


def test_excluded_partitions_are_not_chosen_though_the_others_are_even():
    """Requirement 30."""
    chooser = Chooser(cluster([1, 2, 3]))
    chooser.load([(0, 5), (2, 5)], excluded=True)
    assert near(chooser.choices(), {0: 0.5, 2: 0.5})


def test_a_single_partition_that_is_left_gets_everything():
    """Requirement 30."""
    chooser = Chooser(cluster([1, 2]))
    chooser.load([(1, 5)], excluded=True)
    assert set(chooser.choices(100)) == {1}


def test_where_all_are_excluded_all_are_chosen():
    """Requirement 37."""
    chooser = Chooser(cluster([1, 2]))
    chooser.load([], excluded=True)
    assert set(chooser.choices(100)) == {0, 1}


def test_a_topic_of_one_partition_needs_no_weights():
    """Requirement 30."""
    chooser = Chooser(cluster([1]))
    chooser.load([(0, 5)])
    assert chooser.topic.load is None


def test_adaptivity_can_be_switched_off():
    """Requirement 30."""
    chooser = Chooser(cluster([1, 2]), PartitionerSettings(adaptive=False))
    assert not chooser.partitioner.adaptive
    chooser.load([(0, 0), (1, 9)])
    assert near(chooser.choices(), {0: 0.5, 1: 0.5})


def test_the_load_of_the_own_rack_has_weights_of_its_own():
    """Requirement 37."""
    chooser = Chooser(cluster([1, 2, 3, 1], racks=RACKS), PartitionerSettings(rack="b"))
    chooser.load([(0, 9), (1, 2), (2, 0), (3, 0)])
    assert near(chooser.choices(), {1: 1 / 4, 2: 3 / 4})


def test_where_the_own_rack_is_excluded_the_others_are_weighted():
    """Requirement 37."""
    chooser = Chooser(cluster([1, 2, 1], racks=RACKS), PartitionerSettings(rack="b"))
    chooser.load([(0, 1), (2, 0)], excluded=True)
    assert near(chooser.choices(), {0: 1 / 3, 2: 2 / 3})


def test_the_availability_timeout_is_in_seconds():
    chooser = Chooser(cluster([1]), PartitionerSettings(availability_timeout_ms=1500))
    assert chooser.partitioner.availability_timeout == 1.5


def noted(chooser: Chooser, *depths: int) -> Any:
    """The load of a topic after its queues were found to have so many batches."""
    chooser.partitioner.note_depths(chooser.topic, chooser.topic.queues, list(depths))
    return chooser.topic.load


def test_a_table_is_kept_while_the_lengths_are_as_they_were():
    chooser = Chooser(cluster([1, 1, 1]))
    kept = noted(chooser, 2, 0, 1)
    assert (kept.everywhere.partitions, kept.everywhere.cumulative) == ((0, 1, 2), (1, 4, 6))
    assert noted(chooser, 2, 0, 1) is kept
    assert noted(chooser, 2, 1, 1).everywhere.cumulative == (1, 3, 5)


def test_a_table_is_not_kept_when_the_topic_was_made_anew():
    chooser = Chooser(cluster([1, 1]))
    kept = noted(chooser, 2, 0)
    # As if the other table had been put in place in the moment in which the topic was made anew.
    chooser.topic.queues = list(chooser.topic.queues)
    assert noted(chooser, 2, 0) is not kept
    excluding = Chooser(cluster([1, 1]))
    excluding.load([(0, 2), (5, 0)], excluded=True)
    assert noted(excluding, 2, 0).everywhere.partitions == (0, 1)


def test_even_lengths_leave_no_table():
    chooser = Chooser(cluster([1, 1]))
    assert noted(chooser, 1, 0) is not None
    assert noted(chooser, 1, 1) is None
    assert noted(Chooser(cluster([1])), 1) is None


def test_a_load_table_weighs_by_the_longest_queue():
    """Requirement 30."""
    table = LoadTable.of([(4, 0), (7, 3), (2, 1)])
    assert table.partitions == (4, 7, 2)
    assert table.cumulative == (4, 5, 8)

    class Numbers(random.Random):
        def randrange(self, stop: int) -> int:  # type: ignore[override]
            assert stop == 8
            return next(drawn)

    drawn = iter(range(8))
    rng = Numbers()
    assert [table.pick(rng) for _ in range(8)] == [4, 4, 4, 4, 7, 2, 2, 2]


@pytest.mark.parametrize("stop", [1, 2, 3, 7, 1000, 2**20 + 1, 2**40])
def test_a_random_number_is_never_too_large(stop):
    class Nearly(random.Random):
        def random(self) -> float:
            return 1 - 2**-53

    assert RandomNumbers(Nearly()).randrange(stop) == stop - 1


def test_random_numbers_are_uniform():
    rng = RandomNumbers(random.Random(2))
    assert near(Counter(rng.randrange(7) for _ in range(7000)), dict.fromkeys(range(7), 1 / 7))


# ---------------------------------------------------------------------------------------------- watched


class Watched(Core):
    """Queues with so many batches each, and a watch that has seen one in every partition."""

    def __init__(self, leaders: Sequence[int], depths: Sequence[int], **settings: Any) -> None:
        super().__init__(leaders, partitioner=PartitionerSettings(**settings))
        self.watch = LoadWatch(self.partitioner)
        for partition, depth in enumerate(depths):
            for _ in range(depth):
                self.append(value_for(1024 - HEADER_SIZE), partition)
            self.watch.note_partition(TOPIC, partition)

    def load(self) -> Any:
        """What the partitioner knows after the next turn."""
        self.watch.note_snapshot(self.snapshot)
        self.watch.update(self.topic())
        return self.topic().load


def test_the_lengths_of_queues_count_once_each_partition_has_had_a_batch():
    """Requirement 30."""
    core = Watched([1, 1, 1], [2, 1])
    assert core.load() is None
    core.watch.note_partition(TOPIC, 2)
    assert core.load().everywhere.cumulative == (1, 3, 6)
    core.watch.keep_topics({TOPIC})
    assert core.load() is not None
    core.topic().load = None
    core.watch.keep_topics(())
    assert core.load() is None


@pytest.mark.parametrize("settings", [{}, {"rack": "a"}, {"availability_timeout_ms": 500}])
def test_partitions_that_have_lost_their_leader_are_left_out(settings):
    """Requirement 37."""
    core = Watched([1, 1, 1], [2, 1, 1], **settings)
    assert core.load().everywhere.partitions == (0, 1, 2)
    core.snapshot = cluster([1, NO_LEADER, 1])
    assert core.load().everywhere.partitions == (0, 2)
    core.snapshot = cluster([1, 1, 1])
    assert core.load().everywhere.partitions == (0, 1, 2)


def test_a_stalled_broker_is_left_out_until_it_takes_something():
    """Requirements 30 and 49."""
    core = Watched([1, 2], [1, 1], availability_timeout_ms=500)
    assert core.watch.avoids_stalled
    core.watch.note_node(2, False, 10.0)
    core.watch.note_node(2, False, 10.5)
    assert core.load() is None  # not longer than the time-out yet
    core.watch.note_node(2, False, 10.6)
    assert core.load().everywhere.partitions == (0,)
    core.watch.note_node(2, True, 10.7)
    assert core.load() is None
    core.watch.note_node(2, False, 20.0)
    assert core.load() is not None
    core.watch.keep_nodes(())
    assert core.load() is None


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({}, (True, False)),
        ({"availability_timeout_ms": 500}, (True, True)),
        ({"adaptive": False, "availability_timeout_ms": 500}, (False, False)),
    ],
)
def test_what_need_not_be_told(settings, wanted):
    watch = LoadWatch(Chooser(cluster([1]), PartitionerSettings(**settings)).partitioner)
    watch.note_change(TOPIC)
    assert (watch.has_changes, watch.avoids_stalled) == wanted


# ---------------------------------------------------------------------------------------------- sticky


def sequence_of_partitions(core: Core, value: bytes, count: int, path: str) -> list[int]:
    """Where records without a key went, one after the other."""
    found = []
    for _ in range(count):
        delivery = core.fast(value, None) if path == "fast" else None
        if delivery is None:
            delivery = core.append(value, None)
        found.append(delivery._answered_by().partition)
    return found


def runs(sequence: list[int]) -> list[int]:
    """Lengths of the runs of equal numbers."""
    lengths = [1]
    for before, after in itertools.pairwise(sequence):
        if before == after:
            lengths[-1] += 1
        else:
            lengths.append(1)
    return lengths


@pytest.mark.parametrize("path", ["fast", "general"])
def test_a_partition_is_kept_for_about_one_batch(path):
    """Requirements 30 and 37."""
    core = Core([1] * 4, linger_ms=1000)
    value = value_for((1024 - HEADER_SIZE) // 3)
    # Three fill a batch, but their bytes are a header short of batch.size; so each turn lasts for two full batches.
    sequence = sequence_of_partitions(core, value, 600, path)
    assert all(length % 6 == 0 for length in runs(sequence))
    assert Counter(sequence).keys() == {0, 1, 2, 3}
    assert 6 in runs(sequence)


@pytest.mark.parametrize("path", ["fast", "general"])
def test_full_batches_leave_no_fractions(path):
    """Requirement 30."""
    core = Core([1] * 4, linger_ms=1000)
    value = value_for(160)  # six fill a batch, but for 3 bytes
    sequence_of_partitions(core, value, 1000, path)
    counts = [batch.record_count for batch in core.drain_all()]
    core.accumulator.flush()
    counts += [batch.record_count for batch in core.drain_all()]
    assert sum(counts) == 1000
    # Only the last batch of all may be cut short: a partition is left when its batch has become full.
    assert sum(count != 6 for count in counts) <= 1


def test_lingering_batches_are_not_cut_into_fractions():
    """Requirement 30: batches that are sent before they are full do not make the next ones small."""
    core = Core([1] * 4, linger_ms=10)
    value = value_for(160)
    sequence = []
    for number in range(600):
        sequence += sequence_of_partitions(core, value, 1, "general")
        if number % 5 == 4:  # the sender is quicker than the application
            core.now += 0.02
            for batch in core.drain_all():
                core.acknowledge(batch)
    # Five records in each batch, 800 bytes: the partition is left with the second batch at the latest.
    assert all(length % 5 == 0 for length in runs(sequence)[:-1])
    assert min(runs(sequence)[:-1]) == 10


def test_a_change_is_made_at_twice_the_size_without_regard():
    """Requirement 30."""
    core = Core([1, 1], linger_ms=1000, seed=3)
    topic = core.topic()
    core.append(b"", None)
    first = topic.sticky_partition
    topic.sticky_bytes = 2048 - 20  # as if many small batches had been sent
    core.append(bytes(20), None)
    assert topic.sticky_bytes == 0
    assert core.queue(first).depth() == 1


def test_all_partitions_get_their_share_of_bytes():
    """Requirement 30."""
    core = Core([1] * 5, linger_ms=1000, seed=11)
    rng = random.Random(11)
    bytes_of: Counter[int] = Counter()
    for _ in range(6000):
        value = bytes(rng.randrange(300))
        delivery = core.fast(value, None) or core.append(value, None)
        bytes_of[delivery._answered_by().partition] += len(value)
    share = bytes_of.total() / 5
    assert all(0.8 * share < got < 1.2 * share for got in bytes_of.values())


def test_a_slow_broker_gets_fewer_records():
    """Requirement 30: a simulation; broker 2 answers half as often."""
    core = Core([1, 2], batch_size=512, seed=5)
    value = bytes(100)
    got: Counter[int] = Counter()
    for turn in range(4000):
        delivery = core.fast(value, None) or core.append(value, None)
        got[delivery._answered_by().partition] += 1
        if turn % 4 == 0:
            core.ready()
            for batch in core.drain(1, 2) if turn % 24 == 0 else core.drain(1):
                core.acknowledge(batch)
    assert got[0] > 1.5 * got[1]
    assert got[1] > 100
