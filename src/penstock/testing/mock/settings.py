# SPDX-License-Identifier: Apache-2.0
"""What a test tells a MockProducer: its options, its topics, and the errors that calls shall raise.

A record goes to the partition it names, else where a custom partitioner says, else by the hash of its key as with any
Kafka client; records without a key take turns, so that a test can tell beforehand where each one will be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from penstock._primitives_cy import partition_for_key
from penstock.config.input import read_values
from penstock.config.names import try_meaning
from penstock.config.plugins import load_plugins
from penstock.config.rules import apply_rules, security_of
from penstock.errors import ConfigError, KafkaTimeoutError
from penstock.partitioners import Crc32Partitioner, Partitioner, RoundRobinPartitioner
from penstock.testing.arguments import check_topics, try_nearest
from penstock.types import ProducerRecord

# The calls that can be made to fail.
CAN_FAIL = (
    "send",
    "send_many",
    "send_arrow",
    "flush",
    "close",
    "partitions_for",
    "client_instance_id",
    "metrics",
    "init_transactions",
    "begin_transaction",
    "send_offsets_to_transaction",
    "commit_transaction",
    "abort_transaction",
)

_OWN_ARGUMENTS = ("auto_complete", "topics", "clock")


class MockOptions:
    """The options of a MockProducer: read and checked as a Producer's, of which only the servers may be missing.

    Args:
        config: a mapping of options, or None.
        options: more options.

    Attributes:
        given: all options as they were given, by their names in snake case.
        transactional_id: the option of that name.
        plugins: serializers and partitioner; interceptors and tracing are not made, because they would not run.

    Raises:
        ConfigError: `config` is no mapping, or a Producer would refuse an option.
    """

    def __init__(self, config: object, options: Mapping[str, Any]) -> None:
        if config is not None and not isinstance(config, Mapping):
            raise ConfigError(
                f"MockProducer takes its config as a mapping, not as {config!r}: it reads no file"
            )
        _check_own_names(options)
        values, explicit, written = read_values(config, options, may_lack={"bootstrap.servers"})
        apply_rules(values, explicit)
        security_of(values, explicit, written)
        if values["client.id"] is None:
            values["client.id"] = "mock-producer"
        self.given = {name.replace(".", "_"): value for name, value in {**(config or {}), **options}.items()}
        self.transactional_id: str | None = values["transactional.id"]
        self.plugins = load_plugins({**values, "interceptor.classes": (), "tracing": None})


def _check_own_names(options: Mapping[str, Any]) -> None:
    """Name the argument of a MockProducer that was meant, where a Producer has no such option."""
    for name in options:
        meant = try_nearest(name, _OWN_ARGUMENTS)
        if meant is not None and try_meaning(name) is None:
            raise ConfigError(f"unknown option {name!r}; did you mean {meant!r}?", name)


class InjectedErrors:
    """Errors that calls shall raise. Not safe for threads by itself: the MockProducer's lock guards it.

    Args:
        calls: which can.
    """

    def __init__(self, calls: tuple[str, ...] = CAN_FAIL) -> None:
        self._calls = calls
        self._errors: dict[str, tuple[BaseException, int | None]] = {}

    def set(self, call: str, error: BaseException | None, times: int | None) -> None:
        """Let a call raise `error` that many times (None: always); without an error, let it work again."""
        if call not in self._calls:
            raise ValueError(f"call must be one of {', '.join(self._calls)}; not {call!r}")
        if times is not None and times < 1:
            raise ValueError(f"times must be positive or None: {times}")
        self._errors.pop(call, None)
        if error is not None:
            self._errors[call] = (error, times)

    def maybe_raise(self, call: str) -> None:
        """Raise what was set for the call, if anything."""
        if call not in self._errors:
            return
        error, times = self._errors.pop(call)
        if times != 1:
            self._errors[call] = (error, None if times is None else times - 1)
        raise error

    def clear(self) -> None:
        """Remove all injected errors."""
        self._errors.clear()


_BROKER_ID = 0  # the one broker that leads everything


class MockPartitionInfo(NamedTuple):
    """One partition, with the fields that the real producer's partitions_for() gives."""

    topic: str
    partition: int
    leader_id: int = _BROKER_ID
    leader_epoch: int = 0
    replicas: tuple[int, ...] = (_BROKER_ID,)
    isr: tuple[int, ...] = (_BROKER_ID,)
    offline: tuple[int, ...] = ()


class MockTopics:
    """What there is to send to; also what a custom partitioner may ask (a ClusterView).

    Args:
        topics: partition counts by topic; no other topic exists then. None: every topic exists, with one partition and
            whatever other ones are asked for by number.

    Raises:
        TypeError: it is no mapping of names to numbers.
        ValueError: a topic has no partition.
    """

    def __init__(self, topics: Mapping[str, int] | None) -> None:
        check_topics(topics)
        self._counts = None if topics is None else dict(topics)
        for topic, count in (self._counts or {}).items():
            if count < 1:
                raise ValueError(f"topic {topic!r} must have at least one partition, not {count}")

    def partition_count(self, topic: str) -> int | None:
        """How many partitions the topic has; None when it does not exist."""
        return 1 if self._counts is None else self._counts.get(topic)

    def available_partitions(self, topic: str) -> Sequence[int]:
        """The partitions that have a leader: all."""
        return range(self.partition_count(topic) or 0)

    def partitions_for(self, topic: str) -> tuple[MockPartitionInfo, ...]:
        """The topic's partitions.

        Raises:
            KafkaTimeoutError: it does not exist.
        """
        return tuple(MockPartitionInfo(topic, number) for number in range(self.check(topic, None)))

    def check(self, topic: str, partition: int | None) -> int:
        """The topic's partition count.

        Raises:
            KafkaTimeoutError: the topic or the partition does not exist. A real producer would have waited for it.
        """
        count = self.partition_count(topic)
        if count is None:
            raise KafkaTimeoutError(f"topic {topic!r} is not among the topics of this MockProducer: {self}")
        if partition is not None and partition >= count and self._counts is not None:
            raise KafkaTimeoutError(f"partition {partition} of topic {topic!r} does not exist: {self}")
        return count

    def __str__(self) -> str:
        return f"topics={self._counts}"


class MockPlacement:
    """Chooses partitions.

    Args:
        topics: what there is.
        partitioner: the user's, or None.
    """

    def __init__(self, topics: MockTopics, partitioner: Partitioner | None) -> None:
        self._topics = topics
        self._partitioner = partitioner
        self._turns = RoundRobinPartitioner()

    def choose(self, record: ProducerRecord, key: bytes | None, value: bytes | None) -> int:
        """The record's partition.

        Raises:
            TypeError, ValueError: the custom partitioner gave something that is no partition of the topic.
        """
        if record.partition is not None:
            return record.partition
        if self._partitioner is None and key is not None:
            return int(partition_for_key(key, self._topics.partition_count(record.topic) or 1))
        partitioner = self._partitioner
        if partitioner is None or (type(partitioner) is Crc32Partitioner and not key):
            partitioner = self._turns
        chosen = partitioner.partition(record.topic, record.key, key, record.value, value, self._topics)
        if type(chosen) is not int:
            raise TypeError(f"{partitioner!r} must give an int, not {type(chosen).__name__}")
        if chosen not in self._topics.available_partitions(record.topic):
            raise ValueError(
                f"{partitioner!r} chose partition {chosen} of topic {record.topic!r}: {self._topics}"
            )
        return chosen
