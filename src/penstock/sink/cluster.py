# SPDX-License-Identifier: Apache-2.0
"""Carries out the protocol's effects on a cluster."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

from penstock._events import Event, tell
from penstock._identity import TransactionalIdentity
from penstock.control.client import DEFAULT_TIMEOUT, ControlClient
from penstock.control.complete import Completion, complete_all
from penstock.control.partition_log import (
    TransactionalWrite,
    add_to_transaction,
    end_transaction_once,
    init_producer_id,
    write_batch,
)
from penstock.control.reach import find_topic_ids
from penstock.control.steps import Backoff, CoordinatorOf, Steps, ask_until_answered
from penstock.control.topics import topic_shape
from penstock.control.transactions import TransactionDescription, describe_transactions, list_where_answered
from penstock.errors import KafkaError, SinkLogLostError, TopicAuthorizationError
from penstock.protocol.messages import DESCRIBE_TRANSACTIONS, INIT_PRODUCER_ID, LIST_TRANSACTIONS
from penstock.protocol.requests import SchemaRequest
from penstock.sink import effects
from penstock.sink.effects import Effect, Effects
from penstock.sink.hooks import Step, current_hook, reached
from penstock.sink.identity import Life, explain_refusal, life_of, task_id_pattern
from penstock.sink.log.topic import LogReader, ensure_log_topic
from penstock.sink.log.view import SinkView
from penstock.transaction_handle import TransactionHandle
from penstock.types import TopicPartition

log = logging.getLogger("penstock.sink")

T = TypeVar("T")

# For asking all brokers what is open. It is asked only because readers wait, and a batch waits meanwhile.
LIST_SECONDS = 5.0
# How much longer than its time-out a transaction is waited for: until coordinators have looked, and markers are there.
_EXPIRY_GRACE_SECONDS = 40.0


class LogReaders:
    """The readers of one process, by cluster and partition of the log: each remembers how far it has read.

    A child made by a fork starts anew. Not for several threads at once.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._readers: dict[tuple[str, str, int], LogReader] = {}

    def clear(self) -> None:
        self._readers = {}

    def reader(self, cluster: str, partition: TopicPartition) -> LogReader:
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._readers = {}
        place = (cluster, *partition)
        if place not in self._readers:
            self._readers[place] = LogReader(*partition)
        return self._readers[place]


