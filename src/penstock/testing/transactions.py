# SPDX-License-Identifier: Apache-2.0
"""The transaction coordinator: every answer to InitProducerId, AddPartitionsToTxn and EndTxn is decided here.

There is one object for all ids; which broker may be asked is the caller's business. The state is kept at every move of
a coordinator, as a replicated log would keep it.

The two protocols end transactions by different rules. In the first one, id and epoch must be the present ones, and the
state tells whether the request is a repetition. In the second one, each end raises the epoch, so a request with the
epoch before the present one is a repetition, and one with the present epoch means the next transaction.

While markers are being written everybody is asked for patience: by the second protocol and by InitProducerId in any
case, by the first one only after id and epoch were found to be the present ones.

Rules of the epoch:
1. InitProducerId raises it by one. It never hands out 32767: an id whose epoch is exhausted is replaced by a new one,
   with epoch 0.
2. A fence (another InitProducerId, or the time-out) raises it by one before the abort, so that the old producer's epoch
   is stale everywhere, and the new one gets the next.
3. Under the second protocol every end of a transaction raises it by one; the markers carry the raised epoch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from penstock._identity import NO_IDENTITY, ProducerIdentity
from penstock.error_codes import ErrorCode
from penstock.testing.settings import ClusterSettings
from penstock.types import TopicPartition

NO_ID: Final = -1
NO_EPOCH: Final = -1
LAST_EPOCH: Final = 32766  # 32767 is left for the fence

_MARKER_RETRY_SECONDS: Final = 0.1  # when a partition has no leader, or no follower has the marker yet


class TxnState(StrEnum):
    """The states of a transaction, by Kafka's names in DescribeTransactions."""

    EMPTY = "Empty"  # nothing was written since the producer was initialised
    ONGOING = "Ongoing"  # partitions were added
    PREPARE_COMMIT = "PrepareCommit"  # the decision is made; markers are being written
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"  # every marker is written
    COMPLETE_ABORT = "CompleteAbort"


_ENDED: Final = (TxnState.EMPTY, TxnState.COMPLETE_COMMIT, TxnState.COMPLETE_ABORT)

# From which states each may be entered.
TRANSITIONS: Final[dict[TxnState, tuple[TxnState, ...]]] = {
    TxnState.EMPTY: _ENDED,
    TxnState.ONGOING: (*_ENDED, TxnState.ONGOING),
    TxnState.PREPARE_COMMIT: (TxnState.ONGOING,),
    # Under the second protocol an abort may follow nothing at all: it raises the epoch.
    TxnState.PREPARE_ABORT: (*_ENDED, TxnState.ONGOING),
    TxnState.COMPLETE_COMMIT: (TxnState.PREPARE_COMMIT,),
    TxnState.COMPLETE_ABORT: (TxnState.PREPARE_ABORT,),
}


@dataclass(slots=True)
class Transaction:
    """One transactional id as its coordinator knows it.

    Attributes:
        previous_producer_id: the one before the last change of id, so that a repeated EndTxn is recognised.
        next_producer_id: the one that replaces an exhausted id when the markers are written.
        last_epoch: the epoch before the last raise that the producer itself asked for.
        partitions: in the transaction; while it is being ended, those without a marker.
        started_at: monotonic seconds; started_ms: milliseconds since the epoch, -1 while nothing is open.
        markers_due_at: when the markers are written; never, unless the transaction is being ended.
    """

    transactional_id: str
    producer_id: int
    epoch: int = NO_EPOCH
    timeout_ms: int = 0
    state: TxnState = TxnState.EMPTY
    previous_producer_id: int = NO_ID
    next_producer_id: int = NO_ID
    last_epoch: int = NO_EPOCH
    partitions: set[TopicPartition] = field(default_factory=set)
    started_at: float = 0.0
    started_ms: int = -1
    markers_due_at: float = math.inf

    @property
    def identity(self) -> ProducerIdentity:
        """The producer that has the id now."""
        return ProducerIdentity(self.producer_id, self.epoch)

    @property
    def is_exhausted(self) -> bool:
        """Whether the producer id has no epoch left to give out."""
        return self.epoch >= LAST_EPOCH

    @property
    def is_ending(self) -> bool:
        """Whether markers are being written."""
        return self.state in (TxnState.PREPARE_COMMIT, TxnState.PREPARE_ABORT)

    def enter(self, state: TxnState) -> None:
        """Change the state.

        Raises:
            RuntimeError: the table does not allow it; a mistake in this package.
        """
        if self.state not in TRANSITIONS[state]:
            raise RuntimeError(f"{self.transactional_id}: no way from {self.state} to {state}")
        self.state = state

    def add(self, partitions: set[TopicPartition], now: float, now_ms: int) -> None:
        """Begin the transaction if need be, and make partitions part of it."""
        if self.state is not TxnState.ONGOING:
            self.started_at, self.started_ms = now, now_ms
        self.enter(TxnState.ONGOING)
        self.partitions |= partitions

    def initialise(self, timeout_ms: int, *, keep_last_epoch: bool) -> None:
        """Give the producer its next epoch."""
        self.last_epoch = self.epoch if keep_last_epoch else NO_EPOCH
        self.epoch += 1
        self._empty(timeout_ms)

    def rotate(self, producer_id: int, timeout_ms: int, *, keep_last_epoch: bool) -> None:
        """Give the producer a new id, because the epochs of the old one are used up."""
        self.last_epoch = self.epoch if keep_last_epoch else NO_EPOCH
        self.previous_producer_id, self.producer_id, self.epoch = self.producer_id, producer_id, 0
        self._empty(timeout_ms)

    def _empty(self, timeout_ms: int) -> None:
        self.enter(TxnState.EMPTY)
        self.timeout_ms = timeout_ms
        self.started_ms = -1

    def complete(self) -> None:
        """Complete the transaction: all its markers are written."""
        committed = self.state is TxnState.PREPARE_COMMIT
        self.enter(TxnState.COMPLETE_COMMIT if committed else TxnState.COMPLETE_ABORT)
        self.markers_due_at = math.inf
        if self.next_producer_id != NO_ID:
            self.last_epoch = self.epoch
            self.previous_producer_id, self.producer_id, self.epoch = (
                self.producer_id,
                self.next_producer_id,
                0,
            )
            self.next_producer_id = NO_ID


class IdentityAnswer(NamedTuple):
    """An answer: an error code, or NONE with the identity that a producer goes on with."""

    code: ErrorCode
    identity: ProducerIdentity = NO_IDENTITY


class MarkerWriter(Protocol):
    """Writes one marker; False while the partition has no leader, or its followers do not have the marker."""

    def __call__(self, partition: TopicPartition, transaction: Transaction, *, commit: bool) -> bool: ...


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
