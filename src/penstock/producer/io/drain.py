# SPDX-License-Identifier: Apache-2.0
"""Which brokers have something ready, and what goes into their next request. I/O thread only.

A batch is ready when it is full, has lingered, or need not wait any more (flush, close, short memory), and when it is
not backing off and its partition is not muted. Once a broker is ready for one batch, the request takes along the first
batch of each of its partitions, in rotation, up to max.request.size.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Container
from typing import NamedTuple

from penstock.errors import KafkaError
from penstock.producer.batch._batch_cy import Batch
from penstock.producer.batch._partitioner_cy import note_depths
from penstock.producer.batch._passes_cy import Homes, Look, Waiting, look_at, take_batches, who_leads
from penstock.producer.batch.accumulator import RecordAccumulator
from penstock.producer.guarantee.gate import Gate
from penstock.producer.guarantee.response_policy import Action, Decision
from penstock.producer.metadata.cluster import ClusterSnapshot
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
        self.sealer = accumulator.sealer
        self._max_request_size = max_request_size
        self._last_looked_at: dict[int, TopicPartition] = {}  # per node: where its rotation goes on
        self._progress: dict[int, _NodeProgress] = {}
        self._seen: dict[str, set[int]] = defaultdict(set)  # partitions that have had a batch, per topic
        self._look = Look(None)
        self._homes = Homes(None, self._seen)
        self._left_behind: set[int] = set()  # brokers with batches that the last drain did not take
        self.spoiled: list[Batch] = []  # failed since the last look: what is behind them was not looked at
        self.stumbled = False  # since the last look, over a batch that waits where it was

    def ready(self, snapshot: ClusterSnapshot, now: float) -> ReadyCheck:
        """Find out which brokers have something to be sent."""
        accumulator = self._accumulator
        all_sendable = accumulator.everything_sendable or self.gate.completing
        self.spoiled = []
        self.stumbled = False
        homes = self._homes_by(snapshot)
        look = self._look = look_at(accumulator.active_queues(), homes, all_sendable, accumulator.linger, now)
        if accumulator.partitioner.adaptive:
            for topic in look.topics:
                self._update_load(topic, snapshot)
        expiry = look.oldest + accumulator.delivery_timeout
        return ReadyCheck(list(look.nodes.values()), look.next_delay, expiry, look.leaderless)

    def _homes_by(self, snapshot: ClusterSnapshot) -> Homes:
        if self._homes.snapshot is not snapshot:
            self._homes = Homes(snapshot, self._seen)
        return self._homes

    def keep_topics(self, kept: Container[str]) -> None:
        """Forget which partitions of other topics have had a batch."""
        for topic in [topic for topic in self._seen if topic not in kept]:
            del self._seen[topic]

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
        partitioner = self._accumulator.partitioner
        if partitioner.plain and len(snapshot.available_partitions(topic)) == len(state.queues):
            note_depths(state)
            return
        timeout = partitioner.availability_timeout
        lengths = []
        excluded = False
        for queue in state.queues:
            leader = snapshot.leader(topic, queue.partition)
            if leader is None or (timeout > 0 and self._stalled(leader.id, timeout)):
                excluded = True
            else:
                lengths.append((queue.partition, queue.depth()))
        partitioner.update_load(state, lengths, excluded)

    def _stalled(self, node_id: int, timeout: float) -> bool:
        progress = self._progress.get(node_id)
        return progress is not None and progress.ready - progress.drained > timeout

    def drain(self, snapshot: ClusterSnapshot, nodes: list[Node], now: float) -> dict[int, list[Batch]]:
        """Take batches for each of these brokers; sealed, and theirs to send. Brokers without any are left out."""
        look = self._look
        if look.snapshot is not snapshot:
            look = who_leads(self._accumulator.active_queues(), self._homes_by(snapshot))
        self._look = Look(None)  # its batches leave now: it serves once
        drained = {}
        self._left_behind.clear()
        for node in nodes:
            batches = self._drain_node(node.id, look.by_node.get(node.id, []), now)
            if batches:
                drained[node.id] = batches
        return drained

    def has_more(self, node_id: int) -> bool:
        """Whether the last drain left batches of a broker behind, which the next one may take."""
        return node_id in self._left_behind

    def _drain_node(self, node_id: int, led: list[Waiting], now: float) -> list[Batch]:
        looked_at = self._last_looked_at.get(node_id)
        taken, looked_at, left = take_batches(self, led, looked_at, self._max_request_size, now)
        if looked_at is not None:
            self._last_looked_at[node_id] = looked_at
        if left:
            self._left_behind.add(node_id)
        return taken

    def stumble(self, batch: Batch, error: Exception) -> None:
        """Whether a batch may be sent could not be told: it waits where it is."""
        log.error(
            "whether a batch of %s may be sent could not be told", batch.topic_partition, exc_info=error
        )
        self.stumbled = True

    def spoil(self, batch: Batch, error: Exception) -> None:
        """A batch that was taken could not be made ready for the wire: it fails alone, so that no other is lost."""
        log.error("a batch of %s could not be put into wire format", batch.topic_partition, exc_info=error)
        failure = KafkaError(
            f"the batch of {batch.topic_partition} could not be put into wire format: {error!r}"
        )
        failure.__cause__ = error
        self._fail(batch, failure)

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
