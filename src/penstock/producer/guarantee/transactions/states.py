# SPDX-License-Identifier: Apache-2.0
"""The states of a transactional producer, as a table. No I/O, no thread, no clock.

Rules:
1. Every change of state goes through `TransactionState.move_to`, and the table says which are allowed.
2. A wrong call on an application thread raises, and the state stays as it was: the caller may do better. A wrong change
   on the I/O thread means that client and coordinator no longer agree: it fails the producer for good.
3. FATAL_ERROR is never left. An abortable error that comes while the transaction is being aborted is ignored: aborting
   is what it asks for.
"""

from __future__ import annotations

import enum

from penstock._identity import ProducerIdentity
from penstock.error_codes import ErrorCode
from penstock.errors import (
    IllegalStateError,
    InvalidProducerEpochError,
    KafkaError,
    ProducerFailedError,
    ProducerFencedError,
    TransactionAbortableError,
)


class TxnState(enum.Enum):
    """Where a transactional producer is."""

    UNINITIALIZED = "uninitialized"
    INITIALIZING = "initializing"
    READY = "ready"
    IN_TRANSACTION = "in a transaction"
    COMMITTING = "committing"
    ABORTING = "aborting"
    ABORTABLE_ERROR = "waiting for an abort"
    FATAL_ERROR = "stopped by a fatal error"


_S = TxnState

# From each state to those that may follow it. From any state to FATAL_ERROR.
TRANSITIONS: dict[TxnState, frozenset[TxnState]] = {
    _S.UNINITIALIZED: frozenset({_S.INITIALIZING}),
    _S.INITIALIZING: frozenset({_S.READY, _S.ABORTABLE_ERROR, _S.UNINITIALIZED}),
    _S.READY: frozenset({_S.IN_TRANSACTION, _S.UNINITIALIZED}),
    _S.IN_TRANSACTION: frozenset({_S.COMMITTING, _S.ABORTING, _S.ABORTABLE_ERROR, _S.UNINITIALIZED}),
    _S.COMMITTING: frozenset({_S.READY, _S.INITIALIZING, _S.ABORTABLE_ERROR}),
    _S.ABORTING: frozenset({_S.READY, _S.INITIALIZING}),
    _S.ABORTABLE_ERROR: frozenset({_S.ABORTING, _S.ABORTABLE_ERROR, _S.UNINITIALIZED}),
    _S.FATAL_ERROR: frozenset(),
}


class TransactionState:
    """The present state, and the error that led to it. Guarded by its owner's lock."""

    def __init__(self) -> None:
        self.current = TxnState.UNINITIALIZED
        self.error: KafkaError | None = None

    def can_move_to(self, target: TxnState) -> bool:
        """Whether the table allows it."""
        return target is TxnState.FATAL_ERROR or target in TRANSITIONS[self.current]

    def move_to(self, target: TxnState, error: KafkaError | None = None) -> None:
        """Change the state.

        Raises:
            IllegalStateError: the table does not allow it; nothing has changed.
        """
        if not self.can_move_to(target):
            raise IllegalStateError(
                f"the producer is {self.current.value}: it cannot become {target.value} now"
            )
        if self.current is TxnState.FATAL_ERROR:
            return  # the first fatal error is the one that counts
        self.current = target
        self.error = error if target in (TxnState.ABORTABLE_ERROR, TxnState.FATAL_ERROR) else None

    def note_abortable(self, error: KafkaError) -> bool:
        """An error that asks for an abort came up on the I/O thread; False when there is nothing left to abort."""
        if self.current in (TxnState.ABORTING, TxnState.FATAL_ERROR):
            return False
        if not self.can_move_to(TxnState.ABORTABLE_ERROR):
            self.move_to(
                TxnState.FATAL_ERROR,
                IllegalStateError(f"an error came while the producer was {self.current.value}: {error}"),
            )
            return True
        self.move_to(TxnState.ABORTABLE_ERROR, error)
        return True

    @property
    def has_error(self) -> bool:
        """Whether work cannot go on without an abort, or not at all."""
        return self.current in (TxnState.ABORTABLE_ERROR, TxnState.FATAL_ERROR)

    @property
    def aborting(self) -> bool:
        """Whether batches that were not sent are to be dropped."""
        return self.current is TxnState.ABORTING

    def raise_error(self, call: str) -> None:
        """Raise the error that forbids a call, if there is one.

        Raises:
            ProducerFencedError, InvalidProducerEpochError: as they came.
            TransactionAbortableError, ProducerFailedError: with the error as its cause.
        """
        if not self.has_error or self.error is None:
            return
        if isinstance(self.error, InvalidProducerEpochError) and self.current is TxnState.ABORTABLE_ERROR:
            raise InvalidProducerEpochError(
                f"{self.error.message}; call abort_transaction(), which tells whether another producer has taken over"
            ) from self.error
        if isinstance(self.error, ProducerFencedError | InvalidProducerEpochError | IllegalStateError):
            raise type(self.error)(*self.error.args) from self.error
        if self.current is TxnState.FATAL_ERROR:
            raise ProducerFailedError(
                f"{call} is not possible after an error ({self.error}); this producer cannot go on: close it and make "
                "a new one"
            ) from self.error
        raise TransactionAbortableError(
            f"{call} is not possible after an error ({self.error}); call abort_transaction(), then go on"
        ) from self.error


def for_the_transaction(error: KafkaError) -> KafkaError:
    """The error that calls raise. One that says that the call may be repeated is wrapped: it may not be."""
    if not error.retriable and getattr(error, "code", 0) != ErrorCode.INVALID_TXN_STATE:
        return error
    wrapped = TransactionAbortableError(f"a record was not delivered: {error}")
    wrapped.__cause__ = error
    return wrapped


def fence_text(transactional_id: str, identity: ProducerIdentity, timeout_ms: int) -> str:
    """The text of the error of a fenced producer: who may have fenced it, and what to do."""
    used = (
        f" (this one is producer id {identity.producer_id}, epoch {identity.epoch})" if identity.valid else ""
    )
    return (
        f"another producer has taken over the transactional id {transactional_id!r}{used}; or a transaction was open "
        f"for longer than transaction.timeout.ms ({timeout_ms}), and its coordinator ended it. What this producer had "
        "not committed is aborted. Close this producer; make a new one if no newer one works. Producers that work at "
        "the same time need different transactional ids"
    )
