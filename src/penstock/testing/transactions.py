# SPDX-License-Identifier: Apache-2.0
"""The transaction coordinator: every answer to InitProducerId, AddPartitionsToTxn and EndTxn is decided here.

There is one object for all ids; which broker may be asked is the caller's business. The state survives every move of a
coordinator, as a replicated log would keep it.

The two protocols end transactions by different rules. In the first one, id and epoch must be the present ones, and the
state tells whether the request is a repetition. In the second one, each end raises the epoch, so a request with the
epoch before the present one is a repetition, and one with the present epoch means the next transaction.

While markers are being written everybody is asked for patience: by the second protocol and by InitProducerId whoever
they are, by the first one only after id and epoch were found to be the present ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from typing import Final, NamedTuple, Protocol

from penstock._identity import NO_IDENTITY, ProducerIdentity
from penstock.error_codes import ErrorCode
from penstock.testing.settings import ClusterSettings
from penstock.testing.transaction_state import LAST_EPOCH, NO_EPOCH, NO_ID, Transaction, TxnState
from penstock.types import TopicPartition

_MARKER_RETRY_SECONDS: Final = 0.1  # when a partition has no leader, or no follower has the marker yet


class IdentityAnswer(NamedTuple):
    """An answer: an error code, or NONE with the identity that a producer goes on with."""

    code: ErrorCode
    identity: ProducerIdentity = NO_IDENTITY


class MarkerWriter(Protocol):
    """Writes one marker; False while the partition has no leader, or its followers do not have the marker."""

    def __call__(self, partition: TopicPartition, transaction: Transaction, *, commit: bool) -> bool:
        """Write it."""
        ...


class TransactionCoordinator:
    """All transactional ids of a cluster.

    Args:
        allocate_id: gives a producer id that was never given before.
        write_marker: see MarkerWriter.
        wall_ms: milliseconds since the epoch.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        allocate_id: Callable[[], int],
        write_marker: MarkerWriter,
        wall_ms: Callable[[], int],
    ) -> None:
        self.settings = settings
        self._allocate_id = allocate_id
        self._write_marker = write_marker
        self._wall_ms = wall_ms
        self._by_id: dict[str, Transaction] = {}
        self._next_check = math.inf  # set by the first tick

    def __iter__(self) -> Iterator[Transaction]:
        return iter(self._by_id.values())

    def find(self, transactional_id: str) -> Transaction | None:
        """What is known of an id; None when it was never initialised."""
        return self._by_id.get(transactional_id)

    # ------------------------------------------------------------------------------------------ InitProducerId

    def init_producer_id(
        self, transactional_id: str, timeout_ms: int, expected: ProducerIdentity | None, now: float
    ) -> IdentityAnswer:
        """Give a producer its id and epoch, and end what an older one left open.

        Args:
            expected: producer id and epoch of a producer that goes on after an error, which keeps its id.
        """
        if not 0 < timeout_ms <= self.settings.transaction_max_timeout_ms:
            return IdentityAnswer(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        txn = self._by_id.get(transactional_id)
        if txn is None:
            txn = self._by_id[transactional_id] = Transaction(transactional_id, self._allocate_id())
        if txn.is_ending:
            return IdentityAnswer(ErrorCode.CONCURRENT_TRANSACTIONS)
        if expected is not None and not _may_go_on(txn, *expected):
            return IdentityAnswer(ErrorCode.PRODUCER_FENCED)
        if txn.state is TxnState.ONGOING:
            self._fence(txn, now)
            return IdentityAnswer(ErrorCode.CONCURRENT_TRANSACTIONS)
        return self._next_epoch(txn, timeout_ms, None if expected is None else expected.epoch)

    def _next_epoch(self, txn: Transaction, timeout_ms: int, expected: int | None) -> IdentityAnswer:
        keep = expected is not None
        if txn.is_exhausted and expected in (None, txn.epoch):
            txn.rotate(self._allocate_id(), timeout_ms, keep_last_epoch=keep)
        elif expected is None or txn.epoch in (NO_EPOCH, expected):
            txn.initialise(timeout_ms, keep_last_epoch=keep)
        elif expected != txn.last_epoch:
            return IdentityAnswer(ErrorCode.PRODUCER_FENCED)
        # else the call is repeated because its answer was lost: it is given again
        return IdentityAnswer(ErrorCode.NONE, txn.identity)

    # ------------------------------------------------------------------------------------------ partitions

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Collection[TopicPartition],
        now: float,
    ) -> ErrorCode:
        """Make partitions part of the producer's transaction; the first ones begin it."""
        txn = self._by_id.get(transactional_id)
        code = _mismatch(txn, producer)
        if code or txn is None:
            return code
        txn.add(set(partitions), now, self._wall_ms())
        return ErrorCode.NONE

    def verify_partition(
        self, transactional_id: str, producer: ProducerIdentity, partition: TopicPartition
    ) -> ErrorCode:
        """Whether a partition is in the transaction: TRANSACTION_ABORTABLE when it is not."""
        txn = self._by_id.get(transactional_id)
        code = _mismatch(txn, producer)
        if code or txn is None:
            return code
        return ErrorCode.NONE if partition in txn.partitions else ErrorCode.TRANSACTION_ABORTABLE

    # ------------------------------------------------------------------------------------------ EndTxn

    def end_v1(
        self, transactional_id: str, producer: ProducerIdentity, *, commit: bool, now: float
    ) -> IdentityAnswer:
        """End a transaction by the first protocol (EndTxn up to 4): the epoch stays."""
        txn = self._by_id.get(transactional_id)
        if txn is None or txn.producer_id != producer.producer_id:
            return IdentityAnswer(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if txn.epoch != producer.epoch:
            return IdentityAnswer(ErrorCode.PRODUCER_FENCED)
        if txn.state is TxnState.ONGOING:
            self._prepare(txn, commit=commit, now=now)
            return IdentityAnswer(ErrorCode.NONE, producer)
        return IdentityAnswer(_repeated(txn.state, commit=commit), producer)

    def end_v2(
        self, transactional_id: str, producer: ProducerIdentity, *, commit: bool, now: float
    ) -> IdentityAnswer:
        """End a transaction by the second protocol (EndTxn 5): the answer has the producer's next id and epoch."""
        txn = self._by_id.get(transactional_id)
        if txn is None:
            return IdentityAnswer(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if txn.is_ending:
            return IdentityAnswer(ErrorCode.CONCURRENT_TRANSACTIONS)
        producer_id, epoch = producer
        changed_id = txn.previous_producer_id == producer_id and epoch == LAST_EPOCH and txn.epoch == 0
        if txn.producer_id != producer_id and not changed_id:
            return IdentityAnswer(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        is_complete = txn.state in (TxnState.COMPLETE_COMMIT, TxnState.COMPLETE_ABORT)
        if is_complete and (txn.epoch == epoch + 1 or changed_id):  # a repetition
            code = _repeated(txn.state, commit=commit)
            return IdentityAnswer(code, NO_IDENTITY if code else txn.identity)
        if txn.epoch != epoch:
            return IdentityAnswer(ErrorCode.PRODUCER_FENCED)
        if txn.state is not TxnState.ONGOING and commit:
            return IdentityAnswer(ErrorCode.INVALID_TXN_STATE)
        return self._end_raising_epoch(txn, commit=commit, now=now)

    def _end_raising_epoch(self, txn: Transaction, *, commit: bool, now: float) -> IdentityAnswer:
        if txn.is_exhausted:
            txn.next_producer_id = self._allocate_id()
        txn.last_epoch = txn.epoch
        txn.epoch += 1
        if txn.state is not TxnState.ONGOING:
            txn.started_ms = self._wall_ms()  # the end of nothing counts as a transaction of its own
        answer = IdentityAnswer(ErrorCode.NONE, txn.identity)
        if txn.next_producer_id != NO_ID:
            answer = IdentityAnswer(ErrorCode.NONE, ProducerIdentity(txn.next_producer_id, 0))
        self._prepare(txn, commit=commit, now=now)
        return answer

    # ------------------------------------------------------------------------------------------ time

    def tick(self, now: float) -> None:
        """Write the markers that are due; from time to time look for transactions that take too long."""
        if self._next_check == math.inf:
            self._next_check = now + self.settings.timeout_check_interval
        if now >= self._next_check:
            self._next_check = now + self.settings.timeout_check_interval
            for txn in self._by_id.values():
                if txn.state is TxnState.ONGOING and txn.started_at + txn.timeout_ms / 1000 < now:
                    self._fence(txn, now)
        for txn in self._by_id.values():
            self._maybe_complete(txn, now)

    def next_event_at(self) -> float:
        """When `tick` has something to do; infinity when nothing is open."""
        due = [txn.markers_due_at for txn in self._by_id.values()]
        if any(txn.state is TxnState.ONGOING for txn in self._by_id.values()):
            due.append(self._next_check)
        return min(due, default=math.inf)

    def fence(self, transactional_id: str, now: float) -> None:
        """Shut the present producer out, as a newer one would, and abort what it has open.

        Raises:
            KeyError: the id was never initialised.
        """
        txn = self._by_id[transactional_id]
        if txn.state is TxnState.ONGOING:
            self._fence(txn, now)
        elif not txn.is_ending:
            self._next_epoch(txn, txn.timeout_ms, None)

    def _fence(self, txn: Transaction, now: float) -> None:
        txn.epoch += 1
        txn.last_epoch = NO_EPOCH
        self._prepare(txn, commit=False, now=now)

    def _prepare(self, txn: Transaction, *, commit: bool, now: float) -> None:
        txn.enter(TxnState.PREPARE_COMMIT if commit else TxnState.PREPARE_ABORT)
        txn.markers_due_at = now + self.settings.marker_delay
        self._maybe_complete(txn, now)

    def _maybe_complete(self, txn: Transaction, now: float) -> None:
        if txn.markers_due_at > now:
            return
        commit = txn.state is TxnState.PREPARE_COMMIT
        for partition in sorted(txn.partitions):
            if self._write_marker(partition, txn, commit=commit):
                txn.partitions.remove(partition)
        if txn.partitions:
            txn.markers_due_at = now + _MARKER_RETRY_SECONDS
        else:
            txn.complete()


def _may_go_on(txn: Transaction, producer_id: int, epoch: int) -> bool:
    """Whether a producer that names its id and epoch may be the owner of the transactional id."""
    if txn.epoch == NO_EPOCH or producer_id == txn.producer_id:
        return True
    return producer_id == txn.previous_producer_id and epoch >= LAST_EPOCH


def _mismatch(txn: Transaction | None, producer: ProducerIdentity) -> ErrorCode:
    """Why a producer may not write in a transaction now; NONE when it may."""
    if txn is None or txn.producer_id != producer.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if txn.epoch != producer.epoch:
        return ErrorCode.PRODUCER_FENCED
    return ErrorCode.CONCURRENT_TRANSACTIONS if txn.is_ending else ErrorCode.NONE


def _repeated(state: TxnState, *, commit: bool) -> ErrorCode:
    """The answer to an EndTxn for a transaction that is not open, by whether it ends as it did before."""
    if state is (TxnState.COMPLETE_COMMIT if commit else TxnState.COMPLETE_ABORT):
        return ErrorCode.NONE
    if state in (TxnState.PREPARE_COMMIT, TxnState.PREPARE_ABORT):
        return ErrorCode.CONCURRENT_TRANSACTIONS
    return ErrorCode.INVALID_TXN_STATE
