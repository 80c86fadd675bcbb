# SPDX-License-Identifier: Apache-2.0
"""Why there is no metadata: what went wrong since the last good answer, kept so that a time-out can name its cause.

"Topic x not present in metadata after 60000 ms" helps nobody. Whether the address is wrong, the port is closed, the
topic does not exist or the cluster is slow has been seen by the time the message is written; here it is remembered.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from penstock._counted import counted
from penstock.errors import BrokerError, KafkaError, KafkaTimeoutError, UnknownTopicOrPartitionError
from penstock.producer.metadata.cluster import addresses
from penstock.types import Node

_CONNECTIONS_NAMED = 3  # a cluster of hundreds of brokers must not make a message of hundreds of lines


class TopicTrouble(NamedTuple):
    """What the cluster says of a topic that cannot be used."""

    error: BrokerError
    answers: int  # in a row, that said so


class MetadataTroubles:
    """Remembers failures by topic and by node. Has no lock: its owner guards it."""

    def __init__(self, bootstrap: Sequence[Node]) -> None:
        self._bootstrap = bootstrap
        self._answers = 0
        self._topics: dict[str, TopicTrouble] = {}
        # Since the last answer:
        self._connections: dict[int, KafkaError] = {}  # by node id, the latest last
        self._failure: KafkaError | None = None

    def on_bootstrap(self, nodes: Sequence[Node]) -> None:
        """The servers to start from have become known."""
        self._bootstrap = nodes
        self._failure = None

    def on_connection_failed(self, node: Node, error: KafkaError) -> None:
        """A connection could not be made, or broke."""
        self._connections.pop(node.id, None)
        self._connections[node.id] = error
        if len(self._connections) > _CONNECTIONS_NAMED:
            del self._connections[next(iter(self._connections))]

    def on_failure(self, error: KafkaError) -> None:
        """A metadata request failed."""
        self._failure = error

    def on_answer(self, answered: Collection[str], errors: Mapping[str, BrokerError]) -> list[str]:
        """An answer came. Returns the topics that are in trouble and were not, or for another reason."""
        self._answers += 1
        self._connections.clear()
        self._failure = None
        news = []
        for topic in answered:
            error = errors.get(topic)
            if error is None:
                self._topics.pop(topic, None)
                continue
            before = self._topics.get(topic)
            if before is None or before.error.code != error.code:
                news.append(topic)
            self._topics[topic] = TopicTrouble(error, 1 if before is None else before.answers + 1)
        return news

    def forget_topic(self, topic: str) -> None:
        """The topic is of no interest any more."""
        self._topics.pop(topic, None)

    def explain(
        self, topic: str, partition: int | None, partition_count: int | None, waited_ms: int
    ) -> KafkaTimeoutError:
        """The error for a wait that was too short; its `__cause__` is the error behind it, where there is one."""
        sentences = [_headline(topic, partition, partition_count, waited_ms)]
        trouble = self._topics.get(topic)
        if trouble is not None:
            sentences.append(self._topic_sentence(topic, trouble))
        elif partition_count is not None:
            sentences.append(f"Its partitions are numbered from 0 to {partition_count - 1}.")
        unreachable = list(self._connections.values()) or (
            [self._failure] if self._failure is not None else []
        )
        if unreachable:
            reasons = "; ".join(dict.fromkeys(str(error) for error in unreachable))
            since = " since" if self._answers else ""
            sentences.append(f"No metadata answer came{since}: {reasons}.")
        elif not self._bootstrap:
            sentences.append("The names of the bootstrap servers have not been resolved yet.")
        elif not self._answers:
            sentences.append(f"No broker at {addresses(self._bootstrap)} has answered yet.")
        elif trouble is None and partition_count is None:
            sentences.append(f"The cluster at {addresses(self._bootstrap)} has not answered for it yet.")
        error = KafkaTimeoutError(" ".join(sentences))
        if trouble is not None:
            error.__cause__ = trouble.error
        elif unreachable:
            error.__cause__ = unreachable[-1]
        elif partition is not None and partition_count is not None and partition >= partition_count:
            error.__cause__ = UnknownTopicOrPartitionError(
                f"topic {topic} has {counted(partition_count, 'partition')}"
            )
        return error

    def _topic_sentence(self, topic: str, trouble: TopicTrouble) -> str:
        where = f"the cluster at {addresses(self._bootstrap)}"
        answers = f"{trouble.answers} metadata answer{'' if trouble.answers == 1 else 's'}"
        if isinstance(trouble.error, UnknownTopicOrPartitionError):
            return (
                f"Topic '{topic}' does not exist on {where} ({answers}) and was not created automatically "
                "(the brokers' auto.create.topics.enable may be off, or this client may not create topics): "
                "create it, or check its name and bootstrap.servers."
            )
        return f"The last of {answers} from {where} said: {trouble.error}."


def _headline(topic: str, partition: int | None, partition_count: int | None, waited_ms: int) -> str:
    if partition is None or partition_count is None:
        return f"Topic {topic} not present in metadata after {waited_ms} ms."
    return (
        f"Partition {partition} of topic {topic} with partition count {partition_count} "
        f"is not present in metadata after {waited_ms} ms."
    )
