# SPDX-License-Identifier: Apache-2.0
"""Creates topics, and describes them: how many partitions and copies a topic has, and its settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from penstock._arguments import check_int, check_text, check_timeout
from penstock.control.client import DEFAULT_TIMEOUT, ControlSource, control_client
from penstock.control.rights import answered
from penstock.control.steps import ANY, CONTROLLER, Ask, Backoff, Steps, ask_until_answered, with_last_trouble
from penstock.error_codes import ErrorCode
from penstock.errors import KafkaError, KafkaTimeoutError, error_row
from penstock.protocol.messages import CREATE_TOPICS, DESCRIBE_CONFIGS, METADATA
from penstock.protocol.requests import SchemaRequest

# Before this version a broker wants both numbers.
FIRST_VERSION_WITH_DEFAULTS = 4
# How long the broker itself may take; the caller's time-out is another matter.
BROKER_TIMEOUT_MS = 30_000

_TOPIC = 2  # as a kind of resource
# From this version on a client can ask without the topic being created by it.
_FIRST_METADATA_WITHOUT_CREATION = 4


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to be created.

    Attributes:
        partitions: how many; -1 leaves it to the broker's num.partitions.
        replication: copies of each; -1 leaves it to the broker's default.replication.factor.
        config: the topic's own settings, for example {"cleanup.policy": "compact"}.

    Raises:
        TypeError: the name is not a str, or a number not an int.
        ValueError: a number that no broker takes, or a name that no request can carry.
    """

    name: str
    partitions: int = -1
    replication: int = -1
    config: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_text(self.name, "the name of a topic")
        for name in ("partitions", "replication"):
            number = getattr(self, name)
            check_int(number, f"{name} of topic {self.name!r}")
            if number != -1 and number < 1:
                raise ValueError(f"{name} of topic {self.name!r} must be at least 1, or -1: {number}")


class TopicCreation(NamedTuple):
    """What became of a topic that was to be created; `error` is None when it was."""

    name: str
    error: KafkaError | None


def create_topic(
    name: str,
    partitions: int = -1,
    replication: int = -1,
    settings: Mapping[str, object] | None = None,
    *,
    config: ControlSource,
    timeout: float | None = DEFAULT_TIMEOUT,
) -> None:
    """Create one topic.

    Args:
        name: its name.
        partitions: see NewTopic.
        replication: see NewTopic.
        settings: the topic's own settings.
        config: options of a client, or an open ControlClient.
        timeout: seconds.

    Raises:
        BrokerError: the broker refused; the text has its reason. TOPIC_ALREADY_EXISTS is code 36.
        KafkaTimeoutError: the time is up; the topic may or may not be there.
    """
    topic = NewTopic(name, partitions, replication, settings or {})
    (creation,) = create_topics([topic], config=config, timeout=timeout)
    if creation.error is not None:
        raise creation.error


def create_topics(
    topics: Iterable[NewTopic], *, config: ControlSource, timeout: float | None = DEFAULT_TIMEOUT
) -> list[TopicCreation]:
    """Create topics; one that is refused does not hold up the others.

    Returns:
        What became of each, in the same order.

    Raises:
        KafkaTimeoutError: the time is up; each may or may not be there.
    """
    check_timeout(timeout)
    wanted = list(topics)
    if not wanted:
        return []
    with control_client(config) as client:
        return client.run(_create(wanted), timeout)


def _create(topics: list[NewTopic]) -> Steps[list[TopicCreation]]:
    errors: dict[str, KafkaError | None] = {}
    missing = topics
    trouble: KafkaError | None = None
    may_be_ours = False  # an earlier attempt got no answer, and may have been carried out
    attempts = 0
    try:
        while missing:
            reply = yield Ask(CONTROLLER, _request(missing), fresh=attempts > 0)
            if reply.error is not None:
                if not reply.error.retriable:
                    raise reply.error
                trouble, may_be_ours = reply.error, True
            else:
                answers = {row["name"]: _error(row, may_be_ours) for row in reply.body["topics"]}
                final = {
                    name: error for name, error in answers.items() if error is None or not error.retriable
                }
                errors |= final
                passing = (error for name, error in answers.items() if name not in final)
                trouble = next(passing, trouble)
                missing = [topic for topic in missing if topic.name not in final]
            if missing:
                yield Backoff(attempts)
                attempts += 1
    except KafkaTimeoutError as up:
        raise with_last_trouble(up, trouble) from trouble
    return [TopicCreation(topic.name, errors[topic.name]) for topic in topics]


