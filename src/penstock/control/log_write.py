# SPDX-License-Identifier: Apache-2.0
"""Writes a few records without a producer: plainly, or in a transaction, with one request for each batch.

For records of our own making that are small and rare. Nothing is batched, and each call waits for its answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from penstock._identity import ProducerIdentity, TransactionalIdentity
from penstock.control.client import DEFAULT_TIMEOUT, ControlClient
from penstock.control.steps import CoordinatorOf, LeaderOf, Steps, ask_until_answered
from penstock.errors import KafkaError, ProtocolError, broker_error
from penstock.protocol._produce_cy import PartitionBatch, ProduceRequest, ProduceResponse
from penstock.protocol.messages import ADD_PARTITIONS_TO_TXN, END_TXN, INIT_PRODUCER_ID
from penstock.protocol.requests import SchemaRequest
from penstock.protocol.schema import ZERO_UUID
from penstock.records._batch_cy import BatchWriter
from penstock.records.format import (
    HEADER_SIZE,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTIONAL_BIT,
    estimate_record_size,
)
from penstock.types import TopicPartition

ALL_REPLICAS = -1
BROKER_TIMEOUT_MS = 30_000
# From this version on a broker takes the first batch for a partition as its becoming part of the transaction.
LAST_PRODUCE_OF_V1 = 11


class KeyValue(NamedTuple):
    """A record to be written; a value of None is a tombstone."""

    key: bytes
    value: bytes | None


class TransactionalWrite(NamedTuple):
    """A batch's place in a transaction; `sequence` counts the records before it in the partition."""

    identity: TransactionalIdentity
    sequence: int


def init_producer_id(
    client: ControlClient,
    transactional_id: str,
    timeout_ms: int,
    *,
    expected: ProducerIdentity | None = None,
    timeout: float | None = DEFAULT_TIMEOUT,
) -> TransactionalIdentity:
    """Take over a transactional id: fence whoever has it, and abort what it has open.

    Asked again when an answer is lost, so that it may arrive more than once: then the epoch is higher than it need be.

    Args:
        client: an open client.
        transactional_id: which one.
        timeout_ms: the age at which the coordinator aborts a transaction of it.
        expected: the producer that must have the id; with another one the coordinator refuses. But it aborts a
            transaction that is open, whoever has begun it: look before.
        timeout: seconds.

    Raises:
        KafkaError: the coordinator refused, or did not answer in time.
    """
    body: dict[str, Any] = {"transactional_id": transactional_id, "transaction_timeout_ms": timeout_ms}
    if expected is not None:
        body["producer_id"], body["producer_epoch"] = expected
    request = SchemaRequest.of(INIT_PRODUCER_ID, body)
    answer = client.run(ask_until_answered(CoordinatorOf(transactional_id), request), timeout)
    return TransactionalIdentity(
        transactional_id, answer["producer_id"], answer["producer_epoch"], client.end_txn_version(timeout)
    )


def add_to_transaction(
    client: ControlClient,
    identity: TransactionalIdentity,
    partition: TopicPartition,
    *,
    timeout: float | None = DEFAULT_TIMEOUT,
) -> None:
    """Make a partition part of a transaction, which the older protocol wants before anything is written to it.

    Raises:
        KafkaError: the coordinator refused, or did not answer in time.
    """
    body = {
        "v3_and_below_transactional_id": identity.transactional_id,
        "v3_and_below_producer_id": identity.producer_id,
        "v3_and_below_producer_epoch": identity.epoch,
        "v3_and_below_topics": [{"name": partition.topic, "partitions": [partition.partition]}],
    }
    request = SchemaRequest.of(ADD_PARTITIONS_TO_TXN, body)
    client.run(ask_until_answered(CoordinatorOf(identity.transactional_id), request, _add_error), timeout)


def end_transaction_once(
    client: ControlClient,
    identity: TransactionalIdentity,
    *,
    commit: bool,
    timeout: float | None = DEFAULT_TIMEOUT,
) -> None:
    """End a transaction, and take nothing but a plain yes for an answer; repeated only while the trouble is passing.

    Raises:
        KafkaError: the answer is something else, which says nothing of how the transaction ended.
    """
    body = {
        "transactional_id": identity.transactional_id,
        "producer_id": identity.producer_id,
        "producer_epoch": identity.epoch,
        "committed": commit,
    }
    request = SchemaRequest.of(END_TXN, body, identity.end_txn_version, identity.end_txn_version)
    client.run(ask_until_answered(CoordinatorOf(identity.transactional_id), request), timeout)


def write_batch(
    client: ControlClient,
    partition: TopicPartition,
    records: Iterable[KeyValue],
    now_ms: int,
    within: TransactionalWrite | None = None,
    *,
    timeout: float | None = DEFAULT_TIMEOUT,
) -> int:
    """Write one batch with acks=all; the offset of its first record.

    Args:
        client: an open client.
        partition: where to.
        records: at least one.
        now_ms: their timestamp, milliseconds since the epoch.
        within: the transaction that it is part of. Without one it may be written twice when an answer is lost.
        timeout: seconds.

    Raises:
        KafkaError: the leader refused, or did not answer in time.
    """
    return client.run(_write(partition, encode_batch(records, now_ms, within), within), timeout)


def _write(partition: TopicPartition, batch: memoryview, within: TransactionalWrite | None) -> Steps[int]:
    highest = None
    if within is not None and not within.identity.joins_by_writing:
        highest = LAST_PRODUCE_OF_V1
    place = PartitionBatch(partition.topic, ZERO_UUID, partition.partition, batch)
    name = None if within is None else within.identity.transactional_id
    limits = {} if highest is None else {"max_version": highest}
    request = ProduceRequest(ALL_REPLICAS, BROKER_TIMEOUT_MS, [place], name, **limits)
    answer = yield from ask_until_answered(LeaderOf(*partition), request, _produce_error)
    return int(answer.partitions[0].base_offset)


def encode_batch(
    records: Iterable[KeyValue], now_ms: int, within: TransactionalWrite | None = None
) -> memoryview:
    """Records as one batch, not compressed."""
    wanted = list(records)
    size = HEADER_SIZE + sum(
        estimate_record_size(len(key), None if value is None else len(value)) for key, value in wanted
    )
    writer = BatchWriter(bytearray(size), size)
    for key, value in wanted:
        writer.append(now_ms, key, value, None)
    if within is None:
        return writer.seal(0, NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE)
    identity = within.identity
    return writer.seal(TRANSACTIONAL_BIT, identity.producer_id, identity.epoch, within.sequence)


def _add_error(body: Mapping[str, Any]) -> KafkaError | None:
    codes = [
        row["partition_error_code"]
        for topic in body["results_by_topic_v3_and_below"]
        for row in topic["results_by_partition"]
    ]
    if len(codes) != 1:
        return ProtocolError(f"AddPartitionsToTxn was asked for one partition and answered for {len(codes)}")
    return broker_error(codes[0]) if codes[0] else None


def _produce_error(answer: ProduceResponse) -> KafkaError | None:
    if len(answer.partitions) != 1:
        return ProtocolError(f"Produce was sent one batch and answered for {len(answer.partitions)}")
    (part,) = answer.partitions
    return broker_error(part.error_code, part.error_message) if part.error_code else None
