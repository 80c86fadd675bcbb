# SPDX-License-Identifier: Apache-2.0
"""Which brokers have something ready, and what goes into their next request. Compiled if possible.

A batch is ready when it is full, has lingered, or need not wait any more (flush, close, short memory), and when it is
not backing off and its partition is not muted. If a broker has one ready batch, its request also takes the first batch
of each of its other partitions, in rotation, up to max.request.size.

I/O thread only: no other thread takes the batch at the head of a queue.
"""

from __future__ import annotations

import logging
from collections.abc import Container
from typing import TYPE_CHECKING, Any

from penstock._events import Event, tell_error
from penstock.errors import KafkaError
from penstock.producer.batch._batch_cy import BatchState
from penstock.producer.guarantee.response_policy import decide_unsent
from penstock.producer.metadata.cluster import NO_TOPIC_ID

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

if cython.compiled:
    from cython.cimports.penstock.producer.batch._accumulator_cy import RecordAccumulator
    from cython.cimports.penstock.producer.batch._batch_cy import (
        ALONG,
        FULL,
        LINGER,
        TRANSACTION_END,
        Batch,
        BatchIdentity,
    )
    from cython.cimports.penstock.producer.batch._partitioner_cy import LoadWatch, TopicState
    from cython.cimports.penstock.producer.batch._queue_cy import PartitionQueue
    from cython.cimports.penstock.producer.guarantee._sequences_cy import Numbering
    from cython.cimports.penstock.protocol._produce_cy import PartitionBatch
else:
    from penstock.producer.batch._accumulator_cy import RecordAccumulator
    from penstock.producer.batch._batch_cy import ALONG, FULL, LINGER, TRANSACTION_END, Batch, BatchIdentity
    from penstock.producer.batch._partitioner_cy import LoadWatch, TopicState
    from penstock.producer.batch._queue_cy import PartitionQueue
    from penstock.producer.guarantee._sequences_cy import Numbering
    from penstock.protocol._produce_cy import PartitionBatch

if TYPE_CHECKING:
    from penstock.producer.guarantee.gate import Gate
    from penstock.producer.metadata.cluster import ClusterSnapshot
    from penstock.types import Node, TopicPartition

log = logging.getLogger("penstock.producer")

_FOREVER = cython.declare(cython.double, float("inf"))
_IN_FLIGHT = BatchState.IN_FLIGHT
_NO_TOPICS: set = set()  # type: ignore[type-arg]  # of nearly every pass; never changed


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


@cython.final
@cython.cclass
class ReadyCheck:
    """What one pass over the active queues found.

    Attributes:
        nodes: brokers that have at least one batch ready.
        next_delay: seconds until the next batch becomes ready. If a broker has a ready batch, its lingering batches may
            not count: they leave with the ready one, or the gate holds them back, and then an event ends the wait.
            Batches that back off count in any case.
        next_expiry: the moment at which the oldest queued batch expires.
        leaderless_topics: topics with batches for partitions whose leader is not known.
        topics: those of all active queues, also of queues that have just become empty, since their length has changed.
        brokers: all LeadingBrokers of active queues. Until the batches are drained, they have the heads.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.next_delay = _FOREVER
        self.next_expiry = _FOREVER
        self.leaderless_topics: set[str] = _NO_TOPICS
        self.topics: list[str] = []
        self.brokers: list[LeadingBroker] = []

    def _add_head(self, led: LedQueue, batch: Batch, full: cython.bint) -> None:
        led.batch = batch
        led.full = full
        if not led.broker.heads:
            self.brokers.append(led.broker)
        led.broker.heads.append(led)

    def _let_go(self) -> None:
        """Drop all references to batches.

        The warning about failed records that nobody asked about is logged when the last reference to the batch's result
        is dropped (see `UnseenRecords`). A reference here would delay it.
        """
        broker: LeadingBroker
        led: LedQueue
        for broker in self.brokers:
            for led in broker.heads:
                led.batch = None
            del broker.heads[:]
            broker.is_ready = False


@cython.final
@cython.cclass
class LeadingBroker:
    """A broker that leads partitions, and what the last pass found of it.

    Attributes:
        is_ready: whether one of its batches is ready.
        heads: its LedQueues that have batches, in the order of their queues.
    """

    def __init__(self, node: Any) -> None:
        self.node = node
        self.is_ready = False
        self.heads: list[LedQueue] = []


@cython.final
@cython.cclass
class LedQueue:
    """A queue whose partition has a leader, and what the last pass found of it.

    Attributes:
        broker: the leader, and `epoch`, its leader epoch.
        topic_id: the id of the topic.
        batch: the one at the head, and whether it is `full`; None outside of a pass and its drain.
    """

    def __init__(
        self, queue: PartitionQueue, broker: LeadingBroker, epoch: cython.int, topic_id: bytes
    ) -> None:
        self.queue = queue
        self.broker = broker
        self.epoch = epoch
        self.topic_id = topic_id
        self.batch: Batch | None = None
        self.full = False


@cython.final
@cython.cclass
class LeaderCache:
    """The leaders of the queues' partitions, looked up once in a snapshot.

    Args:
        snapshot: the cluster; None before anything was looked up.
        load: is told which partitions have had a batch.

    Attributes:
        brokers: the leaders, by node id.
    """

    def __init__(self, snapshot: ClusterSnapshot | None, load: LoadWatch) -> None:
        self.snapshot = snapshot
        self._load = load
        self._known: dict[PartitionQueue, LedQueue] = {}
        self.brokers: dict[int, LeadingBroker] = {}

    def _find(self, queue: PartitionQueue) -> LedQueue | None:
        """The leader of a queue's partition; None while it is not known."""
        led: Any = self._known.get(queue)
        if led is not None:
            return led
        self._load.note_partition(queue.topic, queue.partition)
        if self.snapshot is None:
            return None
        info = self.snapshot.partition(queue.topic, queue.partition)
        node = None if info is None else self.snapshot.leader_of(info)
        if info is None or node is None:
            return None
        broker = self.brokers.get(node.id)
        if broker is None:
            broker = self.brokers[node.id] = LeadingBroker(node)
        self._known[queue] = led = LedQueue(
            queue, broker, info.leader_epoch, self.snapshot.topic_id(queue.topic)
        )
        return led


