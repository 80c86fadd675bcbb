# SPDX-License-Identifier: Apache-2.0
"""The idempotent gate: every batch is written once and in order, whatever happens to requests.

The producer id is asked for when there is something to send. Where a partition's numbering is broken or unsure, the
epoch is raised here, without asking anybody, and only that partition starts again from 0; the others go on with the old
epoch until their batches in flight have ended.

All methods belong to the I/O thread, but for `check_send`.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Container, Sequence

from penstock._events import Event, tell
from penstock._identity import NO_IDENTITY, ProducerIdentity
from penstock._time import ExponentialBackoff
from penstock.error_codes import ErrorCode
from penstock.errors import (
    BrokerError,
    KafkaError,
    ProducerFailedError,
    UnsupportedVersionError,
    broker_error,
)
from penstock.network import InFlightRequest
from penstock.producer.batch._batch_cy import ANONYMOUS, Batch, BatchIdentity
from penstock.producer.batch._queue_cy import PartitionQueue
from penstock.producer.guarantee._sequences_cy import Numbering
from penstock.producer.guarantee.gate import (
    NOTHING_REFUSED,
    BatchNumbering,
    GateRequest,
    NoNumbering,
    name_with_release,
)
from penstock.producer.guarantee.response_policy import Action, BatchSituation, Decision, decide
from penstock.protocol.messages import INIT_PRODUCER_ID
from penstock.protocol.requests import NodeApiVersions, SchemaRequest
from penstock.types import Node

log = logging.getLogger("penstock.producer")

LAST_EPOCH = 32767
# What InitProducerId without a transactional id takes.
NEEDED_FOR_PRODUCER_ID = (
    "the right IDEMPOTENT_WRITE on the cluster is needed or, since Kafka 2.8, WRITE on any topic; without them, set "
    "enable.idempotence=false"
)
_NO_TIMEOUT = 2**31 - 1


class PartlyNumbered:
    """Numbers the batches of most partitions; batches of the others leave without numbers.

    Args:
        numbers: of those that are numbered.
        unnumbered: the others.
    """

    at_rest = False

    def __init__(self, numbers: Numbering, unnumbered: Container[PartitionQueue]) -> None:
        self._numbers = numbers
        self._unnumbered = unnumbered

    def may_drain(self, queue: PartitionQueue, batch: Batch) -> bool:
        return queue in self._unnumbered or self._numbers.may_drain(queue, batch)

    def assign(self, batch: Batch) -> BatchIdentity:
        return ANONYMOUS if batch.queue in self._unnumbered else self._numbers.assign(batch)

    def on_success(self, batch: Batch, base_offset: int) -> None:
        if batch.queue not in self._unnumbered:
            self._numbers.on_success(batch, base_offset)


class IdempotentGate:
    """Numbers batches, and repairs the numbering when a batch was lost.

    Brokers before Kafka 0.11 know no numbers, and neither do partitions that are stored in an older message format.
    Where the user did not ask for numbers, the gate goes on without them and says so once: for the whole producer if a
    broker gives no producer ids, else for the partition. It does not return to numbers afterwards: what was written
    without them could not be told from what comes with them. Only a partition whose topic was forgotten begins anew.

    Args:
        retries: how often a batch may be queued again.
        backoff: the wait between two attempts to get a producer id.
        rng: its jitter.
        accept: closes the fast path of send() when the producer cannot go on.
        required: whether the user asked for idempotence; then a broker that is too old is an error.
        versions_of: what a connected broker can do, by its id; for texts.
    """

    transactional_id: str | None = None
    transaction: object = None
    max_produce_version = 13
    completing = False
    busy = False
    refused_partitions = NOTHING_REFUSED

    def __init__(
        self,
        retries: int,
        backoff: ExponentialBackoff,
        rng: random.Random,
        accept: Callable[[bool], None],
        *,
        required: bool = True,
        versions_of: Callable[[int], NodeApiVersions | None] = lambda _: None,
    ) -> None:
        self._retries = retries
        self._required = required
        self._versions_of = versions_of
        self._numbers = Numbering(retries, transactional=False)
        self.numbering: BatchNumbering = self._numbers
        self._switched_off = False  # for all partitions
        self._unnumbered: set[PartitionQueue] = set()  # the partitions for which it is switched off
        self._epoch_is_stale = False  # the numbers used with it are not known any more
        self.headerless: set[PartitionQueue] = set()
        self._told = False
        self._backoff = backoff
        self._rng = rng
        self._accept = accept
        self._asking = False
        self._attempts = 0
        self._ask_at = 0.0
        self._fatal: KafkaError | None = None
        self._refused: KafkaError | None = (
            None  # why no producer id was given; batches that wait now fail with it, later ones do not
        )

    @property
    def failed(self) -> bool:
        """Whether the producer cannot go on."""
        return self._fatal is not None

    def check_send(self) -> None:
        """Raise after a fatal error."""
        if self._fatal is not None:
            raise ProducerFailedError(
                f"this producer cannot go on: {self._fatal}. Close it and make a new one."
            ) from self._fatal

    def before_turn(self, now: float) -> KafkaError | None:
        """Settle partitions with gaps, and raise the epoch if that is needed."""
        book = self._numbers.book
        if book.unresolved:
            for queue in book.resolve():
                book.mark_broken(queue, book.of(queue).next)
        # In this order, because it is asked in every turn, and the answer is nearly always no.
        is_due = (book.broken or book.away) and (book.wants_new_epoch or book.restartable())
        if (is_due or self._epoch_is_stale) and self._numbers.has_identity:
            self._raise_epoch()
        if self._fatal is not None:
            return self._fatal
        refused, self._refused = self._refused, None
        return refused

    def _raise_epoch(self) -> None:
        identity = self._numbers.identity
        if identity.epoch >= LAST_EPOCH:
            self._numbers.identity = NO_IDENTITY  # a new id is asked for, and the partitions wait for it
            return
        raised = ProducerIdentity(identity.producer_id, identity.epoch + 1)
        count = len(self._numbers.book.restartable())
        text = "producer id %d goes on with epoch %d for %d partition(s)"
        tell(log, logging.INFO, Event.EPOCH_RAISED, text, *raised, count, each=())
        self._take_identity(raised)

    def _take_identity(self, identity: ProducerIdentity) -> None:
        self._numbers.identity = identity
        self._epoch_is_stale = False
        self._numbers.book.drop_away()
        for queue in self._numbers.book.restartable():
            self._numbers.book.restart(queue, identity, transactional=False)

    def next_request(self, now: float, data_waits: bool) -> GateRequest | None:
        """The InitProducerId request, if there is something to send and no producer id yet."""
        if self._numbers.has_identity or self._asking or not data_waits or now < self._ask_at:
            return None
        if self._switched_off:
            return None
        self._asking = True
        body = {"transactional_id": None, "transaction_timeout_ms": _NO_TIMEOUT}
        request = SchemaRequest.of(INIT_PRODUCER_ID, body)
        return GateRequest(request, None, self._on_response, self._on_error)

    def seconds_to_request(self, now: float) -> float:
        """Seconds until a producer id may be requested again."""
        if self._numbers.has_identity or self._asking or self._switched_off:
            return float("inf")
        return max(0.0, self._ask_at - now)

    def _on_response(self, response: InFlightRequest, now: float) -> None:
        error = response.error
        if error is None and (code := response.body["error_code"]) != 0:
            refused = code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            text = f"not authorized to get a producer id: {NEEDED_FOR_PRODUCER_ID}" if refused else None
            error = broker_error(code, text)
        if isinstance(error, UnsupportedVersionError):
            self._asking = False
            self._on_too_old(error, response.node, now)
            return
        if error is not None:
            self._on_error(error, now)
            return
        self._asking = False
        self._attempts = 0
        self._take_identity(ProducerIdentity(response.body["producer_id"], response.body["producer_epoch"]))
        tell(log, logging.DEBUG, Event.PRODUCER_ID_GIVEN, "producer id %d, epoch %d", *self._numbers.identity)

    def _on_too_old(self, error: UnsupportedVersionError, node: Node, now: float) -> None:
        """A broker cannot give a producer id: go on without numbers, or fail the batches that wait for it."""
        who = name_with_release(node, self._versions_of(node.id))
        if self._required:
            text = (
                f"enable.idempotence=true needs producer ids, which {who} does not give; Kafka does since 0.11. Leave "
                f"the option out, or use newer brokers: {error.message}"
            )
            explained = UnsupportedVersionError(text)
            explained.__cause__ = error
            self._on_error(explained, now)
            return
        self._switched_off = True
        self.numbering = NoNumbering()
        self._tell_switched_off(f"{who} gives no producer ids; Kafka does since 0.11", "all records")

    def _go_unnumbered(self, batch: Batch, why: str) -> None:
        """The batches of a partition go without numbers from now on."""
        queue = batch.queue
        for one in (*self._numbers.book.give_up(queue), batch):
            one.identity = ANONYMOUS
        self._unnumbered.add(queue)
        if not self._switched_off:
            self.numbering = PartlyNumbered(self._numbers, self._unnumbered)
        self._tell_switched_off(
            why, f"the records of {batch.topic_partition}, and of others in the same situation"
        )

    def _tell_switched_off(self, why: str, what: str) -> None:
        if not self._told:
            self._told = True
            tell(
                log, logging.WARNING, Event.IDEMPOTENCE_OFF,
                "idempotence is switched off for %s: %s. A retry may write a record twice, or change the order of "
                "records. Set enable.idempotence=false if that may be, or use newer brokers", what, why,
            )  # fmt: skip

    @property
    def numbers_all(self) -> bool:
        """Whether idempotence was never switched off."""
        return not self._told

    def may_go_unnumbered(self, batch: Batch, broker: str) -> bool:
        """Only if the user did not ask for idempotence."""
        if self._required:
            return False
        self._go_unnumbered(batch, f"{broker} knows no sequence numbers; Kafka does since 0.11")
        return True

    def expect_memory(self, batches: int) -> None:
        """The limit is for all partitions: any broker may lead any of them next."""
        self._numbers.book.remembered = batches

    def _is_numbered(self, queue: PartitionQueue) -> bool:
        return not self._switched_off and queue not in self._unnumbered

    def _on_error(self, error: KafkaError, now: float) -> None:
        self._asking = False
        self._ask_at = now + self._backoff.seconds(self._attempts, self._rng)
        self._attempts += 1
        if not error.retriable and isinstance(error, BrokerError):
            text = "no producer id was given: %s"
            tell(log, logging.ERROR, Event.PRODUCER_ID_REFUSED, text, error, each=(), error=error)
            self._refused = error

    def decide(self, code: int, log_start_offset: int, batch: Batch, situation: BatchSituation) -> Decision:
        """Decide by `response_policy` and by the batch's numbers, and note partitions that need a new epoch."""
        if code == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT and not self._required:
            retried = self._decide_without_numbers(batch, situation)
            if retried is not None:
                return retried
        if not self._is_numbered(batch.queue):
            return decide(code, situation, self._retries)
        decision = self._numbers.decide(code, log_start_offset, batch, situation)
        if decision.bump_epoch and not (decision.action is Action.FAIL and batch.in_doubt):
            self._numbers.book.mark_broken(batch.queue, batch.identity.base_sequence)
        return decision

    def _decide_without_numbers(self, batch: Batch, situation: BatchSituation) -> Decision | None:
        """The topic is stored in a format without numbers: a batch that had some is sent again without them."""
        was_numbered = batch.stamped is not None and batch.stamped.base_sequence >= 0
        if not was_numbered or situation.done or situation.expired or situation.attempts >= self._retries:
            return None
        self.headerless.add(batch.queue)
        if self._is_numbered(batch.queue):
            why = "its topic is stored in a message format before that of Kafka 0.11 (message.format.version)"
            self._go_unnumbered(batch, why)
        return Decision(Action.RETRY)

    def on_failure(self, batch: Batch, error: KafkaError, decision: Decision) -> None:
        """A batch failed for good. If it may have been written nevertheless, it is treated like an expired one."""
        if batch.in_doubt and not decision.fatal:
            self.on_expired(batch, error)
            return
        self._numbers.book.drop(batch)
        if batch.identity.base_sequence >= 0:
            if decision.frees_numbers:
                self._numbers.book.close_gap(batch)
            elif decision.bump_epoch:
                self._numbers.book.mark_broken(batch.queue, batch.identity.base_sequence)
        if decision.fatal:
            self._fatal = error
            self._numbers.halted = True
            self._accept(False)

    def on_expired(self, batch: Batch, error: KafkaError) -> None:
        """A batch's time is over."""
        self._numbers.on_expired(batch)

    def on_split(self, batch: Batch, pieces: Sequence[Batch]) -> None:
        """A batch was replaced by its pieces."""
        self._numbers.on_split(batch, pieces)

    def may_forget(self, queue: PartitionQueue) -> bool:
        """Whether it is known how the numbers of a partition go on."""
        return self._numbers.book.is_settled(queue)

    def forget(self, queues: Sequence[PartitionQueue]) -> None:
        """Put the numbers of these away.

        A partition for which numbering was switched off has no numbers to keep. If it is used again, it begins at 0,
        under another epoch: under the same epoch a broker would take a second 0 for a batch that it already has.
        """
        for queue in queues:
            self._numbers.book.put_away(queue)
            if queue in self._unnumbered:
                self._unnumbered.discard(queue)
                self._epoch_is_stale = True
            self.headerless.discard(queue)

    def begin_close(self) -> None:
        """Do nothing: there is no transaction."""

    def close(self, error: KafkaError) -> None:
        """Do nothing: no call waits for this gate."""
