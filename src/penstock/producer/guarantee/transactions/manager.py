# SPDX-License-Identifier: Apache-2.0
"""The transactional gate: carries the calls of the application to the coordinator, and guards what is sent meanwhile.

Application threads start operations (`initialize`, `begin`, `send_offsets`, `commit`, `abort`, `detach`), which answer
with a Ticket; the I/O thread sends what they need, one request at a time, and completes the Ticket.

Rules:
1. All fields are guarded by the transaction lock. It is taken before a partition lock, never after; Tickets are
   completed outside it.
2. One operation at a time: while its Ticket is pending, or its outcome was not fetched, only the same call may be made
   again, and it waits for the same Ticket. An abort alone may follow offsets whose outcome is not known.
3. What may have reached the coordinator without being answered is asked again before an abort: whether there is
   something to be ended depends on it. Not so what went to a group's coordinator, which has no say in that.
4. Whoever ends or detaches a transaction stops accepting records before looking whether any are on their way.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from penstock._identity import NO_IDENTITY
from penstock._locks import inside
from penstock._refusals import Refusals
from penstock._ticket import Ticket
from penstock.errors import (
    IllegalStateError,
    KafkaError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionAbortedError,
    UnknownProducerIdError,
)
from penstock.producer.batch._queue_cy import PartitionQueue
from penstock.producer.batch.batch import Batch, BatchIdentity
from penstock.producer.guarantee.response_policy import BatchSituation, Decision
from penstock.producer.guarantee.transactions.exchange import SEND_OFFSETS, TransactionExchange
from penstock.producer.guarantee.transactions.parts import FirstWrite, Surroundings, TransactionSettings
from penstock.producer.guarantee.transactions.requests import (
    AddOffsetsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)
from penstock.producer.guarantee.transactions.states import TxnState
from penstock.protocol.find_coordinator import CoordinatorKind
from penstock.transaction_handle import TransactionHandle
from penstock.types import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition


class TransactionManager(TransactionExchange):
    """Runs the transactions of one producer.

    Args:
        settings: id, time-out, backoff.
        around: what it asks of other parts.
        rng: jitter of the backoff.
    """

    def __init__(self, settings: TransactionSettings, around: Surroundings, rng: random.Random) -> None:
        super().__init__(settings, around, rng)
        self._first = FirstWrite()
        self._refusals = Refusals()
        self._has_detached = False

    # ------------------------------------------------------------------------------- application threads

    def initialize(self, transactional_id: str | None = None) -> Ticket[None]:
        """Take over the transactional id; another one than before, if given."""
        with self._lock:
            wanted = transactional_id or self._id
            again = self._same_operation("init_transactions", wanted)
            if again is not None:
                return again
            self._check_usable("init_transactions")
            if self._state.current is not TxnState.UNINITIALIZED:
                raise IllegalStateError(
                    f"init_transactions() was called already, and the producer is {self._state.current.value}: it is "
                    "called once, and after each detach_transaction()"
                )
            self._state.move_to(TxnState.INITIALIZING)
            if wanted != self._id:
                self._id = wanted
                self._coordinators.pop(CoordinatorKind.TRANSACTION, None)
            self._numbering.identity = NO_IDENTITY
            self._numbering.book.forget_all()
            self._push(InitProducerIdRequest(self, bump=False))
            return self._start("init_transactions", wanted)

    def begin(self) -> None:
        """Begin a transaction; nothing is sent."""
        with self._lock:
            self._check_no_operation("begin_transaction")
            self._check_usable("begin_transaction")
            self._check_initialized("begin_transaction")
            if self._state.current is TxnState.IN_TRANSACTION:
                raise IllegalStateError("a transaction is open already: commit or abort it first")
            self._state.move_to(TxnState.IN_TRANSACTION)
            self._forget_partitions()
            self._first = FirstWrite()
            self._refusals.clear()
            self._around.accept(True)

    def check_send(self) -> None:
        """Raise when a record cannot be part of a transaction now."""
        with self._lock:
            self._check_usable("send")
            self._check_initialized("begin_transaction() and send")
            if self._state.current is not TxnState.IN_TRANSACTION:
                raise IllegalStateError(
                    f"the producer is {self._state.current.value}: with a transactional.id records are sent between "
                    "begin_transaction() and commit_transaction()"
                )

    def note_refused(self, error: BaseException) -> None:
        """A call that sends has raised; if a transaction is open, it lacks a record now."""
        if inside():
            # A finalizer or a signal handler made it in the middle of another call: it must not wait for the lock.
            if self._state.current is TxnState.IN_TRANSACTION:
                self._refusals.note(error)
            return
        with self._lock:
            if self._state.current is TxnState.IN_TRANSACTION:
                self._refusals.note(error)

    def send_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: ConsumerGroupMetadata
    ) -> Ticket[None]:
        """Make a group's offsets part of the transaction."""
        with self._lock:
            about = (dict(offsets), group)
            again = self._same_operation(SEND_OFFSETS, about)
            if again is not None:
                return again
            self._check_usable(SEND_OFFSETS)
            self._check_initialized(SEND_OFFSETS)
            if self._state.current is not TxnState.IN_TRANSACTION:
                raise IllegalStateError("send_offsets_to_transaction() needs an open transaction")
            if self.uses_v2:
                self._traces += 1
                self._push(TxnOffsetCommitRequest(self, offsets, group))
            else:
                self._push(AddOffsetsRequest(self, offsets, group))
            self._choose_group(group.group_id)
            return self._start(SEND_OFFSETS, about)

    def commit(self, *, incomplete: bool = False) -> Ticket[None]:
        """Commit: send what is left, then end the transaction.

        Args:
            incomplete: also if a send in it was refused.
        """
        return self._end("commit_transaction", TxnState.COMMITTING, commit=True, incomplete=incomplete)

    def abort(self) -> Ticket[None]:
        """Abort; the caller drops the batches that were not sent."""
        return self._end("abort_transaction", TxnState.ABORTING, commit=False)

    def _end(self, call: str, target: TxnState, *, commit: bool, incomplete: bool = True) -> Ticket[None]:
        with self._lock:
            ticket = self._end_locked(call, target, commit=commit, incomplete=incomplete)
        self._complete()
        return ticket

    def _end_locked(
        self, call: str, target: TxnState, *, commit: bool, incomplete: bool = True
    ) -> Ticket[None]:
        if not commit:
            self._give_up_offsets()
        again = self._same_operation(call)
        if again is not None:
            return again
        if commit or self._state.current is TxnState.FATAL_ERROR:
            self._check_usable(call)
        self._check_initialized(call)
        if self._state.current is TxnState.READY:
            raise IllegalStateError(f"{call}() needs an open transaction: call begin_transaction() first")
        if not incomplete:
            self._refusals.check(call)
        self._state.move_to(target)
        self._around.accept(False)
        if not commit:
            self._wanted.clear()
            self._drop_queued(lambda request: request.for_a_group or not request.in_doubt)
        self._push(EndTxnRequest(self, commit))
        return self._start(call)

    def _give_up_offsets(self) -> None:
        """Whoever waits for offsets to become part of the transaction is told that it is being aborted."""
        operation = self._operation
        if operation is not None and operation.name == SEND_OFFSETS:
            self._fail_operation(
                TransactionAbortedError("the transaction is being aborted, and the offsets with it")
            )
            self._operation = None

    def detach(self, *, incomplete: bool = False) -> TransactionHandle:
        """Hand the open transaction over, without ending it. All its batches have their outcome.

        Args:
            incomplete: also if a send in it was refused.
        """
        with self._lock:
            self._check_no_operation("detach_transaction")
            self._check_usable("detach_transaction")
            self._check_initialized("detach_transaction")
            if self._state.current is not TxnState.IN_TRANSACTION:
                raise IllegalStateError("detach_transaction() needs an open transaction")
            if not incomplete:
                self._refusals.check("detach_transaction")
            self._shut_or_raise()
            first = self._first
            handle = TransactionHandle(
                transactional_id=self._id,
                producer_id=self.identity.producer_id,
                producer_epoch=self.identity.epoch,
                end_txn_version=5 if self.uses_v2 else self._end_version_v1,
                topic=first.topic,
                partition=first.partition,
                offset=first.offset,
                record_count=first.records,
                timeout_ms=self.timeout_ms,
                empty=not self._traces,
            )
            self._state.move_to(TxnState.UNINITIALIZED)
            self._numbering.identity = NO_IDENTITY
            self._numbering.book.forget_all()
            self._forget_partitions()
            self._has_detached = True
        return handle

    def _shut_or_raise(self) -> None:
        """Accept no more records, then see that none is on its way: one let in behind the look would go out later.

        Raises:
            IllegalStateError: some are; records are accepted as before.
        """
        self._around.accept(False)
        try:
            if self._around.has_incomplete():
                raise IllegalStateError("records were sent while detach_transaction() waited for the others")
        except BaseException:
            self._around.accept(True)
            raise

    @property
    def is_open(self) -> bool:
        """Whether there is a transaction to be aborted when the producer closes."""
        with self._lock:
            return self._state.current in (TxnState.IN_TRANSACTION, TxnState.ABORTABLE_ERROR)

    def fence(self) -> ProducerFencedError | None:
        """The error to raise because another producer has taken over; None when that is not known."""
        with self._lock:
            error = self._state.error
        return error.twin() if isinstance(error, ProducerFencedError) else None

    @property
    def transaction(self) -> object:
        """Another object for each transaction."""
        return self._first

    @property
    def completing(self) -> bool:
        """Whether the transaction is being ended: batches need not wait for more records."""
        return self._state.current in (TxnState.COMMITTING, TxnState.ABORTING)

    @property
    def state(self) -> TxnState:
        """The present state."""
        return self._state.current

    # ------------------------------------------------------------------------------- I/O thread: the gate

    def before_turn(self, now: float) -> KafkaError | None:
        """Settle sequence numbers in doubt; batches that were never sent fail when the transaction has failed."""
        with self._lock:
            gaps = self._numbering.book.resolve()
            if gaps:
                self._abortable(
                    TransactionAbortableError(
                        f"records of {len(gaps)} partition(s) expired, and whether they were written is not known"
                    ),
                    wants_bump=True,
                    needs_bump=True,
                )
                for queue in gaps:
                    self._numbering.book.unresolved.pop(queue, None)
            error: KafkaError | None = None
            if self._state.has_error:
                error = self._state.error
            elif self.aborting:
                error = TransactionAbortedError("the transaction was aborted before the record was sent")
        self._complete()
        return error

    @property
    def numbering(self) -> TransactionManager:
        """Itself: whether a batch may leave depends on the transaction, too, and on its lock."""
        return self

    def may_drain(self, queue: PartitionQueue, batch: Batch) -> bool:
        """Whether a batch may be sent: its partition is in the transaction, and its number fits."""
        with self._lock:
            is_new = batch.identity.base_sequence < 0
            if is_new and self._state.current not in (TxnState.IN_TRANSACTION, TxnState.COMMITTING):
                return False  # in protocol v2 it would begin a transaction that nobody knows of
            if not self._numbering.may_drain(queue, batch):
                return False
            partition = batch.topic_partition
            if self.uses_v2 or partition in self._added:
                return True
            if partition in self._refused:
                self._around.wake()  # it came behind the others, and fails in the next turn
                return False
            if not self.aborting and partition not in self._wanted and not self._is_being_added(partition):
                self._wanted.add(partition)
                self._around.wake()  # the request for it is made in the next turn
            return False

    def assign(self, batch: Batch) -> BatchIdentity:
        """Number a batch; in v2 its request adds its partition to the transaction."""
        with self._lock:
            self._added.add(batch.topic_partition)
            self._traces += 1
            return self._numbering.assign(batch)

    def decide(self, code: int, log_start_offset: int, batch: Batch, situation: BatchSituation) -> Decision:
        """By the table, and by the numbers."""
        with self._lock:
            decision = self._numbering.decide(code, log_start_offset, batch, situation)
            if decision.restart_sequences:
                self._numbering.book.restart(batch.queue, self.identity, transactional=True)
            return decision

    def on_success(self, batch: Batch, base_offset: int) -> None:
        """A batch was written."""
        with self._lock:
            self._numbering.on_success(batch, base_offset)
            first = self._first
            first.records += batch.record_count
            if first.topic is None and base_offset >= 0:
                first.topic, first.partition = batch.topic_partition
                first.offset = base_offset

    def on_failure(self, batch: Batch, error: KafkaError, decision: Decision) -> None:
        """A batch failed for good: the transaction cannot be committed any more, unless it may be left out."""
        if batch.in_doubt and not decision.fatal:
            # Its numbers must not be used again: what comes with them could be taken for it, and be lost.
            self.on_expired(batch, error)
            return
        with self._lock:
            self._numbering.book.drop(batch)
            if decision.fatal:
                self._fatal(error)
            elif decision.expendable:
                self._leave_out(batch)
            else:
                is_numbered = batch.identity.base_sequence >= 0
                if isinstance(error, UnknownProducerIdError):
                    # The broker has no state of this producer: the next batch has to start from 0.
                    self._numbering.book.restart(batch.queue, self.identity, transactional=True)
                elif is_numbered and batch.attempts < self._numbering.retries:
                    self._numbering.book.close_gap(batch)
                self._abortable(error, wants_bump=is_numbered)
        self._complete()

    def _leave_out(self, batch: Batch) -> None:
        """A batch was refused whose records may be lost: the transaction goes on as if they had never been sent."""
        if batch.identity.base_sequence < 0:
            return
        self._numbering.book.close_gap(batch)
        if self.uses_v2 and batch.attempts == 0:
            self._traces -= 1  # brokers look at the rights before they add the partition

    def on_not_appended(self, error: KafkaError) -> bool:
        """A record that was put aside came into no batch: the transaction it was sent in cannot be committed.

        Whether its owner hears of it thereby: not where the transaction had its end before.
        """
        with self._lock:
            current = self._state.current
            is_open = current is TxnState.IN_TRANSACTION or (
                current is TxnState.COMMITTING and self._is_end_to_come()
            )
            if is_open and not isinstance(error, TransactionAbortedError):
                reason = TransactionAbortableError(
                    f"a record that a finalizer or a signal handler sent was not accepted: {error}"
                )
                reason.__cause__ = error
                self._abortable(reason, wants_bump=False)
            is_told = self.aborting or self._state.has_error
        self._complete()
        return is_told

    def on_expired(self, batch: Batch, error: KafkaError) -> None:
        """A batch's time is over: the transaction cannot be committed any more."""
        with self._lock:
            self._numbering.on_expired(batch)
            is_numbered = batch.identity.base_sequence >= 0
            self._abortable(error, wants_bump=is_numbered, needs_bump=is_numbered)
        self._complete()

    def on_split(self, batch: Batch, pieces: Sequence[Batch]) -> None:
        """A batch was replaced by its pieces."""
        with self._lock:
            self._numbering.on_split(batch, pieces)

    @property
    def failed(self) -> bool:
        """Whether the producer cannot go on."""
        return self._state.current is TxnState.FATAL_ERROR

    def begin_close(self) -> None:
        """Abort a transaction that was left open."""
        with self._lock:  # all of it: between a look and the abort another thread could end the transaction
            if self.is_open:
                self._drop_operation()
                self._end_locked("abort_transaction", TxnState.ABORTING, commit=False)
        self._complete()

    def close(self, error: KafkaError) -> None:
        """The producer has closed: whoever waits is told, and an open transaction cannot be ended any more."""
        with self._lock:
            self._fatal(error)
            self._operation = None
        self._complete()

    def _check_usable(self, call: str) -> None:
        self._state.raise_error(f"{call}()")

    def _check_initialized(self, call: str) -> None:
        if self._state.current is not TxnState.UNINITIALIZED:
            return
        if not self._has_detached:
            raise IllegalStateError(f"call init_transactions() before {call}()")
        raise IllegalStateError(
            f"the transaction was detached: call init_transactions() before {call}(), with another transactional id, "
            "because under the same one it would be aborted"
        )

    def __repr__(self) -> str:
        return f"<TransactionManager {self._id!r}: {self._state.current.value}>"
