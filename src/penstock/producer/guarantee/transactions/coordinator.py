# SPDX-License-Identifier: Apache-2.0
"""The exchange with the coordinator: the requests, and how answers change the identity, the protocol and the state.

The TransactionManager owns it, and tells it of requests and of errors. It knows neither the application's calls nor
batches. Only the methods of the gate (`next_request`, `seconds_to_request`) and the callbacks of requests take the
transaction lock; the other methods need it held.

Rules:
1. Requests get their answers under the lock.
2. EndTxn is sent when every batch has its outcome. If nothing was added to the transaction, it is not sent at all.
3. A transaction ends with the protocol that it started with. The protocol of the next one is chosen between the two.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from penstock._events import Event, tell
from penstock._identity import ProducerIdentity
from penstock._time import ExponentialBackoff
from penstock.error_codes import ErrorCode
from penstock.errors import (
    AuthenticationError,
    BrokerError,
    IllegalStateError,
    KafkaError,
    NetworkError,
    ProducerFencedError,
    ProtocolError,
    UnsupportedVersionError,
)
from penstock.network import InFlightRequest, NetworkClient
from penstock.producer.guarantee._sequences_cy import Numbering
from penstock.producer.guarantee.gate import GateRequest
from penstock.producer.guarantee.transactions.operation import Operation
from penstock.producer.guarantee.transactions.policy import Verdict
from penstock.producer.guarantee.transactions.request_queue import RequestQueue
from penstock.producer.guarantee.transactions.requests import (
    FIRST_OFFSETS_BY_TOPIC_ID,
    AddPartitionsRequest,
    EndTxnRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
    TxnRequest,
)
from penstock.producer.guarantee.transactions.states import (
    TransactionState,
    TxnState,
    fence_text,
    for_the_transaction,
)
from penstock.producer.metadata.cluster import NO_TOPIC_ID
from penstock.producer.metadata.metadata import ProducerMetadata
from penstock.protocol.messages import END_TXN, TXN_OFFSET_COMMIT
from penstock.protocol.requests import CoordinatorKind, NodeApiVersions, Request
from penstock.protocol.schema import ApiSchema
from penstock.types import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

log = logging.getLogger("penstock.producer")

SEND_OFFSETS = "send_offsets_to_transaction"  # the call
INITIALIZE = "init_transactions"  # likewise

_FIRST_VERSION_WITH_BUMP = 3  # of InitProducerId
# Of EndTxn in protocol v1. Version 4 only adds one error, which is of no use to a program that ends a detached
# transaction.
_END_VERSION_V1 = 3
_END_VERSION_V2 = 5


class ClusterFacts:
    """What transactions need to know of the cluster: its features, the versions of its brokers, the ids of its topics.

    It answers from what is known now, and sends no request. I/O thread only.

    Args:
        client: knows what each connected broker can do.
        metadata: knows the topics.
        now: the present moment.
    """

    def __init__(self, client: NetworkClient, metadata: ProducerMetadata, now: Callable[[], float]) -> None:
        self._client = client
        self._metadata = metadata
        self._now = now

    def transaction_version(self) -> int | None:
        """The finalized feature of that name in the newest answer; 0 if it has none, None while no answer is known."""
        known = self._known()
        if not known:
            return None
        newest = max(known, key=lambda versions: versions.finalized_features_epoch)
        return newest.finalized_features.get("transaction.version", 0)

    def end_txn_version(self) -> int | None:
        """The highest version of EndTxn that every connected broker accepts; None while no versions are known."""
        return min(map(_highest(END_TXN), self._known()), default=None)

    def topic_ids(self, topics: Collection[str]) -> Mapping[str, bytes] | None:
        """The ids of all these topics; None if one is not known, or no connected broker takes offsets by id.

        Unknown ids are requested, so that the next offsets may use ids.
        """
        offered = max(map(_highest(TXN_OFFSET_COMMIT), self._known()), default=-1)
        if offered < FIRST_OFFSETS_BY_TOPIC_ID:
            return None
        for topic in topics:
            self._metadata.want_topic(topic, self._now())
        snapshot = self._metadata.snapshot
        ids = {topic: snapshot.topic_id(topic) for topic in topics}
        return None if NO_TOPIC_ID in ids.values() else ids

    def doubt_topics(self) -> None:
        """A broker did not know a topic: ask for all of them again."""
        self._metadata.request_update(self._now())

    def _known(self) -> list[NodeApiVersions]:
        nodes = self._metadata.nodes()
        return [versions for node in nodes if (versions := self._client.api_versions(node.id)) is not None]


def _highest(api: ApiSchema) -> Callable[[NodeApiVersions], int]:
    def highest(versions: NodeApiVersions) -> int:
        offered = versions.range(api.key)
        return -1 if offered is None else offered[1]

    return highest


class TransactionSettings(NamedTuple):
    """The options that matter to transactions."""

    transactional_id: str
    timeout_ms: int
    retries: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int


class TransactionHooks(NamedTuple):
    """Functions and facts of other parts of the producer.

    Attributes:
        cluster: what is known of the cluster. I/O thread only.
        has_incomplete: whether any batch has no outcome yet.
        accept: opens (True) or closes (False) the fast path of send().
        wake: wakes the I/O thread.
    """

    cluster: ClusterFacts
    has_incomplete: Callable[[], bool]
    accept: Callable[[bool], None]
    wake: Callable[[], object]


class TransactionPartitions:
    """The partitions of the transaction, and whether the coordinator may know of it. Needs the transaction lock.

    Attributes:
        wanted: to be added (v1).
        added: part of the transaction.
        refused: cannot be added, and why (v1). Only the I/O thread changes it, and it reads it without the lock.
        traces: how many requests may have told the coordinator of the transaction; without any there is nothing to end.
    """

    def __init__(self) -> None:
        self.wanted: set[TopicPartition] = set()
        self.added: set[TopicPartition] = set()
        self.refused: Mapping[TopicPartition, KafkaError] = {}
        self.traces = 0

    def take_wanted(self) -> frozenset[TopicPartition]:
        """Take the wanted partitions, for a request."""
        wanted = frozenset(self.wanted)
        self.wanted.clear()
        return wanted

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        """A request has added these, or is about to (v2)."""
        self.added.update(partitions)
        self.traces += 1

    def refuse(self, refused: Mapping[TopicPartition, KafkaError], others: Iterable[TopicPartition]) -> None:
        """Nothing was added, because `refused` cannot be: their batches fail, and `others` are requested again."""
        self.refused = {**self.refused, **refused}
        self.wanted.update(others)

    def clear(self) -> None:
        """A transaction has ended, or begins."""
        self.wanted.clear()
        self.added.clear()
        self.refused = {}
        self.traces = 0


class Coordinator:
    """Sends transaction requests, and takes their answers.

    Args:
        settings: id, time-out, backoff.
        hooks: functions of other parts.
        rng: jitter of the backoff.
        lock: the transaction lock.
        state: of the transactional producer.
        operation: what the application waits for.
        numbers: identity and sequence numbers.
    """

    def __init__(
        self,
        settings: TransactionSettings,
        hooks: TransactionHooks,
        rng: random.Random,
        *,
        lock: Any,
        state: TransactionState,
        operation: Operation,
        numbers: Numbering,
    ) -> None:
        self.timeout_ms = settings.timeout_ms
        self.hooks = hooks
        self._lock = lock
        # All below is guarded by it.
        self._state = state
        self._operation = operation
        self._numbers = numbers
        self.queue = RequestQueue(
            ExponentialBackoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms), rng
        )
        self.queue.use_key(CoordinatorKind.TRANSACTION, settings.transactional_id)
        self.partitions = TransactionPartitions()
        self.uses_v2 = False
        self.can_bump_epoch = False
        self.initialization_in_doubt = False  # an InitProducerId without an answer may still be on its way
        self._end_version_v1 = _END_VERSION_V1
        self._bump_needed = False  # the next transaction needs a new epoch
        self._settled = False  # the transaction has ended, and only an epoch for the next one is missing

    @property
    def transactional_id(self) -> str:
        """The transactional id in use."""
        return self.queue.key(CoordinatorKind.TRANSACTION)

    @property
    def identity(self) -> ProducerIdentity:
        """The producer id and epoch in use."""
        identity: ProducerIdentity = self._numbers.identity
        return identity

    @property
    def end_version(self) -> int:
        """The version of EndTxn with which a transaction that is detached has to be ended."""
        return _END_VERSION_V2 if self.uses_v2 else self._end_version_v1

    def is_adding(self, partition: TopicPartition) -> bool:
        """Whether a request that adds a partition to the transaction waits, or is under way."""
        return any(
            isinstance(request, AddPartitionsRequest) and partition in request.partitions
            for request in self.queue
        )

    def is_end_to_come(self) -> bool:
        """Whether an EndTxn waits to be sent for the first time."""
        ends = [request for request in self.queue.waiting() if isinstance(request, EndTxnRequest)]
        return any(not (end.in_doubt or end.attempts) for end in ends)

    def _is_end_in_doubt(self) -> bool:
        """Whether an EndTxn waits to be sent again because its answer was lost."""
        return any(
            isinstance(request, EndTxnRequest) and request.in_doubt for request in self.queue.waiting()
        )

    # ------------------------------------------------------------------------------------- requests out

    def next_request(self, now: float) -> GateRequest | None:
        """The next transaction request, when it may be sent."""
        with self._lock:
            request = self._next(now)
            built = None if request is None else self._try_build(request)
            node = None
            if request is not None and built is not None:
                self.queue.sent(request)
                node = self.queue.node(request)
        self._operation.complete_tickets()
        if request is None or built is None:
            return None
        return GateRequest(
            built,
            node,
            lambda response, at: self._on_response(request, response, at),
            lambda error, at: self._on_unreachable(request, error, at),
        )

    def seconds_to_request(self, now: float) -> float:
        """Seconds until the request at the head may be tried again."""
        with self._lock:
            return self.queue.seconds_to_head(now)

    def _next(self, now: float) -> TxnRequest | None:
        if self.queue.is_busy or self._state.has_error:
            return None  # after an error no request is of use until the transaction is being aborted
        if self.partitions.wanted and not self._state.aborting:
            self.queue.push(AddPartitionsRequest(self, self.partitions.take_wanted()))
        while (request := self.queue.head(now)) is not None:
            if isinstance(request, EndTxnRequest):
                if self.hooks.has_incomplete():
                    return None
                if not self.partitions.traces:
                    self.queue.pop()
                    self.on_ended(None)
                    continue
            if request.goes_to is not None and not self.queue.knows_node(request):
                self.queue.push(
                    FindCoordinatorRequest(self, request.goes_to, self.queue.key(request.goes_to))
                )
                continue
            return self.queue.pop()
        return None

    def _try_build(self, request: TxnRequest) -> Request | None:
        try:
            return request.build()
        except Exception as cause:  # noqa: BLE001 - it is logged
            # No answer will come. If the call did not end here, every later call would wait for it.
            self._tell_trouble("%s could not be put together", request, cause)
            error = KafkaError(f"{request.api.name} could not be put together: {cause!r}")
            error.__cause__ = cause
            self.fail_for_good(error)
            self.hooks.wake()  # to fail batches in the next turn
            return None

    # ------------------------------------------------------------------------------------------ answers

    def _on_response(self, request: TxnRequest, response: InFlightRequest, now: float) -> None:
        with self._lock:
            self.queue.ended()
            if response.error is None:
                self._on_body(request, response, now)
            elif isinstance(response.error, NetworkError) or response.error.retriable:
                request.in_doubt = True
                self.queue.lose(request)
                self._retry(request, now)
            else:
                self.fail_for_good(_explained(response.error, request))
        self._operation.complete_tickets()
        self.hooks.wake()

    def _on_body(self, request: TxnRequest, response: InFlightRequest, now: float) -> None:
        try:
            request.on_body(response.body, response.version, now)
        except IllegalStateError as error:
            self._tell_trouble("the answer to %s does not fit the state of this producer", request, error)
            self.fail_for_good(error)
        except LookupError as error:
            self.fail_for_good(ProtocolError(f"the answer to {request.api.name} is incomplete: {error!r}"))

    def _on_unreachable(self, request: TxnRequest, error: KafkaError, now: float) -> None:
        tell(
            log, logging.DEBUG, Event.TRANSACTION_REQUEST_FAILED, "%s cannot be sent: %s", request.api.name, error,
            request=request.api.name, error=error,
        )  # fmt: skip
        with self._lock:
            self.queue.ended()
            self.queue.lose(request)
            if isinstance(error, AuthenticationError) and self._is_being_initialized():
                # The call raises at once, and nothing else changes: it can be made again with the right credentials.
                self.queue.clear()
                self._state.move_to(TxnState.UNINITIALIZED)
                self._operation.fail(error)
            else:
                self._retry(request, now)
        self._operation.complete_tickets()

    def _is_being_initialized(self) -> bool:
        """Whether init_transactions() waits, which may fail without a loss."""
        initializing = self._state.current is TxnState.INITIALIZING and self._operation.name == INITIALIZE
        return initializing and self._operation.pending

    def _retry(self, request: TxnRequest, now: float, wait_ms: float | None = None) -> None:
        if self._state.aborting and request.for_a_group:
            return  # the abort drops its offsets in any case, and must not wait for the group's coordinator
        self.queue.retry(request, now, wait_ms)

    def on_verdict(self, request: TxnRequest, verdict: Verdict, error: BrokerError, now: float) -> None:
        """Do what the error table says."""
        if verdict is Verdict.FIND_COORDINATOR:
            self.queue.lose(request)
        if verdict in (Verdict.RETRY, Verdict.FIND_COORDINATOR):
            self._retry(request, now, request.backoff_ms(error.code))
        elif verdict is Verdict.ABORTABLE:
            self._on_abort_asked(request, error, now)
        elif verdict is Verdict.UNINITIALIZED:
            self._state.move_to(TxnState.UNINITIALIZED)
            self._fail_unless_settled(error)
        elif verdict is Verdict.FENCED:
            self.fail_for_good(self._fenced_by(error))
        else:
            self.fail_for_good(error)

    def _on_abort_asked(self, request: TxnRequest, error: BrokerError, now: float) -> None:
        finds_ours = request.finds is CoordinatorKind.TRANSACTION
        if self._state.aborting and finds_ours:
            self.fail_for_good(error)  # it is being aborted already, and the coordinator cannot be found
            return
        if self._settled or (finds_ours and self._is_end_in_doubt()):
            # The end is confirmed and only the next epoch is missing, or the end may have been carried out. The
            # application must not be asked to abort: the transaction is committed, or may be.
            self._retry(request, now)
            return
        lost_state = error.code == ErrorCode.UNKNOWN_PRODUCER_ID
        if lost_state and isinstance(request, EndTxnRequest) and (self._state.aborting or request.in_doubt):
            # The coordinator has lost the state: it cannot abort, or say whether the commit before was carried out.
            self.fail_for_good(error)
            return
        self.require_abort(error, wants_bump=lost_state, needs_bump=lost_state)

    def on_initialized(self, identity: ProducerIdentity, version: int, *, in_doubt: bool = False) -> None:
        """InitProducerId was answered; `in_doubt`: not the first time, as an earlier answer was lost."""
        self.initialization_in_doubt = in_doubt
        self.start_anew(identity)
        self.can_bump_epoch = version >= _FIRST_VERSION_WITH_BUMP
        self._bump_needed = False
        self._choose_protocol()
        self._become_ready()

    def on_offsets_added(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: ConsumerGroupMetadata
    ) -> None:
        """The coordinator has added the group: send the offsets to the group's coordinator."""
        self.partitions.traces += 1
        if not self._state.aborting:
            self.queue.push(TxnOffsetCommitRequest(self, offsets, group))

    def on_offsets_committed(self) -> None:
        """The group's coordinator has the offsets. The call may have ended before."""
        if self._operation.name == SEND_OFFSETS:
            self._operation.succeed()

    def on_ended(self, following: ProducerIdentity | None) -> None:
        """The transaction is over; `following`: the identity of the next one, if the answer names it."""
        if following is not None:
            self.start_anew(following)
            self._bump_needed = False
        before = self.uses_v2
        self._choose_protocol()
        if self.uses_v2 and not before:
            self._bump_needed = True  # v2 begins with a new epoch, and EndTxn of v1 does not give one
        if self.can_bump_epoch and self._numbers.book.wants_new_epoch:
            self._bump_needed = (
                True  # in protocol v1: otherwise kept numbers of forgotten partitions would add up
            )
        has_identity = self.identity.valid  # False if the abort was that of an initialization
        if not has_identity or (self._bump_needed and self.can_bump_epoch):
            self._state.move_to(TxnState.INITIALIZING)
            self._settled = has_identity
            self.queue.push(InitProducerIdRequest(self, bump=has_identity))
            return
        self._become_ready()

    def _choose_protocol(self) -> None:
        """Choose the protocol by the cluster's feature `transaction.version`."""
        level = self.hooks.cluster.transaction_version()
        if level is not None:
            self.uses_v2 = level >= 2
        offered = self.hooks.cluster.end_txn_version()
        if offered is not None:
            self._end_version_v1 = min(offered, _END_VERSION_V1)

    # ----------------------------------------------------------------------- what the state brings with it

    def start_anew(self, identity: ProducerIdentity) -> None:
        """Take another identity, or none: every partition begins at 0."""
        self._numbers.identity = identity
        self._numbers.book.forget_all()

    def _become_ready(self) -> None:
        self._state.move_to(TxnState.READY)
        # The abort of an initialization ends with its answer, too: an EndTxn that is left would end the next one.
        self._drop_ends()
        self.partitions.clear()
        self._settled = False
        self._operation.succeed()

    def require_abort(self, error: KafkaError, *, wants_bump: bool, needs_bump: bool = False) -> None:
        """The transaction must be aborted.

        Args:
            wants_bump: it is not known what the brokers have of this producer, so a new epoch is better. In protocol v2
                the end of the transaction gives one.
            needs_bump: without a new epoch the producer cannot go on.
        """
        if not self.uses_v2:
            if needs_bump and not self.can_bump_epoch:
                self.fail_for_good(error)
                return
            self._bump_needed = self._bump_needed or (wants_bump and self.can_bump_epoch)
        error = for_the_transaction(error)
        if not self._state.note_abortable(error):
            return
        self._drop_ends()
        self.hooks.accept(False)
        self._operation.fail(error)

    def fail_for_good(self, error: KafkaError) -> None:
        """The producer cannot go on."""
        if isinstance(error, ProducerFencedError) and error.__cause__ is None:
            error = self._fenced_by(error)  # the broker's text does not say what to do
        self._state.move_to(TxnState.FATAL_ERROR, error)
        self.queue.clear()
        self.hooks.accept(False)
        self._fail_unless_settled(error)

    def _fail_unless_settled(self, error: KafkaError) -> None:
        """End the waiting call. A commit that the coordinator has confirmed succeeds, whatever error follows."""
        if not self._settled:
            self._operation.fail(error)
            return
        self._settled = False
        self._tell_later(
            logging.WARNING,
            Event.TRANSACTION_ENDED_LAST,
            "the transaction has ended, but the producer cannot go on as it is: %s",
            error,
            error=error,
        )
        self._operation.succeed()

    def _tell_later(self, level: int, event: Event, text: str, *args: Any, **fields: Any) -> None:
        """Write to the log after the lock was released."""
        write = partial(
            tell, log, level, event, text, *args, transactional_id=self.transactional_id, **fields
        )
        self._operation.tell_later(write)

    def _tell_trouble(self, text: str, request: TxnRequest, error: Exception) -> None:
        event, name = Event.TRANSACTION_REQUEST_FAILED, request.api.name
        self._tell_later(logging.ERROR, event, text, name, exc_info=error, request=name, error=error)

    def _fenced_by(self, error: KafkaError) -> ProducerFencedError:
        fenced = ProducerFencedError(fence_text(self.transactional_id, self.identity, self.timeout_ms))
        fenced.__cause__ = error
        return fenced

    def _drop_ends(self) -> None:
        self.queue.drop(lambda request: isinstance(request, EndTxnRequest))


def _explained(error: KafkaError, request: TxnRequest) -> KafkaError:
    """If a broker lacks the first request of a transaction, the error names the first Kafka with transactions."""
    begins = request.finds is CoordinatorKind.TRANSACTION or (
        isinstance(request, InitProducerIdRequest) and not request.bump
    )
    if not isinstance(error, UnsupportedVersionError) or not begins:
        return error
    explained = UnsupportedVersionError(
        f"transactional.id needs Kafka 0.11, and the broker is older: leave it out, or use newer brokers "
        f"({error.message})"
    )
    explained.__cause__ = error
    return explained
