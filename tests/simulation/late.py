# SPDX-License-Identifier: Apache-2.0
"""Requests of a cut connection that reach their broker late, and the few that would break what no client can mend.

A broker goes on with what it has received of a connection that is gone, in order and one at a time. Most of it does no
harm: a batch is recognised by its number, a stale epoch is refused. Kafka's own protocol has three holes; what falls
into one is lost on the way instead, and nothing else is:

1. Without transactions: a batch was given up while in doubt, the one behind it was refused as out of order, and goes on
   under a new epoch. Until the broker has seen that epoch it takes both late batches under the old one.
2. First transaction protocol: EndTxn does not say which transaction it means, so a late one ends the next.
3. First transaction protocol before Kafka 3.6: the same holds for batches; for a group's positions, in all releases.

What a producer with transactions does itself adds a fourth, which nobody sees who reads what is committed:

4. A batch failed, and the numbers of those behind it moved down. What arrives late under the old numbers is taken for
   what follows, and written again, in a transaction that must be aborted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.error_codes import ErrorCode
from penstock.producer.batch._batch_cy import is_later
from penstock.producer.guarantee._sequences_cy import SequenceBook
from penstock.producer.guarantee.response_policy import Action
from penstock.protocol.codec import decode_request_body
from penstock.protocol.messages import API_BY_KEY, END_TXN, PRODUCE, TXN_OFFSET_COMMIT
from penstock.records.format import MAGIC, MAGIC_AT
from penstock.records.reader import RecordBatch, read_batches
from penstock.testing.cluster import FakeCluster
from penstock.testing.topics import Partition
from penstock.testing.transactions import TxnState

if TYPE_CHECKING:
    from penstock.producer.guarantee.idempotent import IdempotentGate
    from penstock.producer.guarantee.transactions.manager import TransactionManager

_NO_TRANSACTION = -1.0
# The first versions in which a request cannot be mistaken for one of another transaction.
_SECOND_PROTOCOL = {PRODUCE.key: 12, TXN_OFFSET_COMMIT.key: 5, END_TXN.key: 5}


class LateRequest(NamedTuple):
    """A request of a cut connection.

    Attributes:
        frame: as it was written, with its size.
        begun_at: when the transaction began that was open at the time of the cut.
    """

    frame: bytes
    api_key: int
    version: int
    body: Any
    begun_at: float


class _WatchedBook(SequenceBook):
    """Notes the numbers of batches before they move down."""

    def __init__(self, numbered_anew: set[tuple[Any, int, int, int]]) -> None:
        super().__init__()
        self._numbered_anew = numbered_anew

    def close_gap(self, batch: Any, count: int | None = None) -> None:
        for each in self.of(batch.queue).in_flight:
            if is_later(each.identity.base_sequence, batch.identity.base_sequence):
                self._numbered_anew.add((each.topic_partition, *_numbers(each)))
        super().close_gap(batch, count)


class LateRequests:
    """Tells which late requests may arrive.

    Args:
        cluster: the brokers.
    """

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        # What was numbered anew although an older request for it was in doubt (hole 1), as it was numbered before.
        self._numbered_anew: set[tuple[Any, int, int, int]] = set()

    def watch(self, gate: IdempotentGate) -> None:
        """Note which batches a producer numbers anew."""
        decide = gate.decide

        def watched(code: int, log_start_offset: int, batch: Any, situation: Any) -> Any:
            decision = decide(code, log_start_offset, batch, situation)
            if (
                code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
                and decision.bump_epoch
                and decision.action is Action.RETRY
            ):
                for each in gate.numbering.book.of(batch.queue).in_flight:
                    self._numbered_anew.add((each.topic_partition, *_numbers(each)))
            return decision

        gate.decide = watched  # type: ignore[method-assign]

    def watch_gaps(self, gate: TransactionManager) -> None:
        """Note which batches a transactional producer numbers anew (hole 4)."""
        gate._numbers.book = _WatchedBook(self._numbered_anew)  # nothing has a number yet

    def read(self, frame: bytes) -> LateRequest:
        """What a frame asks for."""
        api = API_BY_KEY[int.from_bytes(frame[4:6], "big")]
        version = int.from_bytes(frame[6:8], "big")
        body_at = 14 + int.from_bytes(frame[12:14], "big")  # behind the client's name
        if api.request_header_version(version) >= 2:
            body_at += 1  # no tagged fields
        body = decode_request_body(api, version, frame[body_at:])
        return LateRequest(frame, api.key, version, body, self._begun_at(body.get("transactional_id")))

    def is_lost(self, late: LateRequest) -> bool:
        """Whether it would fall into one of the holes, if it arrived now."""
        transactional_id = late.body.get("transactional_id")
        if transactional_id is not None and self._moved_down(late):
            return True
        if transactional_id is None:
            return late.api_key == PRODUCE.key and any(
                self._is_numbered_anew(*each) for each in batches_of(self._cluster, late.body)
            )
        if late.version >= _SECOND_PROTOCOL.get(late.api_key, 0):
            return False
        if late.api_key == PRODUCE.key and self._cluster.release.verifies_transactions:
            return False
        return late.begun_at != self._begun_at(transactional_id)

    def _moved_down(self, late: LateRequest) -> bool:
        return late.api_key == PRODUCE.key and any(
            self._is_numbered_anew(*each) for each in batches_of(self._cluster, late.body)
        )

    def _begun_at(self, transactional_id: str | None) -> float:
        txn = None if transactional_id is None else self._cluster.transactions.find(transactional_id)
        return _NO_TRANSACTION if txn is None or txn.state is not TxnState.ONGOING else txn.started_at

    def _is_numbered_anew(self, partition: Partition, batch: RecordBatch) -> bool:
        numbers = (batch.producer_id, batch.producer_epoch, batch.base_sequence)
        if (partition.key, *numbers) not in self._numbered_anew:
            return False
        known = partition.log.producers.entries.get(batch.producer_id)
        return known is None or known.epoch <= batch.producer_epoch  # else the broker refuses it


def batches_of(cluster: FakeCluster, body: Any) -> Iterator[tuple[Partition, RecordBatch]]:
    """The batches of a Produce request, with the partitions that they are meant for; message sets have no numbers."""
    topics = cluster.topics
    for row in body["topic_data"]:
        topic = topics.by_name(row["name"]) if row["name"] else topics.by_id(row["topic_id"])
        for part in row["partition_data"]:
            partition = None if topic is None else topics.partition(topic.name, part["index"])
            if partition is not None and part["records"][MAGIC_AT] == MAGIC:
                (batch,) = read_batches(part["records"])
                yield partition, batch


def _numbers(batch: Any) -> tuple[int, int, int]:
    """Producer id, epoch and first sequence number of a batch."""
    identity = batch.identity
    return identity.producer_id, identity.producer_epoch, identity.base_sequence
