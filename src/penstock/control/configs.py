# SPDX-License-Identifier: Apache-2.0
"""Looks at a topic: how many partitions and copies it has, and its settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from penstock.control.client import DEFAULT_TIMEOUT, ControlSource, control_client
from penstock.control.steps import ANY, Steps, ask_until_answered
from penstock.error_codes import ErrorCode
from penstock.errors import KafkaError, broker_error, error_row
from penstock.protocol.messages import DESCRIBE_CONFIGS, METADATA
from penstock.protocol.requests import SchemaRequest

_TOPIC = 2  # as a kind of resource
# From this version on a client can ask without the topic being created by it.
_FIRST_METADATA_WITHOUT_CREATION = 4


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
        settings: the value of each option, whoever set it: cleanup.policy, min.insync.replicas, retention.ms ...
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
    metadata = yield from ask_until_answered(ANY, asked, lambda body: _error_in(body["topics"], topic))
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
    answer = yield from ask_until_answered(ANY, configs, lambda body: _error_in(body["results"], topic))
    (result,) = answer["results"]
    if result["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return None
    settings = {each["name"]: each["value"] for each in result["configs"] if each["value"] is not None}
    return TopicDescription(*shape, settings)


def _error_in(rows: Sequence[Mapping[str, Any]], topic: str) -> KafkaError | None:
    """What stands in the way; that there is no such topic is an answer."""
    code = rows[0]["error_code"]
    if code in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
        return None
    reason = rows[0].get("error_message") or error_row(code).description
    return broker_error(code, f"topic {topic!r} could not be looked at: {reason}")
