# SPDX-License-Identifier: Apache-2.0
"""The transactional gate: carries the calls of the application to the coordinator, and guards what is sent meanwhile.

Application threads start operations (`initialize`, `begin`, `send_offsets`, `commit`, `abort`, `detach`), which answer
with a Ticket; the I/O thread sends what they need, one request at a time, and completes the Ticket.

Rules:
1. All fields are guarded by the transaction lock. It is taken before a partition lock, never after; Tickets are
   completed outside it.
2. One operation at a time: while its Ticket is pending, or its outcome was not fetched, only the same call may be made
   again, and it waits for the same Ticket. An abort alone may follow offsets whose outcome is not known.
3. EndTxn is sent when no batch is without outcome; where nothing was added to the transaction it is not sent at all.
4. A transaction ends with the protocol that it started with; which one the next uses is decided between the two.
5. What may have reached the coordinator without being answered is asked again before an abort: whether there is
   something to be ended depends on it.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock._ticket import Ticket
from penstock._time import ExponentialBackoff
from penstock.errors import (
    BrokerError,
    IllegalStateError,
    KafkaError,
    NetworkError,
    ProducerFencedError,
    ProtocolError,
    TransactionAbortableError,
    TransactionAbortedError,
    UnknownProducerIdError,
)
from penstock.network.exchange import ClientResponse
from penstock.producer._send_cy import PartitionQueue
from penstock.producer.batch import Batch, BatchIdentity
from penstock.producer.gate import GateRequest
from penstock.producer.numbering import Numbering
from penstock.producer.response_policy import BatchSituation, Decision
from penstock.producer.sequences import NO_IDENTITY, ProducerIdentity
from penstock.producer.transactions import TransactionState, TxnState
from penstock.producer.txn_policy import Verdict
from penstock.producer.txn_requests import (
    AddOffsetsRequest,
    AddPartitionsRequest,
    Coordinator,
    EndTxnRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
    TxnRequest,
)
from penstock.transaction_handle import TransactionHandle
from penstock.types import ConsumerGroupMetadata, Node, OffsetAndMetadata, TopicPartition

log = logging.getLogger("penstock.producer")

_FIRST_VERSION_WITH_BUMP = 3  # of InitProducerId
_INVALID_TXN_STATE = 48
_UNKNOWN_PRODUCER_ID = 59
_SEND_OFFSETS = "send_offsets_to_transaction"


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """The options that matter to transactions."""

    transactional_id: str
    timeout_ms: int
    retries: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the manager asks of the parts around it.

    Attributes:
        transaction_version: the cluster's finalized feature of that name, as the newest answer has it; 0 without, None
            when no broker is connected that could tell.
        has_incomplete: whether any batch has no outcome yet.
        accept: opens (True) or closes (False) the fast path of send().
        wake: wakes the I/O thread.
    """

    transaction_version: Callable[[], int | None]
    has_incomplete: Callable[[], bool]
    accept: Callable[[bool], None]
    wake: Callable[[], object]


class _Operation:
    """A call that waits for the coordinator, and what it is about."""

    __slots__ = ("about", "name", "ticket")

    def __init__(self, name: str, about: object) -> None:
        self.name = name
        self.about = about
        self.ticket: Ticket[None] = Ticket(f"the coordinator's answer to {name}()")


class _FirstWrite:
    """Where the first acknowledged batch of a transaction is, and how many records there are."""

    __slots__ = ("offset", "partition", "records", "topic")

    def __init__(self) -> None:
        self.topic: str | None = None
        self.partition = -1
        self.offset = -1
        self.records = 0


