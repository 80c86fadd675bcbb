# SPDX-License-Identifier: Apache-2.0
"""What the protocol asks of the world, as values.

The driver's work is written as generators that yield effects and are sent their outcomes; an effect that failed is
thrown in as KafkaError. So the protocol does no I/O: `cluster` performs it on a cluster, a simulator interleaves
drivers and lets them die before and after every effect. Each effect that changes something at the brokers is one
request, or (FenceAll, EndAll) independent ones in any order.

| effect | outcome |
|---|---|
| FindOldBroker | str or None |
| EnsureLogTopic | None |
| ReadLog | SinkView |
| InitProducer | TransactionalIdentity |
| JoinLog, AppendInTransaction, EndTransaction, AppendFacts | None |
| EndTxnVersion | int |
| VerifiesTransactions | bool |
| ReadRuns | list of SinkView |
| CheckDrivers | list of Life, as the owners |
| Describe | dict of TransactionDescription or None, by id |
| FindTopicIds | dict of ids, by topic; without topics that do not exist |
| ListOngoing | list of transactional ids |
| FenceAll | list of KafkaError or None, as the ids |
| EndAll | list of Completion, as the handles |
| Pause, Reached, Note | None |
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from penstock._identity import ProducerIdentity, TransactionalIdentity
from penstock.control.partition_log import KeyValue
from penstock.sink.hooks import Step
from penstock.sink.log.records import Owner
from penstock.transaction_handle import TransactionHandle

T = TypeVar("T")


class FindOldBroker(NamedTuple):
    """Look for a broker that cannot tell the states of transactions, among those that are known; its release."""


class EnsureLogTopic(NamedTuple):
    """Make the log's topic if it is not there, and refuse it if it is not fit; `target` is the topic written to."""

    target: str | None


class ReadLog(NamedTuple):
    """Read the log up to its end, uncommitted."""

    sink_key: str


class ReadRuns(NamedTuple):
    """Read all of the log, and find the runs of a sink id that have not come to their end."""

    sink_id: str


class CheckDrivers(NamedTuple):
    """Find out whether owners run."""

    owners: tuple[Owner, ...]


class EndTxnVersion(NamedTuple):
    """Ask which version of EndTxn the cluster's transactions are to be ended with."""


class VerifiesTransactions(NamedTuple):
    """Ask whether all brokers refuse what is written to a transaction that its coordinator knows nothing of."""


class Pause(NamedTuple):
    """Wait so many seconds."""

    seconds: float


class InitProducer(NamedTuple):
    """Take over a transactional id; where producer id and epoch are expected, only if it has them."""

    transactional_id: str
    timeout_ms: int
    expected: ProducerIdentity | None = None


class JoinLog(NamedTuple):
    """Make the log's partition part of a transaction; only in the older protocol."""

    identity: TransactionalIdentity
    sink_key: str


class AppendInTransaction(NamedTuple):
    """Write records to the log as one batch of a transaction; `sequence` counts the records before them."""

    identity: TransactionalIdentity
    sink_key: str
    sequence: int
    records: tuple[KeyValue, ...]


class EndTransaction(NamedTuple):
    """End a transaction of ours; anything but a plain yes fails."""

    identity: TransactionalIdentity
    commit: bool


class AppendFacts(NamedTuple):
    """Write plain records to the log, acknowledged by all replicas."""

    sink_key: str
    records: tuple[KeyValue, ...]


class Describe(NamedTuple):
    """Ask coordinators what they know of ids."""

    transactional_ids: tuple[str, ...]


class FindTopicIds(NamedTuple):
    """Ask for the ids that topics have now."""

    topics: tuple[str, ...]


class ListOngoing(NamedTuple):
    """Ask every broker for the open transactions of a sink's tasks; None is every sink."""

    sink_key: str | None


class FenceAll(NamedTuple):
    """Take over transactional ids of others, so that what they have open is aborted."""

    transactional_ids: tuple[str, ...]
    timeout_ms: int


class EndAll(NamedTuple):
    """End transactions of tasks, side by side, or find out how they have ended."""

    handles: tuple[TransactionHandle, ...]
    commit: bool


class Reached(NamedTuple):
    """A step that tests can see."""

    step: Step
    facts: Mapping[str, Any] = MappingProxyType({})


class Note(NamedTuple):
    """Something that an operator may want to know of, and that stops nothing."""

    text: str


Effect = (
    FindOldBroker
    | EnsureLogTopic
    | ReadLog
    | ReadRuns
    | CheckDrivers
    | EndTxnVersion
    | VerifiesTransactions
    | Pause
    | InitProducer
    | JoinLog
    | AppendInTransaction
    | EndTransaction
    | AppendFacts
    | Describe
    | FindTopicIds
    | ListOngoing
    | FenceAll
    | EndAll
    | Reached
    | Note
)
# What is sent in is the outcome of the effect, as in the table above.
Effects = Generator[Effect, Any, T]
