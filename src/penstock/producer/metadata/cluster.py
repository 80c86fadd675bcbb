# SPDX-License-Identifier: Apache-2.0
"""What is known of the cluster: immutable values, and the function that turns a Metadata answer into the next one.

A ClusterSnapshot is never changed, only replaced, so any thread may read one without a lock and will see brokers,
topics and leaders that belong together.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from operator import lt
from typing import Any, Final, NamedTuple

from penstock.errors import (
    BrokerError,
    InvalidMetadataError,
    InvalidTopicError,
    TopicAuthorizationError,
    broker_error,
    error_row,
)
from penstock.protocol.requests import MetadataResponse
from penstock.types import Node

NO_TOPIC_ID = bytes(16)  # what brokers before Metadata version 10, and errors, have in place of an id
NO_LEADER = -1
UNKNOWN_EPOCH = -1

# Brokers could return an old leader epoch up to version 8 of Metadata, so that comparing them proves nothing.
FIRST_VERSION_WITH_RELIABLE_EPOCHS = 9


class PartitionInfo(NamedTuple):
    """One partition, as the last answer about it described it."""

    topic: str
    partition: int
    leader_id: int = NO_LEADER
    leader_epoch: int = UNKNOWN_EPOCH
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    offline: tuple[int, ...] = ()


_Copies = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]  # where: all, in sync, offline
NO_COPIES: Final[_Copies] = ((), (), ())


class TopicInfo(NamedTuple):
    """One topic; its partitions are in ascending order.

    They are kept in columns. As objects, a hundred thousand of them make a garbage collection take long.
    """

    name: str
    topic_id: bytes
    numbers: array[int]
    leaders: array[int]
    epochs: array[int]
    copies: tuple[_Copies, ...]

    @classmethod
    def of(
        cls,
        name: str,
        topic_id: bytes,
        numbers: Sequence[int],
        leaders: Sequence[int],
        epochs: Sequence[int],
        copies: Sequence[_Copies],
    ) -> TopicInfo:
        """From the partitions in any order."""
        if not all(map(lt, numbers, islice(numbers, 1, None))):
            order = sorted(range(len(numbers)), key=numbers.__getitem__)
            numbers, leaders, epochs = ([column[at] for at in order] for column in (numbers, leaders, epochs))
            copies = [copies[at] for at in order]
        return cls(
            name, topic_id, array("i", numbers), array("i", leaders), array("i", epochs), tuple(copies)
        )

    @property
    def partitions(self) -> tuple[PartitionInfo, ...]:
        """All partitions."""
        rows = zip(self.numbers, self.leaders, self.epochs, self.copies, strict=True)
        return tuple(
            PartitionInfo(self.name, number, leader, epoch, *copies) for number, leader, epoch, copies in rows
        )

    def place(self, number: int) -> int:
        """Where a partition is in the columns, -1 when it is not known."""
        # Kafka numbers partitions without holes, so that position and number agree.
        numbers = self.numbers
        if 0 <= number < len(numbers) and numbers[number] == number:
            return number
        at = bisect_left(numbers, number)
        return at if at < len(numbers) and numbers[at] == number else -1

    def partition(self, number: int) -> PartitionInfo | None:
        """The partition with this number, None when it is not known."""
        at = self.place(number)
        if at < 0:
            return None
        return PartitionInfo(self.name, number, self.leaders[at], self.epochs[at], *self.copies[at])

    def led_by(self, number: int, leader_id: int, leader_epoch: int) -> TopicInfo:
        """The same, with another leader of one partition, which is known."""
        leaders, epochs = self.leaders[:], self.epochs[:]
        at = self.place(number)
        leaders[at], epochs[at] = leader_id, leader_epoch
        return self._replace(leaders=leaders, epochs=epochs)

    def led_by_nobody(self) -> TopicInfo:
        """How many partitions it has, and no more."""
        count = len(self.numbers)
        nobody, unknown = array("i", (NO_LEADER,)) * count, array("i", (UNKNOWN_EPOCH,)) * count
        return self._replace(leaders=nobody, epochs=unknown, copies=(NO_COPIES,) * count)


class LeaderHint(NamedTuple):
    """A produce answer's word on who leads a partition now."""

    topic: str
    partition: int
    leader_id: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """Brokers, topics and leaders at one moment. The mappings must not be changed.

    Attributes:
        nodes: brokers by id; the bootstrap ones have negative ids.
        topics: topics that exist and that this client uses.
        invalid_topics: topics whose name the cluster refuses.
        unauthorized_topics: topics that this client may not see.
        cluster_id: None until a broker told it.
    """

    nodes: Mapping[int, Node]
    topics: Mapping[str, TopicInfo] = field(default_factory=dict)
    invalid_topics: frozenset[str] = frozenset()
    unauthorized_topics: frozenset[str] = frozenset()
    cluster_id: str | None = None
    # Answers of `available_partitions`, which is asked for every batch. Any thread: all write the same value.
    _available: dict[str, list[int]] = field(default_factory=dict, init=False, compare=False, repr=False)

    @classmethod
    def bootstrap(cls, nodes: Iterable[Node]) -> ClusterSnapshot:
        """What is known before the first answer."""
        return cls({node.id: node for node in nodes})

    def without_brokers(self, nodes: Iterable[Node]) -> ClusterSnapshot:
        """The same topics, led by nobody: what stays true when no broker can be reached but, perhaps, these.

        Epochs are forgotten, so that the next answer counts, whatever it says.
        """
        topics = {name: info.led_by_nobody() for name, info in self.topics.items()}
        return ClusterSnapshot({node.id: node for node in nodes}, topics, self.invalid_topics)

    def with_brokers(self, nodes: Mapping[int, Node], cluster_id: str | None) -> ClusterSnapshot:
        """The same topics, and these brokers; this very object where that is no change."""
        # Brokers before 0.10.1 do not tell the cluster id, and in a mixed cluster they are asked, too.
        cluster_id = cluster_id or self.cluster_id
        if nodes == self.nodes and cluster_id == self.cluster_id:
            return self
        return replace(self, nodes=nodes, cluster_id=cluster_id)

    def partition(self, topic: str, partition: int) -> PartitionInfo | None:
        info = self.topics.get(topic)
        return None if info is None else info.partition(partition)

    def leader(self, topic: str, partition: int) -> Node | None:
        """The broker that leads the partition; None when it has no leader, or one that is not known."""
        info = self.partition(topic, partition)
        return None if info is None else self.leader_of(info)

    def leader_of(self, info: PartitionInfo) -> Node | None:
        """The broker that leads the partition described; None when it has no leader, or one that is not known."""
        # Bootstrap nodes have negative ids, and -1 is also how brokers spell "no leader".
        return None if info.leader_id < 0 else self.nodes.get(info.leader_id)

    def partition_count(self, topic: str) -> int | None:
        """How many partitions the topic has, None when it is not known."""
        info = self.topics.get(topic)
        return None if info is None else len(info.numbers)

    def available_partitions(self, topic: str) -> list[int]:
        """The partitions that have a known leader, in ascending order; the list must not be changed."""
        known = self._available.get(topic)
        if known is None:
            info = self.topics.get(topic)
            rows = () if info is None else zip(info.numbers, info.leaders, strict=True)
            known = [number for number, leader in rows if leader >= 0 and leader in self.nodes]
            self._available[topic] = known
        return known

    def topic_id(self, topic: str) -> bytes:
        """The topic's id; zeros where it is not known."""
        info = self.topics.get(topic)
        return NO_TOPIC_ID if info is None else info.topic_id

    def has(self, topic: str, partition: int | None) -> bool:
        """Whether the topic is known and, where a partition is given, has that many."""
        count = self.partition_count(topic)
        return count is not None and (partition is None or partition < count)

    def with_leaders(self, hints: Iterable[LeaderHint], nodes: Iterable[Node]) -> ClusterSnapshot:
        """The snapshot after leader hints; this very object when none of them was news.

        A hint counts only when it is complete: a leader among the known nodes or those that came with the hints, an
        epoch newer than the known one, and a partition that is known.
        """
        all_nodes = {**self.nodes, **{node.id: node for node in nodes}}
        changed: dict[str, TopicInfo] = {}
        for hint in hints:
            topic = changed.get(hint.topic) or self.topics.get(hint.topic)
            current = None if topic is None else topic.partition(hint.partition)
            if topic is None or current is None or hint.leader_epoch <= current.leader_epoch:
                continue
            if hint.leader_id < 0 or hint.leader_id not in all_nodes:
                continue  # it says that there is a leader without saying where
            changed[hint.topic] = topic.led_by(hint.partition, hint.leader_id, hint.leader_epoch)
        if not changed:
            return self
        return replace(self, nodes=all_nodes, topics={**self.topics, **changed})


