# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import random
from typing import Any

import pytest
from control.fakes import (
    CONCURRENT_TRANSACTIONS,
    COORDINATOR_LOADING,
    COORDINATOR_NOT_AVAILABLE,
    ID_AUTHORIZATION_FAILED,
    INVALID_TXN_STATE,
    NOT_COORDINATOR,
    PRODUCER_FENCED,
)

from penstock.control.ending import (
    ACTIONS,
    EXPIRY_GRACE_SECONDS,
    TRANSITIONS,
    AbortCause,
    Action,
    Decision,
    Ending,
    Event,
    State,
    TransactionOutcome,
)
from penstock.control.markers import Found, Marker, SearchEnd
from penstock.errors import (
    BROKER_ERRORS,
    AuthenticationError,
    KafkaError,
    KafkaTimeoutError,
    NetworkError,
    ProtocolError,
    RequestTimedOutError,
    TransactionAbortedError,
    TransactionalIdAuthorizationError,
    TransactionCommittedError,
    TransactionUnknownError,
    UnsupportedVersionError,
    broker_error,
)
from penstock.transaction_handle import TransactionHandle

FENCE, TIME_OUT, OTHERWISE = AbortCause.FENCE, AbortCause.TIME_OUT, AbortCause.DECIDED_OTHERWISE
UNKNOWN_SERVER_ERROR = -1
INVALID_PRODUCER_ID_MAPPING = 49
TRANSACTION_ABORTABLE = 120
A_NEW_CODE = 4711


def handle(**changed: Any) -> TransactionHandle:
    values: dict[str, Any] = {
        "transactional_id": "x",
        "producer_id": 1,
        "producer_epoch": 4,
        "end_txn_version": 5,
        "topic": "t",
        "partition": 0,
        "offset": 10,
        "record_count": 2,
        "timeout_ms": 60_000,
    }
    return TransactionHandle(**(values | changed))


def marker(*, commit: bool, epoch: int = 5) -> Found:
    return Found(marker=Marker(commit, 12, epoch, 0, 0))


# ---- the table


def reachable(table: Any) -> set[State]:
    found = {State.ASKING}
    while more := {target for (source, _), target in table.items() if source in found} - found:
        found |= more
    return found


def test_every_state_can_be_reached_and_says_what_to_do() -> None:
    assert reachable(TRANSITIONS) == set(State) == set(ACTIONS)


def test_every_event_is_used() -> None:
    assert {event for _, event in TRANSITIONS} == set(Event)


def test_final_states_report_and_only_they() -> None:
    final = set(State) - {source for source, _ in TRANSITIONS}
    assert final == {state for state, action in ACTIONS.items() if action is Action.REPORT}


def test_commit_and_abort_are_known_by_an_answer_or_a_marker_alone() -> None:
    leading = {
        target: {event for (_, event), to in TRANSITIONS.items() if to is target}
        for target in (State.COMMITTED, State.ABORTED)
    }
    assert leading == {
        State.COMMITTED: {Event.DONE_COMMIT, Event.COMMIT_MARKER},
        State.ABORTED: {Event.DONE_ABORT, Event.ABORT_MARKER},
    }


# ---- answers of the coordinator


@pytest.mark.parametrize(("commit", "decision"), [(True, Decision.COMMITTED), (False, Decision.ABORTED)])
def test_none_is_done(commit: bool, decision: Decision) -> None:
    ending = Ending(handle(), commit)
    assert ending.action is Action.END_TXN
    ending.on_answer(0, 1.0)
    assert ending.action is Action.REPORT
    assert ending.report() == TransactionOutcome(decision)


@pytest.mark.parametrize(
    ("error", "look_up_again"),
    [
        (broker_error(CONCURRENT_TRANSACTIONS), False),
        (broker_error(COORDINATOR_LOADING), True),
        (broker_error(COORDINATOR_NOT_AVAILABLE), True),
        (broker_error(NOT_COORDINATOR), True),
        (broker_error(7), True),
        (NetworkError("gone"), True),
        (RequestTimedOutError("late"), True),
        (ProtocolError("nonsense"), True),
    ],
)
def test_passing_trouble_is_repeated(error: KafkaError, look_up_again: bool) -> None:
    ending = Ending(handle(), True)
    ending.on_no_answer(error, 1.0)
    assert ending.action is Action.REST
    assert ending.coordinator_doubtful is look_up_again
    ending.on_rested()
    assert ending.action is Action.END_TXN
    ending.on_answer(0, 2.0)
    assert ending.report().committed


