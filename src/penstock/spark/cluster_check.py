# SPDX-License-Identifier: Apache-2.0
"""One look at the cluster from the driver, so that a wrong address fails in seconds and not in every task.

The topic is asked for as the producer would do it, which lets brokers create it where they are set to.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Final

from penstock.control.client import ControlClient
from penstock.control.steps import ANY, ask_until_answered
from penstock.errors import (
    AuthenticationError,
    ConfigError,
    KafkaError,
    KafkaTimeoutError,
    TopicAuthorizationError,
    UnknownTopicOrPartitionError,
    broker_error,
)
from penstock.protocol.messages import METADATA
from penstock.protocol.messages.metadata import OPERATIONS_NOT_ASKED
from penstock.protocol.requests import SchemaRequest
from penstock.spark.options import SinkOptions

PATIENCE_SECONDS: Final = 8.0
# Among the operations that a broker allows this client, each the bit of its number: write is 4.
_MAY_WRITE: Final = 1 << 4
# A streaming query is planned for each micro-batch: not each of them needs a look.
_GOOD_FOR_SECONDS: Final = 60.0

# When a cluster was last found in order, by this process. A fork copies it, which does no harm.
_seen: dict[tuple[str, ...], float] = {}


def check_cluster(
    options: SinkOptions,
    patience: float = PATIENCE_SECONDS,
    *,
    dead_letter_topic: str | None = None,
    client: AbstractContextManager[ControlClient] | None = None,
) -> None:
    """Talk to a broker, and find the topics that the options name.

    Args:
        options: of the write.
        patience: seconds to wait for an answer.
        dead_letter_topic: one that rows name themselves, besides that of the options.
        client: opens one with the same options; one of its own, unless given.

    Raises:
        KafkaError: no broker answers; names the address and the cause.
        AuthenticationError: a broker answers, and refuses this client's identity.
        ConfigError: a topic does not exist.
        TopicAuthorizationError: a topic may not be written to.
    """
    named = (options.topic, options.dead_letter_topic, dead_letter_topic)
    topics = list(dict.fromkeys(topic for topic in named if topic is not None))
    key = (options.servers, *topics)
    now = time.monotonic()
    if now - _seen.get(key, -_GOOD_FOR_SECONDS) < _GOOD_FOR_SECONDS:
        return
    look = _Look(topics)
    try:
        with client if client is not None else ControlClient(options.producer) as opened:
            opened.run(ask_until_answered(ANY, look.request(), look.trouble), patience)
    except (TopicAuthorizationError, ConfigError):
        raise
    except AuthenticationError as error:
        raise AuthenticationError(
            f"Kafka at {options.servers} does not let this client in: {error}. Check the options kafka.sasl.* and "
            "kafka.ssl.*, and kafka.security.protocol"
        ) from None
    except KafkaTimeoutError as error:
        if look.missing is not None:
            raise _no_topic(look.missing, options) from None
        raise _unreachable(options, error, patience) from None
    except KafkaError as error:
        raise _unreachable(options, error, patience) from None
    _seen[key] = now


class _Look:
    """Asks for topics, and judges the answers.

    Attributes:
        missing: the topic that was not there in the last answer, or None.
    """

    def __init__(self, topics: list[str]) -> None:
        self._topics = topics
        self.missing: str | None = None

    def request(self) -> SchemaRequest:
        rows = [{"name": topic} for topic in self._topics]
        wanted = {"allow_auto_topic_creation": True, "include_topic_authorized_operations": True}
        return SchemaRequest.of(METADATA, {"topics": rows, **wanted}, min_version=4)

    def trouble(self, body: Mapping[str, Any]) -> KafkaError | None:
        self.missing = None
        if code := body.get("error_code", 0):
            return broker_error(code)
        for row in body["topics"]:
            if row["error_code"]:
                error = broker_error(row["error_code"])
                if isinstance(error, TopicAuthorizationError):
                    return _may_not_write(row["name"])
                if isinstance(error, UnknownTopicOrPartitionError):
                    self.missing = row["name"]
                return error
            # A topic may be visible without being writable. Brokers before 2.3 do not tell: a task finds out then.
            allowed = row.get("topic_authorized_operations", OPERATIONS_NOT_ASKED)
            if allowed != OPERATIONS_NOT_ASKED and not allowed & _MAY_WRITE:
                return _may_not_write(row["name"])
        return None


def _may_not_write(topic: str) -> TopicAuthorizationError:
    return TopicAuthorizationError(
        f"this client may not write to topic {topic!r}: ask for the right WRITE on it"
    )


def _no_topic(topic: str, options: SinkOptions) -> ConfigError:
    option = "topic" if topic == options.topic else "deadLetterTopic"
    return ConfigError(
        f"topic {topic!r} (option {option}) does not exist at {options.servers}, and the brokers do not create it by "
        "themselves. Create it, or check the name"
    )


def _unreachable(options: SinkOptions, error: KafkaError, patience: float) -> KafkaError:
    waited = f" within {patience:g} s" if isinstance(error, KafkaTimeoutError) else ""
    _, _, cause = str(error).rpartition("to any broker: ")
    return KafkaError(
        f"the driver cannot reach Kafka at {options.servers}{waited}: {cause}. Check the option "
        "kafka.bootstrap.servers, and that a broker listens there"
    )
