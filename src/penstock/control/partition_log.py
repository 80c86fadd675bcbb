# SPDX-License-Identifier: Apache-2.0
"""Reads and writes the log of one partition, without a producer or a consumer.

Reading goes up to the log's present end, uncommitted records and control records among the rest. What counts is for the
reader to decide: a read-committed fetch would stop before the first open transaction of anybody. It goes page by page,
so that memory stays bounded.

Writing is for records of our own making that are small and rare: plainly or in a transaction, with one request for each
batch. Nothing is batched, and each call waits for its answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from penstock._identity import ProducerIdentity, TransactionalIdentity
from penstock.control.client import DEFAULT_TIMEOUT, ControlClient
from penstock.control.markers import LAST_VERSION_WITH_NAMES
from penstock.control.rights import answered, of_whole_answer
from penstock.control.steps import (
    Ask,
    Backoff,
    CoordinatorOf,
    LeaderOf,
    Reply,
    Steps,
    ask_until_answered,
    with_last_trouble,
)
from penstock.error_codes import ErrorCode
from penstock.errors import KafkaError, KafkaTimeoutError, ProtocolError
from penstock.protocol._produce_cy import PartitionBatch, ProduceRequest, ProduceResponse
from penstock.protocol.messages import ADD_PARTITIONS_TO_TXN, END_TXN, FETCH, INIT_PRODUCER_ID, LIST_OFFSETS
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
from penstock.records.reader import RecordBatch, read_batches
from penstock.types import TopicPartition

PAGE_BYTES = 1024 * 1024
# From this version on a leader that does not know its high watermark yet says so, instead of an old one.
FIRST_LIST_OFFSETS_WITHOUT_STALE_ENDS = 5

_LATEST, _EARLIEST = -1, -2
_READ_UNCOMMITTED = 0


class LogEnd(NamedTuple):
    """The end of a partition, or its beginning.

    Attributes:
        offset: of the next record, or of the first one.
        leader_epoch: the leader epoch that the answer named; -1 when it did not say.
    """

    offset: int
    leader_epoch: int


def log_end(leader: LeaderOf) -> Steps[LogEnd]:
    """The high watermark of a partition."""
    return (yield from _offset_of(leader, _LATEST))


def log_start(leader: LeaderOf) -> Steps[LogEnd]:
    """The first offset that a partition still has."""
    return (yield from _offset_of(leader, _EARLIEST))


def read_log(leader: LeaderOf, start: int, end: int, on_batch: Callable[[RecordBatch], None]) -> Steps[int]:
    """Hand over all batches from the one that holds `start` up to `end`; the offset behind the last one.

    Raises:
        KafkaError: the log cannot be read; OFFSET_OUT_OF_RANGE (code 1) where it does not begin at `start` any more.
    """
    position = start
    trouble: KafkaError | None = None
    attempts = 0
    try:
        while position < end:
            reply = yield Ask(leader, _fetch(leader, position), fresh=trouble is not None)
            try:
                before, position = position, _take(reply, leader, position, on_batch)
                trouble = None if position > before else ProtocolError("a page of the log is empty")
            except KafkaError as error:
                if not (error.retriable or isinstance(error, ProtocolError)):
                    raise
                trouble = error
            if trouble is not None:
                yield Backoff(attempts)
                attempts += 1
    except KafkaTimeoutError as up:
        raise with_last_trouble(up, trouble) from trouble
    return position


def _take(reply: Reply, leader: LeaderOf, position: int, on_batch: Callable[[RecordBatch], None]) -> int:
    if reply.error is not None:
        raise reply.error
    body = reply.body
    rows = [part for topic in body["responses"] for part in topic["partitions"]]
    code = body["error_code"] or (rows[0]["error_code"] if rows else ErrorCode.UNKNOWN_SERVER_ERROR)
    if code:
        raise answered(code, "READ", f"topic {leader.topic!r}")
    # All of a page is read before any of it is handed over: what is damaged on its way is fetched again.
    batches = list(read_batches(rows[0]["records"] or b"", allow_partial=True))
    for batch in batches:
        if batch.last_offset >= position:
            position = batch.last_offset + 1
            on_batch(batch)
    return position


def _offset_of(leader: LeaderOf, which: int) -> Steps[LogEnd]:
    row = {"partition_index": leader.partition, "timestamp": which}
    body = {
        "isolation_level": _READ_UNCOMMITTED,
        "topics": [{"name": leader.topic, "partitions": [row]}],
    }
    request = SchemaRequest.of(LIST_OFFSETS, body, FIRST_LIST_OFFSETS_WITHOUT_STALE_ENDS)
    answer = yield from ask_until_answered(leader, request, lambda body: _list_offsets_error(body, leader))
    part = answer["topics"][0]["partitions"][0]
    return LogEnd(part["offset"], part["leader_epoch"])


def _list_offsets_error(body: Mapping[str, Any], leader: LeaderOf) -> KafkaError | None:
    rows = [part for topic in body["topics"] for part in topic["partitions"]]
    if len(rows) != 1:
        return ProtocolError(f"ListOffsets was asked for one partition and answered for {len(rows)}")
    code = rows[0]["error_code"]
    return answered(code, "DESCRIBE", f"topic {leader.topic!r}") if code else None


def _fetch(leader: LeaderOf, position: int) -> SchemaRequest:
    part = {"partition": leader.partition, "fetch_offset": position, "partition_max_bytes": PAGE_BYTES}
    body = {
        "max_wait_ms": 0,
        "min_bytes": 1,
        "max_bytes": PAGE_BYTES,
        "isolation_level": _READ_UNCOMMITTED,
        "topics": [{"topic": leader.topic, "partitions": [part]}],
    }
    return SchemaRequest.of(FETCH, body, max_version=LAST_VERSION_WITH_NAMES)


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
    """Take over a transactional id: fence its owner, and abort what is open.

    Asked again when an answer is lost, so that it may arrive more than once: then the epoch is higher than it need be.

    Args:
        client: an open client.
        transactional_id: which one.
        timeout_ms: the age at which the coordinator aborts a transaction of it.
        expected: the producer that must have the id; with another one the coordinator refuses. But it aborts a
            transaction that is open, also one of another producer: check before.
        timeout: seconds.

    Raises:
        KafkaError: the coordinator refused, or did not answer in time.
    """
    body: dict[str, Any] = {"transactional_id": transactional_id, "transaction_timeout_ms": timeout_ms}
    if expected is not None:
        body["producer_id"], body["producer_epoch"] = expected
    request = SchemaRequest.of(INIT_PRODUCER_ID, body)
    error_in = of_whole_answer("WRITE", f"transactional id {transactional_id!r}")
    answer = client.run(ask_until_answered(CoordinatorOf(transactional_id), request, error_in), timeout)
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
    name = identity.transactional_id

    def error_in(body: Mapping[str, Any]) -> KafkaError | None:
        return _add_error(body, name, partition.topic)

    client.run(ask_until_answered(CoordinatorOf(name), request, error_in), timeout)


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
    error_in = of_whole_answer("WRITE", f"transactional id {identity.transactional_id!r}")
    client.run(ask_until_answered(CoordinatorOf(identity.transactional_id), request, error_in), timeout)


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
    answer = yield from ask_until_answered(
        LeaderOf(*partition), request, lambda answer: _produce_error(answer, name, partition.topic)
    )
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
    sealed: memoryview
    if within is None:
        sealed = writer.seal(0, NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE)
    else:
        identity = within.identity
        sealed = writer.seal(TRANSACTIONAL_BIT, identity.producer_id, identity.epoch, within.sequence)
    return sealed


def _add_error(body: Mapping[str, Any], transactional_id: str, topic: str) -> KafkaError | None:
    codes = [
        row["partition_error_code"]
        for topic in body["results_by_topic_v3_and_below"]
        for row in topic["results_by_partition"]
    ]
    if len(codes) != 1:
        return ProtocolError(f"AddPartitionsToTxn was asked for one partition and answered for {len(codes)}")
    return answered(codes[0], "WRITE", _written_to(codes[0], transactional_id, topic)) if codes[0] else None


def _written_to(code: int, transactional_id: str | None, topic: str) -> str:
    if code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        return f"transactional id {transactional_id!r}"
    return f"topic {topic!r}"


def _produce_error(answer: ProduceResponse, transactional_id: str | None, topic: str) -> KafkaError | None:
    if len(answer.partitions) != 1:
        return ProtocolError(f"Produce was sent one batch and answered for {len(answer.partitions)}")
    (part,) = answer.partitions
    on = _written_to(part.error_code, transactional_id, topic)
    return answered(part.error_code, "WRITE", on, part.error_message) if part.error_code else None
