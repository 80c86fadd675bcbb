# SPDX-License-Identifier: Apache-2.0
"""The looks that the I/O thread takes at the queues, and what it takes from them. Compiled if possible.

Only loops are here, and what they ask of every queue and batch; what is done about the unusual is `drain.Drainer`'s.
I/O thread only: a batch at the head of a queue is taken away by nobody else.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from penstock.producer.batch._batch_cy import BatchState

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

if cython.compiled:
    from cython.cimports.penstock.producer.batch._batch_cy import Batch
    from cython.cimports.penstock.producer.batch._queue_cy import PartitionQueue
else:
    from penstock.producer.batch._batch_cy import Batch
    from penstock.producer.batch._queue_cy import PartitionQueue

if TYPE_CHECKING:
    from penstock.producer.metadata.cluster import ClusterSnapshot
    from penstock.producer.io.drain import Drainer
    from penstock.types import TopicPartition

_FOREVER = cython.declare(cython.double, float("inf"))
_IN_FLIGHT = BatchState.IN_FLIGHT
_BY_PLACE = attrgetter("place")
# Up to so many, putting each where it belongs is quicker than a sort that asks for keys and compares tuples.
_FEW = cython.declare(cython.Py_ssize_t, 24)


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


def in_order(active: set) -> list[PartitionQueue]:  # type: ignore[type-arg]
    """These queues, by topic and partition. Other threads may add to the set meanwhile: its copy is atomic."""
    queues: list = list(active)
    count: cython.Py_ssize_t = len(queues)
    if not cython.compiled or count > _FEW:
        queues.sort(key=_BY_PLACE)
        return queues
    queue: PartitionQueue
    at: cython.Py_ssize_t
    place: cython.Py_ssize_t
    for at in range(1, count):
        queue = queues[at]
        place = at
        while place > 0 and _comes_before(queue, queues[place - 1]):
            queues[place] = queues[place - 1]
            place -= 1
        queues[place] = queue
    return queues


@cython.cfunc
def _comes_before(queue: PartitionQueue, other: PartitionQueue) -> cython.bint:
    # Queues of one topic nearly always share the very string.
    if queue.topic is other.topic or queue.topic == other.topic:
        return queue.partition < other.partition
    return queue.topic < other.topic


@cython.final
@cython.cclass
class Waiting:
    """A queue, the batch at its head, and the epoch of its partition's leader."""

    def __init__(self, queue: PartitionQueue, batch: Batch, leader_epoch: cython.int) -> None:
        self.queue = queue
        self.batch = batch
        self.leader_epoch = leader_epoch


@cython.final
@cython.cclass
class Home:
    """Who leads a partition."""

    def __init__(self, leader: Any, leader_epoch: cython.int) -> None:
        self.leader = leader
        self.leader_id = leader.id
        self.leader_epoch = leader_epoch


@cython.final
@cython.cclass
class Homes:
    """Where the partitions of queues are, remembered as long as the cluster is known to be as it was.

    Args:
        snapshot: the cluster; None before anything was looked up.
        seen: gets the partitions that have had a batch, per topic.
    """

    def __init__(self, snapshot: ClusterSnapshot | None, seen: Mapping[str, set[int]]) -> None:
        self.snapshot = snapshot
        self.seen = seen
        self._known: dict[PartitionQueue, Home] = {}

    def _find(self, queue: PartitionQueue) -> Home | None:
        """Who leads a queue's partition; None while nobody is known to."""
        home: Any = self._known.get(queue)
        if home is not None:
            return home
        self.seen[queue.topic].add(queue.partition)
        if self.snapshot is None:
            return None
        info = self.snapshot.partition(queue.topic, queue.partition)
        leader = None if info is None else self.snapshot.leader_of(info)
        if info is None or leader is None:
            return None
        self._known[queue] = home = Home(leader, info.leader_epoch)
        return home


@cython.final
@cython.cclass
class Look:
    """What one look at the queues found.

    Attributes:
        snapshot: the cluster, according to which.
        nodes: brokers that have at least one batch ready, by id.
        by_node: what waits, by the id of the broker that leads it.
        topics: those of all queues that are active, also of those that just ran empty: that changes their lengths.
        leaderless: topics with batches for partitions whose leader is not known.
        next_delay: seconds until a batch that is not ready now will be.
        oldest: when the oldest batch was created.
    """

    def __init__(self, snapshot: ClusterSnapshot | None) -> None:
        self.snapshot = snapshot
        self.nodes = {}
        self.by_node = {}
        self.topics = set()
        self.leaderless = set()
        self.next_delay = _FOREVER
        self.oldest = _FOREVER

    def _note(self, home: Home, queue: PartitionQueue, batch: Batch) -> None:
        waiting = Waiting(queue, batch, home.leader_epoch)
        found: Any = self.by_node.get(home.leader_id)
        if found is None:
            self.by_node[home.leader_id] = [waiting]
        else:
            found.append(waiting)