class TransactionManager:
    """Runs the transactions of one producer.

    Args:
        settings: id, time-out, backoff.
        around: what it asks of other parts.
        rng: jitter of the backoff.
    """

    max_produce_version_v1 = 11

    def __init__(self, settings: TransactionSettings, around: Surroundings, rng: random.Random) -> None:
        self.timeout_ms = settings.timeout_ms
        self._around = around
        self._rng = rng
        self._backoff = ExponentialBackoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms)
        self._lock = threading.RLock()  # guards all below
        self._id = settings.transactional_id
        self._state = TransactionState()
        self._operation: _Operation | None = None
        self._numbering = Numbering(settings.retries, transactional=True)
        self.uses_v2 = False
        self.can_bump_epoch = False
        self._bump_needed = False
        self._coordinators: dict[Coordinator, Node | None] = {}
        self._group_id: str | None = None
        self._queue: list[tuple[int, int, TxnRequest]] = []  # by priority, then by age
        self._ages = itertools.count()
        self._under_way: TxnRequest | None = None
        self._wanted: set[TopicPartition] = set()  # to be added (v1)
        self._added: set[TopicPartition] = set()
        self._started = False  # something was added: the coordinator knows of the transaction
        self._first = _FirstWrite()
        self._done: list[Callable[[], object]] = []  # Tickets to be completed once the lock is free

    # ------------------------------------------------------------------------------- application threads

    def initialize(self, transactional_id: str | None = None) -> Ticket[None]:
        """Take over the transactional id; another one than before, if given."""
        with self._lock:
            wanted = transactional_id or self._id
            again = self._same_operation("init_transactions", wanted)
            if again is not None:
                return again
            self._check_usable("init_transactions")
            self._state.move_to(TxnState.INITIALIZING)
            if wanted != self._id:
                self._id = wanted
                self._coordinators.pop(Coordinator.TRANSACTION, None)
            self._numbering.identity = NO_IDENTITY
            self._numbering.book.forget_all()
            self._push(InitProducerIdRequest(self, bump=False))
            return self._start("init_transactions", wanted)

    def begin(self) -> None:
        """Begin a transaction; nothing is sent."""
        with self._lock:
            self._check_no_operation("begin_transaction")
            self._check_usable("begin_transaction")
            if self._state.current is TxnState.UNINITIALIZED:
                raise IllegalStateError("call init_transactions() before begin_transaction()")
            if self._state.current is TxnState.IN_TRANSACTION:
                raise IllegalStateError("a transaction is open already: commit or abort it first")
            self._state.move_to(TxnState.IN_TRANSACTION)
            self._wanted.clear()
            self._added.clear()
            self._started = False
            self._first = _FirstWrite()
            self._around.accept(True)

    def check_send(self) -> None:
        """Raise when a record cannot be part of a transaction now."""
        with self._lock:
            self._check_usable("send")
            if self._state.current is not TxnState.IN_TRANSACTION:
                raise IllegalStateError(
                    f"the producer is {self._state.current.value}: with a transactional.id records are sent between "
                    "begin_transaction() and commit_transaction()"
                )

    def send_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: ConsumerGroupMetadata
    ) -> Ticket[None]:
        """Make a group's offsets part of the transaction."""
        with self._lock:
            about = (dict(offsets), group)
            again = self._same_operation(_SEND_OFFSETS, about)
            if again is not None:
                return again
            self._check_usable(_SEND_OFFSETS)
            if self._state.current is not TxnState.IN_TRANSACTION:
                raise IllegalStateError("send_offsets_to_transaction() needs an open transaction")
            if self.uses_v2:
                self._started = True
                self._push(TxnOffsetCommitRequest(self, offsets, group))
            else:
                self._push(AddOffsetsRequest(self, offsets, group))
            self._choose_group(group.group_id)
            return self._start(_SEND_OFFSETS, about)

    def commit(self) -> Ticket[None]:
        """Commit: send what is left, then end the transaction."""
        return self._end("commit_transaction", TxnState.COMMITTING, commit=True)

    def abort(self) -> Ticket[None]:
        """Abort; the caller drops the batches that were not sent."""
        return self._end("abort_transaction", TxnState.ABORTING, commit=False)

    def _end(self, call: str, target: TxnState, *, commit: bool) -> Ticket[None]:
        with self._lock:
            if not commit:
                self._give_up_offsets()
            again = self._same_operation(call)
            if again is not None:
                return again
            if commit or self._state.current is TxnState.FATAL_ERROR:
                self._check_usable(call)
            if self._state.current in (TxnState.UNINITIALIZED, TxnState.READY):
                raise IllegalStateError(f"{call}() needs an open transaction: call begin_transaction() first")
            self._state.move_to(target)
            if not commit:
                self._wanted.clear()
                self._drop_queued(lambda request: not request.in_doubt)
            self._push(EndTxnRequest(self, commit))
            ticket = self._start(call)
            self._around.accept(False)
        self._complete()
        return ticket

    def _give_up_offsets(self) -> None:
        """Whoever waits for offsets to become part of the transaction is told that it is being aborted."""
        operation = self._operation
        if operation is not None and operation.name == _SEND_OFFSETS:
            self._fail_operation(
                TransactionAbortedError("the transaction is being aborted, and the offsets with it")
            )
            self._operation = None

    def detach(self) -> TransactionHandle:
        """Hand the open transaction over, without ending it. All its batches have their outcome."""
        with self._lock:
            self._check_no_operation("detach_transaction")
            self._check_usable("detach_transaction")
            if self._state.current is not TxnState.IN_TRANSACTION:
                raise IllegalStateError("detach_transaction() needs an open transaction")
            if self._around.has_incomplete():
                raise IllegalStateError("records were sent while detach_transaction() waited for the others")
            first = self._first
            handle = TransactionHandle(
                transactional_id=self._id,
                producer_id=self.identity.producer_id,
                producer_epoch=self.identity.epoch,
                end_txn_version=5 if self.uses_v2 else 3,
                topic=first.topic,
                partition=first.partition,
                offset=first.offset,
                record_count=first.records,
                timeout_ms=self.timeout_ms,
                empty=not self._started,
            )
            self._state.move_to(TxnState.UNINITIALIZED)
            self._numbering.identity = NO_IDENTITY
            self._numbering.book.forget_all()
            self._wanted.clear()
            self._added.clear()
            self._started = False
            self._around.accept(False)
        return handle

    def fetched(self, ticket: Ticket[None]) -> None:
        """The caller has seen the outcome of an operation: the next one may start."""
        with self._lock:
            if self._operation is not None and self._operation.ticket is ticket:
                self._operation = None

    @property
    def is_open(self) -> bool:
        """Whether there is a transaction to be aborted when the producer closes."""
        with self._lock:
            return self._state.current in (TxnState.IN_TRANSACTION, TxnState.ABORTABLE_ERROR)

    @property
    def completing(self) -> bool:
        """Whether the transaction is being ended: batches need not wait for more records."""
        return self._state.current in (TxnState.COMMITTING, TxnState.ABORTING)

    @property
    def aborting(self) -> bool:
        """Whether batches that were not sent are to be dropped."""
        return self._state.current is TxnState.ABORTING

    @property
    def state(self) -> TxnState:
        """The present state."""
        return self._state.current

    # ------------------------------------------------------------------------------- I/O thread: the gate

    @property
    def transactional_id(self) -> str | None:
        """The id that produce requests carry."""
        return self._id

    @property
    def identity(self) -> ProducerIdentity:
        """The producer id and epoch in use."""
        return self._numbering.identity

    @property
    def max_produce_version(self) -> int:
        """Version 12 and later belong to protocol v2."""
        return 13 if self.uses_v2 else self.max_produce_version_v1

    @property
    def has_partitions(self) -> bool:
        """Whether the transaction has any partition yet."""
        return bool(self._added)

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

    def next_request(self, now: float, data_waits: bool) -> GateRequest | None:
        """The next transaction request, when it may be sent."""
        del data_waits
        with self._lock:
            request = self._next(now)
            if request is not None:
                self._under_way = request
        self._complete()
        if request is None:
            return None
        node = None if request.coordinator is None else self._coordinators[request.coordinator]
        return GateRequest(
            request.build(),
            node,
            lambda response, at: self._on_response(request, response, at),
            lambda error, at: self._on_unreachable(request, error, at),
        )

    def _next(self, now: float) -> TxnRequest | None:
        if self._under_way is not None or self._state.has_error:
            return None  # after an error nothing is worth asking until the transaction is being aborted
        if self._wanted and not self.aborting:
            self._push(AddPartitionsRequest(self, frozenset(self._wanted)))
            self._wanted.clear()
        while self._queue:
            request = self._queue[0][2]
            if request.retry_at > now:
                return None
            if isinstance(request, EndTxnRequest):
                if self._around.has_incomplete():
                    return None
                if not self._started:
                    heapq.heappop(self._queue)
                    self.on_ended(None)
                    continue
            if request.coordinator is not None and self._coordinators.get(request.coordinator) is None:
                self._push(self._finder(request.coordinator))
                continue
            heapq.heappop(self._queue)
            return request
        return None

    def seconds_to_request(self, now: float) -> float:
        """When the request at the head may be tried again."""
        with self._lock:
            if self._under_way is not None or not self._queue:
                return float("inf")
            retry_at = self._queue[0][2].retry_at
            return retry_at - now if retry_at > now else float("inf")

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
            if not self.aborting and partition not in self._wanted and not self._is_being_added(partition):
                self._wanted.add(partition)
                self._around.wake()  # the request for it is made in the next turn
            return False

    def _is_being_added(self, partition: TopicPartition) -> bool:
        requests = [self._under_way, *(entry[2] for entry in self._queue)]
        return any(
            isinstance(request, AddPartitionsRequest) and partition in request.partitions
            for request in requests
        )

    def assign(self, batch: Batch) -> BatchIdentity:
        """Number a batch; in v2 its request adds its partition to the transaction."""
        with self._lock:
            self._added.add(batch.topic_partition)
            self._started = True
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
        """A batch failed for good: the transaction cannot be committed any more."""
        if batch.in_doubt and not decision.fatal:
            # Its numbers must not be used again: what comes with them could be taken for it, and be lost.
            self.on_expired(batch, error)
            return
        with self._lock:
            self._numbering.book.drop(batch)
            if decision.fatal:
                self._fatal(error)
            else:
                is_numbered = batch.identity.base_sequence >= 0
                if isinstance(error, UnknownProducerIdError):
                    # The broker has no state of this producer: the next batch has to start from 0.
                    self._numbering.book.restart(batch.queue, self.identity, transactional=True)
                elif is_numbered and batch.attempts < self._numbering.retries:
                    self._numbering.book.close_gap(batch)
                self._abortable(error, wants_bump=is_numbered)
        self._complete()

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

    @property
    def busy(self) -> bool:
        """Whether an operation waits for the coordinator."""
        with self._lock:
            return self._operation is not None and not self._operation.ticket.done

    def begin_close(self) -> None:
        """Abort a transaction that was left open."""
        if self.is_open:
            self._drop_operation()
            self.abort()

    def _drop_operation(self) -> None:
        with self._lock:
            if self._operation is not None and self._operation.ticket.done:
                self._operation = None

    def close(self, error: KafkaError) -> None:
        """The producer has closed: whoever waits is told, and an open transaction cannot be ended any more."""
        with self._lock:
            self._state.move_to(TxnState.FATAL_ERROR, error)
            self._queue.clear()
            operation, self._operation = self._operation, None
        if operation is not None:
            operation.ticket.fail(error)

    # ------------------------------------------------------------------------ answers, under the lock

    def _on_response(self, request: TxnRequest, response: ClientResponse, now: float) -> None:
        with self._lock:
            self._under_way = None
            if response.error is None:
                self._on_body(request, response, now)
            elif isinstance(response.error, NetworkError) or response.error.retriable:
                request.in_doubt = True
                self._lose_coordinator(request)
                self._retry(request, now, None)
            else:
                self._fatal(response.error)
        self._complete()
        self._around.wake()

    def _on_body(self, request: TxnRequest, response: ClientResponse, now: float) -> None:
        try:
            request.on_body(response.body, response.version, now)
        except IllegalStateError as error:
            log.exception("the answer to %s does not fit the state of this producer", request.api.name)
            self._fatal(error)
        except LookupError as error:
            self._fatal(ProtocolError(f"the answer to {request.api.name} is incomplete: {error!r}"))

    def _on_unreachable(self, request: TxnRequest, error: KafkaError, now: float) -> None:
        log.debug("%s cannot be sent: %s", request.api.name, error)
        with self._lock:
            self._under_way = None
            self._lose_coordinator(request)
            self._retry(request, now, None)
        self._complete()

    def on_verdict(self, request: TxnRequest, verdict: Verdict, error: BrokerError, now: float) -> None:
        """Do what the error table says."""
        if verdict is Verdict.FIND_COORDINATOR:
            self._lose_coordinator(request)
        if verdict in (Verdict.RETRY, Verdict.FIND_COORDINATOR):
            self._retry(request, now, request.backoff_ms(error.code))
        elif verdict is Verdict.ABORTABLE:
            if self.aborting and request.finds is Coordinator.TRANSACTION:
                self._fatal(error)  # there is nobody to tell of the abort
                return
            lost_state = error.code == _UNKNOWN_PRODUCER_ID
            self._abortable(error, wants_bump=lost_state, needs_bump=lost_state)
        elif verdict is Verdict.UNINITIALIZED:
            self._state.move_to(TxnState.UNINITIALIZED)
            self._fail_operation(error)
        elif verdict is Verdict.FENCED:
            self._fatal(
                ProducerFencedError(f"another producer uses the transactional id {self._id!r}: {error}")
            )
        else:
            self._fatal(error)

    def set_coordinator(self, kind: Coordinator, node: Node) -> None:
        """A coordinator was found."""
        self._coordinators[kind] = node

    def on_initialized(self, identity: ProducerIdentity, version: int) -> None:
        """InitProducerId was answered."""
        self._numbering.identity = identity
        self._numbering.book.forget_all()
        self.can_bump_epoch = version >= _FIRST_VERSION_WITH_BUMP
        self._bump_needed = False
        self._choose_protocol(at_end=False)
        self._become_ready()

    def on_partitions_added(self, partitions: frozenset[TopicPartition]) -> None:
        """The coordinator knows of these partitions now."""
        self._added.update(partitions)
        self._started = True

    def on_offsets_added(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: ConsumerGroupMetadata
    ) -> None:
        """The coordinator knows of the group now."""
        self._started = True
        if not self.aborting:
            self._push(TxnOffsetCommitRequest(self, offsets, group))

    def on_offsets_committed(self) -> None:
        """The group's coordinator has the offsets; perhaps nobody waits for them any more."""
        if self._operation is not None and self._operation.name == _SEND_OFFSETS:
            self._end_operation()

    def on_ended(self, following: ProducerIdentity | None) -> None:
        """The transaction is over."""
        if following is not None:
            self._numbering.identity = following
            self._numbering.book.forget_all()
            self._bump_needed = False
        self._choose_protocol(at_end=True)
        has_identity = self.identity.valid  # not when what was aborted is the attempt to get one
        if not has_identity or (self._bump_needed and self.can_bump_epoch):
            self._state.move_to(TxnState.INITIALIZING)
            self._push(InitProducerIdRequest(self, bump=has_identity))
            return
        self._become_ready()

    # ------------------------------------------------------------------------------------------ inside

    def _become_ready(self) -> None:
        self._state.move_to(TxnState.READY)
        self._wanted.clear()
        self._added.clear()
        self._started = False
        self._end_operation()

    def _choose_protocol(self, *, at_end: bool) -> None:
        """Look at the cluster's feature; going from v1 to v2 needs a new epoch, which the end of v1 does not bring."""
        before = self.uses_v2
        level = self._around.transaction_version()
        if level is not None:
            self.uses_v2 = level >= 2
        if at_end and self.uses_v2 and not before:
            self._bump_needed = True

    def _abortable(self, error: KafkaError, *, wants_bump: bool, needs_bump: bool = False) -> None:
        """The transaction must be aborted.

        Args:
            wants_bump: what the brokers have of this producer is not known, so that a new epoch is better. In protocol
                v2 the end of the transaction brings one.
            needs_bump: without a new epoch the producer cannot go on.
        """
        if not self.uses_v2:
            if needs_bump and not self.can_bump_epoch:
                self._fatal(error)
                return
            self._bump_needed = self._bump_needed or (wants_bump and self.can_bump_epoch)
        error = _for_the_transaction(error)
        if not self._state.note_abortable(error):
            return
        self._drop_queued(lambda request: isinstance(request, EndTxnRequest))
        self._around.accept(False)
        self._fail_operation(error)

    def _fatal(self, error: KafkaError) -> None:
        self._state.move_to(TxnState.FATAL_ERROR, error)
        self._queue.clear()
        self._around.accept(False)
        self._fail_operation(error)

    def _retry(self, request: TxnRequest, now: float, wait_ms: float | None) -> None:
        if self.aborting and isinstance(request, TxnOffsetCommitRequest):
            return  # what it would write is dropped anyway
        wait = self._backoff.seconds(request.attempts, self._rng) if wait_ms is None else wait_ms / 1000
        request.attempts += 1
        request.retry_at = now + wait
        self._push(request)

    def _lose_coordinator(self, request: TxnRequest) -> None:
        if request.coordinator is not None:
            self._coordinators[request.coordinator] = None

    def _finder(self, kind: Coordinator) -> FindCoordinatorRequest:
        key = self._id if kind is Coordinator.TRANSACTION else self._group_id or ""
        return FindCoordinatorRequest(self, kind, key)

    def _choose_group(self, group_id: str) -> None:
        if group_id != self._group_id:
            self._group_id = group_id
            self._coordinators.pop(Coordinator.GROUP, None)

    def _push(self, request: TxnRequest) -> None:
        heapq.heappush(self._queue, (request.priority, next(self._ages), request))

    def _drop_queued(self, unwanted: Callable[[TxnRequest], bool]) -> None:
        self._queue = [entry for entry in self._queue if not unwanted(entry[2])]
        heapq.heapify(self._queue)

    def _start(self, name: str, about: object = None) -> Ticket[None]:
        self._operation = _Operation(name, about)
        self._around.wake()
        return self._operation.ticket

    def _same_operation(self, name: str, about: object = None) -> Ticket[None] | None:
        """The pending Ticket of the same call; raises when another one is pending, be it in its arguments only."""
        operation = self._operation
        if operation is None:
            return None
        if (operation.name, operation.about) != (name, about):
            self._check_no_operation(name)
        return operation.ticket

    def _check_no_operation(self, name: str) -> None:
        if self._operation is not None:
            raise IllegalStateError(
                f"{name}() is not possible while the outcome of {self._operation.name}() is not known: make that call "
                "again first"
            )

    def _check_usable(self, call: str) -> None:
        self._state.raise_error(f"{call}()")

    def _end_operation(self) -> None:
        operation = self._operation
        if operation is not None:
            self._done.append(lambda: operation.ticket.complete(None))

    def _fail_operation(self, error: KafkaError) -> None:
        operation = self._operation
        if operation is not None:
            self._done.append(lambda: operation.ticket.fail(error))

    def _complete(self) -> None:
        """Complete Tickets, outside the lock."""
        with self._lock:
            done, self._done = self._done, []
        for complete in done:
            complete()

    def __repr__(self) -> str:
        return f"<TransactionManager {self._id!r}: {self._state.current.value}>"


def _for_the_transaction(error: KafkaError) -> KafkaError:
    """The error that calls raise: one that looks as if the call could be repeated is wrapped, for it cannot."""
    if not error.retriable and getattr(error, "code", 0) != _INVALID_TXN_STATE:
        return error
    wrapped = TransactionAbortableError(f"a record was not delivered: {error}")
    wrapped.__cause__ = error
    return wrapped


def group_metadata(group: Any) -> ConsumerGroupMetadata:
    """A group given as its id, or with member and generation.

    Raises:
        TypeError, ValueError: it is neither, or a generation comes without a member.
    """
    if isinstance(group, str):
        group = ConsumerGroupMetadata(group)
    if not isinstance(group, ConsumerGroupMetadata):
        raise TypeError(f"group must be a group id or a ConsumerGroupMetadata, not {type(group).__name__}")
    if not group.group_id:
        raise ValueError("the group id must not be empty")
    if group.generation_id > 0 and not group.member_id:
        raise ValueError(
            f"generation {group.generation_id} of group {group.group_id!r} comes without a member id"
        )
    return group