class MetadataAnswer(NamedTuple):
    """What a Metadata answer changes.

    Attributes:
        snapshot: the cluster as it is known now.
        answered: every topic that the answer spoke of.
        errors: topics that the answer had an error for.
        stale: the answer itself says that it will soon be out of date, so another one is wanted.
        progress: something is known that was not known before.
    """

    snapshot: ClusterSnapshot
    answered: frozenset[str]
    errors: Mapping[str, BrokerError]
    stale: bool
    progress: bool


def read_nodes(response: MetadataResponse) -> dict[int, Node]:
    """The brokers of a Metadata answer."""
    return {
        broker["node_id"]: Node(broker["node_id"], broker["host"], broker["port"], broker.get("rack"))
        for broker in response.brokers
    }


def read_answer(
    old: ClusterSnapshot, response: MetadataResponse, wanted: Collection[str], *, partial: bool, most: int
) -> Generator[None, None, MetadataAnswer]:
    """Make the next snapshot out of the present one and an answer, in pieces: it is returned after the last one.

    Args:
        old: the present snapshot.
        response: the answer. Its version decides whether leader epochs can be trusted.
        wanted: topics of interest; others are left out.
        partial: the answer is about some of the topics only, the others stay as they were.
        most: partitions and topics of a piece; twice as many at the worst.

    Raises:
        ProtocolError: the answer cannot be decoded.
    """
    reader = _AnswerReader(old, response.version >= FIRST_VERSION_WITH_RELIABLE_EPOCHS)
    answered = set()
    done = 0
    for topic, partitions, is_last in response.pieces(most):
        name = topic["name"]
        if name is not None:
            answered.add(name)
        if name in wanted:
            reader.read_piece(topic, partitions, is_last)
        done += len(partitions) + 1
        if done >= most:
            done = 0
            yield
    invalid = {name for name, error in reader.errors.items() if isinstance(error, InvalidTopicError)}
    unauthorized = {
        name for name, error in reader.errors.items() if isinstance(error, TopicAuthorizationError)
    }
    topics = reader.topics
    if partial:
        kept = frozenset(wanted) - answered
        topics = {**{name: info for name, info in old.topics.items() if name in kept}, **topics}
        invalid |= old.invalid_topics & kept
        unauthorized |= old.unauthorized_topics & kept
    cluster = old.with_brokers(read_nodes(response), response.cluster_id)
    snapshot = ClusterSnapshot(
        cluster.nodes, topics, frozenset(invalid), frozenset(unauthorized), cluster.cluster_id
    )
    return MetadataAnswer(snapshot, frozenset(answered), reader.errors, reader.stale, reader.progress)


