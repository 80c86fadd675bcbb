# SPDX-License-Identifier: Apache-2.0
"""Topics and partitions: names, ids, replicas, leaders and their epochs."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from penstock.error_codes import ErrorCode
from penstock.protocol.schema import ZERO_UUID
from penstock.testing.partition_log import PartitionLog
from penstock.testing.refused import Refused
from penstock.testing.settings import TopicSettings
from penstock.types import TopicPartition

NO_LEADER: Final = -1
OFFSETS_TOPIC: Final = (
    "__consumer_offsets"  # in transactions and descriptions only; group offsets have no log here
)

_LEGAL_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")


@dataclass(slots=True)
class Partition:
    """One partition, its replicas and its log.

    Attributes:
        replicas: broker ids, the preferred leader first.
        isr: those in step with the leader.
    """

    key: TopicPartition
    replicas: list[int]
    isr: list[int]
    leader: int
    leader_epoch: int = 0
    log: PartitionLog = field(default_factory=PartitionLog)

    def elect(self, leader: int) -> None:
        """Make a broker the leader, or leave the partition without one; what only the old leader had is lost."""
        if leader == self.leader:
            return
        if NO_LEADER not in (leader, self.leader):
            self.log.truncate_to_high_watermark()
        self.leader = leader
        self.leader_epoch += 1

    def on_broker_stopped(self, broker_id: int) -> None:
        """Leave the in-sync set, and the leadership to the next in it."""
        if len(self.isr) > 1 and broker_id in self.isr:
            self.isr.remove(broker_id)
        if self.leader == broker_id:
            self.elect(next((each for each in self.isr if each != broker_id), NO_LEADER))

    def on_broker_started(self, broker_id: int) -> None:
        """Catch up and join again; lead again where nobody else may."""
        if broker_id not in self.replicas:
            return
        if self.leader == NO_LEADER:
            if broker_id in self.isr:
                self.elect(broker_id)
        elif broker_id not in self.isr:
            self.isr.append(broker_id)


@dataclass(slots=True)
class Topic:
    """A topic, its partitions by index, and the options that were set for it."""

    name: str
    topic_id: bytes
    settings: TopicSettings
    partitions: list[Partition]
    configs: Mapping[str, str | None] = field(default_factory=dict)


def check_topic_name(name: str) -> None:
    """Refuse what Kafka refuses.

    Raises:
        Refused: INVALID_TOPIC_EXCEPTION.
    """
    if not _LEGAL_NAME.fullmatch(name) or name in (".", ".."):
        raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, f"The topic name {name!r} is not allowed")


class Topics:
    """All topics, by name and by id."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[bytes, Topic] = {}

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._by_name.values())

    def create(
        self,
        name: str,
        assignment: Sequence[Sequence[int]],
        settings: TopicSettings,
        configs: Mapping[str, str | None] | None = None,
    ) -> Topic:
        """A topic with these replicas, one list for each partition; the first of a list leads.

        Raises:
            Refused: the name is not allowed, or in use.
        """
        check_topic_name(name)
        if name in self._by_name:
            raise Refused(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        partitions = [
            Partition(TopicPartition(name, index), list(replicas), list(replicas), replicas[0])
            for index, replicas in enumerate(assignment)
        ]
        topic = Topic(name, self._new_id(), settings, partitions, dict(configs or {}))
        self._by_name[name] = self._by_id[topic.topic_id] = topic
        return topic

    def _new_id(self) -> bytes:
        while (topic_id := self._rng.randbytes(16)) == ZERO_UUID or topic_id in self._by_id:
            pass
        return topic_id

    def delete(self, name: str) -> None:
        """Remove a topic with its records.

        Raises:
            KeyError: there is none of that name.
        """
        topic = self._by_name.pop(name)
        del self._by_id[topic.topic_id]

    def by_name(self, name: str) -> Topic | None:
        """The topic of this name; None where there is none."""
        return self._by_name.get(name)

    def by_id(self, topic_id: bytes) -> Topic | None:
        """The topic with this id; None where there is none."""
        return self._by_id.get(bytes(topic_id))

    def partition(self, name: str, index: int) -> Partition | None:
        topic = self._by_name.get(name)
        if topic is None or not 0 <= index < len(topic.partitions):
            return None
        return topic.partitions[index]

    def partitions(self) -> Iterator[Partition]:
        """Every partition of every topic."""
        for topic in self._by_name.values():
            yield from topic.partitions
