# SPDX-License-Identifier: Apache-2.0
"""The producer of a simulated task: as much of the real one as a task uses, on the calling actor.

It numbers its batches, repeats them after a passing trouble, and is refused like any other when it is fenced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from testing.wire import Producer, batch

from penstock.control import ControlClient
from penstock.control.steps import Ask, CoordinatorOf, LeaderOf, Steps, ask_until_answered
from penstock.errors import IllegalStateError, KafkaError, KafkaTimeoutError, NetworkError, broker_error
from penstock.protocol.messages import ADD_PARTITIONS_TO_TXN, END_TXN, INIT_PRODUCER_ID, PRODUCE
from penstock.protocol.requests import SchemaRequest
from penstock.testing.cluster import FakeCluster
from penstock.transaction_handle import TransactionHandle
from penstock.types import TopicPartition

_PATIENCE = 60.0


class TaskProducer:
    """A transactional producer whose id changes with every transaction.

    Args:
        client: its connections.
        cluster: only asked which protocol is in use.
        timeout_ms: the transaction.timeout.ms.
    """

    forgets_doubt = (
        False  # a planted bug: an InitProducerId without an answer may come again, and nobody cares
    )
    keeps_identity = False  # a planted bug: an id that it has already initialised is used as it is

    def __init__(self, client: ControlClient, cluster: FakeCluster, timeout_ms: int) -> None:
        self.timeout_ms = timeout_ms
        self._client = client
        self._cluster = cluster
        self._known: dict[str, Producer] = {}
        self._id = ""
        self._identity: Producer | None = None
        self._second_protocol = False
        self._sequences: dict[TopicPartition, int] = {}
        self._first: tuple[str, int, int] | None = None
        self._counts: dict[TopicPartition, int] = {}
        self._in_doubt = False

    def init_transactions(self, transactional_id: str | None = None) -> None:
        """Take over an id.

        Raises:
            KafkaError: it did not work, or whether it did is not known.
        """
        assert transactional_id is not None
        self._id, self._identity, self._in_doubt = transactional_id, None, False
        self._sequences, self._first, self._counts = {}, None, {}
        if self.keeps_identity and transactional_id in self._known and not self._second_protocol:
            self._identity = self._known[transactional_id]
            return
        request = SchemaRequest.of(
            INIT_PRODUCER_ID,
            {"transactional_id": transactional_id, "transaction_timeout_ms": self.timeout_ms},
        )
        answer = self._client.run(self._initialise(CoordinatorOf(transactional_id), request), _PATIENCE)
        self._identity = Producer(answer["producer_id"], answer["producer_epoch"])
        self._known[transactional_id] = self._identity
        self._second_protocol = self._cluster.features.get("transaction.version", 0) >= 2

    def _initialise(self, where: CoordinatorOf, request: SchemaRequest) -> Steps[Any]:
        """Repeat the request like the real producer, which remembers that one without an answer may come again."""
        steps = ask_until_answered(where, request)
        step = next(steps)
        while True:
            reply = yield step
            if isinstance(step, Ask) and isinstance(reply.error, NetworkError | KafkaTimeoutError):
                self._in_doubt = True
            try:
                step = steps.send(reply)
            except StopIteration as stop:
                return stop.value

    @property
    def initialization_in_doubt(self) -> bool:
        return self._in_doubt and not self.forgets_doubt

    def begin_transaction(self) -> None:
        """Nothing is sent for it."""

    def send(self, topic: str, partition: int, rows: Sequence[bytes]) -> None:
        """Write rows into one partition, and wait until they are there.

        Raises:
            KafkaError: they are not.
        """
        identity = self._identity
        if identity is None:
            raise IllegalStateError("not initialised")
        where = TopicPartition(topic, partition)
        if not self._second_protocol and where not in self._sequences:
            self._client.run(self._add_partition(where, identity), _PATIENCE)
        sequence = self._sequences.setdefault(where, 0)
        records = batch(list(rows), identity, sequence, transactional=True)
        body = {
            "acks": -1, "timeout_ms": 10_000, "transactional_id": self._id,
            "topic_data": [{"name": topic, "partition_data": [{"index": partition, "records": records}]}],
        }  # fmt: skip
        low, high = (12, 12) if self._second_protocol else (3, 11)
        request = SchemaRequest.of(PRODUCE, body, low, high)
        answer = self._client.run(
            ask_until_answered(LeaderOf(topic, partition), request, _produce_error), _PATIENCE
        )
        row = answer["responses"][0]["partition_responses"][0]
        self._sequences[where] = sequence + len(rows)
        self._counts[where] = self._counts.get(where, 0) + len(rows)
        if self._first is None:
            self._first = (topic, partition, row["base_offset"])

    def _add_partition(self, where: TopicPartition, identity: Producer) -> Steps[Any]:
        body = {
            "v3_and_below_transactional_id": self._id,
            "v3_and_below_producer_id": identity.id,
            "v3_and_below_producer_epoch": identity.epoch,
            "v3_and_below_topics": [{"name": where.topic, "partitions": [where.partition]}],
        }
        request = SchemaRequest.of(ADD_PARTITIONS_TO_TXN, body, max_version=3)
        return ask_until_answered(CoordinatorOf(self._id), request, _add_error)

    @property
    def counts(self) -> Mapping[TopicPartition, int]:
        """Rows of the transaction by partition."""
        return self._counts

    def detach_transaction(self) -> TransactionHandle:
        """Hand over the open transaction."""
        identity = self._identity
        if identity is None:
            raise IllegalStateError("not initialised")
        highest = self._cluster.release.ranges[END_TXN.key][1]
        topic, partition, offset = self._first or (None, -1, -1)
        handle = TransactionHandle(
            transactional_id=self._id,
            producer_id=identity.id,
            producer_epoch=identity.epoch,
            end_txn_version=5 if self._second_protocol else min(4, highest),
            topic=topic,
            partition=partition,
            offset=offset,
            record_count=sum(self._counts.values()),
            timeout_ms=self.timeout_ms,
            empty=self._first is None,
        )
        self._identity = None
        return handle


def _produce_error(body: Mapping[str, Any]) -> KafkaError | None:
    code = body["responses"][0]["partition_responses"][0]["error_code"]
    return broker_error(code) if code else None


def _add_error(body: Mapping[str, Any]) -> KafkaError | None:
    code = body["results_by_topic_v3_and_below"][0]["results_by_partition"][0]["partition_error_code"]
    return broker_error(code) if code else None