AMBIGUOUS = [
    PRODUCER_FENCED,
    INVALID_TXN_STATE,
    INVALID_PRODUCER_ID_MAPPING,
    TRANSACTION_ABORTABLE,
    UNKNOWN_SERVER_ERROR,
    A_NEW_CODE,
]


@pytest.mark.parametrize("code", AMBIGUOUS)
@pytest.mark.parametrize("commit", [True, False])
def test_any_other_answer_is_settled_by_the_log(code: int, commit: bool) -> None:
    ending = Ending(handle(), commit)
    ending.on_answer(code, 1.0)
    assert ending.action is Action.LOOK
    ending.on_found(marker(commit=commit), 1.0)
    assert ending.report().committed is commit


def test_no_code_but_none_is_taken_for_an_outcome() -> None:
    for code in [*BROKER_ERRORS, A_NEW_CODE]:
        ending = Ending(handle(), True)
        ending.on_answer(code, 1.0)
        assert ending.state not in (State.COMMITTED, State.ABORTED), code


@pytest.mark.parametrize("code", AMBIGUOUS)
def test_without_a_place_nobody_can_tell(code: int) -> None:
    ending = Ending(handle(offset=-1), True)
    ending.on_answer(code, 1.0)
    with pytest.raises(TransactionUnknownError, match="does not say where") as caught:
        ending.report()
    assert isinstance(caught.value.__cause__, KafkaError)


# ---- what the log says


def ambiguous(commit: bool = True, code: int = PRODUCER_FENCED, **changed: Any) -> Ending:
    ending = Ending(handle(**changed), commit)
    ending.on_answer(code, 100.0)
    return ending


def test_a_commit_that_became_an_abort_raises() -> None:
    ending = ambiguous()
    ending.on_found(marker(commit=False), 100.0)
    with pytest.raises(TransactionAbortedError, match="was to be committed, but has been aborted by"):
        ending.report()


def test_an_abort_that_became_a_commit_raises() -> None:
    ending = ambiguous(commit=False, code=INVALID_TXN_STATE)
    ending.on_found(marker(commit=True), 100.0)
    with pytest.raises(TransactionCommittedError, match="was to be aborted, but has been committed"):
        ending.report()


@pytest.mark.parametrize(
    "found", [Found(end=SearchEnd.OPEN), Found(end=SearchEnd.TROUBLE, error=NetworkError("x"))]
)
def test_no_marker_yet_is_repeated(found: Found) -> None:
    ending = ambiguous()
    ending.on_found(found, 100.0)
    assert ending.action is Action.REST
    ending.on_rested()
    assert ending.action is Action.END_TXN


def test_no_marker_long_after_the_time_out_is_unknown() -> None:
    ending = ambiguous(timeout_ms=5000)
    over = 100.0 + 5.0 + EXPIRY_GRACE_SECONDS
    ending.on_found(Found(end=SearchEnd.OPEN), over)
    assert ending.action is Action.REST
    ending.on_rested()
    ending.on_answer(PRODUCER_FENCED, over + 1)
    ending.on_found(Found(end=SearchEnd.OPEN), over + 1)
    with pytest.raises(TransactionUnknownError, match="no marker in the log although its time-out"):
        ending.report()


def test_a_log_that_lost_the_batch_is_unknown() -> None:
    ending = ambiguous()
    ending.on_found(Found(end=SearchEnd.GONE), 100.0)
    with pytest.raises(TransactionUnknownError, match="does not have its first batch any more"):
        ending.report()


def test_a_log_that_may_not_be_read_is_unknown_and_says_so() -> None:
    ending = ambiguous()
    ending.on_found(Found(end=SearchEnd.FORBIDDEN, error=broker_error(29)), 100.0)
    with pytest.raises(TransactionUnknownError, match="TOPIC_AUTHORIZATION_FAILED"):
        ending.report()


# ---- refused


@pytest.mark.parametrize("error", [UnsupportedVersionError("old"), AuthenticationError("who are you")])
def test_a_coordinator_that_cannot_be_asked_ends_it_with_its_error(error: KafkaError) -> None:
    ending = Ending(handle(), True)
    ending.on_no_answer(error, 1.0)
    with pytest.raises(type(error), match=str(error.args[0])):
        ending.report()


@pytest.mark.parametrize("end", [SearchEnd.OPEN, SearchEnd.GONE, SearchEnd.FORBIDDEN])
def test_forbidden_and_not_ended_by_others_is_an_error(end: SearchEnd) -> None:
    ending = Ending(handle(), True)
    ending.on_answer(ID_AUTHORIZATION_FAILED, 1.0)
    ending.on_found(Found(end=end), 1.0)
    with pytest.raises(TransactionalIdAuthorizationError):
        ending.report()


