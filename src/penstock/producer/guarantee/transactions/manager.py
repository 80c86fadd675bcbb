# SPDX-License-Identifier: Apache-2.0
"""The transactional gate: brings the application's calls to the coordinator, and decides which batches may be sent.

Application threads start operations (`initialize`, `begin`, `send_offsets`, `commit`, `abort`, `detach`), which answer
with a Ticket; the I/O thread sends what they need, one request at a time, and completes the Ticket.

It owns the operation (what the application waits for), the coordinator (the requests to it, and what the answers
change) and the numbers, and decides what a call or a batch changes in them.

Rules:
1. All fields, and the parts that it owns, change under the transaction lock. Tickets are completed outside it. These
   properties are read without it, each in one step: `state`, `failed`, `completing`, `identity`, `transactional_id`,
   `transaction`, `max_produce_version`, `refused_partitions` and `initialization_in_doubt`.
2. There is one operation at a time. While its Ticket is pending, or its outcome was not fetched, only the same call may
   be made again, and it waits for the same outcome. The one exception is an abort, which may follow offsets whose
   outcome is not known. The same holds when brokers refuse this client: the waiting call raises at once, and its
   operation goes on.
3. A request that may have reached the coordinator, and was not answered, is sent again before an abort: its answer says
   whether there is something to abort. A request to a group's coordinator is not sent again, since it does not matter
   for that.
4. A call that ends or detaches a transaction first stops accepting records, then checks whether any are unsent.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from penstock._identity import NO_IDENTITY, ProducerIdentity
from penstock._locks import inside, new_nesting_lock
from penstock._refusals import NO_TRANSACTION, Refusals
from penstock._ticket import Ticket
from penstock.errors import (
    AuthenticationError,
    IllegalStateError,
    KafkaError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionAbortedError,
    UnknownProducerIdError,
)
from penstock.producer.batch._batch_cy import Batch
from penstock.producer.batch._queue_cy import PartitionQueue
from penstock.producer.guarantee._sequences_cy import Numbering
from penstock.producer.guarantee.gate import GateRequest
from penstock.producer.guarantee.response_policy import BatchSituation, Decision
from penstock.producer.guarantee.transactions.coordinator import (
    INITIALIZE,
    SEND_OFFSETS,
    Coordinator,
    TransactionHooks,
    TransactionSettings,
)
from penstock.producer.guarantee.transactions.numbering import FirstWrite, TransactionNumbering
from penstock.producer.guarantee.transactions.operation import Operation
from penstock.producer.guarantee.transactions.requests import (
    AddOffsetsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)
from penstock.producer.guarantee.transactions.states import TransactionState, TxnState
from penstock.protocol.requests import CoordinatorKind
from penstock.transaction_handle import TransactionHandle
from penstock.types import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

_MAX_PRODUCE_V1, _MAX_PRODUCE_V2 = 11, 13  # version 12 and later of Produce belong to protocol v2


class TransactionManager:
    """Runs the transactions of one producer.

    Args:
        settings: id, time-out, backoff.
        hooks: functions of other parts.
        rng: jitter of the backoff.
    """

    def __init__(self, settings: TransactionSettings, hooks: TransactionHooks, rng: random.Random) -> None:
        self._hooks = hooks
        # The transaction lock guards all below, and their fields. It is taken before a partition lock or the metadata
        # lock, never after; no Ticket is completed, and no callback runs, while it is held. It nests: a method that
        # holds it may call another that takes it.
        self._lock: Any = new_nesting_lock()
        self._state = TransactionState()
        self._operation = Operation(self._lock)
        self._numbers = Numbering(settings.retries, transactional=True)
        self._coordinator = Coordinator(
            settings, hooks, rng,
            lock=self._lock, state=self._state, operation=self._operation, numbers=self._numbers,
        )  # fmt: skip
        self.numbering = TransactionNumbering(
            self._lock, self._state, self._numbers, self._coordinator, hooks.wake
        )
        self._refusals = Refusals()
        self._has_detached = False

    # ------------------------------------------------------------------------------- application threads

    def initialize(self, transactional_id: str | None = None) -> Ticket[None]:
        """Take over the transactional id; another one than before, if given."""
        with self._lock:
            wanted = transactional_id or self._coordinator.transactional_id
            again = self._operation.same(INITIALIZE, wanted)
            if again is not None:
                return again
            self._check_usable(INITIALIZE)
            if self._state.current is not TxnState.UNINITIALIZED:
                raise IllegalStateError(
                    f"init_transactions() was called already, and the producer is {self._state.current.value}: it is "
                    "called once, and after each detach_transaction()"
                )
            self._state.move_to(TxnState.INITIALIZING)
            self._coordinator.queue.use_key(CoordinatorKind.TRANSACTION, wanted)
            self._coordinator.start_anew(NO_IDENTITY)
            self._coordinator.queue.push(InitProducerIdRequest(self._coordinator, bump=False))
            return self._start(INITIALIZE, wanted)

    def begin(self) -> None:
        """Begin a transaction; nothing is sent."""
        with self._lock:
            self._operation.check_none("begin_transaction")
            self._check_usable("begin_transaction")
            self._check_initialized("begin_transaction")
            if self._state.current is TxnState.IN_TRANSACTION:
                raise IllegalStateError("a transaction is open already: commit or abort it first")
            self._state.move_to(TxnState.IN_TRANSACTION)
            self._coordinator.partitions.clear()
            self.numbering.first = FirstWrite()
            self._refusals.clear()
            self._hooks.accept(True)

    def check_send(self) -> None:
        """Raise when a record cannot be part of a transaction now."""
        with self._lock:
            self._check_usable("send")
            self._check_initialized("begin_transaction() and send")
            if self._state.current is TxnState.READY:
                raise IllegalStateError(NO_TRANSACTION)
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
            again = self._operation.same(SEND_OFFSETS, about)
            if again is not None:
                return again
            self._check_usable(SEND_OFFSETS)
            self._check_initialized(SEND_OFFSETS)
            if self._state.current is not TxnState.IN_TRANSACTION:
                raise IllegalStateError("send_offsets_to_transaction() needs an open transaction")
            if self._coordinator.uses_v2:
                self._coordinator.partitions.traces += 1
                self._coordinator.queue.push(TxnOffsetCommitRequest(self._coordinator, offsets, group))
            else:
                self._coordinator.queue.push(AddOffsetsRequest(self._coordinator, offsets, group))
            self._coordinator.queue.use_key(CoordinatorKind.GROUP, group.group_id)
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
        self._operation.complete_tickets()
        return ticket

    def _end_locked(
        self, call: str, target: TxnState, *, commit: bool, incomplete: bool = True
    ) -> Ticket[None]:
        if not commit and self._operation.name == SEND_OFFSETS:
            self._operation.fail(
                TransactionAbortedError("the transaction is being aborted, and the offsets with it")
            )
            self._operation.drop()
        again = self._operation.same(call)
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
        self._hooks.accept(False)
        if not commit:
            self._coordinator.partitions.wanted.clear()
            self._coordinator.queue.drop(lambda request: request.for_a_group or not request.in_doubt)
        self._coordinator.queue.push(EndTxnRequest(self._coordinator, commit))
        return self._start(call)

    def detach(self, *, incomplete: bool = False) -> TransactionHandle:
        """Hand the open transaction over, without ending it. All its batches have their outcome.

        Args:
            incomplete: also if a send in it was refused.
        """
        with self._lock:
            self._operation.check_none("detach_transaction")
            self._check_usable("detach_transaction")
            self._check_initialized("detach_transaction")
            if self._state.current is not TxnState.IN_TRANSACTION:
                raise IllegalStateError("detach_transaction() needs an open transaction")
            if not incomplete:
                self._refusals.check("detach_transaction")
            self._shut_or_raise()
            first = self.numbering.first
            handle = TransactionHandle(
                transactional_id=self._coordinator.transactional_id,
                producer_id=self.identity.producer_id,
                producer_epoch=self.identity.epoch,
                end_txn_version=self._coordinator.end_version,
                topic=first.topic,
                partition=first.partition,
                offset=first.offset,
                record_count=first.records,
                timeout_ms=self._coordinator.timeout_ms,
                empty=not self._coordinator.partitions.traces,
            )
            self._state.move_to(TxnState.UNINITIALIZED)
            self._coordinator.start_anew(NO_IDENTITY)
            self._coordinator.partitions.clear()
            self._has_detached = True
        return handle

    def _shut_or_raise(self) -> None:
        """Accept no more records, then check that all have their outcome: one accepted after the check would be sent.

        Raises:
            IllegalStateError: some are; records are accepted as before.
        """
        self._hooks.accept(False)
        try:
            if self._hooks.has_incomplete():
                raise IllegalStateError("records were sent while detach_transaction() waited for the others")
        except BaseException:
            self._hooks.accept(True)
            raise

    def fetched(self, ticket: Ticket[None]) -> None:
        """The caller has seen the outcome of an operation: the next one may start."""
        with self._lock:
            self._operation.fetched(ticket)

    @property
    def is_open(self) -> bool:
        """Whether there is a transaction to be aborted when the producer closes."""
        with self._lock:
            return self._state.current in (TxnState.IN_TRANSACTION, TxnState.ABORTABLE_ERROR)

    def fence(self) -> ProducerFencedError | None:
        """The error to raise if another producer has taken over; None if that is not known."""
        with self._lock:
            error = self._state.error
        return error.twin() if isinstance(error, ProducerFencedError) else None

    def _start(self, call: str, about: object = None) -> Ticket[None]:
        ticket = self._operation.start(call, about)
        self._hooks.wake()
        return ticket

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

    @property
    def initialization_in_doubt(self) -> bool:
        """Whether an InitProducerId without an answer may still be on its way."""
        return self._coordinator.initialization_in_doubt

    # ------------------------------------------------------------------------------- I/O thread: the gate

    @property
    def transactional_id(self) -> str | None:
        """The id that produce requests carry."""
        return self._coordinator.transactional_id

    @property
    def identity(self) -> ProducerIdentity:
        """The producer id and epoch in use."""
        return self._coordinator.identity

    @property
    def transaction(self) -> object:
        """An object that differs for each transaction."""
        return self.numbering.first

    @property
    def max_produce_version(self) -> int:
        """The highest version of Produce that the protocol of the transaction allows."""
        return _MAX_PRODUCE_V2 if self._coordinator.uses_v2 else _MAX_PRODUCE_V1

    @property
    def numbers_all(self) -> bool:
        """True: all batches of a transaction have numbers."""
        return True

    @property
    def headerless(self) -> Collection[PartitionQueue]:
        """Empty: a partition that is stored in such a format cannot be part of a transaction."""
        return ()

    def may_go_unnumbered(self, batch: Batch, broker: str) -> bool:
        """False: all batches of a transaction need numbers."""
        del batch, broker
        return False

    def expect_memory(self, batches: int) -> None:
        """The limit is for all partitions: any broker may lead any of them next."""
        with self._lock:
            self._numbers.book.remembered = batches

    @property
    def completing(self) -> bool:
        """Whether the transaction is being ended: batches need not wait for more records."""
        return self._state.current in (TxnState.COMMITTING, TxnState.ABORTING)

    @property
    def busy(self) -> bool:
        """Whether an operation waits for the coordinator."""
        with self._lock:
            return self._operation.pending

    @property
    def failed(self) -> bool:
        """Whether the producer cannot go on."""
        return self._state.current is TxnState.FATAL_ERROR

    @property
    def refused_partitions(self) -> Mapping[TopicPartition, KafkaError]:
        """Partitions that cannot become part of the transaction, and why. Only the I/O thread reads and adds."""
        return self._coordinator.partitions.refused

    @property
    def state(self) -> TxnState:
        return self._state.current

    def next_request(self, now: float, data_waits: bool) -> GateRequest | None:
        """The next transaction request, when it may be sent."""
        del data_waits
        return self._coordinator.next_request(now)

    def seconds_to_request(self, now: float) -> float:
        """Seconds until the next transaction request may be tried again."""
        return self._coordinator.seconds_to_request(now)

    def on_refused(self, error: AuthenticationError) -> None:
        """No broker accepts this client. The waiting call raises; its operation goes on, as its outcome is not known.

        init_transactions() is the exception: it has no outcome to lose, so the Coordinator ends the operation, and the
        call can be made again.
        """
        with self._lock:
            call = self._operation.name
            if call not in (None, INITIALIZE):
                what_now = (
                    f"{call}() continues when the cause is fixed, and its outcome is not known yet: make the same call "
                    "again, and no other"
                )
                self._operation.tell(error.told_to(what_now))
        self._operation.complete_tickets()

    def before_turn(self, now: float) -> KafkaError | None:
        """Settle sequence numbers in doubt; batches that were never sent fail when the transaction has failed."""
        with self._lock:
            gaps = self._numbers.book.resolve()
            if gaps:
                self._coordinator.require_abort(
                    TransactionAbortableError(
                        f"records of {len(gaps)} partition(s) expired, and whether they were written is not known"
                    ),
                    wants_bump=True,
                    needs_bump=True,
                )
                for queue in gaps:
                    self._numbers.book.unresolved.pop(queue, None)
            error: KafkaError | None = None
            if self._state.has_error:
                error = self._state.error
            elif self._state.aborting:
                error = TransactionAbortedError("the transaction was aborted before the record was sent")
        self._operation.complete_tickets()
        return error

    def decide(self, code: int, log_start_offset: int, batch: Batch, situation: BatchSituation) -> Decision:
        """Decide by `response_policy` and by the batch's numbers."""
        with self._lock:
            decision: Decision = self._numbers.decide(code, log_start_offset, batch, situation)
            if decision.restart_sequences:
                self._numbers.book.restart(batch.queue, self.identity, transactional=True)
            return decision

    def on_failure(self, batch: Batch, error: KafkaError, decision: Decision) -> None:
        """A batch failed for good: the transaction cannot be committed any more, unless the batch may be left out."""
        if batch.in_doubt and not decision.fatal:
            # Its numbers must not be used again: a broker could take another batch with them for this one, and drop it.
            self.on_expired(batch, error)
            return
        with self._lock:
            book = self._numbers.book
            book.drop(batch)
            if decision.fatal:
                self._coordinator.fail_for_good(error)
            elif decision.expendable:
                self._leave_out(batch)
            elif decision.frees_numbers:
                self._leave_out(batch)
                self._coordinator.require_abort(error, wants_bump=False)
            else:
                is_numbered = batch.identity.base_sequence >= 0
                if isinstance(error, UnknownProducerIdError):
                    # The broker has no state of this producer: the next batch has to start from 0.
                    book.restart(batch.queue, self.identity, transactional=True)
                elif is_numbered and batch.attempts < self._numbers.retries:
                    book.close_gap(batch)
                self._coordinator.require_abort(error, wants_bump=is_numbered)
        self._operation.complete_tickets()

    def _leave_out(self, batch: Batch) -> None:
        """The numbers of a batch that was refused are free again: it is as if it had never been sent."""
        if batch.identity.base_sequence < 0:
            return
        self._numbers.book.close_gap(batch)
        if self._coordinator.uses_v2 and batch.attempts == 0:
            self._coordinator.partitions.traces -= (
                1  # if it was sent: brokers look at the rights before they add the partition
            )

    def on_not_appended(self, error: KafkaError) -> bool:
        """A record that was put aside got into no batch: its transaction cannot be committed.

        Returns whether the transaction's calls tell the application: False if the transaction had ended before.
        """
        with self._lock:
            current = self._state.current
            is_open = current is TxnState.IN_TRANSACTION or (
                current is TxnState.COMMITTING and self._coordinator.is_end_to_come()
            )
            if is_open and not isinstance(error, TransactionAbortedError):
                reason = TransactionAbortableError(
                    f"a record that a finalizer or a signal handler sent was not accepted: {error}"
                )
                reason.__cause__ = error
                self._coordinator.require_abort(reason, wants_bump=False)
            is_told = self._state.aborting or self._state.has_error
        self._operation.complete_tickets()
        return is_told

    def on_expired(self, batch: Batch, error: KafkaError) -> None:
        """A batch's time is over: the transaction cannot be committed any more."""
        with self._lock:
            self._numbers.on_expired(batch)
            is_numbered = batch.identity.base_sequence >= 0
            self._coordinator.require_abort(error, wants_bump=is_numbered, needs_bump=is_numbered)
        self._operation.complete_tickets()

    def on_split(self, batch: Batch, pieces: Sequence[Batch]) -> None:
        """A batch was replaced by its pieces."""
        with self._lock:
            self._numbers.on_split(batch, pieces)

    def may_forget(self, queue: PartitionQueue) -> bool:
        """Whether it is known how the numbers of a partition go on."""
        with self._lock:
            return bool(self._numbers.book.is_settled(queue))

    def forget(self, queues: Sequence[PartitionQueue]) -> None:
        """Keep the numbers of these partitions for later."""
        with self._lock:
            for queue in queues:
                self._numbers.book.put_away(queue)

    def begin_close(self) -> None:
        """Abort a transaction that was left open."""
        with (
            self._lock
        ):  # for both steps: between the check and the abort another thread could end the transaction
            if self.is_open:
                self._operation.drop_if_done()
                self._end_locked("abort_transaction", TxnState.ABORTING, commit=False)
        self._operation.complete_tickets()

    def close(self, error: KafkaError) -> None:
        """The producer has closed: calls that wait fail, and an open transaction cannot be ended any more."""
        with self._lock:
            self._coordinator.fail_for_good(error)
            self._operation.drop()
        self._operation.complete_tickets()

    def __repr__(self) -> str:
        return f"<TransactionManager {self.transactional_id!r}: {self._state.current.value}>"