def look_at(
    queues: list,  # type: ignore[type-arg]
    homes: Homes,
    sendable: cython.bint,
    linger: cython.double,
    now: cython.double,
) -> Look:
    """Find out what waits where, and which brokers have something to be sent.

    Args:
        queues: those that are active.
        homes: who leads their partitions.
        sendable: whether no batch need wait for more records.
        linger: seconds for which a batch does so otherwise.
        now: the time.
    """
    look = Look(homes.snapshot)
    queue: PartitionQueue
    batch: Batch
    home: Home
    delay: cython.double
    for queue in queues:
        head, full = queue.head()
        look.topics.add(queue.topic)
        if head is None:
            queue.retire()
            continue
        batch = head
        if batch.created < look.oldest:
            look.oldest = batch.created
        found = homes._find(queue)
        if found is None:
            look.leaderless.add(queue.topic)
            continue
        home = found
        look._note(home, queue, batch)
        if queue.muted or (batch.attempts == 0 and home.leader_id in look.nodes):
            continue
        if batch.backing_off(now, home.leader_epoch):
            delay = batch.retry_at - now
        elif sendable or full or batch.attempts > 0 or batch.is_piece:
            delay = 0.0
        else:
            # From the moment itself, not from the age: rounding must not leave a rest that never becomes zero.
            delay = min(linger, batch.created + linger - now)
        if delay <= 0:
            look.nodes[home.leader_id] = home.leader
        elif delay < look.next_delay:
            look.next_delay = delay
    return look


def who_leads(queues: list, homes: Homes) -> Look:  # type: ignore[type-arg]
    """Find out what waits where, and no more."""
    return look_at(queues, homes, False, 0.0, 0.0)


def take_batches(
    drainer: Drainer,
    led: list,
    last: TopicPartition | None,
    limit: cython.Py_ssize_t,
    now: cython.double,  # type: ignore[type-arg]
) -> tuple[list[Any], TopicPartition | None, int]:
    """Take the batches for one request to a broker, sealed and theirs to send.

    Args:
        drainer: told of what goes wrong: `spoil(batch, error)` of a batch that was taken, `stumble(batch, error)` of
            one that stays where it is.
        led: what waits for the broker.
        last: where the rotation goes on: the place of the queue that was looked at last.
        limit: bytes of all of them; one is always taken.
        now: the time.

    Returns:
        The batches, the place of the queue that was looked at last now, and how many queues have more.
    """
    gate: Any = drainer.gate
    sealer: Any = drainer.sealer
    taken: list = []
    size: cython.Py_ssize_t = 0
    left: cython.Py_ssize_t = 0
    waiting: Waiting
    queue: PartitionQueue
    batch: Batch
    for waiting in _rotated(led, last):
        queue = waiting.queue
        batch = waiting.batch
        last = queue.place
        if queue.muted:
            continue  # until an answer comes
        left += 1
        if batch.attempts and batch.backing_off(now, waiting.leader_epoch):
            continue
        if taken and size + batch.wire_size() > limit:
            break  # it is looked at first next time
        try:
            if not gate.may_drain(queue, batch):
                continue  # its partition waits for something; the others need not
        except Exception as error:  # noqa: BLE001 - the drainer tells of it
            # It stays where it is. What was taken before is in no queue: it must not be lost with this one.
            drainer.stumble(batch, error)
            continue
        if not queue.take(batch):
            continue
        try:
            batch.move_to(_IN_FLIGHT)
            batch.leader_epoch = waiting.leader_epoch
            batch.drained_at = now
            sealer.seal(batch, gate.assign(batch))
        except Exception as error:  # noqa: BLE001 - likewise
            drainer.spoil(batch, error)
            continue
        taken.append(batch)
        size += batch.wire_size()
        if queue.is_empty():
            left -= 1
    return taken, last, left


@cython.cfunc
def _rotated(led: list, last: Any) -> list:  # type: ignore[type-arg]
    """A broker's queues, from the one looked at last."""
    at: cython.Py_ssize_t
    waiting: Waiting
    if last is not None:
        for at in range(len(led)):
            waiting = led[at]
            if waiting.queue.place >= last:
                return led[at:] + led[:at] if at else led
    return led
