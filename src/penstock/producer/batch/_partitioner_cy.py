# SPDX-License-Identifier: Apache-2.0
"""Where records go: `Placement`; and without a key and a partitioner of the user's: sticky, adaptive, rack aware.

A topic stays with one partition for about batch.size bytes; its `TopicState` counts them. Then `BuiltInPartitioner`
chooses the next one: uniformly among the partitions that have a leader, or by weight. Partitions with short queues, and
thus with fast brokers, get more. Compiled if possible.

The I/O thread notes queue lengths in every turn: `LoadWatch`. A sending thread chooses once per batch or two.

Rule: the sticky fields of a topic are written only under the lock of the partition they name, and read again under it.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Container, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.partitioners import Partitioner

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

if cython.compiled:
    from cython.cimports.penstock.producer.batch._queue_cy import PartitionQueue
else:
    from penstock._primitives_cy import CRC32, MURMUR2, partition_for_key
    from penstock.records._crc_cy import crc32_partition

    if TYPE_CHECKING:
        from penstock.producer.batch._queue_cy import PartitionQueue

if TYPE_CHECKING:
    from penstock.producer.metadata.cluster import ClusterSnapshot


# The lengths of so many queues are told in a turn, about.
_QUEUES_A_TURN = cython.declare(cython.Py_ssize_t, 64)


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


if not cython.compiled:

    def place_by_key(key: bytes | None, count: int, key_hash: int) -> int:
        """The partition of a key, of so many; -1: it goes where records without key go. Compiled: see the .pxd."""
        if key is not None and key_hash == MURMUR2:
            return partition_for_key(key, count)
        if key_hash == CRC32 and key:  # not b""
            return crc32_partition(key, count)
        return -1


@cython.final
@cython.cclass
class Placement:
    """Chooses partitions: the given one, by a custom partitioner, by the key's hash, or the topic's sticky one.

    Args:
        partitioner: the user's, or None for the built-in way.
        key_hash: how keys choose the partition in the built-in way: IGNORED, MURMUR2 or CRC32.
    """

    def __init__(self, partitioner: Any | None, key_hash: int) -> None:
        self.partitioner = partitioner
        self.key_hash = key_hash
        hook = getattr(type(partitioner), "on_new_batch", None)
        self.wants_new_batches = hook is not None and hook is not Partitioner.on_new_batch

    def choose(
        self,
        given: Any,
        topic: str,
        key: Any,
        key_bytes: bytes | None,
        value: Any,
        value_bytes: bytes | None,
        cluster: Any,
        count: cython.Py_ssize_t,
    ) -> cython.Py_ssize_t:
        """The record's partition; -1: the present sticky partition of the topic.

        Args:
            given: the partition that the call was given, or None.
            topic: where it goes; the next four are its key and value, before and after the serializers.
            cluster: what a custom partitioner may ask.
            count: of the topic's partitions.

        Raises:
            ValueError: a custom partitioner gave a partition that does not exist.
        """
        if given is not None:
            return given  # type: ignore[no-any-return]
        if self.partitioner is None:
            return place_by_key(key_bytes, count, self.key_hash)
        chosen = self.partitioner.partition(topic, key, key_bytes, value, value_bytes, cluster)
        if type(chosen) is not int and (not isinstance(chosen, int) or isinstance(chosen, bool)):
            raise TypeError(f"{self.partitioner!r} must give an int, not {type(chosen).__name__}")
        if not 0 <= chosen < count:
            raise ValueError(
                f"{self.partitioner!r} chose partition {chosen} of topic {topic!r}, which has partitions 0 to "
                f"{count - 1}"
            )
        return chosen  # type: ignore[no-any-return]


class PartitionerSettings(NamedTuple):
    """The options partitioner.* that concern records without a key."""

    adaptive: bool = True
    availability_timeout_ms: int = 0
    rack: str | None = None  # prefer leaders in this rack; None: racks do not matter


@cython.final
@cython.cclass
class TopicState:
    """What the send path knows of one topic.

    Args:
        name: the topic.
        sticky_size: bytes after which records without key go to another partition.
        choose: picks that partition: `choose(topic_state) -> int`.
    """

    def __init__(self, name: str, sticky_size: int, choose: Callable[[TopicState], int]) -> None:
        self.name = name
        self.sticky_size = sticky_size
        self.choose = choose
        self.queues: list[PartitionQueue] = []  # by partition
        self.sticky_partition = -1
        self.sticky_bytes = 0
        self.known = True  # the cluster's metadata has it; written by the I/O thread
        self.used = True  # set by every send, cleared by the check which topics are in use
        self.load: Any = None  # queue lengths for the adaptive choice; replaced whole by the I/O thread

    def switch(self) -> None:
        """Choose where records without key go next. Under the lock of the partition left, or before the first."""
        self.sticky_partition = self.choose(self)
        self.sticky_bytes = 0

    def maybe_switch_locked(self) -> cython.bint:
        """Make a switch that was put off so as not to cut a batch short, now that the batch is full; whether it did."""
        if self.sticky_bytes < self.sticky_size:
            return False
        self.switch()
        return True

    def count_locked(self, size: cython.Py_ssize_t, full: cython.bint) -> cython.bint:
        """Count bytes appended to the sticky partition, and move on when it has had its share; whether it did."""
        self.sticky_bytes += size
        if self.sticky_bytes < self.sticky_size or not (full or self.sticky_bytes >= 2 * self.sticky_size):
            return False
        self.switch()
        return True


@cython.final
@cython.cclass
class RandomNumbers:
    """Random whole numbers, at a fraction of what `Random.randrange` costs.

    Args:
        rng: the source of random numbers.
    """

    def __init__(self, rng: random.Random) -> None:
        self._random = rng.random

    def randrange(self, stop: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """A number from 0 on, below `stop`.

        A fraction has 53 bits: some numbers are likelier than others by one part in 2**53 / stop, which for numbers of
        partitions and sums of queue lengths nobody can tell.
        """
        if stop <= 0:
            raise ValueError(f"there is no number from 0 on that is below {stop}")
        fraction: cython.double = self._random()
        return cython.cast(cython.Py_ssize_t, fraction * stop)


@cython.final
@cython.cclass
class LoadTable:
    """Partitions, and running sums of their weights: the longest queue weighs 1, each batch less adds 1.

    Args:
        partitions: their numbers.
        depths: batches that wait for each.
    """

    def __init__(self, partitions: tuple, depths: list) -> None:  # type: ignore[type-arg]
        self.partitions = partitions
        cumulative: list = []
        depth: cython.Py_ssize_t
        most: cython.Py_ssize_t = 0
        total: cython.Py_ssize_t = 0
        for depth in depths:
            if depth > most:
                most = depth
        for depth in depths:
            total += most + 1 - depth
            cumulative.append(total)
        self.cumulative = tuple(cumulative)

    @staticmethod
    def of(lengths: Sequence[tuple[int, int]]) -> LoadTable:
        """The table for (partition, queue length) of some partitions."""
        return LoadTable(tuple([partition for partition, _ in lengths]), [length for _, length in lengths])

    def pick(self, rng: Any) -> cython.Py_ssize_t:
        """One partition, by weight; `rng.randrange(sum of weights)` decides."""
        drawn: cython.Py_ssize_t = rng.randrange(self.cumulative[len(self.cumulative) - 1])
        low: cython.Py_ssize_t = 0
        high: cython.Py_ssize_t = len(self.cumulative)
        middle: cython.Py_ssize_t
        sum_there: cython.Py_ssize_t
        while low < high:
            middle = (low + high) // 2
            sum_there = self.cumulative[middle]
            if drawn < sum_there:
                high = middle
            else:
                low = middle + 1
        return self.partitions[low]


@cython.final
@cython.cclass
class TopicLoad:
    """The load tables of a topic: of all partitions, and of those led from our rack where there are any.

    Args:
        everywhere: the former.
        in_rack: the latter.
        queues: the topic's, where `everywhere` is of all of them and the cluster has no part in it.
        depths: of each queue, likewise.
    """

    def __init__(
        self,
        everywhere: LoadTable,
        in_rack: LoadTable | None,
        queues: list | None = None,  # type: ignore[type-arg]
        depths: list | None = None,  # type: ignore[type-arg]
    ) -> None:
        self.everywhere = everywhere
        self.in_rack = in_rack
        self.queues = queues
        self.depths = depths


@cython.final
@cython.cclass
class BuiltInPartitioner:
    """Chooses the next sticky partition.

    Args:
        settings: the options.
        snapshot: gives the cluster as it is known now.
        rng: the source of random numbers.

    Attributes:
        adaptive: whether queue lengths matter.
        availability_timeout: seconds after which a partition whose broker takes nothing is left out; 0: never.
        plain: whether, where every partition has a leader, nothing but lengths matters.
    """

    def __init__(
        self, settings: PartitionerSettings, snapshot: Callable[[], ClusterSnapshot], rng: random.Random
    ) -> None:
        self._settings = settings
        self._snapshot = snapshot
        self._random = RandomNumbers(rng)
        self.adaptive = settings.adaptive
        self.availability_timeout = settings.availability_timeout_ms / 1000
        self.plain = settings.adaptive and settings.rack is None and settings.availability_timeout_ms <= 0

    def choose(self, topic: TopicState) -> cython.Py_ssize_t:
        """The partition for records without key from now on. Any thread; must not lock or wait."""
        load: TopicLoad | None = topic.load
        table: LoadTable
        chosen: cython.Py_ssize_t = -1
        if load is not None:
            table = load.everywhere if load.in_rack is None else load.in_rack
            chosen = table.pick(self._random)
        else:
            candidates: list = self.candidates(topic.name)
            if candidates:
                chosen = candidates[self._random.randrange(len(candidates))]
        # A snapshot or load table may be older or newer than the topic's list of queues.
        count: cython.Py_ssize_t = len(topic.queues)
        return chosen if 0 <= chosen < count else self._random.randrange(count)

    def candidates(self, topic: str) -> list[int]:
        """The partitions with a leader, or those of them that are led from our rack where there are any. Any thread."""
        snapshot = self._snapshot()
        led = snapshot.available_partitions(topic)
        if self._settings.rack is None:
            return led
        return self._in_rack(snapshot, topic, led) or led

    def update_load(
        self, topic: TopicState, lengths: Sequence[tuple[int, int]], excluded: cython.bint
    ) -> None:
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

    def note_depths(self, topic: TopicState, queues: list, depths: list) -> None:  # type: ignore[type-arg]
        """The same where nothing but the lengths of all queues matters: where it is `plain`, and all have a leader.

        Args:
            topic: the topic; every partition of it has had a batch.
            queues: its queues, the very list.
            depths: batches waiting in each.
        """
        if depths.count(depths[0]) == len(depths):
            topic.load = None
            return
        known: TopicLoad | None = topic.load
        partitions: tuple
        if known is not None and known.queues is queues:
            if known.depths == depths:
                return
            partitions = known.everywhere.partitions
        else:
            partitions = tuple(range(len(queues)))
        topic.load = TopicLoad(LoadTable(partitions, depths), None, queues, depths)

    def _in_rack(self, snapshot: ClusterSnapshot, topic: str, partitions: Sequence[int]) -> list[int]:
        chosen = []
        for partition in partitions:
            leader = snapshot.leader(topic, partition)
            if leader is not None and leader.rack == self._settings.rack:
                chosen.append(partition)
        return chosen


@cython.final
@cython.cclass
class NodeProgress:
    """When a broker was last found with something ready, and when it last could take it."""

    def __init__(self, now: cython.double) -> None:
        self.ready = now
        self.drained = now


@cython.final
@cython.cclass
class LoadWatch:
    """What the partitioner is told in each turn: how many batches wait for each partition, and whose broker is stalled.

    The I/O thread only; the `Drainer` owns it.

    Args:
        partitioner: chooses by it.

    Attributes:
        has_changes: whether queue lengths changed that the partitioner wants to know, and was not told yet.
        avoids_stalled: whether it leaves out partitions of stalled brokers. Otherwise `note_node` need not be called.
    """

    def __init__(self, partitioner: BuiltInPartitioner) -> None:
        self._partitioner = partitioner
        self._adaptive = partitioner.adaptive
        self.has_changes = False
        # Topics whose queue lengths have changed, and in how many turns they are told; -1: that is to be found out. To
        # tell them takes a look at each queue, so a topic with many partitions is not told in each turn.
        self._changed: dict[str, int] = {}
        self.avoids_stalled = partitioner.adaptive and partitioner.availability_timeout > 0
        self._progress: dict[int, NodeProgress] = {}  # by node
        self._seen: Any = defaultdict(set)  # partitions that have had a batch, by topic
        self._snapshot: Any = None
        self._led: dict[str, int] = {}  # how many partitions of a topic have a leader in that snapshot

    def note_snapshot(self, snapshot: ClusterSnapshot) -> None:
        """From now on this is the cluster. Before the first `update`, and when it has changed."""
        self._snapshot = snapshot
        self._led = {}

    def note_partition(self, topic: str, partition: cython.int) -> None:
        """Remember that a partition has had a batch."""
        self._seen[topic].add(partition)

    def note_change(self, topic: str) -> Any:
        """Remember that the length of a queue has changed, or its leader."""
        if self._adaptive and topic not in self._changed:
            self._changed[topic] = -1
            self.has_changes = True

    def update_changed(self, topics: dict) -> None:  # type: ignore[type-arg]
        """Tell the lengths that have changed, by topic.

        Args:
            topics: the TopicStates, by name.
        """
        state: TopicState | None
        for topic, turns in list(self._changed.items()):
            state = topics.get(topic)
            if state is None or state.sticky_partition < 0 or len(state.queues) < 2:
                del self._changed[topic]  # no record had no key, or there is no choice
                continue
            left: cython.Py_ssize_t = len(state.queues) // _QUEUES_A_TURN if turns < 0 else turns - 1
            if left > 0:
                self._changed[topic] = left
                continue
            self.update(state)
            if self.avoids_stalled:
                self._changed[topic] = -1  # brokers stall without a change
            else:
                del self._changed[topic]
        self.has_changes = bool(self._changed)

    def note_node(self, node_id: Any, can_take: cython.bint, now: cython.double) -> Any:
        """Remember whether a ready broker could take what is there; stalled ones are avoided after a while."""
        progress: NodeProgress | None = self._progress.get(node_id)
        if progress is None:
            progress = NodeProgress(now)
            self._progress[node_id] = progress
        progress.ready = now
        if can_take:
            progress.drained = now

    def update(self, topic: TopicState) -> Any:
        """Tell how long the queues of a topic are, once every partition has had a batch."""
        queues: list = topic.queues  # one look: it is replaced whole when the topic changes
        queue: PartitionQueue
        if len(self._seen[topic.name]) < len(queues):
            return
        partitioner = self._partitioner
        if partitioner.plain and self._count_led(topic.name) == len(queues):
            depths: list = []
            for queue in queues:
                depths.append(len(queue.batches))  # noqa: PERF401 - in a comprehension a queue has no C type
            partitioner.note_depths(topic, queues, depths)
            return
        lengths = []
        excluded = False
        for queue in queues:
            leader = self._snapshot.leader(topic.name, queue.partition)
            if leader is None or (self.avoids_stalled and self._is_stalled(leader.id)):
                excluded = True
            else:
                lengths.append((queue.partition, queue.depth()))
        partitioner.update_load(topic, lengths, excluded)

    def keep_topics(self, kept: Container[str]) -> None:
        """Forget which partitions of other topics have had a batch."""
        for known in (self._seen, self._changed):
            for topic in [topic for topic in known if topic not in kept]:
                del known[topic]

    def keep_nodes(self, kept: Container[int]) -> None:
        """Forget how far other brokers have got."""
        for node_id in [node_id for node_id in self._progress if node_id not in kept]:
            del self._progress[node_id]

    def _count_led(self, topic: str) -> cython.Py_ssize_t:
        """How many partitions of a topic have a leader; looked up once in a snapshot."""
        found: Any = self._led.get(topic)
        if found is None:
            found = len(self._snapshot.available_partitions(topic))
            self._led[topic] = found
        return found

    def _is_stalled(self, node_id: Any) -> cython.bint:
        """Whether a broker with something ready has taken nothing for so long that it is left out."""
        progress: NodeProgress | None = self._progress.get(node_id)
        return (
            progress is not None
            and progress.ready - progress.drained > self._partitioner.availability_timeout
        )
