# SPDX-License-Identifier: Apache-2.0
"""Handles the batches of a request that has ended: they succeed, are sent again, are split, or fail.

The gate decides by `response_policy`. This module carries that out for the batch, its memory, its numbers and its
callers. An error with one batch does not affect the others of the request. I/O thread only. Compiled if possible.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock._events import Event, tell, tell_error
from penstock._time import ExponentialBackoff
from penstock.error_codes import ErrorCode
from penstock.config.kinds import INT_MAX
from penstock.errors import BrokerError, InvalidRecordError, KafkaError, broker_error
from penstock.producer.batch._batch_cy import BatchState
from penstock.producer.guarantee.gate import Gate
from penstock.producer.guarantee.response_policy import Action, BatchSituation, Decision, decide_unsent
from penstock.producer.io.converting import EARLIER_ATTEMPT, Refusal
from penstock.producer.metadata.cluster import LeaderHint
from penstock.producer.metadata.metadata import ProducerMetadata
from penstock.types import Node, TopicPartition

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

# In this order, so that type checkers see the classes: to them the second branch is of an unknown type.
if not cython.compiled:
    from penstock._stats_cy import CALLBACKS, OTHER
    from penstock.network._connection_cy import InFlightRequest
    from penstock.producer.batch._accumulator_cy import RecordAccumulator
    from penstock.producer.batch._batch_cy import Batch
    from penstock.producer.batch._delivery_cy import BatchResult
    from penstock.producer.guarantee._sequences_cy import Numbering
    from penstock.producer.io._metrics_cy import SenderMetrics
    from penstock.protocol._produce_cy import PartitionResponse, ProduceResponse
else:
    from cython.cimports.penstock._stats_cy import CALLBACKS, OTHER  # type: ignore[no-redef]
    from cython.cimports.penstock.network._connection_cy import InFlightRequest  # type: ignore[no-redef]
    from cython.cimports.penstock.producer.batch._accumulator_cy import (  # type: ignore[no-redef]
        RecordAccumulator,
    )
    from cython.cimports.penstock.producer.batch._batch_cy import Batch  # type: ignore[no-redef]
    from cython.cimports.penstock.producer.batch._delivery_cy import BatchResult  # type: ignore[no-redef]
    from cython.cimports.penstock.producer.guarantee._sequences_cy import Numbering  # type: ignore[no-redef]
    from cython.cimports.penstock.producer.io._metrics_cy import SenderMetrics  # type: ignore[no-redef]
    from cython.cimports.penstock.protocol._produce_cy import (  # type: ignore[no-redef]
        PartitionResponse,
        ProduceResponse,
    )

log = logging.getLogger("penstock.producer")

# After these a batch may have been written.
_IN_DOUBT = frozenset(
    {
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,  # it lost the leadership while it waited for followers
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
# Codes with which a broker refuses a batch because of some of its records.
_REFUSED_RECORD = frozenset({ErrorCode.INVALID_TIMESTAMP, ErrorCode.INVALID_RECORD})
# The rights that a broker asks for when it refuses a batch.
_NEEDED_RIGHTS = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "WRITE on the topic",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "IDEMPOTENT_WRITE on the cluster",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "WRITE on the transactional id",
}
# The answer may name the new leader.
_LEADER_MOVED = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})
_UNEXPECTED = Decision(Action.FAIL, bump_epoch=True)
_NOT_HANDLED = "the answer to a batch of %s could not be handled"
_IN_FLIGHT, _SUCCEEDED = BatchState.IN_FLIGHT, BatchState.SUCCEEDED


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


@dataclass(frozen=True, slots=True)
class Retries:
    """How often a batch is sent again, and the wait before."""

    limit: int
    backoff: ExponentialBackoff
    rng: random.Random

    def schedule(self, batch: Batch, now: float) -> None:
        """Count another retry of a batch, and set its time."""
        batch.attempts += 1
        batch.retry_at = now + self.backoff.seconds(batch.attempts - 1, self.rng)


@cython.cclass
class Outcomes:
    """Gives batches their outcome when their request has ended, or queues them again.

    Not final: the simulator, and tests, watch it through the methods of a class of their own.

    Args:
        accumulator: where batches go back to, and their memory.
        gate: numbers batches, and is told what became of them.
        metadata: is told of leaders that moved.
        retries: limit and backoff of retries.
        metrics: counts outcomes.
    """

    _accumulator: RecordAccumulator
    _gate = cython.declare(object)
    _metadata = cython.declare(object)
    _retries = cython.declare(object)
    _metrics: SenderMetrics
    _split_topics = cython.declare(set, visibility="readonly")

    def __init__(
        self,
        accumulator: RecordAccumulator,
        gate: Gate,
        metadata: ProducerMetadata,
        retries: Retries,
        metrics: SenderMetrics,
    ) -> None:
        self._accumulator = accumulator
        self._gate = gate
        self._metadata = metadata
        self._retries = retries
        self._metrics = metrics
        self._split_topics = set()  # topics with a batch that was too large: logged once for each

    def keep_topics(self, kept: Container[str]) -> None:
        """Forget for which other topics it was logged that batches are too large."""
        self._split_topics = {topic for topic in self._split_topics if topic in kept}

    # ---- a request has ended

    def on_response(self, response: InFlightRequest, batches: list, now: cython.double) -> None:
        """A request has ended. Even after an error here, each of its batches is queued again or has its outcome."""
        try:
            if response.error is not None:
                self._on_failure(response, response.error, batches, now)
            else:
                body = _written_unanswered(batches) if response.body is None else response.body
                self._on_answer(body, response.node, batches, now)
        except Exception as cause:  # noqa: BLE001 - it is logged
            tell_error(
                log, Event.BATCH_ERROR, "the end of a request to %s could not be handled", response.node,
                node=response.node, error=cause,
            )  # fmt: skip
            # They are in no queue and not in flight any more: a batch without an outcome now would never get one.
            for batch in batches:
                self._fail_unhandled(batch, cause, now)
                self._release(batch)

    @cython.cfunc
    def _on_answer(self, body: ProduceResponse, node: Any, batches: list, now: cython.double) -> Any:
        written: list = []
        answers: list = []
        others: list = match_answers(batches, body.partitions, written, answers)
        if len(written) < len(body.partitions):
            self._take_hints(body)
        for batch, answer in others:
            self._complete(batch, answer or _silence(node, batch), now)
        if written:
            self._acknowledge(written, answers, now)

    def _on_failure(
        self, response: InFlightRequest, error: KafkaError, batches: Sequence[Batch], now: float
    ) -> None:
        """The request failed: no answer will come."""
        code = error.code if isinstance(error, BrokerError) else ErrorCode.NETWORK_EXCEPTION
        tell(
            log, logging.DEBUG, Event.PRODUCE_REQUEST_FAILED, "a produce request to %s failed: %s",
            response.node, error, node=response.node, error=error,
        )  # fmt: skip
        if response.version < 0:
            self.on_unsent(error, batches, now)
            return
        # Of a broker's error only the message is used: its name and code are added later.
        text = error.message if isinstance(error, BrokerError) else str(error)
        for batch in batches:
            answer = PartitionResponse(*batch.topic_partition, code, error_message=text)
            self._complete(batch, answer, now, error)

    def on_unsent(self, error: KafkaError, batches: Sequence[Batch], now: float) -> None:
        """These batches were refused before their request was written: they fail, and the producer goes on."""
        error.fatal = False  # as its class may say, for a call without which the producer is of no use
        for batch in batches:
            if not batch.done:
                self._give_up(batch, error, now, decide_unsent(batch))
            self._release(batch)

    def on_refused(self, refusal: Refusal, now: float) -> None:
        """A batch cannot be sent to its leader as it is. This request has written nothing of it."""
        self._metadata.request_update(now)  # another broker may lead it by now, and no answer will say so
        if isinstance(refusal.reason, KafkaError):
            self.on_unsent(refusal.reason, [refusal.batch], now)
        else:
            self._complete(refusal.batch, refusal.reason, now)

    # ---- batches that were written

    @cython.cfunc
    def _acknowledge(self, written: list, answers: list, now: cython.double) -> Any:
        """Complete the batches that were written. These are nearly all batches, so this is one pass over all of them.

        Their memory goes back to the pool before callbacks run. So a thread that waits for memory need not wait for
        callbacks, and a callback that sends can use the memory of its own record.
        """
        unhandled: list = []
        batches: list = []
        done: list = _note_written(written, answers, self._gate.numbering, batches, unhandled)
        try:
            self._accumulator.release_all(batches)
            self._metrics.on_written(batches, now)  # before callbacks: they must see the new values
        finally:
            # They are in no queue and not in flight any more: a batch without an outcome now would never get one.
            _settle_written(batches, done, self._metrics)
            self._accumulator.forget_all(batches)
        for batch, trouble in unhandled:
            _tell_unhandled(_NOT_HANDLED, batch, trouble)
            self._fail_unhandled(batch, trouble, now)

    # ---- one batch

    def _complete(
        self, batch: Batch, answer: PartitionResponse, now: float, error: KafkaError | None = None
    ) -> None:
        """Act on the answer to a batch. An error with it is logged, so that the other batches are handled."""
        try:
            self._apply(batch, answer, now, error)
        except Exception as cause:  # noqa: BLE001 - it is logged
            _tell_unhandled(_NOT_HANDLED, batch, cause)
            self._fail_unhandled(batch, cause, now)
        finally:
            self._release(batch)

    def _apply(self, batch: Batch, answer: PartitionResponse, now: float, error: KafkaError | None) -> None:
        code = answer.error_code
        if code in _IN_DOUBT:
            batch.in_doubt = True
        expired = batch.reached_timeout(now, self._accumulator.delivery_timeout)
        situation = BatchSituation(batch.record_count, batch.attempts, expired, batch.done)
        decision = self._gate.decide(code, answer.log_start_offset, batch, situation)
        if decision.refresh_metadata:
            self._metadata.request_update(now)
        if decision.action is Action.SUCCEED:
            self._gate.numbering.on_success(batch, answer.base_offset)
            self._succeed(batch, answer, now)
        elif decision.action is Action.RETRY:
            self._retry(batch, answer, now)
        elif decision.action is Action.SPLIT:
            count = self._accumulator.split(batch, self._gate.on_split)
            tell(
                log,
                logging.DEBUG if batch.queue.topic in self._split_topics else logging.WARNING,
                Event.BATCH_SPLIT,
                "a batch of %d records for %s was too large for the broker; it is sent again %s. A smaller "
                "batch.size, or a larger message.max.bytes on the broker, avoids this.",
                batch.record_count, batch.topic_partition, "as it is" if count == 1 else f"in {count} pieces",
                each=batch.queue.topic, place=batch.topic_partition, records=batch.record_count,
            )  # fmt: skip
            self._split_topics.add(batch.queue.topic)
            self._metrics.on_split(now)
        elif not batch.done and (refused := self._refused_alone(batch, answer, decision, expired)):
            self._metrics.on_refused(batch.queue.topic, len(refused), now)  # first, as in `fail`
            with self._metrics.callbacks():
                count = self._accumulator.leave_out(batch, refused, self._gate.on_split)
            first = next(iter(refused.values()))
            tell(
                log, logging.WARNING, Event.RECORDS_REFUSED,
                "%d of %d records for %s cannot be written; the other %d are sent again without them: %s",
                len(refused), batch.record_count, batch.topic_partition, count, first,
                each=batch.queue.topic, place=batch.topic_partition, records=len(refused),
                error=first,
            )  # fmt: skip
        elif not batch.done:
            failure = error or _error(batch, answer, self._gate.transactional_id)
            if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED and not (batch.in_doubt or expired):
                may_lose = batch.result.may_lose_all(batch.record_count)
                decision = decision._replace(expendable=may_lose and batch.attempts < self._retries.limit)
            self._gate.on_failure(batch, failure, decision)
            self.fail(batch, failure, now, _record_errors(answer))
            if decision.expendable:
                self._watch_left_out(batch)

    def _succeed(self, batch: Batch, answer: PartitionResponse, now: float) -> None:
        """Complete a batch that was written, though its answer has an error code: a duplicate, for instance."""
        if batch.done:
            written = batch.succeed(answer.base_offset, answer.log_append_time_ms)  # too late, which it logs
        else:
            self._metrics.on_written([batch], now)  # first: a callback must see the new value
            with self._metrics.callbacks():
                written = batch.succeed(answer.base_offset, answer.log_append_time_ms)
        if written:
            self._accumulator.finish(batch)

    def _refused_alone(
        self, batch: Batch, answer: PartitionResponse, decision: Decision, expired: bool
    ) -> dict[int, KafkaError]:
        """The records that the broker named as bad, if the others can be sent again without them; else nothing.

        A batch that was refused was not written, so its sequence numbers are free. The batches behind it need other
        numbers: they get a new epoch or, in a transaction, lower numbers. A transaction goes on only if its owner has
        said that these records may be left out; otherwise a failed record means that it must be aborted.
        """
        errors = {
            index: error
            for index, error in (_record_errors(answer) or {}).items()
            if 0 <= index < batch.record_count
        }
        if not errors or batch.in_doubt or expired:
            return {}
        if self._gate.transactional_id is not None:
            can_go_on = batch.attempts < self._retries.limit and batch.result.may_lose(errors)
        else:
            can_go_on = len(errors) < batch.record_count and (
                decision.bump_epoch or batch.identity.base_sequence < 0
            )
        return errors if can_go_on else {}

    def fail_refused(self, refused: Mapping[TopicPartition, KafkaError], now: float) -> None:
        """Fail the batches of partitions that cannot become part of the transaction.

        The transaction goes on if all these records may be left out.
        """
        for batch in self._accumulator.take_waiting_for(refused):
            error = refused[batch.topic_partition]
            decision = Decision(Action.FAIL, expendable=batch.result.may_lose_all(batch.record_count))
            self._give_up(batch, error, now, decision)

    def _retry(self, batch: Batch, answer: PartitionResponse, now: float) -> None:
        self._retries.schedule(batch, now)
        batch.last_error = _error(batch, answer, self._gate.transactional_id)
        batch.move_to(BatchState.QUEUED)
        self._accumulator.requeue([batch])
        self._metrics.on_retry(batch, now)
        tell(
            log,
            logging.WARNING if batch.attempts == 1 else logging.DEBUG,
            Event.BATCH_RETRIED,
            "a batch of %d record%s for %s is sent again (attempt %d%s): %s",
            batch.record_count, "" if batch.record_count == 1 else "s", batch.topic_partition, batch.attempts,
            "" if self._retries.limit == INT_MAX else f" of {self._retries.limit}", batch.last_error,
            each=batch.queue.topic, place=batch.topic_partition,
            records=batch.record_count, attempt=batch.attempts, error=batch.last_error,
        )  # fmt: skip

    def fail(
        self, batch: Batch, error: KafkaError, now: float, record_errors: dict[int, KafkaError] | None = None
    ) -> None:
        """Fail a batch, unless it has its outcome."""
        if batch.done:
            batch.fail(error)  # too late, which it logs
            return
        try:
            self._metrics.on_batch_error(batch, now)  # first: a callback must see the new value
        except Exception as trouble:  # noqa: BLE001 - it is logged, and its records must have their outcome
            _tell_unhandled("the failure of a batch of %s could not be counted", batch, trouble)
        with self._metrics.callbacks():
            failed = batch.fail(error, record_errors)
        if failed:
            try:
                self._accumulator.finish(batch)
            except Exception as trouble:  # noqa: BLE001 - it is logged, and its records are told: others are not yet
                _tell_unhandled("a batch of %s has failed, but could not be cleared away", batch, trouble)

    def _fail_unhandled(self, batch: Batch, cause: Exception, now: float) -> None:
        if batch.state is BatchState.IN_FLIGHT:
            failure = KafkaError(
                f"the answer to a batch of {batch.topic_partition} could not be handled: {cause!r}"
            )
            failure.__cause__ = cause
            # It may have been written. If it were taken for unwritten, the batches behind it would get other numbers.
            batch.in_doubt = True
            self._give_up(batch, failure, now, _UNEXPECTED)

    def _give_up(self, batch: Batch, failure: KafkaError, now: float, decision: Decision) -> None:
        """Fail a batch after an unexpected error. Another error here keeps no batch from its outcome."""
        try:
            self._gate.on_failure(batch, failure, decision)
        except Exception as trouble:  # noqa: BLE001 - it is logged
            _tell_unhandled("the failure of a batch of %s could not be noted", batch, trouble)
        self.fail(batch, failure, now)
        if decision.expendable:
            self._watch_left_out(batch)

    def _watch_left_out(self, batch: Batch) -> None:
        """Log these failed records if nobody asks for them: a transaction that goes on without them raises no error."""
        self._accumulator.unseen.watch(batch.result.unseen)

    def _release(self, batch: Batch) -> None:
        """The request no longer holds the batch: its memory may go back."""
        if batch.wire is None:
            return  # it was released with its outcome
        try:
            self._accumulator.release(batch)
        except Exception as trouble:  # noqa: BLE001 - it is logged
            _tell_unhandled("the memory of a batch of %s could not be given back", batch, trouble)

    def _take_hints(self, body: ProduceResponse) -> None:
        """Use what the answer says of partitions that have another leader now."""
        hints = [
            LeaderHint(answer.topic, answer.partition, answer.leader_id, answer.leader_epoch)
            for answer in body.partitions
            if answer.error_code in _LEADER_MOVED and answer.leader_id >= 0 and answer.leader_epoch >= 0
        ]
        if hints:
            self._metadata.update_leader_hints(hints, body.node_endpoints)


# ---- all batches of an answer


@cython.ccall
def match_answers(batches: list, answers: list, written: list, their_answers: list) -> list:
    """Separate the batches that were written from the others, which are returned; each with its answer, or None.

    Args:
        batches: those of a request.
        answers: the PartitionResponses to it.
        written: gets those that were written, and `their_answers` the answer to each.
    """
    others: list = []
    batch: Batch
    answer: PartitionResponse | None
    at: cython.Py_ssize_t
    by_place: dict | None = None
    if not _in_order(batches, answers):
        by_place = {(answer.topic, answer.partition): answer for answer in answers}
    for at in range(len(batches)):
        batch = batches[at]
        answer = answers[at] if by_place is None else by_place.get(batch.queue.place)
        if answer is not None and answer.error_code == 0 and batch.state is _IN_FLIGHT:
            written.append(batch)
            their_answers.append(answer)
        else:
            others.append((batch, answer))
    return others


@cython.cfunc
def _in_order(batches: list, answers: list) -> cython.bint:  # type: ignore[type-arg]
    """Whether each answer is for the batch at the same place. Brokers nearly always answer in that order."""
    at: cython.Py_ssize_t
    batch: Batch
    answer: PartitionResponse
    if len(answers) != len(batches):
        return False
    for at in range(len(batches)):
        batch = batches[at]
        answer = answers[at]
        if answer.partition != batch.queue.partition:
            return False
        if answer.topic is not batch.queue.topic and answer.topic != batch.queue.topic:
            return False
    return True


@cython.cfunc
def _note_written(written: list, answers: list, numbering: Any, batches: list, failed: list) -> list:
    """Tell the numbering which batches were written. Returns the answers to those that are done.

    Args:
        batches: gets the batches that are done.
        failed: gets (batch, error) where that failed.
    """
    done: list = []
    batch: Batch
    answer: PartitionResponse
    # Nearly always it is a Numbering, whose methods compiled code calls without the interpreter.
    numbers: Numbering | None = numbering if isinstance(numbering, Numbering) else None
    at: cython.Py_ssize_t
    for at in range(len(written)):
        batch = written[at]
        answer = answers[at]
        try:
            if numbers is None:
                numbering.on_success(batch, answer.base_offset)
            else:
                numbers.on_success(batch, answer.base_offset)
            batch.move_to(_SUCCEEDED)
        except Exception as error:  # noqa: BLE001 - logged by the caller, and the others get their turn
            failed.append((batch, error))
        else:
            done.append(answer)
            batches.append(batch)
    return done


@cython.cfunc
def _settle_written(batches: list, answers: list, metrics: SenderMetrics) -> Any:
    """Settle the results of batches that were written. Event loops are woken at the end, once for all of them."""
    begun: cython.double = -1.0  # when the first callback was called
    now: cython.double
    batch: Batch
    answer: PartitionResponse
    result: BatchResult
    holder: Any = None
    at: cython.Py_ssize_t
    for at in range(len(batches)):
        batch = batches[at]
        answer = answers[at]
        result = batch.result
        try:
            if not result.settle_unwatched(answer.base_offset, answer.log_append_time_ms):
                if begun < 0:
                    begun = metrics.enter(CALLBACKS)
                # The callback of a single record wakes at most one loop, and once.
                told = result.is_followed or len(result.callbacks) > (len(batches) == 1)
                if told and holder is None and result.owner is not None:
                    holder = result.owner
                    holder.hold()
                batch.result.settle(answer.base_offset, answer.log_append_time_ms)
        except Exception as trouble:  # noqa: BLE001 - it is logged, and the others get their turn
            _tell_unhandled("the outcome of a batch of %s could not be told", batch, trouble)
    if holder is not None:
        holder.release()
    if begun >= 0:
        now = metrics.enter(OTHER)
        metrics.on_callbacks(now - begun, now)


# ---- errors


def _tell_unhandled(text: str, batch: Batch, trouble: BaseException) -> None:
    tell_error(
        log, Event.BATCH_ERROR, text, batch.topic_partition,
        place=batch.topic_partition, error=trouble,
    )  # fmt: skip


def _written_unanswered(batches: list) -> ProduceResponse:  # type: ignore[type-arg]
    """The answer for acks=0, where no broker answers: all that is known is that they were written to the socket."""
    places = [batch.topic_partition for batch in batches]
    answers = [PartitionResponse(place.topic, place.partition, ErrorCode.NONE) for place in places]
    return ProduceResponse(0, answers, [])


def _silence(node: Node, batch: Batch) -> PartitionResponse:
    message = f"{node} did not say what became of the batch for {batch.topic_partition}"
    return PartitionResponse(*batch.topic_partition, ErrorCode.NETWORK_EXCEPTION, error_message=message)


def _error(batch: Batch, answer: PartitionResponse, transactional_id: str | None) -> KafkaError:
    if answer.record_errors:
        return InvalidRecordError(
            f"the record {'is not sent again' if batch.in_doubt else 'was not written'} because another record of its "
            f"batch for {batch.topic_partition} was refused: {answer.error_message or 'no reason given'}"
            f"{EARLIER_ATTEMPT if batch.in_doubt else ''}",
            code=answer.error_code,
        )
    described = broker_error(answer.error_code, answer.error_message)
    text = f"{batch.topic_partition}: {described.message}"
    if answer.error_code in _NEEDED_RIGHTS:
        text += f": the right {_NEEDED_RIGHTS[answer.error_code]} is needed"
    if answer.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        text += f" ({transactional_id!r})"
    if answer.error_code in _REFUSED_RECORD and batch.record_count > 1:
        text += (
            f". The broker does not say which of the {batch.record_count} records of the batch it refused (Kafka does "
            "since 2.4), so that none of them was written"
        )
    failure = broker_error(answer.error_code, text)
    failure.names_record = answer.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return failure


def _record_errors(answer: PartitionResponse) -> dict[int, KafkaError] | None:
    """Errors of single records: those that the broker named; a lone one has the partition's own error."""
    if not answer.record_errors:
        return None
    errors: dict[int, KafkaError] = {}
    for index, message in answer.record_errors:
        lone = len(answer.record_errors) == 1
        error = (
            broker_error(answer.error_code, message or answer.error_message)
            if lone
            else InvalidRecordError(message)
        )
        error.names_record = True
        errors[index] = error
    return errors
