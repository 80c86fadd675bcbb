# SPDX-License-Identifier: Apache-2.0
"""Which brokers have something ready, and what goes into their next request. Compiled if possible.

A batch is ready when it is full, has lingered, or need not wait any more (flush, close, short memory), and when it is
not backing off and its partition is not muted. If a broker has one ready batch, its request also takes the first batch
of each of its other partitions, in rotation, up to max.request.size. What such a request leaves behind for want of room
goes with the next one.

A turn costs what has changed, not what exists: a queue that may have become ready reports itself, and is listed at its
leader until it is empty. docs/design.md has the rules, in "Ready queues".

I/O thread only: no other thread takes the batch at the head of a queue.
"""

from __future__ import annotations

import logging
from collections.abc import Container
from typing import TYPE_CHECKING, Any

from penstock._events import Event, tell_error
from penstock.errors import KafkaError
from penstock.producer.batch._batch_cy import BatchState, by_topic
from penstock.producer.guarantee.response_policy import decide_unsent
from penstock.producer.metadata.cluster import NO_TOPIC_ID

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

if cython.compiled:
    from cython.cimports.penstock.producer.batch._accumulator_cy import RecordAccumulator
    from cython.cimports.penstock.producer.batch._batch_cy import ALONG, FULL, LINGER, TRANSACTION_END
    from cython.cimports.penstock.producer.batch._batch_cy import Batch, BatchIdentity
    from cython.cimports.penstock.producer.batch._partitioner_cy import LoadWatch
    from cython.cimports.penstock.producer.batch._queue_cy import PartitionQueue
    from cython.cimports.penstock.producer.guarantee._sequences_cy import Numbering
    from cython.cimports.penstock.protocol._produce_cy import PartitionBatch
else:
    from penstock.producer.batch._accumulator_cy import RecordAccumulator
    from penstock.producer.batch._batch_cy import ALONG, FULL, LINGER, TRANSACTION_END, Batch, BatchIdentity
    from penstock.producer.batch._partitioner_cy import LoadWatch
    from penstock.producer.batch._queue_cy import PartitionQueue
    from penstock.producer.guarantee._sequences_cy import Numbering
    from penstock.protocol._produce_cy import PartitionBatch

if TYPE_CHECKING:
    from penstock.producer.guarantee.gate import Gate
    from penstock.producer.metadata.cluster import ClusterSnapshot
    from penstock.types import Node

log = logging.getLogger("penstock.producer")

_FOREVER = cython.declare(cython.double, float("inf"))
_MANY = cython.declare(cython.Py_ssize_t, 64)  # batches of a request: from here on their number is what costs
_IN_FLIGHT = BatchState.IN_FLIGHT
_NO_TOPICS: set = set()  # type: ignore[type-arg]  # of nearly every pass; never changed


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


