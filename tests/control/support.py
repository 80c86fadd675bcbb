# SPDX-License-Identifier: Apache-2.0
"""Transactions opened with raw requests, in either protocol, so that nothing of a producer stands between."""

from __future__ import annotations

from typing import Any

from penstock.control.client import ControlClient
from penstock.control.steps import CoordinatorOf, LeaderOf, ask_until_answered
from penstock.errors import KafkaError, broker_error
from penstock.protocol._produce_cy import PartitionBatch, ProduceRequest
from penstock.protocol.messages import ADD_PARTITIONS_TO_TXN, INIT_PRODUCER_ID
from penstock.protocol.requests import SchemaRequest
from penstock.records._batch_cy import BatchWriter
from penstock.records.format import TRANSACTIONAL_BIT
from penstock.transaction_handle import TransactionHandle

V1, V2 = 3, 5  # EndTxn versions of the two protocols


def batch_of(
    values: list[bytes],
    producer_id: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    *,
    transactional: bool = True,
) -> bytes:
    writer = BatchWriter(bytearray(100 + sum(len(value) + 50 for value in values)), 1 << 20)
    for value in values:
        assert writer.append(1_700_000_000_000, None, value, None) > 0
    attributes = TRANSACTIONAL_BIT if transactional else 0
    return bytes(writer.seal(attributes, producer_id, epoch, sequence))


def init_producer_id(
    client: ControlClient, transactional_id: str, timeout_ms: int = 60_000
) -> tuple[int, int]:
    """Take the id, which fences the producer that had it; return producer id and epoch."""
    body = {"transactional_id": transactional_id, "transaction_timeout_ms": timeout_ms}
    request = SchemaRequest.of(INIT_PRODUCER_ID, body)
    answer = client.run(ask_until_answered(CoordinatorOf(transactional_id), request))
    return answer["producer_id"], answer["producer_epoch"]


class OpenTransaction:
    """A transaction that has been begun; `send` adds records to it."""

    def __init__(
        self, client: ControlClient, transactional_id: str, protocol: int, timeout_ms: int = 60_000
    ) -> None:
        self.client = client
        self.transactional_id = transactional_id
        self.protocol = protocol
        self.timeout_ms = timeout_ms
        self.producer_id, self.epoch = init_producer_id(client, transactional_id, timeout_ms)
        self.first: tuple[str, int, int] | None = None
        self.count = 0
        self._sequences: dict[tuple[str, int], int] = {}

    def send(self, topic: str, *values: bytes, partition: int = 0) -> OpenTransaction:
        place = (topic, partition)
        if self.protocol == V1 and place not in self._sequences:
            self._add_partition(topic, partition)
        sequence = self._sequences.get(place, 0)
        batch = batch_of(list(values), self.producer_id, self.epoch, sequence)
        offset = self._produce(topic, partition, batch)
        self._sequences[place] = sequence + len(values)
        self.first = self.first or (topic, partition, offset)
        self.count += len(values)
        return self

    def handle(self, **changed: Any) -> TransactionHandle:
        topic, partition, offset = self.first or (None, -1, -1)
        values: dict[str, Any] = {
            "transactional_id": self.transactional_id,
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
            "end_txn_version": self.protocol,
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "record_count": self.count,
            "timeout_ms": self.timeout_ms,
            "empty": self.count == 0,
        }
        return TransactionHandle(**(values | changed))

    def _add_partition(self, topic: str, partition: int) -> None:
        body = {
            "v3_and_below_transactional_id": self.transactional_id,
            "v3_and_below_producer_id": self.producer_id,
            "v3_and_below_producer_epoch": self.epoch,
            "v3_and_below_topics": [{"name": topic, "partitions": [partition]}],
        }
        request = SchemaRequest.of(ADD_PARTITIONS_TO_TXN, body)
        self.client.run(ask_until_answered(CoordinatorOf(self.transactional_id), request, _add_error))

    def _produce(self, topic: str, partition: int, batch: bytes) -> int:
        place = PartitionBatch(topic, bytes(16), partition, batch)
        version = 11 if self.protocol == V1 else 12
        request = ProduceRequest(-1, 30_000, [place], self.transactional_id, max_version=version)
        answer = self.client.run(ask_until_answered(LeaderOf(topic, partition), request, _produce_error))
        return int(answer.partitions[0].base_offset)


def _add_error(body: dict[str, Any]) -> KafkaError | None:
    code = body["results_by_topic_v3_and_below"][0]["results_by_partition"][0]["partition_error_code"]
    return broker_error(code) if code else None


def _produce_error(answer: Any) -> KafkaError | None:
    part = answer.partitions[0]
    return broker_error(part.error_code, part.error_message) if part.error_code else None
