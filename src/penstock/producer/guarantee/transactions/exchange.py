# SPDX-License-Identifier: Apache-2.0
"""What a transactional producer asks of its coordinator, and what the answers make of it: identity, protocol, state.

The base of the TransactionManager that knows the coordinator, but neither calls nor batches.

Rules:
1. All fields are guarded by the transaction lock; the requests are told of their answers under it.
2. EndTxn is sent when no batch is without outcome; where nothing was added to the transaction it is not sent at all.
3. A transaction ends with the protocol that it started with; which one the next uses is decided between the two.
"""

from __future__ import annotations

import heapq
import logging
import random
from collections.abc import Collection, Mapping, Sequence

from penstock._identity import ProducerIdentity
from penstock._time import ExponentialBackoff
from penstock.error_codes import ErrorCode
from penstock.errors import (
    BrokerError,
    IllegalStateError,
    KafkaError,
    NetworkError,
    ProducerFencedError,
    ProtocolError,
)
from penstock.network import InFlightRequest
from penstock.producer.batch._queue_cy import PartitionQueue
from penstock.producer.guarantee._sequences_cy import Numbering
from penstock.producer.guarantee.gate import GateRequest
from penstock.producer.guarantee.transactions.parts import (
    Surroundings,
    TransactionSettings,
    fence_text,
    for_the_transaction,
)
from penstock.producer.guarantee.transactions.policy import Verdict
from penstock.producer.guarantee.transactions.queue import RequestQueue
from penstock.producer.guarantee.transactions.requests import (
    AddPartitionsRequest,
    EndTxnRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
    TxnRequest,
)
from penstock.producer.guarantee.transactions.states import TransactionState, TxnState
from penstock.protocol.find_coordinator import CoordinatorKind
from penstock.protocol.requests import Request
from penstock.types import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

log = logging.getLogger("penstock.producer")

SEND_OFFSETS = "send_offsets_to_transaction"  # the call

_FIRST_VERSION_WITH_BUMP = 3  # of InitProducerId
# Of EndTxn in protocol v1; 4 differs from it in one more error only, which nobody needs who ends a transaction later.
_END_VERSION_V1 = 3


