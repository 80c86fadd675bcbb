# SPDX-License-Identifier: Apache-2.0
"""A first look at a cluster: does a broker answer, are the topics there, may they be written to.

Whoever waits for a producer to find that out waits `max.block.ms`, a minute by default. Topics are asked for as the
producer would do it, which lets brokers create them where they are set to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from penstock.control.steps import ANY, Steps, ask_until_answered
from penstock.errors import (
    ConfigError,
    KafkaError,
    TopicAuthorizationError,
    UnknownTopicOrPartitionError,
    broker_error,
)
from penstock.protocol.messages import METADATA
from penstock.protocol.messages.metadata import OPERATIONS_NOT_ASKED
from penstock.protocol.requests import SchemaRequest

PATIENCE_SECONDS: Final = 8.0
# Among the operations that a broker allows this client, each the bit of its number: write is 4.
_MAY_WRITE: Final = 1 << 4
_MAX_BLOCK: Final = "max.block.ms"


class TopicLook:
    """Asks for topics, and judges the answers.

    Attributes:
        missing: the topic that was not there in the last answer, or None.
    """

    def __init__(self, topics: Iterable[str]) -> None:
        self._topics = list(topics)
        self.missing: str | None = None

    def steps(self) -> Steps[Any]:
        """The job for a ControlClient; it ends when all topics are there, and goes on while the trouble may pass.

        Raises:
            TopicAuthorizationError: a topic may not be written to.
            KafkaTimeoutError: the time is up; `missing` says whether for want of a topic.
            KafkaError: the brokers refuse.
        """
        rows = [{"name": topic} for topic in self._topics]
        wanted = {"allow_auto_topic_creation": True, "include_topic_authorized_operations": True}
        request = SchemaRequest.of(METADATA, {"topics": rows, **wanted}, min_version=4)
        return ask_until_answered(ANY, request, self._trouble)

    def _trouble(self, body: Mapping[str, Any]) -> KafkaError | None:
        self.missing = None
        if code := body.get("error_code", 0):
            return broker_error(code)
        for row in body["topics"]:
            if row["error_code"]:
                error = broker_error(row["error_code"], f"topic {row['name']!r}")
                if isinstance(error, TopicAuthorizationError):
                    return _may_not_write(row["name"])
                if isinstance(error, UnknownTopicOrPartitionError):
                    self.missing = row["name"]
                return error
            # A topic may be visible without being writable. Brokers before 2.3 do not tell: a record finds out then.
            allowed = row.get("topic_authorized_operations", OPERATIONS_NOT_ASKED)
            if allowed != OPERATIONS_NOT_ASKED and not allowed & _MAY_WRITE:
                return _may_not_write(row["name"])
        return None


def patience_of(config: Mapping[str, Any]) -> float:
    """Seconds to wait for an answer: max.block.ms where the user has set it, else a few.

    Raises:
        ConfigError: it is no number.
    """
    given = next((value for name, value in config.items() if name.replace("_", ".") == _MAX_BLOCK), None)
    try:
        return PATIENCE_SECONDS if given is None else float(given) / 1000
    except ValueError:
        raise ConfigError(
            f"{_MAX_BLOCK} must be a number of milliseconds, not {given!r}", _MAX_BLOCK
        ) from None


def why_unreachable(error: KafkaError) -> str:
    """Of an error that says what was asked of any broker, and why none was reached: only why."""
    return str(error).rpartition("to any broker: ")[2]


def _may_not_write(topic: str) -> TopicAuthorizationError:
    return TopicAuthorizationError(
        f"this client may not write to topic {topic!r}: ask for the right WRITE on it"
    )