def _request(topics: list[NewTopic]) -> SchemaRequest:
    rows = [
        {
            "name": topic.name,
            "num_partitions": topic.partitions,
            "replication_factor": topic.replication,
            "assignments": [],
            "configs": [{"name": key, "value": _text(value)} for key, value in topic.config.items()],
        }
        for topic in topics
    ]
    needs_defaults = any(-1 in (topic.partitions, topic.replication) for topic in topics)
    body = {"topics": rows, "timeout_ms": BROKER_TIMEOUT_MS, "validate_only": False}
    return SchemaRequest.of(CREATE_TOPICS, body, FIRST_VERSION_WITH_DEFAULTS if needs_defaults else None)


def _text(value: object) -> str:
    """A setting as a broker reads it: true, not True."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _error(row: Mapping[str, Any], may_be_ours: bool) -> KafkaError | None:
    code = row["error_code"]
    if code == 0:
        return None
    reason = row.get("error_message") or error_row(code).description
    if code == ErrorCode.TOPIC_ALREADY_EXISTS and may_be_ours:
        reason += " (perhaps made by this very call: an earlier attempt got no answer)"
    return answered(code, "CREATE", "it", f"topic {row['name']!r} was not created: {reason}")


class TopicShape(NamedTuple):
    """How large a topic is.

    Attributes:
        partitions: how many.
        replication: copies of the partition that has the fewest.
    """

    name: str
    partitions: int
    replication: int


class TopicDescription(NamedTuple):
    """A topic as the cluster has it.

    Attributes:
        partitions: how many.
        replication: copies of the partition that has the fewest.
        settings: the value of each option, defaults included: cleanup.policy, min.insync.replicas, retention.ms ...
    """

    name: str
    partitions: int
    replication: int
    settings: Mapping[str, str]


def topic_shape(
    config: ControlSource, topic: str, timeout: float | None = DEFAULT_TIMEOUT
) -> TopicShape | None:
    """A topic's partitions and copies, which takes one request and no right to see settings; otherwise the same.

    Args:
        config: options of a client, or an open ControlClient.
        topic: its name; asking never creates it.
        timeout: seconds.

    Raises:
        BrokerError: the broker refused.
        KafkaTimeoutError: the time is up.
    """
    with control_client(config) as client:
        return client.run(_shape(topic), timeout)


def describe_topic(
    config: ControlSource, topic: str, timeout: float | None = DEFAULT_TIMEOUT
) -> TopicDescription | None:
    """A topic's partitions, copies and settings; None when the broker that was asked knows no such topic.

    A topic that was created a moment ago may not be known to every broker yet.

    Args:
        config: options of a client, or an open ControlClient.
        topic: its name; asking never creates it.
        timeout: seconds.

    Raises:
        BrokerError: the broker refused, for example because the topic's settings may not be read (DescribeConfigs).
        KafkaTimeoutError: the time is up.
    """
    with control_client(config) as client:
        return client.run(_describe(topic), timeout)


def _shape(topic: str) -> Steps[TopicShape | None]:
    asked = SchemaRequest.of(
        METADATA,
        {"topics": [{"name": topic}], "allow_auto_topic_creation": False},
        _FIRST_METADATA_WITHOUT_CREATION,
    )
    metadata = yield from ask_until_answered(
        ANY, asked, lambda body: _error_in(body["topics"], topic, "DESCRIBE")
    )
    (row,) = metadata["topics"]
    if row["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return None
    copies = min((len(part["replica_nodes"]) for part in row["partitions"]), default=0)
    return TopicShape(topic, len(row["partitions"]), copies)


def _describe(topic: str) -> Steps[TopicDescription | None]:
    shape = yield from _shape(topic)
    if shape is None:
        return None
    resource = {"resource_type": _TOPIC, "resource_name": topic, "configuration_keys": None}
    configs = SchemaRequest.of(DESCRIBE_CONFIGS, {"resources": [resource]})
    answer = yield from ask_until_answered(
        ANY, configs, lambda body: _error_in(body["results"], topic, "DESCRIBE_CONFIGS")
    )
    (result,) = answer["results"]
    if result["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return None
    settings = {each["name"]: each["value"] for each in result["configs"] if each["value"] is not None}
    return TopicDescription(*shape, settings)


def _error_in(rows: Sequence[Mapping[str, Any]], topic: str, right: str) -> KafkaError | None:
    """What stands in the way; that there is no such topic is an answer."""
    code = rows[0]["error_code"]
    if code in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
        return None
    reason = rows[0].get("error_message") or error_row(code).description
    return answered(code, right, "it", f"topic {topic!r} could not be looked at: {reason}")
