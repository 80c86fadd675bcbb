# SPDX-License-Identifier: Apache-2.0
"""A Kafka cluster in memory that validates as Kafka does.

It knows no socket, no thread and no clock of its own: `session(broker)` is a connection that takes and gives bytes,
`tick(now)` is what the brokers do by themselves. `penstock.testing.server` puts it on TCP; a simulator can put it on
anything else. Given the same bytes, times and random source it does the same.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, get_args

from penstock.error_codes import ErrorCode
from penstock.records.reader import Record
from penstock.testing.apis.context import ApiRequest
from penstock.testing.faults import Faults
from penstock.testing.groups import Groups
from penstock.testing.partition_log import Isolation
from penstock.testing.refused import Refused
from penstock.testing.releases import Release, release_named
from penstock.testing.security.authentication import Authentication
from penstock.testing.security.settings import FakeSecurity
from penstock.testing.session import Session
from penstock.testing.settings import ClusterSettings, TopicSettings, check_topic_options
from penstock.testing.telemetry import FakeTelemetry
from penstock.testing.topics import OFFSETS_TOPIC, Partition, Topic, Topics
from penstock.testing.transactions import Transaction, TransactionCoordinator
from penstock.types import Node, TopicPartition

_FIRST_PRODUCER_ID = 1000
_REQUESTS_REMEMBERED = 10_000
_ISOLATIONS: Final = get_args(Isolation)


class FakeCluster:
    """Brokers, topics, transactions and groups. Not safe to use from two threads at once.

    Attributes:
        received: the last requests that were read, oldest first.
        faults: what is to go wrong.
        denied_topics, denied_transactional_ids, denied_groups: what no client is authorized for, whatever its ACLs say.
        read_only_topics: what they may describe and read, but not write to; likewise.
        security: what clients must do to be taken in; it may be changed.
        telemetry: what is asked of clients, and what they have told; None: brokers do not offer to take it.

    Args:
        brokers: how many; their ids count from 0.
        release: which Kafka to be like, from 0.9 to 4.3; it sets the API versions, the features, the format of stored
            records and a few rules.
        features: finalized features that differ from the release's, for example {"transaction.version": 1}.
        settings: what an operator would configure.
        clock: seconds since the epoch, for the timestamps that brokers make; not for time-outs.
        security: TLS and SASL: PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL, or a FakeSecurity that says more.
        rng: source of topic ids and garbage.
    """

    def __init__(
        self,
        brokers: int = 3,
        *,
        release: str = "4.3",
        features: Mapping[str, int] | None = None,
        settings: ClusterSettings | None = None,
        clock: Callable[[], float] = time.time,
        rng: random.Random | None = None,
        security: FakeSecurity | str = "PLAINTEXT",
    ) -> None:
        if brokers < 1:
            raise ValueError(f"a cluster of {brokers} brokers")
        self.security = FakeSecurity(protocol=security) if isinstance(security, str) else security
        self.release = release_named(release)
        self.settings = settings or ClusterSettings()
        self.rng = rng or random.Random(0)
        self.features = dict(self.release.features) | dict(features or {})
        self.features_epoch = 1
        self.cluster_id = self.rng.randbytes(8).hex()
        self.nodes = {index: Node(index, f"broker-{index}", 9092) for index in range(brokers)}
        self.live = set(self.nodes)
        self.controller_id = 0
        self.topics = Topics(self.rng)
        self.groups = Groups()
        self.faults = Faults()
        self.received: deque[ApiRequest] = deque(maxlen=_REQUESTS_REMEMBERED)
        self.transaction_slots = CoordinatorSlots(self.settings.coordinator_slots, self.live)
        self.group_slots = CoordinatorSlots(self.settings.coordinator_slots, self.live)
        self.transactions = TransactionCoordinator(
            self.settings, self.allocate_producer_id, self._write_marker, self.wall_ms
        )
        self.telemetry: FakeTelemetry | None = None
        self.denied_topics: set[str] = set()
        self.read_only_topics: set[str] = set()
        self.denied_transactional_ids: set[str] = set()
        self.denied_groups: set[str] = set()
        self._releases: dict[int, Release] = {}  # of brokers that differ from the others
        self._clock = clock
        self._next_producer_id = _FIRST_PRODUCER_ID
        # Markers that the followers do not have yet: the leader epoch in which they were written, and where they end.
        self._markers: dict[tuple[TopicPartition, str], tuple[int, int]] = {}
        self._sessions: list[Session] = []

    def release_of(self, broker_id: int) -> Release:
        """Which Kafka a broker is like."""
        return self._releases.get(broker_id, self.release)

    def set_release(self, broker_id: int, release: str) -> None:
        """Let a broker be like another Kafka, as an upgrade or downgrade does; its connections break.

        Rules of the cluster as a whole, such as the options of topics, stay those of `release`.

        Raises:
            ValueError: there is no such broker or release.
        """
        if broker_id not in self.nodes:
            raise ValueError(f"there is no broker {broker_id}")
        self._releases[broker_id] = release_named(release)
        self.drop_connections(broker_id)

    # ------------------------------------------------------------------------------------------ time, connections

    def wall_ms(self) -> int:
        """Return the time of day, in milliseconds since the epoch."""
        return int(self._clock() * 1000)

    def session(self, broker_id: int) -> Session:
        """A new connection to a broker.

        Raises:
            ConnectionRefusedError: the broker is stopped.
        """
        if broker_id not in self.live:
            raise ConnectionRefusedError(f"broker {broker_id} is stopped")
        self._sessions = [session for session in self._sessions if not session.closed]
        session = Session(self, broker_id, Authentication(self.security, self._clock))
        self._sessions.append(session)
        return session

    def tick(self, now: float) -> None:
        """Do what is due: time-outs of transactions, and their markers."""
        self.transactions.tick(now)

    def next_event_at(self) -> float:
        """When `tick`, or the output of a session, has something to do; infinity when nothing will happen."""
        return min(
            [self.transactions.next_event_at(), *(session.next_output_at() for session in self._sessions)]
        )

    def allocate_producer_id(self) -> int:
        self._next_producer_id += 1
        return self._next_producer_id - 1

    # ------------------------------------------------------------------------------------------ topics

    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        replication: int | None = None,
        configs: Mapping[str, str | None] | None = None,
    ) -> Topic:
        """Make a topic; without numbers, with the cluster's defaults.

        Raises:
            Refused: as a broker would.
        """
        count = self.settings.default_partitions if partitions is None else partitions
        copies = (
            min(self.settings.default_replication, len(self.nodes)) if replication is None else replication
        )
        if count < 1:
            raise Refused(ErrorCode.INVALID_PARTITIONS, "Number of partitions must be larger than 0.")
        if not 1 <= copies <= len(self.live):
            raise Refused(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"Unable to replicate the partition {copies} time(s): {len(self.live)} broker(s) are there.",
            )
        ids = sorted(self.live)
        first = sum(1 for _ in self.topics)  # topics begin at different brokers, so that each leads some
        assignment = [
            [ids[(first + index + copy) % len(ids)] for copy in range(copies)] for index in range(count)
        ]
        return self.assign_topic(name, assignment, configs)

    def assign_topic(
        self, name: str, assignment: Sequence[Sequence[int]], configs: Mapping[str, str | None] | None = None
    ) -> Topic:
        """Make a topic whose partitions have these replicas.

        Raises:
            Refused: as a broker would.
        """
        if any(not replicas or not set(replicas) <= self.live for replicas in assignment):
            raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "Replicas must be brokers that are there")
        check_topic_options(configs or {}, with_dropped=self.release.has_old_topic_options)
        defaults = TopicSettings(timestamp_after_max_ms=self.release.timestamp_after_max_ms)
        return self.topics.create(name, assignment, defaults.with_configs(configs or {}), configs)

    def partition(self, topic: str, partition: int) -> Partition:
        """A partition that is there.

        Raises:
            KeyError: it is not.
        """
        found = self.topics.partition(topic, partition)
        if found is None:
            known = self.topics.by_name(topic)
            if known is None:
                raise KeyError(self._no_topic(topic))
            count = len(known.partitions)
            raise KeyError(f"no partition {topic}-{partition}: the topic has {count}, from 0 to {count - 1}")
        return found

    def records(
        self, topic: str, partition: int | None = None, isolation: Isolation = "read_committed"
    ) -> list[Record]:
        """What a consumer would get from the whole partition; without one, from all, one after the other.

        Raises:
            KeyError: there is no such topic or partition.
            ValueError: there is no such isolation level.
        """
        if isolation not in _ISOLATIONS:
            raise ValueError(f"isolation must be {' or '.join(map(repr, _ISOLATIONS))}, not {isolation!r}")
        if partition is not None:
            return self.partition(topic, partition).log.records(isolation)
        found = self.topics.by_name(topic)
        if found is None:
            raise KeyError(self._no_topic(topic))
        return [record for each in found.partitions for record in each.log.records(isolation)]

    def _no_topic(self, name: str) -> str:
        """Why there are no records of a topic."""
        names = sorted(topic.name for topic in self.topics)
        return f"no topic {name}; the cluster has {', '.join(names) or 'none'}"

    def delete_records(
        self, topic: str, partition: int, before: int, *, forget_producers: bool = False
    ) -> None:
        """What retention does: the log starts later, and idle producers may be forgotten."""
        self.partition(topic, partition).log.delete_before(before, forget_producers=forget_producers)

    def hold_replication(self, topic: str, partition: int) -> None:
        """Let the followers fall behind: acks=all waits, acks=1 is told before the records are safe."""
        self.partition(topic, partition).log.hold_replication()

    def resume_replication(self, topic: str, partition: int) -> None:
        """Let the followers catch up."""
        self.partition(topic, partition).log.resume_replication()

    # ------------------------------------------------------------------------------------------ brokers, leaders

    def set_address(self, broker_id: int, host: str, port: int) -> None:
        """Where clients find a broker."""
        self.nodes[broker_id] = Node(broker_id, host, port, self.nodes[broker_id].rack)

    def move_leader(self, topic: str, partition: int, to: int) -> None:
        """Elect another replica; what the followers did not have is lost.

        Raises:
            ValueError: the broker is stopped, or no replica in step.
        """
        found = self.partition(topic, partition)
        if to not in self.live or to not in found.isr:
            raise ValueError(
                f"broker {to} cannot lead {found.key}: in step are {found.isr}, up are {self.live}"
            )
        found.elect(to)

    def shrink_isr(self, topic: str, partition: int, isr: Sequence[int]) -> None:
        """Say which replicas are in step; the leader must be one of them."""
        found = self.partition(topic, partition)
        if found.leader not in isr or not set(isr) <= set(found.replicas):
            raise ValueError(
                f"{list(isr)} cannot be in step: {found.leader} leads, replicas are {found.replicas}"
            )
        found.isr = list(isr)

    def move_transaction_coordinator(self, transactional_id: str, to: int) -> None:
        """Let another broker coordinate the id, and those that share its slot."""
        self.transaction_slots.move(transactional_id, to)

    def move_group_coordinator(self, group_id: str, to: int) -> None:
        """Let another broker coordinate the group, and those that share its slot."""
        self.group_slots.move(group_id, to)

    def stop_broker(self, broker_id: int) -> None:
        """Stop a broker: its connections break, others take over what it led and coordinated.

        Raises:
            ValueError: it is not running.
        """
        if broker_id not in self.live:
            raise ValueError(f"broker {broker_id} is not running")
        self.live.remove(broker_id)
        for session in self._sessions:
            if session.broker_id == broker_id:
                session.close("the broker was stopped")
        for partition in self.topics.partitions():
            partition.on_broker_stopped(broker_id)
        self._brokers_changed()

    def start_broker(self, broker_id: int, *, lose_unreplicated: bool = False) -> None:
        """Start a broker that was stopped.

        Args:
            lose_unreplicated: it comes back without what was above the high watermark, as after a power failure.

        Raises:
            ValueError: there is no such broker, or it is running.
        """
        if broker_id not in self.nodes or broker_id in self.live:
            raise ValueError(f"broker {broker_id} cannot be started")
        self.live.add(broker_id)
        for partition in self.topics.partitions():
            partition.on_broker_started(broker_id)
            if lose_unreplicated and partition.leader == broker_id:
                partition.log.truncate_to_high_watermark()
        self._brokers_changed()

    def restart_broker(self, broker_id: int, *, lose_unreplicated: bool = False) -> None:
        """Stop and start a broker."""
        self.stop_broker(broker_id)
        self.start_broker(broker_id, lose_unreplicated=lose_unreplicated)

    def drop_connections(self, broker_id: int | None = None) -> None:
        """Break the connections to a broker, or to all of them; nothing else happens."""
        for session in self._sessions:
            if broker_id in (None, session.broker_id):
                session.close("the connection was broken")

    def _brokers_changed(self) -> None:
        self.transaction_slots.on_brokers_changed(self.live)
        self.group_slots.on_brokers_changed(self.live)
        if self.controller_id not in self.live:
            self.controller_id = min(self.live, default=-1)

    # ------------------------------------------------------------------------------------------ features, fencing

    def set_feature(self, name: str, level: int) -> None:
        """Finalize a feature at another level, as an upgrade or downgrade does."""
        self.features[name] = level
        self.features_epoch += 1

    def fence(self, transactional_id: str, now: float) -> None:
        """Fence the producer that uses a transactional id, and abort what it has open.

        Raises:
            KeyError: nobody has initialised the id.
        """
        self.transactions.fence(transactional_id, now)

    def _write_marker(self, partition: TopicPartition, transaction: Transaction, *, commit: bool) -> bool:
        """Write a marker, and again when it was lost; True once all replicas in step have it."""
        if partition.topic == OFFSETS_TOPIC:
            if self.live:
                self.groups.on_marker(transaction.producer_id, transaction.epoch, commit=commit)
            return bool(self.live)
        found = self.topics.partition(*partition)
        if found is None:
            return True  # the topic was deleted: there is nothing to mark
        if found.leader not in self.live:
            return False
        key = (partition, transaction.transactional_id)
        written = self._markers.pop(key, None)
        if written is None or written[0] != found.leader_epoch:  # another leader may not have it
            self._append_marker(found, transaction, commit=commit)
            written = (found.leader_epoch, found.log.log_end_offset)
        if found.log.high_watermark < written[1]:
            self._markers[key] = written
        return key not in self._markers

    def _append_marker(self, found: Partition, transaction: Transaction, *, commit: bool) -> None:
        found.log.append_marker(
            (transaction.producer_id, transaction.epoch),
            commit=commit,
            coordinator_epoch=self.transaction_slots.epoch_of(transaction.transactional_id),
            leader_epoch=found.leader_epoch,
            now_ms=self.wall_ms(),
        )


# ---- coordinators


def java_hash(text: str) -> int:
    """The hash of a Java string: over its UTF-16 units, in 32 bits, signed."""
    units = text.encode("utf-16-be")
    value = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


class CoordinatorSlots:
    """Which broker coordinates a transactional id, or a group: the slots of one of the two kinds.

    Keys are hashed to slots, as Kafka hashes them to the partitions of an internal topic; a slot belongs to a broker
    and can move. The hash is Kafka's (that of a Java string), so that the same ids share a slot as on a real cluster.

    Attributes:
        owners: the broker of each slot; None while no broker is up.
        epochs: how often each slot has moved.
    """

    def __init__(self, count: int, broker_ids: Collection[int]) -> None:
        ids = sorted(broker_ids)
        self.owners: list[int | None] = [ids[slot % len(ids)] for slot in range(count)]
        self.epochs = [0] * count

    def slot_of(self, key: str) -> int:
        """The slot that a key belongs to."""
        # As in Java, where the smallest integer has no positive counterpart.
        positive = java_hash(key) & 0x7FFFFFFF if java_hash(key) == -(2**31) else abs(java_hash(key))
        return positive % len(self.owners)

    def owner_of(self, key: str) -> int | None:
        """The broker that coordinates a key."""
        return self.owners[self.slot_of(key)]

    def epoch_of(self, key: str) -> int:
        """The epoch of the key's coordinator, as markers carry it."""
        return self.epochs[self.slot_of(key)]

    def move(self, key: str, to: int) -> None:
        """Give the key's slot to another broker."""
        self._assign(self.slot_of(key), to)

    def on_brokers_changed(self, live: Collection[int]) -> None:
        """Give the slots of brokers that are gone to those that are left."""
        ids = sorted(live)
        for slot, owner in enumerate(self.owners):
            if owner not in live:
                self._assign(slot, ids[slot % len(ids)] if ids else None)

    def _assign(self, slot: int, owner: int | None) -> None:
        if self.owners[slot] != owner:
            self.owners[slot] = owner
            self.epochs[slot] += 1