def test_forbidden_but_ended_by_others_is_an_outcome() -> None:
    ending = Ending(handle(), True)
    ending.on_answer(ID_AUTHORIZATION_FAILED, 1.0)
    ending.on_found(marker(commit=True), 1.0)
    assert ending.report().committed


def test_forbidden_without_a_place_is_an_error() -> None:
    ending = Ending(handle(offset=-1), True)
    ending.on_answer(ID_AUTHORIZATION_FAILED, 1.0)
    with pytest.raises(TransactionalIdAuthorizationError):
        ending.report()


# ---- by whom


@pytest.mark.parametrize(
    ("version", "code", "marker_epoch", "causes"),
    [
        # Older protocol: an end that is forced raises the epoch; a decision keeps it.
        (3, INVALID_TXN_STATE, 4, (OTHERWISE,)),
        (3, PRODUCER_FENCED, 4, (OTHERWISE,)),
        (4, PRODUCER_FENCED, 5, (FENCE, TIME_OUT)),
        # Newer one: every end raises it; the code says whether the id was taken since.
        (5, INVALID_TXN_STATE, 5, (TIME_OUT, OTHERWISE)),
        (5, PRODUCER_FENCED, 5, (FENCE, TIME_OUT, OTHERWISE)),
    ],
)
def test_causes_are_all_that_cannot_be_ruled_out(
    version: int, code: int, marker_epoch: int, causes: tuple[AbortCause, ...]
) -> None:
    ending = ambiguous(commit=False, code=code, end_txn_version=version)
    ending.on_found(marker(commit=False, epoch=marker_epoch), 100.0)
    outcome = ending.report()
    assert (outcome.decision, outcome.causes) == (Decision.ABORTED, causes)
    assert str(outcome).startswith("aborted by ")


# ---- out of time


def test_a_time_out_says_what_is_known_and_that_it_may_be_repeated() -> None:
    ending = Ending(handle(), True)
    ending.on_no_answer(NetworkError("the connection broke"), 1.0)
    error = ending.timed_out(KafkaTimeoutError("not done after 3 s"))
    for text in (
        "not known whether the transaction is committed",
        "connection broke",
        "safe to ask again",
        "not done",
    ):
        assert text in str(error)


# ---- many walks: whatever happens, what is reported is what the transaction came to


class Coordinator:
    """A transaction as its coordinator and its log know it, behind a network that loses answers at random."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.decision: bool | None = None
        self.taken_over = False

    def end_txn(self, commit: bool) -> KafkaError | int:
        drawn = self.rng.random()
        if drawn < 0.1:
            return NetworkError("lost on the way there")
        if self.decision is None and not self.taken_over and self.rng.random() < 0.15:
            self.decision, self.taken_over = False, True  # fenced by another
        if self.taken_over:
            code = PRODUCER_FENCED
        elif self.decision in (None, commit):
            self.decision = commit
            code = 0
        else:
            code = INVALID_TXN_STATE
        if self.rng.random() < 0.1:
            self.taken_over = True  # after the end, by the next owner
        if drawn < 0.3:
            return RequestTimedOutError("lost on the way back")
        return CONCURRENT_TRANSACTIONS if drawn < 0.5 and code == 0 else code

    def look(self) -> Found:
        drawn = self.rng.random()
        if drawn < 0.1:
            return Found(end=SearchEnd.TROUBLE, error=NetworkError("x"))
        if self.decision is None or drawn < 0.3:
            return Found(end=SearchEnd.OPEN)
        return marker(commit=self.decision)


def walk(ending: Ending, coordinator: Coordinator, steps: int) -> None:
    for _ in range(steps):
        if ending.action is Action.END_TXN:
            answer = coordinator.end_txn(ending.commit)
            if isinstance(answer, int):
                ending.on_answer(answer, 1.0)
            else:
                ending.on_no_answer(answer, 1.0)
        elif ending.action is Action.LOOK:
            ending.on_found(coordinator.look(), 1.0)
        elif ending.action is Action.REST:
            ending.on_rested()
        else:
            return


@pytest.mark.parametrize("seed", range(40))
def test_two_who_end_it_against_each_other_report_the_same_truth(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(25):
        coordinator = Coordinator(rng)
        endings = [Ending(handle(), True), Ending(handle(), rng.random() < 0.5)]
        for _ in range(200):
            walk(rng.choice(endings), coordinator, 1)
        for ending in endings:
            walk(ending, coordinator, 1000)
            assert ending.state is (State.COMMITTED if coordinator.decision else State.ABORTED)