@cython.final
@cython.cclass
class Drainer:
    """Looks at the queues and empties them into requests.

    Args:
        accumulator: the queues.
        gate: says which batches may leave.
        max_request_size: bytes of batches in one request; one batch is always taken.

    Attributes:
        load: what the partitioner is told.
        unsealed: batches that were taken since the last `ready` and failed, because they could not be sealed. Batches
            behind them in their queues were not checked.
            gate_failed: whether the gate raised an error since the last `ready`. The batch in question is still queued.
    """

    def __init__(
        self, accumulator: RecordAccumulator, gate: Gate, max_request_size: cython.Py_ssize_t
    ) -> None:
        self._accumulator = accumulator
        self.gate = gate
        self.sealer = accumulator.sealer
        self._max_request_size = max_request_size
        self._rotation: dict[int, TopicPartition] = {}  # by node: the place of the queue looked at last
        self.load = LoadWatch(accumulator.partitioner)
        self._leaders = LeaderCache(None, self.load)
        self._check: ReadyCheck | None = None
        self._left_behind: set[int] = set()  # brokers with batches that the last drain did not take
        self._linger = 0.0
        self._hurry = ALONG  # why batches need not wait for more records; ALONG: they must wait
        self.unsealed: list[Batch] = []
        self.gate_failed = False

    # ---- which brokers have something ready

    def ready(self, snapshot: ClusterSnapshot, now: cython.double) -> ReadyCheck:
        """Find out which brokers have something to be sent."""
        accumulator: RecordAccumulator = self._accumulator
        state: TopicState | None
        all_sendable: cython.bint = True
        if accumulator.everything_sendable():
            self._hurry = accumulator.why_sendable()
        elif self.gate.completing:
            self._hurry = TRANSACTION_END
        else:
            self._hurry = ALONG
            all_sendable = False
        self._linger = accumulator.linger
        if self.unsealed:
            self.unsealed = []
        self.gate_failed = False
        check: ReadyCheck = self._scan_queues(snapshot, all_sendable, self._linger, now)
        if self.load.adaptive:
            for topic in check.topics:
                state = accumulator.topics.get(topic)
                if state is not None and state.sticky_partition >= 0:  # else no record had no key
                    self.load.update(state)
        if not check.nodes:
            # Nothing to drain. Clean up now, and not in the next pass, which may have urgent work.
            self.let_go()
        return check

    def _scan_queues(
        self, snapshot: Any, sendable: cython.bint, linger: cython.double, now: cython.double
    ) -> ReadyCheck:
        """Pass over the active queues.

        Args:
            snapshot: the cluster.
            sendable: whether no batch need wait for more records.
            linger: seconds for which a batch does so otherwise.
            now: the time.
        """
        if self._leaders.snapshot is not snapshot:
            self._leaders = LeaderCache(snapshot, self.load)
            self.load.note_snapshot(snapshot)
        self.let_go()  # does nothing, unless the last turn has ended with an error
        check = ReadyCheck()
        self._check = check
        oldest: cython.double = _FOREVER
        topic: Any = None
        queue: PartitionQueue
        batch: Batch
        led: LedQueue
        delay: cython.double
        for queue in self._accumulator.active_queues():
            head, full = queue.head()
            if queue.topic is not topic:  # they come topic by topic
                topic = queue.topic
                check.topics.append(topic)
            if head is None:
                queue.retire()
                continue
            batch = head
            if batch.created < oldest:
                oldest = batch.created
            found = self._leaders._find(queue)
            if found is None:
                if not check.leaderless_topics:
                    check.leaderless_topics = set()
                check.leaderless_topics.add(queue.topic)
                continue
            led = found
            check._add_head(led, batch, full)
            if queue.muted or (batch.attempts == 0 and led.broker.is_ready):
                continue
            if batch.backing_off(now, led.epoch):
                delay = batch.retry_at - now
            elif sendable or full or batch.attempts > 0 or batch.is_piece:
                delay = 0.0
            else:
                # Computed from the moment, not from the age: with rounding the rest might never become zero.
                delay = min(linger, batch.created + linger - now)
            if delay <= 0:
                if not led.broker.is_ready:
                    led.broker.is_ready = True
                    check.nodes.append(led.broker.node)
            elif delay < check.next_delay:
                check.next_delay = delay
        check.next_expiry = oldest + self._accumulator.delivery_timeout
        return check

    def keep_nodes(self, kept: Container[int]) -> None:
        """Forget the rotation of all other brokers."""
        for node_id in [node_id for node_id in self._rotation if node_id not in kept]:
            del self._rotation[node_id]
        self.load.keep_nodes(kept)

    # ---- what goes into their requests

    def drain(
        self,
        nodes: list,  # type: ignore[type-arg]
        now: cython.double,
        old: Container[int] = (),
    ) -> dict:  # type: ignore[type-arg]
        """Take and seal the batches that `ready` has just found for each of these brokers.

        Brokers without a batch are left out of the result.

        Args:
            nodes: brokers that can take a request.
            now: the time.
            old: ids of those that need an older message format: their batches are sealed without the codec.
        """
        drained: dict = {}
        broker: LeadingBroker | None
        self._left_behind.clear()
        for node in nodes:
            node_id: Any = node.id
            broker = self._leaders.brokers.get(node_id)
            if broker is None or not broker.heads:
                continue
            batches = self._take_batches(node_id, broker.heads, now, bool(old) and node_id in old)
            if batches:
                drained[node_id] = batches
        self.let_go()
        return drained

    def let_go(self) -> None:
        """Forget what the last pass found. `drain` does so; call it if nothing can be drained."""
        if self._check is not None:
            self._check._let_go()
            self._check = None

    def has_more(self, node_id: Any) -> cython.bint:
        """Whether the last drain left batches of a broker behind, which the next one may take."""
        return node_id in self._left_behind

    def _take_batches(
        self,
        node_id: Any,
        heads: list,  # type: ignore[type-arg]
        now: cython.double,
        plain: cython.bint,
    ) -> list:  # type: ignore[type-arg]
        """Take and seal the batches for one request to a broker.

        Args:
            node_id: the broker.
            heads: its LedQueues that have batches, in the order of their queues.
            now: the time.
            plain: whether they are sealed without the codec.
        """
        numbering: Any = self.gate.numbering
        # Nearly always it is a Numbering, whose methods compiled code calls without the interpreter.
        numbers: Numbering | None = numbering if isinstance(numbering, Numbering) else None
        identity: BatchIdentity
        taken: list = []
        size: cython.Py_ssize_t = 0
        left: cython.Py_ssize_t = 0  # queues that have more
        head: LedQueue
        queue: PartitionQueue
        batch: Batch
        last: Any = self._rotation.get(node_id)
        for head in _rotated(heads, last):
            queue = head.queue
            batch = head.batch
            last = queue.place
            if queue.muted:
                continue  # until an answer comes
            left += 1
            if batch.attempts and batch.backing_off(now, head.epoch):
                continue
            if taken and size + batch.wire_size() > self._max_request_size:
                break  # the next request begins with it
            try:
                if not (
                    numbering.may_drain(queue, batch) if numbers is None else numbers.may_drain(queue, batch)
                ):
                    continue  # only its partition has to wait
            except Exception as error:  # noqa: BLE001 - it is logged
                # It stays in its queue. Batches that were taken before are in no queue: an error here would lose them.
                self._on_gate_error(batch, error)
                continue
            if not queue.take(batch):
                continue
            try:
                batch.move_to(_IN_FLIGHT)
                batch.leader_epoch = head.epoch
                if batch.attempts or batch.is_piece:
                    batch.retried_for += now - batch.drained_at
                else:
                    batch.left_by = self._why(batch, head.full, now)
                batch.drained_at = now
                identity = numbering.assign(batch) if numbers is None else numbers.assign(batch)
                self.sealer.seal(batch, identity, plain)
            except Exception as error:  # noqa: BLE001 - likewise
                self._fail_unsealed(batch, error)
                continue
            taken.append(batch)
            size += batch.wire_size()
            if queue.is_empty():
                left -= 1
        if last is not None:
            self._rotation[node_id] = last
        if left:
            self._left_behind.add(node_id)
        return taken

    def _why(self, batch: Batch, full: cython.bint, now: cython.double) -> cython.int:
        """Why a batch is sent now, as `Batch.left_by` has it."""
        if full:
            return FULL
        # The same sum as in the scan.
        return LINGER if batch.created + self._linger - now <= 0 else self._hurry

    def partition_batches(self, batches: list, is_old: cython.bint) -> list:
        """The partition and the bytes of each drained batch, for the request.

        Args:
            batches: those of the request.
            is_old: whether the leader gets their message sets.
        """
        found: list = []
        batch: Batch
        queue: PartitionQueue
        led: LedQueue | None
        topic_id: bytes
        for batch in batches:
            queue = batch.queue
            led = self._leaders._find(queue)
            topic_id = NO_TOPIC_ID if led is None else led.topic_id
            if is_old and batch.legacy is not None:
                found.append(PartitionBatch(queue.topic, topic_id, queue.partition, batch.legacy[1]))
            elif batch.wire is not None:
                batch.legacy = None  # made for a former leader; this one does not need it
                found.append(PartitionBatch(queue.topic, topic_id, queue.partition, batch.wire))
        return found

    # ---- what goes wrong

    def _on_gate_error(self, batch: Any, error: Any) -> None:
        """The gate could not say whether a batch may be sent: it stays in its queue."""
        _tell("the gate could not say whether a batch of %s may be sent", batch, error)
        self.gate_failed = True

    def _fail_unsealed(self, batch: Any, error: Any) -> None:
        """A batch that was taken could not be sealed: only this batch fails."""
        _tell("a batch of %s could not be put into wire format", batch, error)
        failure = KafkaError(
            f"the batch of {batch.topic_partition} could not be put into wire format: {error!r}"
        )
        failure.__cause__ = error
        self.unsealed.append(batch)
        try:
            # Before the callbacks, which may ask for what follows from the outcome.
            self.gate.on_failure(batch, failure, decide_unsent(batch))
        except Exception as trouble:  # noqa: BLE001 - it is logged
            _tell("the failure of a batch of %s could not be noted", batch, trouble)
        try:
            batch.fail(failure)
            self._accumulator.finish(batch)
        except Exception as trouble:  # noqa: BLE001 - it is logged; those that were taken before must not suffer
            _tell("a batch of %s has failed, but could not be cleared away", batch, trouble)
            self._accumulator.forget(batch)


def _tell(text: str, batch: Any, trouble: Any) -> None:
    tell_error(
        log, Event.BATCH_ERROR, text, batch.topic_partition,
        place=batch.topic_partition, error=trouble,
    )  # fmt: skip


@cython.cfunc
def _rotated(heads: list, last: Any) -> list:  # type: ignore[type-arg]
    """A broker's queues, beginning with the one that was checked last."""
    at: cython.Py_ssize_t
    head: LedQueue
    if last is not None:
        for at in range(len(heads)):
            head = heads[at]
            if head.queue.place >= last:
                return heads[at:] + heads[:at] if at else heads
    return heads