@cython.final
@cython.cclass
class ReadyCheck:
    """What is ready.

    Attributes:
        nodes: brokers that have at least one batch ready.
        next_delay: seconds until another one becomes ready; `drain` lowers it. What leaves with a ready one, or waits
            for an event, need not count.
        leaderless_topics: topics with batches for partitions whose leader is not known.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.next_delay = _FOREVER
        self.leaderless_topics: set[str] = _NO_TOPICS


@cython.final
@cython.cclass
class LeadingBroker:
    """A broker that leads partitions.

    Attributes:
        is_ready: whether one of its batches is ready, or is to be tried again.
        is_urgent: whether it is ready for another reason than time or short memory, so that waiting would gain nothing.
        due: from when on one of its batches may be ready.
        heads: its LedQueues that have batches, those first that are served first. A queue that has become empty
            otherwise than by a drain may still be among them.
        is_listed: whether it is among the brokers that have any.
    """

    def __init__(self, node: Any) -> None:
        self.node = node
        self.is_ready = False
        self.is_urgent = False
        self.due = _FOREVER
        self.heads: list[LedQueue] = []
        self.is_listed = False


@cython.final
@cython.cclass
class LedQueue:
    """A queue whose partition has a leader.

    Attributes:
        generation: of the LeaderCache that it belongs to. An idle queue must not keep a former snapshot.
        broker: the leader, and `epoch`, its leader epoch.
        topic_id: the id of the topic.
        is_listed: whether it is in `broker.heads`.
    """

    def __init__(
        self,
        generation: cython.longlong,
        queue: PartitionQueue,
        broker: Any,
        epoch: cython.int,
        topic_id: bytes,
    ) -> None:
        self.generation = generation
        self.queue = queue
        self.broker = broker
        self.epoch = epoch
        self.topic_id = topic_id
        self.is_listed = False


@cython.final
@cython.cclass
class LeaderCache:
    """The leaders of the queues' partitions, looked up once in a snapshot.

    Args:
        snapshot: the cluster; None before anything was looked up.
        load: is told which partitions have had a batch.
        former: the one before; it is not used any more.

    Attributes:
        brokers: the leaders, by node id.
        busy: those that have batches.
        leaderless: queues without leader that have batches, by topic.
    """

    def __init__(
        self, snapshot: ClusterSnapshot | None, load: LoadWatch, former: LeaderCache | None = None
    ) -> None:
        broker: LeadingBroker
        self.generation = 0
        if former is not None:
            self.generation = former.generation + 1
            for broker in former.busy:
                broker.heads = []
        self.snapshot = snapshot
        self._load = load
        self.brokers: dict[int, LeadingBroker] = {}
        self.busy: list[LeadingBroker] = []
        self.leaderless: dict[str, set[PartitionQueue]] = {}

    def _find(self, queue: PartitionQueue) -> LedQueue | None:
        """The leader of a queue's partition; None while it is not known."""
        led: LedQueue | None = queue.led
        if led is not None and led.generation == self.generation:
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
        led = LedQueue(self.generation, queue, broker, info.leader_epoch, self.snapshot.topic_id(queue.topic))
        queue.led = led
        return led

    def drop_idle(self) -> Any:
        """Drop the brokers that have no batches any more."""
        broker: LeadingBroker
        busy: list = []
        for broker in self.busy:
            broker.is_listed = len(broker.heads) > 0
            if broker.is_listed:
                busy.append(broker)
        self.busy = busy

    def leaderless_topics(self) -> set[str]:
        """The topics of batches without leader."""
        for topic, queues in list(self.leaderless.items()):
            if not any(map(PartitionQueue.depth, queues)):
                del self.leaderless[topic]
        return set(self.leaderless)


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
        next_expiry: no queued batch expires before that time.
        unsealed: batches that were taken since the last `ready` and failed, because they could not be sealed.
        gate_failed: whether the gate raised an error since the last `ready`. The batch in question is still queued.
    """

    def __init__(
        self, accumulator: RecordAccumulator, gate: Gate, max_request_size: cython.Py_ssize_t
    ) -> None:
        self._accumulator = accumulator
        self.gate = gate
        self.sealer = accumulator.sealer
        self._max_request_size = max_request_size
        self.load = LoadWatch(accumulator.partitioner)
        self._leaders = LeaderCache(None, self.load)
        self._check = ReadyCheck()
        self._left_behind: set[int] = set()  # brokers of which the last drain left ready batches
        self.next_expiry = _FOREVER
        self._linger = 0.0
        self._hurry = ALONG  # why batches need not wait for more records; ALONG: they must wait
        self.unsealed: list[Batch] = []
        self.gate_failed = False

    def ready(self, snapshot: ClusterSnapshot, now: cython.double) -> ReadyCheck:
        """Find out which brokers have something to be sent."""
        accumulator: RecordAccumulator = self._accumulator
        had_to_wait: cython.bint = self._hurry == ALONG
        if accumulator.everything_sendable():
            self._hurry = accumulator.why_sendable()
        elif self.gate.completing:
            self._hurry = TRANSACTION_END
        else:
            self._hurry = ALONG
        self._linger = accumulator.linger
        if self.unsealed:
            self.unsealed = []
        self.gate_failed = False
        self._check = ReadyCheck()
        if self._leaders.snapshot is not snapshot:
            self._list_anew(snapshot, now)
        if not accumulator.has_undrained():
            self.next_expiry = _FOREVER
        self._list(accumulator.take_news(), now)
        self._find_ready(had_to_wait != (self._hurry == ALONG), now)
        if self._leaders.leaderless:
            self._check.leaderless_topics = self._leaders.leaderless_topics()
        if self.load.has_changes:
            self.load.update_changed(accumulator.topics)
        return self._check

    def forget_leaders(self) -> None:
        """List all queues anew in the next turn: an error may have ended this one in the middle of a list."""
        self._leaders = LeaderCache(None, self.load, self._leaders)

    def _list_anew(self, snapshot: Any, now: cython.double) -> Any:
        """Another cluster: list the queues that have batches at their leaders, the oldest batch first."""
        self._leaders = LeaderCache(snapshot, self.load, self._leaders)
        self.load.note_snapshot(snapshot)
        self._list(sorted(self._accumulator.active_queues(), key=_oldest), now)

    def _list(self, news: list, now: cython.double) -> Any:  # type: ignore[type-arg]
        """List queues at their leaders, and find out from when on they may be ready."""
        leaders: LeaderCache = self._leaders
        queue: PartitionQueue
        led: LedQueue | None
        broker: LeadingBroker
        due: cython.double
        topic: Any = None
        for queue in news:
            if queue.topic is not topic:
                topic = queue.topic
                self.load.note_change(topic)
            led = queue.led
            if queue.is_empty():
                if led is not None and led.generation == leaders.generation and led.is_listed:
                    led.broker.is_ready = False  # unless another queue makes it so: `_find_ready` looks again
                    led.broker.due = now
                continue
            led = leaders._find(queue)
            if led is None:
                self._note_age(queue)
                leaders.leaderless.setdefault(queue.topic, set()).add(queue)
                continue
            broker = led.broker
            if not led.is_listed:
                broker.heads.append(led)
                led.is_listed = True
                if not broker.is_listed:
                    broker.is_listed = True
                    leaders.busy.append(broker)
            due = self._due(led, now)
            if due <= now:
                broker.is_ready = True
            elif due < broker.due:
                broker.due = due

    def _due(self, led: LedQueue, now: cython.double) -> cython.double:
        """From when on the oldest batch of a queue is ready; infinity for one that waits for an event."""
        batch: Batch
        head: Batch | None = led.queue.look()
        if head is None:
            return _FOREVER
        batch = head
        self._note_age(led.queue)
        if led.queue.muted:
            return _FOREVER
        if batch.backing_off(now, led.epoch):
            return batch.retry_at
        if led.queue.seen_full or batch.attempts > 0 or batch.is_piece:
            led.broker.is_urgent = True
            return now
        if self._hurry != ALONG:
            return now
        return min(now, batch.created) + self._linger

    def _note_age(self, queue: PartitionQueue) -> Any:
        expiry: cython.double = _oldest(queue) + self._accumulator.delivery_timeout
        if expiry < self.next_expiry:
            self.next_expiry = expiry

    def _find_ready(self, all_again: cython.bint, now: cython.double) -> Any:
        """Note the brokers that have something ready, and when others will have; `all_again`: look at all queues."""
        leaders: LeaderCache = self._leaders
        check: ReadyCheck = self._check
        broker: LeadingBroker
        idle: cython.bint = False
        for broker in leaders.busy:
            if not broker.heads:
                idle = True
                continue
            if all_again or (broker.due <= now and not broker.is_ready):
                self._look_again(broker, now)
            if broker.is_ready:
                check.nodes.append(broker.node)
            self._note_due(broker, now)
        if idle:
            leaders.drop_idle()

    def _look_again(self, broker: LeadingBroker, now: cython.double) -> Any:
        """Find out whether a broker has something ready; if not, from when on."""
        led: LedQueue
        due: cython.double
        earliest: cython.double = _FOREVER
        broker.is_ready = False
        for led in broker.heads:
            due = self._due(led, now)
            if due <= now:
                broker.is_ready = True
                return
            earliest = min(earliest, due)
        broker.due = earliest

    def _note_due(self, broker: LeadingBroker, now: cython.double) -> Any:
        # Before that a ready broker has nothing to wait for but an event.
        if now < broker.due < now + self._check.next_delay:
            self._check.next_delay = broker.due - now

    def take_expired(self, now: cython.double) -> list:  # type: ignore[type-arg]
        """Take the queued batches whose delivery time-out is over."""
        expired: list = self._accumulator.take_expired(now)
        self.next_expiry = _FOREVER
        for queue in self._accumulator.active_queues():
            self._note_age(queue)
        return expired

    def can_wait(self, node_id: Any) -> cython.bint:
        """Whether what a broker would be sent now should wait for the answers that it owes: many batches, all small.

        Only while memory is short: then the brokers are the bottleneck. The more often these batches leave, the smaller
        they are, and it is their number that takes time.
        """
        broker: LeadingBroker | None = self._leaders.brokers.get(node_id)
        if broker is None or broker.is_urgent or len(broker.heads) < _MANY:
            return False
        pool: Any = self._accumulator.pool
        return True if 2 * pool.available() < pool.total else False

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
            batches = self._take_batches(broker, now, bool(old) and node_id in old)
            if batches:
                drained[node_id] = batches
            self._note_due(broker, now)
        return drained

    def has_more(self, node_id: Any) -> cython.bint:
        """Whether the last drain left ready batches of a broker behind."""
        return node_id in self._left_behind

    def _take_batches(self, broker: LeadingBroker, now: cython.double, plain: cython.bint) -> list:  # type: ignore[type-arg]
        """Take and seal the batches for one request to a broker; `plain`: without the codec."""
        taken: list = []
        kept: list = []  # queues that still have batches
        size: cython.Py_ssize_t = 0
        at: cython.Py_ssize_t
        due: cython.double
        earliest: cython.double = _FOREVER
        more: cython.bint = False
        rest: cython.bint = False  # there was no room for it
        held_back: cython.bint = False
        led: LedQueue
        queue: PartitionQueue
        batch: Batch
        head: Batch | None
        topic: Any = None
        runs: cython.Py_ssize_t = 0  # of batches of one topic
        heads: list = broker.heads
        broker.is_urgent = False
        for at in range(len(heads)):
            led = heads[at]
            queue = led.queue
            head = queue.look()
            if head is None:
                led.is_listed = False
                continue
            batch = head
            if queue.muted:
                kept.append(led)
                continue  # until an answer comes
            if batch.attempts and batch.backing_off(now, led.epoch):
                kept.append(led)
                earliest = min(earliest, batch.retry_at)
                continue
            if taken and size + batch.wire_size() > self._max_request_size:
                more = rest = True
                kept = heads[at:] + kept  # the next request begins with it
                break
            if not self._may_leave(queue, batch):
                due = self._due(led, now)
                if due <= now or self.gate_failed:
                    held_back = True
                else:
                    earliest = min(earliest, due)
                kept.append(led)
                continue  # only its partition has to wait
            queue.take(batch)
            if queue.topic is not topic:
                topic = queue.topic
                runs += 1
                self.load.note_change(topic)
            if self._seal(led, batch, now, plain):
                taken.append(batch)
                size += batch.wire_size()
            if queue.is_empty():
                led.is_listed = False
                continue
            kept.append(led)
            due = self._due(led, now)
            if due <= now:
                more = True
            else:
                earliest = min(earliest, due)
        broker.heads = kept
        broker.due = earliest
        # What the gate holds back is tried again in each turn: what lets it go is an event.
        broker.is_ready = more or held_back
        broker.is_urgent = broker.is_urgent or rest
        if more:
            self._left_behind.add(broker.node.id)
        return taken if runs < 2 else by_topic(taken)

    def _may_leave(self, queue: PartitionQueue, batch: Batch) -> cython.bint:
        """Whether the gate lets a batch go."""
        numbering: Any = self.gate.numbering
        try:
            # Nearly always it is a Numbering, whose methods compiled code calls without the interpreter.
            if isinstance(numbering, Numbering):
                return cython.cast(Numbering, numbering).may_drain(queue, batch)
            return bool(numbering.may_drain(queue, batch))
        except Exception as error:  # noqa: BLE001 - it is logged
            # It stays in its queue. Batches that were taken before are in no queue: an error here would lose them.
            _tell("the gate could not say whether a batch of %s may be sent", batch, error)
            self.gate_failed = True
            return False

    def _seal(self, led: LedQueue, batch: Batch, now: cython.double, plain: cython.bint) -> cython.bint:
        """Number and seal a batch that was taken; False if that failed, and the batch with it."""
        numbering: Any = self.gate.numbering
        numbers: Numbering | None = numbering if isinstance(numbering, Numbering) else None
        identity: BatchIdentity
        try:
            batch.move_to(_IN_FLIGHT)
            batch.leader_epoch = led.epoch
            if batch.attempts or batch.is_piece:
                batch.retried_for += now - batch.drained_at
            else:
                batch.left_by = self._why(batch, led.queue.seen_full, now)
            batch.drained_at = now
            identity = numbering.assign(batch) if numbers is None else numbers.assign(batch)
            self.sealer.seal(batch, identity, plain)
        except Exception as error:  # noqa: BLE001 - it is logged: it must not lose those that were taken before
            self._fail_unsealed(batch, error)
            return False
        return True

    def _why(self, batch: Batch, full: cython.bint, now: cython.double) -> cython.int:
        """Why a batch is sent now, as `Batch.left_by` has it."""
        if full:
            return FULL
        # The same sum as in `_due`.
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


@cython.ccall
def _oldest(queue: PartitionQueue) -> cython.double:
    """When the oldest batch of a queue was created."""
    batch: Batch = queue.batches[0]
    return batch.created