class Cluster:
    """A cluster on which effects are carried out.

    Args:
        client: an open client; stays open.
        name: of the cluster, to tell readers apart: its bootstrap servers.
        log_topic: where the log is.
        readers: what was read before.
        wall_ms: milliseconds since the epoch, for the timestamps of records.
        timeout: seconds for each effect.
    """

    def __init__(
        self,
        client: ControlClient,
        name: str,
        log_topic: str,
        readers: LogReaders | None = None,
        *,
        wall_ms: Callable[[], int] = lambda: int(time.time() * 1000),
        timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        self._client = client
        self._name = name
        self._log_topic = log_topic
        self._readers = readers or LogReaders()
        self._wall_ms = wall_ms
        self._timeout = timeout
        self._partitions = 0  # of the log's topic; 0 while they are not known
        self._performers: dict[type, Callable[[Any], Any]] = {
            effects.FindOldBroker: self._find_old_broker,
            effects.EnsureLogTopic: self._ensure_log_topic,
            effects.ReadLog: self._read_log,
            effects.ReadRuns: self._read_runs,
            effects.CheckDrivers: self._check_drivers,
            effects.EndTxnVersion: self._end_txn_version,
            effects.VerifiesTransactions: self._verifies_transactions,
            effects.Pause: self._pause,
            effects.InitProducer: self._init_producer,
            effects.JoinLog: self._join_log,
            effects.AppendInTransaction: self._append_in_transaction,
            effects.EndTransaction: self._end_transaction,
            effects.AppendFacts: self._append_facts,
            effects.Describe: self._describe,
            effects.FindTopicIds: self._find_topic_ids,
            effects.ListOngoing: self._list_ongoing,
            effects.FenceAll: self._fence_all,
            effects.EndAll: self._end_all,
            effects.Reached: self._reached,
            effects.Note: self._note,
        }

    def run(self, steps: Effects[T]) -> T:
        """Carry out one piece of work to its end; what it returns, or raises."""
        outcome: Any = None
        failure: KafkaError | None = None
        try:
            while True:
                # Nothing but the protocol itself is in here: a StopIteration from elsewhere must not pass for its end.
                try:
                    effect = steps.send(outcome) if failure is None else steps.throw(failure)
                except StopIteration as end:
                    result: T = end.value
                    return result
                outcome = failure = None
                try:
                    outcome = self.perform(effect)
                except KafkaError as error:
                    failure = error
        finally:
            steps.close()

    def perform(self, effect: Effect) -> Any:
        """Carry out one effect; its outcome.

        Raises:
            KafkaError: it failed, or had no answer in time.
        """
        try:
            return self._performers[type(effect)](effect)
        except TopicAuthorizationError as error:
            raise explain_refusal(
                error, f"read or write the topic {error.topic or self._log_topic!r}"
            ) from error

    def _find_old_broker(self, effect: effects.FindOldBroker) -> str | None:
        del effect
        return self._client.release_without((DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS), self._timeout)

    # ---- the log

    def _ensure_log_topic(self, effect: effects.EnsureLogTopic) -> None:
        found = ensure_log_topic(self._client, self._log_topic, effect.target, self._timeout)
        self._partitions = found.partitions

    def log_partition(self, sink_key: str) -> TopicPartition:
        """Where the records of a sink are: all in one partition, so that they have an order.

        Raises:
            SinkLogLostError: there is no log.
        """
        if not self._partitions:
            found = topic_shape(self._client, self._log_topic, self._timeout)
            if found is None:
                raise SinkLogLostError(
                    f"there is no topic {self._log_topic!r}, in which the sink's decisions should be. Nothing was "
                    "written: check decisionTopic and bootstrap.servers"
                )
            self._partitions = found.partitions
        return TopicPartition(self._log_topic, int(sink_key, 16) % self._partitions)

    def _read_log(self, effect: effects.ReadLog) -> SinkView:
        reader = self._readers.reader(self._name, self.log_partition(effect.sink_key))
        return reader.view(self._client, effect.sink_key, self._timeout)

    def _read_runs(self, effect: effects.ReadRuns) -> list[SinkView]:
        self.log_partition("0")  # so that it is known how many there are
        found: list[SinkView] = []
        for number in range(self._partitions):
            reader = self._readers.reader(self._name, TopicPartition(self._log_topic, number))
            found += reader.read(self._client, self._timeout).unfinished_runs(effect.sink_id)
        return found

    def _check_drivers(self, effect: effects.CheckDrivers) -> list[Life]:
        return [life_of(owner.jvm, owner.place) for owner in effect.owners]

    def _append_facts(self, effect: effects.AppendFacts) -> None:
        partition = self.log_partition(effect.sink_key)
        write_batch(self._client, partition, effect.records, self._wall_ms(), timeout=self._timeout)

    # ---- the coordinator's transactions

    def _init_producer(self, effect: effects.InitProducer) -> TransactionalIdentity:
        return init_producer_id(
            self._client,
            effect.transactional_id,
            effect.timeout_ms,
            expected=effect.expected,
            timeout=self._timeout,
        )

    def _end_txn_version(self, effect: effects.EndTxnVersion) -> int:
        del effect
        return self._client.end_txn_version(self._timeout)

    def _verifies_transactions(self, effect: effects.VerifiesTransactions) -> bool:
        del effect
        return self._client.verifies_transactions(self._timeout)

    def _pause(self, effect: effects.Pause) -> None:
        self._client.run(_pause_for(effect.seconds), None)

    def _join_log(self, effect: effects.JoinLog) -> None:
        partition = self.log_partition(effect.sink_key)
        add_to_transaction(self._client, effect.identity, partition, timeout=self._timeout)

    def _append_in_transaction(self, effect: effects.AppendInTransaction) -> None:
        within = TransactionalWrite(effect.identity, effect.sequence)
        partition = self.log_partition(effect.sink_key)
        write_batch(self._client, partition, effect.records, self._wall_ms(), within, timeout=self._timeout)

    def _end_transaction(self, effect: effects.EndTransaction) -> None:
        end_transaction_once(self._client, effect.identity, commit=effect.commit, timeout=self._timeout)

    # ---- the tasks' transactions

    def _describe(self, effect: effects.Describe) -> dict[str, TransactionDescription | None]:
        return describe_transactions(effect.transactional_ids, self._client, timeout=self._timeout)

    def _find_topic_ids(self, effect: effects.FindTopicIds) -> dict[str, bytes]:
        return find_topic_ids(self._client, effect.topics, self._timeout)

    def _list_ongoing(self, effect: effects.ListOngoing) -> list[str]:
        pattern = task_id_pattern() if effect.sink_key is None else task_id_pattern(effect.sink_key)
        timeout = min(self._timeout, LIST_SECONDS)
        found, failures = list_where_answered(self._client, pattern, ["Ongoing"], timeout)
        for failure in failures:
            tell(
                log, logging.WARNING, Event.SINK_LISTING_INCOMPLETE,
                "a broker did not tell its open transactions, which are left to the next time: %s", failure,
                error=failure,
            )  # fmt: skip
        return [listing.transactional_id for listing in found]

    def _fence_all(self, effect: effects.FenceAll) -> list[KafkaError | None]:
        work = [_fence(name, effect.timeout_ms) for name in effect.transactional_ids]
        failures: list[KafkaError | None] = []
        for ticket in self._client.run_all(work, self._timeout):
            try:
                ticket.result  # noqa: B018 - only whether there is one
            except KafkaError as error:
                failures.append(error)
            else:
                failures.append(None)
        return failures

    def _end_all(self, effect: effects.EndAll) -> list[Completion]:
        handles, commit = effect.handles, effect.commit
        if commit and len(handles) > 1 and current_hook() is not None:
            # So that a test can stop between two of them.
            first = self._complete(handles[:1], commit)
            reached(Step.AFTER_FIRST_END, handle=handles[0])
            return first + self._complete(handles[1:], commit)
        return self._complete(handles, commit)

    def _complete(self, handles: tuple[TransactionHandle, ...], commit: bool) -> list[Completion]:
        longest = max((handle.timeout_ms for handle in handles), default=0) / 1000
        # What was decided is worth waiting for, as long as it can be open; what is given up is not.
        timeout = longest + _EXPIRY_GRACE_SECONDS if commit else self._timeout
        return complete_all(handles, commit, config=self._client, timeout=timeout)

    # ---- to people

    def _reached(self, effect: effects.Reached) -> None:
        reached(effect.step, **effect.facts)

    def _note(self, effect: effects.Note) -> None:
        tell(log, logging.WARNING, Event.SINK_NOTE, "%s", effect.text)


def _pause_for(seconds: float) -> Steps[None]:
    reply = yield Backoff(0, briefly=True)
    until = reply.at + seconds
    while reply.at < until:
        reply = yield Backoff(0)


def _fence(transactional_id: str, timeout_ms: int) -> Steps[Any]:
    body = {"transactional_id": transactional_id, "transaction_timeout_ms": timeout_ms}
    request = SchemaRequest.of(INIT_PRODUCER_ID, body)
    return (yield from ask_until_answered(CoordinatorOf(transactional_id), request))
