# SPDX-License-Identifier: Apache-2.0
"""What the protocol asks of the world, as values.

The driver's work is written as generators that yield effects and are sent their outcomes; an effect that failed is
thrown in as KafkaError. So the protocol does no I/O: `carrying_out` performs it on a cluster, a simulator interleaves
drivers and lets them die before and after every effect. Each effect that changes something at the brokers is one
request, or (FenceAll, EndAll) independent ones in any order.

| effect | outcome |
|---|---|
| EnsureLogTopic | None |
| ReadLog | SinkView |
| InitProducer | ProducerIdentity |
| JoinLog, AppendInTransaction, EndTransaction, AppendFacts | None |
| Describe | dict of TransactionDescription or None, by id |
| ListOngoing | list of transactional ids |
| FenceAll | list of KafkaError or None, as the ids |
| EndAll | list of Completion, as the handles |
| Reached, Note | None |
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from penstock.control.producing import KeyValue
from penstock.sink.plan import ProducerIdentity
from penstock.sink.seam import Step
from penstock.transaction_handle import TransactionHandle

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EnsureLogTopic:
    """Make the log's topic if it is not there, and refuse it if it is not fit; `target` is the topic written to."""

    target: str | None


@dataclass(frozen=True, slots=True)
class ReadLog:
    """Read the log up to its end, uncommitted."""

    sink_key: str


@dataclass(frozen=True, slots=True)
class InitProducer:
    """Take over a transactional id."""

    transactional_id: str
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class JoinLog:
    """Make the log's partition part of a transaction; only in the older protocol."""

    identity: ProducerIdentity
    sink_key: str


@dataclass(frozen=True, slots=True)
class AppendInTransaction:
    """Write records to the log as one batch of a transaction; `sequence` counts the records before them."""

    identity: ProducerIdentity
    sink_key: str
    sequence: int
    records: tuple[KeyValue, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class EndTransaction:
    """End a transaction of ours; anything but a plain yes fails."""

    identity: ProducerIdentity
    commit: bool


@dataclass(frozen=True, slots=True)
class AppendFacts:
    """Write plain records to the log, acknowledged by all replicas."""

    sink_key: str
    records: tuple[KeyValue, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Describe:
    """Ask coordinators what they know of ids."""

    transactional_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ListOngoing:
    """Ask every broker for the open transactions of a sink's tasks."""

    sink_key: str


@dataclass(frozen=True, slots=True)
class FenceAll:
    """Take over transactional ids of others, so that what they have open is aborted."""

    transactional_ids: tuple[str, ...]
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class EndAll:
    """End transactions of tasks, side by side, or find out how they have ended."""

    handles: tuple[TransactionHandle, ...]
    commit: bool


@dataclass(frozen=True, slots=True)
class Reached:
    """A step that tests can see."""

    step: Step
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Note:
    """Something that an operator may want to know of, and that stops nothing."""

    text: str


Effect = (
    EnsureLogTopic
    | ReadLog
    | InitProducer
    | JoinLog
    | AppendInTransaction
    | EndTransaction
    | AppendFacts
    | Describe
    | ListOngoing
    | FenceAll
    | EndAll
    | Reached
    | Note
)
# What is sent in is the outcome of the effect, as in the table above.
Effects = Generator[Effect, Any, T]
