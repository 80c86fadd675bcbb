# SPDX-License-Identifier: Apache-2.0
"""The states of a transactional producer: which follow which, and what each of them lets a caller do."""

from __future__ import annotations

import pytest

from penstock.errors import (
    DeliveryTimeoutError,
    IllegalStateError,
    InvalidProducerEpochError,
    KafkaError,
    ProducerFencedError,
    TopicAuthorizationError,
)
from penstock.producer.guarantee.transactions.states import TransactionState, TxnState

S = TxnState

# Written out: where each state may be entered from.
SOURCES = {
    S.UNINITIALIZED: {S.READY, S.ABORTABLE_ERROR, S.INITIALIZING, S.IN_TRANSACTION},  # the last: a detach
    S.INITIALIZING: {S.UNINITIALIZED, S.COMMITTING, S.ABORTING},
    S.READY: {S.INITIALIZING, S.COMMITTING, S.ABORTING},
    S.IN_TRANSACTION: {S.READY},
    S.COMMITTING: {S.IN_TRANSACTION},
    S.ABORTING: {S.IN_TRANSACTION, S.ABORTABLE_ERROR},
    S.ABORTABLE_ERROR: {S.IN_TRANSACTION, S.COMMITTING, S.ABORTABLE_ERROR, S.INITIALIZING},
    S.FATAL_ERROR: set(TxnState),
}
ERROR = TopicAuthorizationError("no")


def state_at(current: TxnState, error: KafkaError | None = None) -> TransactionState:
    state = TransactionState()
    state.current = current
    state.error = error
    return state


@pytest.mark.parametrize("after", TxnState)
@pytest.mark.parametrize("before", TxnState)
def test_the_table_decides_about_every_change(before, after):
    """Requirement 74."""
    state = state_at(before)
    if before in SOURCES[after]:
        assert state.can_move_to(after)
        state.move_to(after, ERROR)
        assert state.current is after
    else:
        assert not state.can_move_to(after)
        with pytest.raises(IllegalStateError, match="cannot become"):
            state.move_to(after)
        assert state.current is before  # the caller may do better


def test_a_producer_begins_uninitialized():
    state = TransactionState()
    assert state.current is S.UNINITIALIZED
    assert not state.has_error


def test_an_error_is_kept_until_the_abort_and_no_longer():
    state = state_at(S.IN_TRANSACTION)
    state.move_to(S.ABORTABLE_ERROR, ERROR)
    assert state.has_error
    assert state.error is ERROR
    state.move_to(S.ABORTING)
    assert not state.has_error
    assert state.error is None


def test_the_first_fatal_error_is_the_one_that_counts():
    state = state_at(S.IN_TRANSACTION)
    state.move_to(S.FATAL_ERROR, ERROR)
    state.move_to(S.FATAL_ERROR, KafkaError("later"))
    assert state.error is ERROR


@pytest.mark.parametrize("current", [S.IN_TRANSACTION, S.COMMITTING, S.INITIALIZING, S.ABORTABLE_ERROR])
def test_an_error_that_asks_for_an_abort_is_noted(current):
    state = state_at(current)
    assert state.note_abortable(ERROR)
    assert (state.current, state.error) == (S.ABORTABLE_ERROR, ERROR)


@pytest.mark.parametrize("current", [S.ABORTING, S.FATAL_ERROR])
def test_it_is_ignored_where_there_is_nothing_left_to_abort(current):
    state = state_at(current)
    assert not state.note_abortable(ERROR)
    assert state.current is current


@pytest.mark.parametrize("current", [S.READY, S.UNINITIALIZED])
def test_it_is_fatal_outside_a_transaction(current):
    """Requirement 74."""
    state = state_at(current)
    assert state.note_abortable(ERROR)
    assert state.current is S.FATAL_ERROR
    assert isinstance(state.error, IllegalStateError)


@pytest.mark.parametrize(
    "error", [ProducerFencedError("f"), InvalidProducerEpochError("e"), IllegalStateError("i")]
)
def test_errors_that_say_all_are_raised_as_they_are(error):
    state = state_at(S.FATAL_ERROR, error)
    with pytest.raises(type(error)) as caught:
        state.raise_error("send()")
    assert caught.value is not error  # every caller has a traceback of its own
    assert caught.value.__cause__ is error
    assert str(caught.value) == str(error)


@pytest.mark.parametrize(
    ("current", "way_out"),
    [(S.ABORTABLE_ERROR, r"abort_transaction\(\)"), (S.FATAL_ERROR, "make a new one")],
)
def test_other_errors_come_with_the_call_and_the_way_out(current, way_out):
    cause = DeliveryTimeoutError("too late")
    with pytest.raises(KafkaError, match=rf"send\(\).*too late.*{way_out}") as caught:
        state_at(current, cause).raise_error("send()")
    assert caught.value.__cause__ is cause
    assert not caught.value.retriable


@pytest.mark.parametrize(
    "current", [state for state in TxnState if state.name not in ("ABORTABLE_ERROR", "FATAL_ERROR")]
)
def test_without_an_error_nothing_is_raised(current):
    state_at(current).raise_error("send()")
