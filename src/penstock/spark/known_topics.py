# SPDX-License-Identifier: Apache-2.0
"""Under which ids a task's producer has known the topics that it wrote to.

The producer is kept over tasks with all that it knows of the cluster. So each task has it ask again before its first
record: a topic that was replaced before that is none of the task's business. From then on each answer is looked at.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from weakref import WeakKeyDictionary

from penstock._locks import Latch
from penstock.producer.metadata.cluster import NO_TOPIC_ID, ClusterSnapshot
from penstock.producer.producer import Producer, parts_of
from penstock.sink.replaced import TopicIds

# Without an answer the task goes on: an old id costs a batch that is written again, and no record.
_ANSWER_SECONDS: Final = 5.0


class KnownTopics:
    """The ids that one producer has known since the task began.

    Args:
        producer: of the task.
    """

    def __init__(self, producer: Producer) -> None:
        parts = parts_of(producer)
        self._clock, self._metadata = parts.clock, parts.metadata
        self._ids: dict[str, set[bytes]] = {}  # the I/O thread adds, the task's looks up
        self._asked_at = 0.0
        self._answered = Latch()
        self._metadata.on_snapshot(self._note)

    def begin(self) -> None:
        """A task begins: ask again for the topics of earlier ones, and forget their ids."""
        if self._metadata.snapshot.topics:
            self._asked_at, self._answered = self._clock.now(), Latch()
            self._metadata.refresh()
            self._answered.wait(_ANSWER_SECONDS)
        # In this order: what is swapped from here on is noted in the new ones.
        self._ids = {}
        self._note(self._metadata.snapshot)

    def ids(self, topics: Iterable[str]) -> TopicIds:
        """Those of these topics."""
        return {topic: frozenset(ids) for topic in topics if (ids := self._ids.get(topic))}

    def _note(self, snapshot: ClusterSnapshot) -> None:
        known = self._ids
        for name, topic in snapshot.topics.items():
            if topic.topic_id != NO_TOPIC_ID:
                known.setdefault(name, set()).add(topic.topic_id)
        if self._metadata.age(self._asked_at) <= 0:
            self._answered.set()


_of_producers: WeakKeyDictionary[Producer, KnownTopics] = WeakKeyDictionary()


def known_topics(producer: Producer) -> KnownTopics:
    """Those of a producer, at the beginning of a task."""
    known = _of_producers.get(producer)
    if known is None:
        known = _of_producers[producer] = KnownTopics(producer)
    known.begin()
    return known
