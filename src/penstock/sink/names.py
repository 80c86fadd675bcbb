# SPDX-License-Identifier: Apache-2.0
"""The transactional ids of a sink, what can be read from one, and the permissions that they need.

    ps.<sinkKey>.c                          the coordinator: owner records and decisions
    ps.<sinkKey>.p                          a probe: may such ids be used, and with which time-out?
    ps.<sinkKey>.<gen>.<worker>.<slot>      a task

No field holds a dot and the key has a fixed length, so that no sink's ids are a prefix of another's.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from penstock.error_codes import ErrorCode
from penstock.errors import BrokerError, KafkaError, SinkAuthorizationError

_TASK: Final = re.compile(r"ps\.([0-9a-f]{16})\.(\d{1,18})\.([0-9a-zA-Z-]+)\.(\d{1,9})")


class TaskId(NamedTuple):
    """The parts of a task's transactional id."""

    sink_key: str
    generation: int
    worker: str
    slot: int

    def __str__(self) -> str:
        return f"ps.{self.sink_key}.{self.generation}.{self.worker}.{self.slot}"


def coordinator_id(sink_key: str) -> str:
    """The id in whose transactions a sink's decisions are written."""
    return f"ps.{sink_key}.c"


def probe_id(sink_key: str) -> str:
    """The id that is only ever initialised, to find out what the brokers allow."""
    return f"ps.{sink_key}.p"


def task_id_pattern(sink_key: str = "[0-9a-f]{16}") -> str:
    """A regular expression for the ids of all tasks of a sink, of whichever generation; without one of all sinks."""
    return rf"ps\.{sink_key}\.[0-9]+\.[0-9a-zA-Z-]+\.[0-9]+"


def parse_task_id(transactional_id: str) -> TaskId | None:
    """The parts of a task's id; None for any other id."""
    found = _TASK.fullmatch(transactional_id)
    if found is None:
        return None
    key, generation, worker, slot = found.groups()
    return TaskId(key, int(generation), worker, int(slot))


_AUTHORIZATION_CODES = (
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)


def explain_refusal(error: BrokerError, wanted: str) -> KafkaError:
    """A refusal for want of a permission, in words; any other error as it is."""
    if error.code not in _AUTHORIZATION_CODES:
        return error
    return SinkAuthorizationError(
        f"this client may not {wanted}: {error}. Exactly-once delivery needs Write and Describe on the transactional "
        "ids `ps.*` (an ACL with a prefix), Read, Write, Describe and DescribeConfigs on the log's topic, and Create "
        "for it unless it exists. Nothing was written"
    )
