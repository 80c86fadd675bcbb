# SPDX-License-Identifier: Apache-2.0
"""A first look at a cluster: does a broker answer, are the topics there, may they be written to.

A producer finds that out only after `max.block.ms`, a minute by default. Topics are asked for as the
producer would do it, which lets brokers create them where they are set to.

An answer may be waited for as long as the caller likes, for a broker may be on its way. A topic that is missing from an
answer is not waited for longer than brokers take to create one: more patience does not mend a misspelt name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from penstock._arguments import TOPIC_RULE, is_topic_name
from penstock.control.client import ControlClient
from penstock.control.cluster import AskForTopics
from penstock.control.steps import ANY, ErrorIn, Steps, also, ask_until_answered
from penstock.errors import (
    BrokerError,
    InvalidTopicError,
    KafkaError,
    KafkaTimeoutError,
    NetworkError,
    TopicAuthorizationError,
    UnknownTopicOrPartitionError,
    broker_error,
)
from penstock.network.failures import describe
from penstock.protocol.messages.metadata import OPERATIONS_NOT_ASKED
from penstock.types import Node

PATIENCE_SECONDS: Final = 8.0
# Among the operations that a broker allows this client, each the bit of its number: write is 4.
_MAY_WRITE: Final = 1 << 4


class TopicCheck:
    """Asks for topics, and judges the answers.

    Attributes:
        missing: the topic that was not there in the last answer, or None.
        unreached: when the time was up, the brokers that a bootstrap server had named and of which none was reached,
            each with its trouble.
        partitions: of each topic that is there, the numbers of its partitions.
        ids: of each topic that is there, its id; zeros where the broker is older than 2.8.

    Args:
        topics: their names.
        create: brokers may create those that do not exist, if they are set so.
    """

    def __init__(self, topics: Iterable[str], *, create: bool = True) -> None:
        self._topics = list(topics)
        self._create = create
        self.missing: str | None = None
        self.unreached: Mapping[Node, KafkaError | None] = {}
        self.partitions: dict[str, list[int]] = {}
        self.ids: dict[str, bytes] = {}

    def run(self, client: ControlClient, seconds: float) -> None:
        """Ask until all topics are there, while the trouble may pass.

        Args:
            client: who asks.
            seconds: how long, in all; a missing topic is waited for PATIENCE_SECONDS of it, at most.

        Raises:
            InvalidTopicError: no topic can have such a name; nobody was asked.
            TopicAuthorizationError: a topic may not be written to.
            KafkaTimeoutError: the time is up; `missing` and `unreached` tell why, and its cause, if that was an answer.
            KafkaError: the brokers refuse.
        """
        for topic in self._topics:
            _check_name(topic)
        left = client.deadline(seconds)
        try:
            client.run(self._steps(self._trouble_but_missing), seconds)
            if self.missing is not None:
                client.run(self._steps(self._trouble), min(PATIENCE_SECONDS, left() or 0.0))
        except KafkaTimeoutError:
            self.unreached = client.unreached()
            raise

    def _steps(self, error_in: ErrorIn) -> Steps[Any]:
        request = AskForTopics(self._topics, create=self._create, operations=True)
        return ask_until_answered(ANY, request, error_in)

    def _trouble_but_missing(self, body: Mapping[str, Any]) -> KafkaError | None:
        error = self._trouble(body)
        return error if self.missing is None else None

    def _trouble(self, body: Mapping[str, Any]) -> KafkaError | None:
        self.missing = None
        if code := body.get("error_code", 0):
            return broker_error(code)
        for row in body["topics"]:
            if row["error_code"]:
                error = broker_error(row["error_code"], f"topic {row['name']!r}")
                error.topic = row["name"]
                if isinstance(error, TopicAuthorizationError):
                    return _may_not_write(row["name"])
                if isinstance(error, UnknownTopicOrPartitionError):
                    self.missing = row["name"]
                return error
            # A topic may be visible without being writable. Brokers before 2.3 do not tell: a record finds out then.
            allowed = row.get("topic_authorized_operations", OPERATIONS_NOT_ASKED)
            if allowed != OPERATIONS_NOT_ASKED and not allowed & _MAY_WRITE:
                return _may_not_write(row["name"])
            self.partitions[row["name"]] = sorted(each["partition_index"] for each in row["partitions"])
            self.ids[row["name"]] = bytes(row.get("topic_id") or bytes(16))
        return None


def find_topic_ids(client: ControlClient, topics: Iterable[str], seconds: float) -> dict[str, bytes]:
    """The id of each topic that exists; zeros where the broker is older than 2.8. Creates none.

    Raises:
        TopicAuthorizationError: a topic may not be written to.
        KafkaTimeoutError: no broker has answered in time.
        KafkaError: the brokers refuse.
    """
    check = TopicCheck(topics, create=False)
    try:
        check.run(client, seconds)
    except KafkaTimeoutError:
        if check.missing is None:
            raise
        check.ids.pop(check.missing, None)
    return check.ids


def is_answer(cause: BaseException | None) -> bool:
    """Whether an error came from a broker, and not from the way there."""
    return isinstance(cause, BrokerError) and not isinstance(cause, NetworkError)


def why_unreachable(error: KafkaError) -> str:
    """Of an error that says what was asked of any broker, and why none was reached: only why."""
    if isinstance(error, KafkaTimeoutError) and error.waited_for is ANY:
        more = also(error.__cause__, error.obstacle)
        if error.obstacle is not None:
            return f"{error.obstacle}{more}"
        if not more:
            return "no answer"
    return str(error)


def why_unreached(servers: str, unreached: Mapping[Node, KafkaError | None]) -> str:
    """What to tell when a bootstrap server answers and the brokers that it names do not: cause and way out."""
    troubles = (error for error in unreached.values() if error is not None)
    why = next(troubles, None) or f"no answer from {', '.join(describe(node) for node in unreached)}"
    return (
        f"{servers} answers, but the addresses that it gives for the cluster's brokers cannot be reached from here: "
        f"{why}. Check advertised.listeners of the brokers, and that this machine can resolve that name and reach that "
        "port (firewall, port mapping)"
    )


def _check_name(topic: str) -> None:
    if not is_topic_name(topic):
        error = InvalidTopicError(f"topic {topic!r} cannot exist: {TOPIC_RULE}. Choose another name")
        error.topic = topic
        raise error


def _may_not_write(topic: str) -> TopicAuthorizationError:
    error = TopicAuthorizationError(
        f"this client may not write to topic {topic!r}: ask for the right WRITE on it"
    )
    error.topic = topic
    return error
