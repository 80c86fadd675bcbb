# SPDX-License-Identifier: Apache-2.0
"""Which brokers have something ready, and what goes into their next request. I/O thread only.

A batch is ready when it is full, has lingered, or need not wait any more (flush, close, short memory), and when it is
not backing off and its partition is not muted. Once a broker is ready for one batch, the request takes along the first
batch of each of its partitions, in rotation, up to max.request.size.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from typing import NamedTuple

from penstock._time import FOREVER
from penstock.errors import KafkaError
from penstock.producer._queue_cy import PartitionQueue
from penstock.producer.accumulator import RecordAccumulator
from penstock.producer.batch import Batch, BatchState
from penstock.producer.cluster import ClusterSnapshot, PartitionInfo
from penstock.producer.gate import Gate
from penstock.producer.response_policy import Action, Decision
from penstock.types import Node, TopicPartition

log = logging.getLogger("penstock.producer")


class ReadyCheck(NamedTuple):
    """What one look at the queues found.

    Attributes:
        nodes: brokers that have at least one batch ready.
        next_delay: seconds until a batch that is not ready now will be. Of brokers with something ready only batches
            that back off are sure to count: those that linger go along with what is ready, or the gate holds them back
            as well, and then an event tells when it lets them go.
        next_expiry: the moment at which the oldest queued batch expires.
        leaderless_topics: topics with batches for partitions whose leader is not known.
    """

    nodes: list[Node]
    next_delay: float
    next_expiry: float
    leaderless_topics: set[str]


# A queue, what is known of its partition, and the batch at its head, which nobody but the I/O thread takes away.
_Waiting = tuple[PartitionQueue, PartitionInfo, Batch]


class _Led:
    """The queues with batches, by the broker that leads their partition, as one look at them found."""

    __slots__ = ("by_node", "snapshot")

    def __init__(self, snapshot: ClusterSnapshot | None) -> None:
        self.snapshot = snapshot  # according to which
        self.by_node: dict[int, list[_Waiting]] = {}


class _Homes:
    """Where the partitions of queues are, remembered as long as the cluster is known to be as it was."""

    __slots__ = ("_known", "snapshot")

    def __init__(self, snapshot: ClusterSnapshot | None) -> None:
        self.snapshot = snapshot
        self._known: dict[PartitionQueue, tuple[PartitionInfo, Node]] = {}

    def get(self, queue: PartitionQueue) -> tuple[PartitionInfo, Node] | None:
        """What was found before."""
        return self._known.get(queue)

    def find(self, queue: PartitionQueue) -> tuple[PartitionInfo, Node] | None:
        """Look it up; None while the partition has no leader that is known."""
        if self.snapshot is None:
            return None
        info = self.snapshot.partition(queue.topic, queue.partition)
        leader = None if info is None else self.snapshot.leader_of(info)
        if info is None or leader is None:
            return None
        self._known[queue] = found = (info, leader)
        return found


class _NodeProgress:
    """When a broker was last found with something ready, and when it last could take it."""

    __slots__ = ("drained", "ready")

    def __init__(self, now: float) -> None:
        self.ready = now
        self.drained = now


class Drainer:
    """Looks at the queues and empties them into requests.

    Args:
        accumulator: the queues.
        gate: says which batches may leave.
        max_request_size: bytes of batches in one request; one batch is always taken.
    """

    def __init__(self, accumulator: RecordAccumulator, gate: Gate, max_request_size: int) -> None:
        self._accumulator = accumulator
        self.gate = gate
        self._max_request_size = max_request_size
        self._last_looked_at: dict[int, TopicPartition] = {}  # per node: where its rotation goes on
        self._progress: dict[int, _NodeProgress] = {}
        self._seen: dict[str, set[int]] = defaultdict(set)  # partitions that have had a batch, per topic
        self._led = _Led(None)
        self._homes = _Homes(None)
        self._left_behind: set[int] = set()  # brokers with batches that the last drain did not take
        self.spoiled: list[Batch] = []  # failed since the last look: what is behind them was not looked at
        self.stumbled = False  # since the last look, over a batch that waits where it was

    def ready(self, snapshot: ClusterSnapshot, now: float) -> ReadyCheck:
        """Find out which brokers have something to be sent."""
        accumulator = self._accumulator
        all_sendable = accumulator.everything_sendable or self.gate.completing
        self.spoiled = []
        self.stumbled = False
        nodes: dict[int, Node] = {}
        leaderless: set[str] = set()
        next_delay = oldest = FOREVER
        topics: set[str] = set()
        self._led = _Led(snapshot)
        by_node = self._led.by_node
        homes = self._homes
        if homes.snapshot is not snapshot:
            homes = self._homes = _Homes(snapshot)
        for queue in accumulator.active_queues():
            batch, full = queue.head()
            topics.add(queue.topic)  # also when it just ran empty: that changes the lengths
            if batch is None:
                queue.retire()
                continue
            oldest = min(oldest, batch.created)
            home = homes.get(queue) or self._find_home(queue)
            if home is None:
                leaderless.add(queue.topic)
                continue
            info, leader = home
            waiting = (queue, info, batch)
            if leader.id in by_node:
                by_node[leader.id].append(waiting)
            else:
                by_node[leader.id] = [waiting]
            if queue.muted or (leader.id in nodes and not batch.attempts):
                continue
            delay = self._delay(batch, info, full or all_sendable, now)
            if delay <= 0:
                nodes[leader.id] = leader
            elif delay < next_delay:
                next_delay = delay
        if accumulator.partitioner.adaptive:
            for topic in topics:
                self._update_load(topic, snapshot)
        return ReadyCheck(list(nodes.values()), next_delay, oldest + accumulator.delivery_timeout, leaderless)

    def _find_home(self, queue: PartitionQueue) -> tuple[PartitionInfo, Node] | None:
        self._seen[queue.topic].add(queue.partition)
        return self._homes.find(queue)

    def _delay(self, batch: Batch, info: PartitionInfo, sendable: bool, now: float) -> float:
        """Seconds until a batch is ready; 0 when it is."""
        if batch.backing_off(now, info.leader_epoch):
            return batch.retry_at - now
        if sendable or batch.attempts > 0 or batch.is_piece:
            return 0.0
        # From the moment itself, not from the age: rounding must not leave a rest that never becomes zero.
        linger = self._accumulator.linger
        return min(linger, batch.created + linger - now)

    def note_node(self, node_id: int, can_take: bool, now: float) -> None:
        """Remember whether a ready broker could take what is there; stalled ones are avoided after a while."""
        progress = self._progress.get(node_id)
        if progress is None:
            progress = self._progress[node_id] = _NodeProgress(now)
        progress.ready = now
        if can_take:
            progress.drained = now

    def _update_load(self, topic: str, snapshot: ClusterSnapshot) -> None:
        """Tell the partitioner how long the queues of a topic are, once every partition has had a batch."""
        state = self._accumulator.topics.get(topic)
        if state is None or state.sticky_partition < 0 or len(self._seen[topic]) < len(state.queues):
            return
        timeout = self._accumulator.partitioner.availability_timeout
        if timeout <= 0 and len(snapshot.available_partitions(topic)) == len(state.queues):
            self._accumulator.partitioner.update_load(state, list(enumerate(state.depths())), False)
            return
        lengths = []
        excluded = False
        for queue in state.queues:
            leader = snapshot.leader(topic, queue.partition)
            if leader is None or (timeout > 0 and self._stalled(leader.id, timeout)):
                excluded = True
            else:
                lengths.append((queue.partition, queue.depth()))
        self._accumulator.partitioner.update_load(state, lengths, excluded)

    def _stalled(self, node_id: int, timeout: float) -> bool:
        progress = self._progress.get(node_id)
        return progress is not None and progress.ready - progress.drained > timeout

    def drain(self, snapshot: ClusterSnapshot, nodes: list[Node], now: float) -> dict[int, list[Batch]]:
        """Take batches for each of these brokers; sealed, and theirs to send. Brokers without any are left out."""
        led = self._led
        if led.snapshot is not snapshot:
            led = self._who_leads(snapshot)
        self._led = _Led(None)  # its batches leave now: it serves once
        drained = {}
        self._left_behind.clear()
        for node in nodes:
            batches = self._drain_node(node.id, led.by_node.get(node.id, []), now)
            if batches:
                drained[node.id] = batches
        return drained

    def has_more(self, node_id: int) -> bool:
        """Whether the last drain left batches of a broker behind, which the next one may take."""
        return node_id in self._left_behind

    def _who_leads(self, snapshot: ClusterSnapshot) -> _Led:
        led = _Led(snapshot)
        for queue in self._accumulator.active_queues():
            info = snapshot.partition(queue.topic, queue.partition)
            batch, _ = queue.head()
            if info is not None and batch is not None:
                led.by_node.setdefault(info.leader_id, []).append((queue, info, batch))
        return led

    def _drain_node(self, node_id: int, led: list[_Waiting], now: float) -> list[Batch]:
        taken: list[Batch] = []
        size = left = 0
        looked_at = self._last_looked_at.get(node_id)
        for queue, info, batch in self._rotated(led, looked_at):
            looked_at = queue.place
            if queue.muted:
                continue  # until an answer comes
            left += 1
            if batch.attempts and batch.backing_off(now, info.leader_epoch):
                continue
            if taken and size + batch.size > self._max_request_size:
                break  # it is looked at first next time
            if not self._may_drain(queue, batch):
                continue  # its partition waits for something; the others need not
            if not queue.take(batch) or not self._hand_over(batch, info, now):
                continue
            taken.append(batch)
            size += batch.size
            if not queue.depth():
                left -= 1
        if looked_at is not None:
            self._last_looked_at[node_id] = looked_at
        if left:
            self._left_behind.add(node_id)
        return taken

    def _may_drain(self, queue: PartitionQueue, batch: Batch) -> bool:
        try:
            return self.gate.may_drain(queue, batch)
        except Exception:
            # It stays where it is. What was taken before is in no queue: it must not be lost with this one.
            log.exception("whether a batch of %s may be sent could not be told", batch.topic_partition)
            self.stumbled = True
            return False

    def _hand_over(self, batch: Batch, info: PartitionInfo, now: float) -> bool:
        """Make a batch ready for the wire. One that cannot be sealed fails alone, so that no other is lost with it."""
        try:
            batch.move_to(BatchState.IN_FLIGHT)
            batch.leader_epoch = info.leader_epoch
            batch.drained_at = now
            self._accumulator.sealer.seal(batch, self.gate.assign(batch))
        except Exception as error:
            log.exception("a batch of %s could not be put into wire format", batch.topic_partition)
            failure = KafkaError(
                f"the batch of {batch.topic_partition} could not be put into wire format: {error!r}"
            )
            failure.__cause__ = error
            self._fail(batch, failure)
            return False
        return True

    def _fail(self, batch: Batch, failure: KafkaError) -> None:
        self.spoiled.append(batch)
        try:
            # First: who is told of the outcome may ask for what follows from it.
            self.gate.on_failure(batch, failure, Decision(Action.FAIL, bump_epoch=True))
        except Exception:
            log.exception("the failure of a batch of %s could not be noted", batch.topic_partition)
        try:
            batch.fail(failure)
            self._accumulator.finish(batch)
        except Exception:  # those that were taken before must not suffer from it
            log.exception("a batch of %s has failed, but could not be cleared away", batch.topic_partition)
            self._accumulator.forget(batch)

    @staticmethod
    def _rotated(led: list[_Waiting], last: TopicPartition | None) -> list[_Waiting]:
        """A broker's queues, from the one looked at last."""
        if last is not None:
            for at, (queue, _, _) in enumerate(led):
                if queue.place >= last:
                    return led[at:] + led[:at] if at else led
        return led