class TransactionExchange(RequestQueue):
    """Sends transaction requests, and takes their answers.

    Args:
        settings: id, time-out, backoff.
        around: what it asks of other parts.
        rng: jitter of the backoff.
    """

    max_produce_version_v1 = 11

    def __init__(self, settings: TransactionSettings, around: Surroundings, rng: random.Random) -> None:
        super().__init__(around.wake)
        self.timeout_ms = settings.timeout_ms
        self._around = around
        self._rng = rng
        self._backoff = ExponentialBackoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms)
        # All below is guarded by the transaction lock.
        self._id = settings.transactional_id
        self._state = TransactionState()
        self._numbering = Numbering(settings.retries, transactional=True)
        self.uses_v2 = False
        self.can_bump_epoch = False
        self._bump_needed = False
        self.initialization_in_doubt = False  # an InitProducerId without an answer may still be on its way
        self._end_version_v1 = _END_VERSION_V1  # of EndTxn, for whoever ends a detached transaction
        self._wanted: set[TopicPartition] = set()  # to be added (v1)
        self._added: set[TopicPartition] = set()
        self._traces = 0  # what may have told the coordinator of the transaction
        self._refused: dict[TopicPartition, KafkaError] = {}  # cannot be added, and why (v1)
        self._settled = False  # the transaction has its end, and only an epoch for the next one is missing

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

    @property
    def refused_partitions(self) -> Mapping[TopicPartition, KafkaError]:
        """Partitions that cannot become part of the transaction, and why. I/O thread, which alone adds to them."""
        return self._refused

    @property
    def aborting(self) -> bool:
        """Whether batches that were not sent are to be dropped."""
        return self._state.current is TxnState.ABORTING

    def topic_ids(self, topics: Collection[str]) -> Mapping[str, bytes] | None:
        """The ids by which offsets may name these topics, if all are known."""
        return self._around.cluster.topic_ids(topics)

    def doubt_topics(self) -> None:
        """A broker did not know a topic by its id."""
        self._around.cluster.doubt_topics()

    def may_forget(self, queue: PartitionQueue) -> bool:
        """Whether it is known how the numbers of a partition go on."""
        with self._lock:
            return self._numbering.book.is_settled(queue)

    def forget(self, queues: Sequence[PartitionQueue]) -> None:
        """Put the numbers of these away."""
        with self._lock:
            for queue in queues:
                self._numbering.book.put_away(queue)

    # ------------------------------------------------------------------------------------- requests out

    def next_request(self, now: float, data_waits: bool) -> GateRequest | None:
        """The next transaction request, when it may be sent."""
        del data_waits
        with self._lock:
            request = self._next(now)
            built = None if request is None else self._try_build(request)
            if built is not None:
                self._under_way = request
        self._complete()
        if request is None or built is None:
            return None
        node = None if request.coordinator is None else self._coordinators[request.coordinator]
        return GateRequest(
            built,
            node,
            lambda response, at: self._on_response(request, response, at),
            lambda error, at: self._on_unreachable(request, error, at),
        )

    def _try_build(self, request: TxnRequest) -> Request | None:
        try:
            return request.build()
        except Exception as cause:
            # No answer will ever come: without an end here every later call would wait for it.
            log.exception("%s could not be put together", request.api.name)
            error = KafkaError(f"{request.api.name} could not be put together: {cause!r}")
            error.__cause__ = cause
            self._fatal(error)
            self._around.wake()  # for what is to be failed in the next turn
            return None

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
                if not self._traces:
                    heapq.heappop(self._queue)
                    self.on_ended(None)
                    continue
            if request.coordinator is not None and self._coordinators.get(request.coordinator) is None:
                self._push(self._finder(request.coordinator))
                continue
            heapq.heappop(self._queue)
            return request
        return None

    # ------------------------------------------------------------------------ answers, under the lock

    def _on_response(self, request: TxnRequest, response: InFlightRequest, now: float) -> None:
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

    def _on_body(self, request: TxnRequest, response: InFlightRequest, now: float) -> None:
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
            if self.aborting and request.finds is CoordinatorKind.TRANSACTION:
                self._fatal(error)  # there is nobody to tell of the abort
                return
            if self._settled or (request.finds is CoordinatorKind.TRANSACTION and self._is_end_in_doubt()):
                # The end is confirmed and only the next epoch is missing, or it may have been carried out: nobody may
                # be told to abort what is, or could be, committed.
                self._retry(request, now, None)
                return
            lost_state = error.code == ErrorCode.UNKNOWN_PRODUCER_ID
            if lost_state and isinstance(request, EndTxnRequest) and (self.aborting or request.in_doubt):
                # Nobody is left who could carry out an abort, or say that the commit before was not carried out.
                self._fatal(error)
                return
            self._abortable(error, wants_bump=lost_state, needs_bump=lost_state)
        elif verdict is Verdict.UNINITIALIZED:
            self._state.move_to(TxnState.UNINITIALIZED)
            self._fail_unless_settled(error)
        elif verdict is Verdict.FENCED:
            self._fatal(self._fenced_by(error))
        else:
            self._fatal(error)

    def on_initialized(self, identity: ProducerIdentity, version: int, *, in_doubt: bool = False) -> None:
        """InitProducerId was answered; `in_doubt`: not the first time, as an earlier answer was lost."""
        self.initialization_in_doubt = in_doubt
        self._numbering.identity = identity
        self._numbering.book.forget_all()
        self.can_bump_epoch = version >= _FIRST_VERSION_WITH_BUMP
        self._bump_needed = False
        self._choose_protocol(at_end=False)
        self._become_ready()

    def on_partitions_added(self, partitions: frozenset[TopicPartition]) -> None:
        """The coordinator knows of these partitions now."""
        self._added.update(partitions)
        self._traces += 1

    def on_partitions_refused(
        self, refused: Mapping[TopicPartition, KafkaError], others: frozenset[TopicPartition]
    ) -> None:
        """Nothing was added, because of some: what waits for these fails, and the others are asked for again."""
        self._refused = {**self._refused, **refused}
        self._wanted |= others

    def on_offsets_added(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: ConsumerGroupMetadata
    ) -> None:
        """The coordinator knows of the group now."""
        self._traces += 1
        if not self.aborting:
            self._push(TxnOffsetCommitRequest(self, offsets, group))

    def on_offsets_committed(self) -> None:
        """The group's coordinator has the offsets; perhaps nobody waits for them any more."""
        if self._operation is not None and self._operation.name == SEND_OFFSETS:
            self._end_operation()

    def on_ended(self, following: ProducerIdentity | None) -> None:
        """The transaction is over."""
        if following is not None:
            self._numbering.identity = following
            self._numbering.book.forget_all()
            self._bump_needed = False
        self._choose_protocol(at_end=True)
        if self.can_bump_epoch and self._numbering.book.wants_new_epoch:
            self._bump_needed = True  # in protocol v1, where the numbers of forgotten partitions would add up
        has_identity = self.identity.valid  # not when what was aborted is the attempt to get one
        if not has_identity or (self._bump_needed and self.can_bump_epoch):
            self._state.move_to(TxnState.INITIALIZING)
            self._settled = has_identity
            self._push(InitProducerIdRequest(self, bump=has_identity))
            return
        self._become_ready()

    # ------------------------------------------------------------------------------------------ inside

    def _become_ready(self) -> None:
        self._state.move_to(TxnState.READY)
        # The abort of an initialization ends with its answer, too: what is left would end the next transaction.
        self._drop_queued(lambda request: isinstance(request, EndTxnRequest))
        self._forget_partitions()
        self._settled = False
        self._end_operation()

    def _forget_partitions(self) -> None:
        self._wanted.clear()
        self._added.clear()
        self._refused = {}
        self._traces = 0

    def _choose_protocol(self, *, at_end: bool) -> None:
        """Look at the cluster's feature; going from v1 to v2 needs a new epoch, which the end of v1 does not bring."""
        before = self.uses_v2
        level = self._around.cluster.transaction_version()
        if level is not None:
            self.uses_v2 = level >= 2
        offered = self._around.cluster.end_txn_version()
        if offered is not None:
            self._end_version_v1 = min(offered, _END_VERSION_V1)
        if at_end and self.uses_v2 and not before:
            self._bump_needed = True

    def _is_end_in_doubt(self) -> bool:
        """Whether an EndTxn waits to be sent again because its answer was lost."""
        return any(isinstance(entry[-1], EndTxnRequest) and entry[-1].in_doubt for entry in self._queue)

    def _is_end_to_come(self) -> bool:
        """Whether an EndTxn waits that was never sent."""
        ends = [entry[-1] for entry in self._queue if isinstance(entry[-1], EndTxnRequest)]
        return any(not (end.in_doubt or end.attempts) for end in ends)

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
        error = for_the_transaction(error)
        if not self._state.note_abortable(error):
            return
        self._drop_queued(lambda request: isinstance(request, EndTxnRequest))
        self._around.accept(False)
        self._fail_operation(error)

    def _fenced_by(self, error: KafkaError) -> ProducerFencedError:
        fenced = ProducerFencedError(fence_text(self._id, self.identity, self.timeout_ms))
        fenced.__cause__ = error
        return fenced

    def _fatal(self, error: KafkaError) -> None:
        if isinstance(error, ProducerFencedError) and error.__cause__ is None:
            error = self._fenced_by(error)  # as a broker said it, without what is to be done
        self._state.move_to(TxnState.FATAL_ERROR, error)
        self._queue.clear()
        self._around.accept(False)
        self._fail_unless_settled(error)

    def _fail_unless_settled(self, error: KafkaError) -> None:
        """End the call that waits. A commit that the coordinator has confirmed is no failure, whatever follows."""
        if not self._settled:
            self._fail_operation(error)
            return
        self._settled = False
        log.warning("the transaction has ended, but the producer cannot go on as it is: %s", error)
        self._end_operation()

    def _retry(self, request: TxnRequest, now: float, wait_ms: float | None) -> None:
        if self.aborting and request.for_a_group:
            return  # what it would write is dropped anyway, and the abort must not wait for the group's coordinator
        wait = self._backoff.seconds(request.attempts, self._rng) if wait_ms is None else wait_ms / 1000
        request.attempts += 1
        request.retry_at = now + wait
        self._push(request)

    def _finder(self, kind: CoordinatorKind) -> FindCoordinatorRequest:
        key = self._id if kind is CoordinatorKind.TRANSACTION else self._group_id or ""
        return FindCoordinatorRequest(self, kind, key)
