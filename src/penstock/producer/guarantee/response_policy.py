# SPDX-License-Identifier: Apache-2.0
"""What to do with a batch when its request has ended: one pure function over one table.

The table says what each answer means; `decide` adds what depends on the batch: whether it can still be split, whether
retries and time are left. `Outcomes` does what is decided here.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple

from penstock.error_codes import ErrorCode
from penstock.errors import BROKER_ERRORS, InvalidMetadataError, error_row

if TYPE_CHECKING:
    from penstock.producer.batch._batch_cy import Batch


class Action(enum.Enum):
    """What becomes of the batch."""

    SUCCEED = "succeed"
    RETRY = "retry"
    SPLIT = "split"
    FAIL = "fail"


class Decision(NamedTuple):
    """The action, and what else has to be done.

    Attributes:
        refresh_metadata: the cluster's metadata must be asked for again.
        bump_epoch: the partition's numbering is broken or unsure: go on with a new epoch, from 0.
        restart_sequences: number the partition from 0 again, with the same epoch.
        fatal: the producer as a whole cannot go on.
        expendable: a transaction goes on without the records of the batch.
        frees_numbers: no broker has seen the batch: the next one gets its numbers.
    """

    action: Action
    refresh_metadata: bool = False
    bump_epoch: bool = False
    restart_sequences: bool = False
    fatal: bool = False
    expendable: bool = False
    frees_numbers: bool = False


class BatchSituation(NamedTuple):
    """What the decision depends on besides the answer."""

    record_count: int
    attempts: int
    expired: bool  # its delivery time-out is over
    done: bool  # it has its outcome already


class SequenceSituation(NamedTuple):
    """What the decision depends on besides, for a batch with sequence numbers.

    Attributes:
        unresolved: the partition has a batch of which it is not known whether it was written.
        renumbered: the batch got other numbers since it was sent.
        is_next: its number follows directly on the last acknowledged one.
        follows_unresolved: its number follows directly on the unresolved batch.
        log_start_offset: of the partition, as the answer says; -1 when it does not.
        last_acked_offset: the highest acknowledged offset, or -1.
        transactional: it belongs to a transaction.
    """

    unresolved: bool = False
    renumbered: bool = False
    is_next: bool = False
    follows_unresolved: bool = False
    log_start_offset: int = -1
    last_acked_offset: int = -1
    transactional: bool = False


_FATAL_WITH_IDENTITY = frozenset(
    {
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.PRODUCER_FENCED,
    }
)

# The meaning of every code that does not follow from its class: codes of a retriable class are retried, of a class
# below InvalidMetadataError with a refresh besides, and all others fail.
_SPECIAL: dict[int, Action] = {
    ErrorCode.NONE: Action.SUCCEED,
    ErrorCode.MESSAGE_TOO_LARGE: Action.SPLIT,
    ErrorCode.DUPLICATE_SEQUENCE_NUMBER: Action.SUCCEED,  # the broker has it; the offset is not known
}


def _meaning(code: int) -> Decision:
    action = _SPECIAL.get(code)
    if action is not None:
        return Decision(action)
    cls = error_row(code).cls
    return Decision(Action.RETRY if cls.retriable else Action.FAIL, issubclass(cls, InvalidMetadataError))


MEANING: dict[int, Decision] = {code: _meaning(code) for code in (ErrorCode.NONE, *BROKER_ERRORS)}


def decide(code: int, batch: BatchSituation, retries: int) -> Decision:
    """What to do with a batch whose request ended with an error code (0: no error).

    Args:
        code: the partition's error code; NETWORK_EXCEPTION when the connection broke, REQUEST_TIMED_OUT when no
            answer came in time.
        batch: the batch's situation.
        retries: how often a batch may be queued again.
    """
    meaning = MEANING.get(code) or _meaning(code)
    if meaning.action is Action.SPLIT:
        splittable = batch.record_count > 1 and not batch.done and not batch.expired
        return Decision(Action.SPLIT if splittable else Action.FAIL)
    if meaning.action is Action.RETRY:
        can_retry = batch.attempts < retries and not batch.done and not batch.expired
        return Decision(Action.RETRY if can_retry else Action.FAIL, meaning.refresh_metadata)
    return meaning


def decide_unsent(batch: Batch) -> Decision:
    """For a batch that this process could not or would not send: it fails alone, whatever the reason."""
    is_first = batch.attempts == 0 and not batch.is_piece and not batch.in_doubt
    return Decision(Action.FAIL, bump_epoch=not is_first, frees_numbers=is_first)


def decide_numbered(code: int, batch: BatchSituation, numbers: SequenceSituation, retries: int) -> Decision:
    """The same for a batch with sequence numbers, idempotent or transactional.

    A failure leaves a gap in the numbers. Without transactions a new epoch is taken; in a transaction the numbers
    behind the batch are lowered, and the transaction must be aborted. When all retries are used, nothing is adjusted,
    unless the broker said that the numbering is broken.
    """
    decision = decide(code, batch, retries)
    if batch.done or decision.action in (Action.SUCCEED, Action.SPLIT):
        return decision
    alive = batch.attempts < retries and not batch.expired
    if code == ErrorCode.UNKNOWN_PRODUCER_ID and alive:
        decision = _on_unknown_producer(numbers)
    elif code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and alive:
        decision = _on_out_of_order(numbers)
    elif code in _FATAL_WITH_IDENTITY:
        return decision._replace(fatal=True)
    if decision.action is Action.FAIL and not numbers.transactional:
        # In these two cases the numbering is known to be broken: the partition needs a new epoch.
        is_broken = code in (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID)
        return decision._replace(bump_epoch=is_broken or batch.attempts < retries)
    return decision


def _on_unknown_producer(numbers: SequenceSituation) -> Decision:
    """The broker has forgotten this producer, perhaps because retention removed all that it wrote."""
    if numbers.log_start_offset == -1 or numbers.renumbered:
        return Decision(Action.RETRY)
    removed_by_retention = numbers.last_acked_offset < numbers.log_start_offset
    if numbers.transactional:
        return (
            Decision(Action.RETRY, restart_sequences=True) if removed_by_retention else Decision(Action.FAIL)
        )
    return Decision(Action.RETRY, bump_epoch=True)


def _on_out_of_order(numbers: SequenceSituation) -> Decision:
    """The broker misses a batch before this one. That batch may still come, or never."""
    if not numbers.unresolved and (numbers.renumbered or not numbers.is_next):
        return Decision(Action.RETRY)
    if numbers.transactional:
        return Decision(Action.FAIL)
    return Decision(Action.RETRY, bump_epoch=not numbers.unresolved or numbers.follows_unresolved)