class _Columns(NamedTuple):
    """Partitions of one topic, as in TopicInfo."""

    numbers: list[int]
    leaders: list[int]
    epochs: list[int]
    copies: list[_Copies]


class _AnswerReader:
    """Gathers what the topics of one answer say."""

    def __init__(self, old: ClusterSnapshot, reliable_epochs: bool) -> None:
        self._old = old
        self._reliable_epochs = reliable_epochs
        self._topic = _Columns([], [], [], [])  # the topic that is being read
        self._shared: dict[_Copies, _Copies] = {}  # many partitions have the same
        self.topics: dict[str, TopicInfo] = {}
        self.errors: dict[str, BrokerError] = {}
        self.stale = False
        self.progress = False

    def read_piece(self, topic: Mapping[str, Any], rows: list[dict[str, Any]], is_last: bool) -> None:
        name = topic["name"]
        if code := topic["error_code"]:
            self.errors[name] = broker_error(code)
            self._note_stale(code)
            return
        topic_id = bytes(topic["topic_id"])
        # A topic that was deleted and made again starts over with low epochs: a new id outranks any epoch. But an id
        # that was not known is not new: the answer before may have come from an older broker, which knows none.
        recreated = NO_TOPIC_ID != topic_id != self._old.topic_id(name) != NO_TOPIC_ID
        known = None if recreated else self._old.topics.get(name)
        for row in rows:
            self._read_partition(row, known)
        if is_last and self._topic.numbers:
            info = TopicInfo.of(name, topic_id, *self._topic)
            self.topics[name] = known if known == info else info
            self._topic = _Columns([], [], [], [])

    def _read_partition(self, row: Mapping[str, Any], known: TopicInfo | None) -> None:
        if row["error_code"]:
            self._note_stale(row["error_code"])
        number, leader = row["partition_index"], row["leader_id"]
        copies = tuple(row["replica_nodes"]), tuple(row["isr_nodes"]), tuple(row["offline_replicas"])
        epoch = row["leader_epoch"] if self._reliable_epochs else UNKNOWN_EPOCH
        at = -1 if known is None else known.place(number)
        if known is None or at < 0 or epoch == UNKNOWN_EPOCH or epoch > known.epochs[at]:
            self.progress = True
        elif epoch < known.epochs[at]:
            # The broker asked is behind; what we have is newer.
            leader, epoch, copies = known.leaders[at], known.epochs[at], known.copies[at]
        topic = self._topic
        topic.numbers.append(number)
        topic.leaders.append(leader)
        topic.epochs.append(epoch)
        topic.copies.append(self._shared.setdefault(copies, copies))

    def _note_stale(self, code: int) -> None:
        self.stale = self.stale or issubclass(error_row(code).cls, InvalidMetadataError)


def addresses(nodes: Sequence[Node], limit: int = 3) -> str:
    """Host and port of the nodes, for messages; a long list is cut."""
    shown = ", ".join(f"{node.host}:{node.port}" for node in nodes[:limit])
    return shown if len(nodes) <= limit else f"{shown} and {len(nodes) - limit} more"
