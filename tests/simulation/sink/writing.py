# SPDX-License-Identifier: Apache-2.0
"""The producer of a simulated task: as much of the real one as a task uses, on the calling actor.

It numbers its batches, repeats them after a passing trouble, and is refused like any other when it is fenced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from testing.wire import Producer, batch

from penstock.control import ControlClient
from penstock.control.steps import CoordinatorOf, LeaderOf, ask_once, ask_until_answered
from penstock.errors import IllegalStateError, KafkaError, broker_error
from penstock.protocol.messages import ADD_PARTITIONS_TO_TXN, INIT_PRODUCER_ID, PRODUCE
from penstock.protocol.requests import SchemaRequest
from penstock.testing.cluster import FakeCluster
from penstock.transaction_handle import TransactionHandle
from penstock.types import TopicPartition

_CONCURRENT_TRANSACTIONS = 51
_PATIENCE = 60.0


class TaskProducer:
    """A transactional producer whose id changes with every transaction.

    Args:
        client: its connections.
        cluster: only asked which protocol is in use.
    """

    repeats_init = False  # a planted bug: an InitProducerId whose answer was lost is sent again
    keeps_identity = False  # a planted bug: an id that it has already initialised is used as it is

    def __init__(self, client: ControlClient, cluster: FakeCluster) -> None:
        self._client = client
        self._cluster = cluster
        self._known: dict[str, Producer] = {}
        self._id = ""
        self._timeout_ms = 0
        self._identity: Producer | None = None
        self._second_protocol = False
        self._sequences: dict[TopicPartition, int] = {}
        self._first: tuple[str, int, int] | None = None
        self._rows = 0

    def init_transactions(self, transactional_id: str, timeout_ms: int) -> None:
        """Take over an id.

        Raises:
            KafkaError: it did not work, or whether it did is not known.
        """
        self._id, self._timeout_ms, self._identity = transactional_id, timeout_ms, None
        self._sequences, self._first, self._rows = {}, None, 0
        if self.keeps_identity and transactional_id in self._known:
            self._identity = self._known[transactional_id]
            return
        request = SchemaRequest.of(
            INIT_PRODUCER_ID, {"transactional_id": transactional_id, "transaction_timeout_ms": timeout_ms}
        )
        where = CoordinatorOf(transactional_id)
        if self.repeats_init:
            answer = self._client.run(ask_until_answered(where, request), _PATIENCE)
        else:
            answer = self._client.run(self._init_once(where, request), _PATIENCE)
        self._identity = Producer(answer["producer_id"], answer["producer_epoch"])
        self._known[transactional_id] = self._identity
        self._second_protocol = self._cluster.features.get("transaction.version", 0) >= 2

    def _init_once(self, where: CoordinatorOf, request: SchemaRequest) -> Any:
        """Repeat only what was answered: a request without an answer may still be on its way."""

        def error_in(body: Mapping[str, Any]) -> KafkaError | None:
            return broker_error(body["error_code"]) if body["error_code"] else None

        steps = ask_until_answered(where, request, error_in)
        step = next(steps)
        while True:
            reply = yield step
            lost = getattr(step, "request", None) is not None and reply.error is not None
            try:
                step = steps.throw(reply.error) if lost else steps.send(reply)
            except StopIteration as stop:
                return stop.value

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
        self._rows += len(rows)
        if self._first is None:
            self._first = (topic, partition, row["base_offset"])

    def _add_partition(self, where: TopicPartition, identity: Producer) -> Any:
        body = {
            "v3_and_below_transactional_id": self._id,
            "v3_and_below_producer_id": identity.id,
            "v3_and_below_producer_epoch": identity.epoch,
            "v3_and_below_topics": [{"name": where.topic, "partitions": [where.partition]}],
        }
        request = SchemaRequest.of(ADD_PARTITIONS_TO_TXN, body, max_version=3)
        return ask_until_answered(CoordinatorOf(self._id), request, _add_error)

    def detach(self) -> TransactionHandle:
        """Hand over the open transaction."""
        identity = self._identity
        if identity is None:
            raise IllegalStateError("not initialised")
        highest = self._cluster.release.ranges[26][1]
        topic, partition, offset = self._first or (None, -1, -1)
        handle = TransactionHandle(
            transactional_id=self._id,
            producer_id=identity.id,
            producer_epoch=identity.epoch,
            end_txn_version=5 if self._second_protocol else min(4, highest),
            topic=topic,
            partition=partition,
            offset=offset,
            record_count=self._rows,
            timeout_ms=self._timeout_ms,
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


__all__ = ["TaskProducer", "ask_once"]
