# SPDX-License-Identifier: Apache-2.0
"""Decides how a detached transaction is ended, and how it has ended. No I/O: answers in, the next action out.

Rules:
1. NONE is done: the coordinator has taken down the decision, or had it already.
2. A passing trouble (markers being written, a coordinator that moves or loads, no answer, a lost connection) says
   nothing: wait, and ask again.
3. Any other answer is ambiguous. PRODUCER_FENCED can follow a real commit, when the id was taken over since. So the log
   is asked: the first control record of the producer id behind the transaction's first batch says how it ended.
4. No control record yet: the transaction is open, or its markers are on their way. Wait, and ask again, until it must
   have been aborted for its age.
5. Never a guess: what neither coordinator nor log can tell is UNKNOWN.

The states and what leads from one to the next are the table TRANSITIONS.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from penstock.control.markers import Found, Marker, SearchEnd
from penstock.control.rights import answered
from penstock.control.steps import is_soon_over
from penstock.error_codes import ErrorCode
from penstock.errors import (
    AuthenticationError,
    BrokerError,
    ConfigError,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    ProtocolError,
    TransactionAbortedError,
    TransactionCommittedError,
    TransactionUnknownError,
    UnsupportedVersionError,
)
from penstock.transaction_handle import TransactionHandle

# From this version on the epoch is raised by every end of a transaction (KIP-890).
FIRST_VERSION_THAT_BUMPS = 5
# Coordinators look for transactions that are too old every 10 s, and markers take their time.
EXPIRY_GRACE_SECONDS = 30.0


class State(enum.Enum):
    """Where the attempt to end a transaction stands."""

    ASKING = "asking the coordinator"
    RESTING = "resting before the coordinator is asked again"
    LOOKING = "looking into the log"
    LAST_LOOK = "looking into the log, as the coordinator will not help"
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"
    REFUSED = "refused"


class Event(enum.Enum):
    """What can happen on the way."""

    DONE_COMMIT = "the coordinator answered NONE to a commit"
    DONE_ABORT = "the coordinator answered NONE to an abort"
    PASSING_TROUBLE = "busy, moved, or no answer"
    AMBIGUOUS = "an answer that does not tell how it ended"
    AMBIGUOUS_WITHOUT_PLACE = "such an answer, and no place in a log is known"
    FORBIDDEN = "this client may not end it"
    HOPELESS = "the coordinator could not even be asked, and never will"
    RESTED = "the rest is over"
    COMMIT_MARKER = "the log has a commit marker"
    ABORT_MARKER = "the log has an abort marker"
    NO_MARKER = "the log has no marker yet"
    OVERDUE = "the log has no marker, although the transaction's time-out is long over"
    LOG_TROUBLE = "the log could not be read now"
    LOG_SILENT = "the log cannot tell any more, or may not be read"


class Action(enum.Enum):
    """What is to be done next."""

    END_TXN = "send EndTxn to the coordinator"
    LOOK = "search the log for the marker"
    REST = "wait before the next attempt"
    REPORT = "tell the outcome"


_S, _E = State, Event

TRANSITIONS: Final = MappingProxyType(
    {
        (_S.ASKING, _E.DONE_COMMIT): _S.COMMITTED,
        (_S.ASKING, _E.DONE_ABORT): _S.ABORTED,
        (_S.ASKING, _E.PASSING_TROUBLE): _S.RESTING,
        (_S.ASKING, _E.AMBIGUOUS): _S.LOOKING,
        (_S.ASKING, _E.AMBIGUOUS_WITHOUT_PLACE): _S.UNKNOWN,
        (_S.ASKING, _E.FORBIDDEN): _S.LAST_LOOK,
        (_S.ASKING, _E.HOPELESS): _S.REFUSED,
        (_S.RESTING, _E.RESTED): _S.ASKING,
        (_S.LOOKING, _E.COMMIT_MARKER): _S.COMMITTED,
        (_S.LOOKING, _E.ABORT_MARKER): _S.ABORTED,
        (_S.LOOKING, _E.NO_MARKER): _S.RESTING,
        (_S.LOOKING, _E.OVERDUE): _S.UNKNOWN,
        (_S.LOOKING, _E.LOG_TROUBLE): _S.RESTING,
        (_S.LOOKING, _E.LOG_SILENT): _S.UNKNOWN,
        (_S.LAST_LOOK, _E.COMMIT_MARKER): _S.COMMITTED,
        (_S.LAST_LOOK, _E.ABORT_MARKER): _S.ABORTED,
        (_S.LAST_LOOK, _E.NO_MARKER): _S.REFUSED,
        (_S.LAST_LOOK, _E.OVERDUE): _S.REFUSED,
        (_S.LAST_LOOK, _E.LOG_TROUBLE): _S.RESTING,
        (_S.LAST_LOOK, _E.LOG_SILENT): _S.REFUSED,
    }
)

ACTIONS: Final = MappingProxyType(
    {
        _S.ASKING: Action.END_TXN,
        _S.RESTING: Action.REST,
        _S.LOOKING: Action.LOOK,
        _S.LAST_LOOK: Action.LOOK,
        _S.COMMITTED: Action.REPORT,
        _S.ABORTED: Action.REPORT,
        _S.UNKNOWN: Action.REPORT,
        _S.REFUSED: Action.REPORT,
    }
)


class Decision(enum.Enum):
    """How a transaction ended."""

    COMMITTED = "committed"
    ABORTED = "aborted"


class AbortCause(enum.Enum):
    """Who aborted a transaction."""

    FENCE = "a fence (another producer took the transactional id)"
    TIME_OUT = "its time-out"
    DECIDED_OTHERWISE = "somebody's decision (EndTxn with abort)"


@dataclass(frozen=True, slots=True)
class TransactionOutcome:
    """How a detached transaction ended.

    Attributes:
        decision: committed or aborted.
        causes: who aborted it, as far as it can be told: all that cannot be ruled out. Empty when this very call did,
            or an earlier one that asked for the same.
        marker: the control record that tells it; None where the coordinator's answer was enough.
    """

    decision: Decision
    causes: tuple[AbortCause, ...] = ()
    marker: Marker | None = None

    @property
    def committed(self) -> bool:
        """Whether its records are visible to readers of committed records."""
        return self.decision is Decision.COMMITTED

    def __str__(self) -> str:
        by = " or ".join(cause.value for cause in self.causes)
        return f"{self.decision.value} by {by}" if by else self.decision.value


def outcome_without_asking(commit: bool) -> TransactionOutcome:
    """The outcome of a transaction that holds nothing: as asked, with nothing sent."""
    return TransactionOutcome(Decision.COMMITTED if commit else Decision.ABORTED)


class Ending:
    """Ends one transaction: `action` says what to do, the `on_` methods take what came of it.

    Args:
        handle: the transaction.
        commit: what is wanted of it.

    Attributes:
        state: where it stands.
        attempts: rests taken; the next one is longer.
        trouble: the last answer that was not NONE.
    """

    def __init__(self, handle: TransactionHandle, commit: bool) -> None:
        self.handle = handle
        self.commit = commit
        self.state = State.ASKING
        self.attempts = 0
        self.trouble: KafkaError | None = None
        self._search_end: SearchEnd | None = None
        self._log_trouble: KafkaError | None = None
        self._marker: Marker | None = None
        self._ambiguous_since: float | None = None

    @property
    def action(self) -> Action:
        """What is to be done next."""
        return ACTIONS[self.state]

    def on_answer(self, code: int, now: float) -> None:
        """Take the error code with which the coordinator answered EndTxn."""
        if code == 0:
            self._move(Event.DONE_COMMIT if self.commit else Event.DONE_ABORT)
        else:
            on = f"transactional id {self.handle.transactional_id!r}"
            self.on_no_answer(answered(code, "WRITE", on), now)

    def on_no_answer(self, error: KafkaError, now: float) -> None:
        """The coordinator answered with an error, could not be found, or did not answer."""
        self.trouble = error
        event = classify(error)
        if event is Event.AMBIGUOUS:
            if self._ambiguous_since is None:
                self._ambiguous_since = now
            if not self.handle.has_place:
                event = Event.AMBIGUOUS_WITHOUT_PLACE
        elif event is Event.FORBIDDEN and not self.handle.has_place:
            event = Event.HOPELESS
        self._move(event)

    @property
    def coordinator_doubtful(self) -> bool:
        """Whether the coordinator should be looked up anew before it is asked again."""
        if self.trouble is None or is_soon_over(self.trouble):
            return False
        return classify(self.trouble) is Event.PASSING_TROUBLE

    def on_rested(self) -> None:
        self.attempts += 1
        self._move(Event.RESTED)

    def on_found(self, found: Found, now: float) -> None:
        """The search in the log has ended."""
        if found.marker is not None:
            self._marker = found.marker
            self._move(Event.COMMIT_MARKER if found.marker.committed else Event.ABORT_MARKER)
            return
        self._search_end = found.end
        self._log_trouble = found.error
        if found.end is SearchEnd.OPEN:
            self._move(Event.OVERDUE if self._is_overdue(now) else Event.NO_MARKER)
        elif found.end is SearchEnd.TROUBLE:
            self._move(Event.LOG_TROUBLE)
        else:
            self._move(Event.LOG_SILENT)

    def report(self) -> TransactionOutcome:
        """How it ended.

        Raises:
            TransactionAbortedError: it was to be committed, and is aborted.
            TransactionCommittedError: it was to be aborted, and is committed.
            TransactionUnknownError: that cannot be told.
            KafkaError: the coordinator refused to have anything to do with us.
        """
        if self.state is State.REFUSED and self.trouble is not None:
            raise self.trouble
        if self.state is State.UNKNOWN:
            raise self._unknown() from self.trouble
        outcome = self._outcome()
        if outcome.committed and not self.commit:
            raise TransactionCommittedError(
                f"the transaction was to be aborted, but has been committed: {self.handle!r}"
            ) from self.trouble
        if self.commit and not outcome.committed:
            raise TransactionAbortedError(
                f"the transaction was to be committed, but has been {outcome}: {self.handle!r}"
            ) from self.trouble
        return outcome

    def timed_out(self, up: KafkaTimeoutError) -> KafkaTimeoutError:
        """The caller's time is up before the outcome is known."""
        wanted = "committed" if self.commit else "aborted"
        why = "" if self.trouble is None else f" The last answer was: {self.trouble}."
        if self._log_trouble is not None:
            why += f" The log: {self._log_trouble}."
        return KafkaTimeoutError(
            f"it is not known whether the transaction is {wanted} ({up}).{why} It is safe to ask again with the same "
            f"handle: {self.handle!r}"
        )

    def _outcome(self) -> TransactionOutcome:
        if self.state is State.COMMITTED:
            return TransactionOutcome(Decision.COMMITTED, (), self._marker)
        if self.state is not State.ABORTED:
            raise IllegalStateError(f"no outcome yet: {self!r}")
        if self._marker is None:
            return TransactionOutcome(Decision.ABORTED)
        code = self.trouble.code if isinstance(self.trouble, BrokerError) else ErrorCode.UNKNOWN_SERVER_ERROR
        return TransactionOutcome(
            Decision.ABORTED, abort_causes(self.handle, code, self._marker), self._marker
        )

    def _unknown(self) -> TransactionUnknownError:
        if not self.handle.has_place:
            why = "the handle does not say where in a log its records are"
        elif self._search_end is SearchEnd.GONE:
            why = "the log does not have its first batch any more, so that what follows may belong to others"
        elif self._log_trouble is not None:
            why = f"the log cannot be read: {self._log_trouble}"
        else:
            why = "there is no marker in the log although its time-out is long over"
        return TransactionUnknownError(
            f"nobody can tell how the transaction ended: the coordinator answered {self.trouble}, and {why}: "
            f"{self.handle!r}"
        )

    def _is_overdue(self, now: float) -> bool:
        if self._ambiguous_since is None:
            return False
        return now - self._ambiguous_since > self.handle.timeout_ms / 1000 + EXPIRY_GRACE_SECONDS

    def _move(self, event: Event) -> None:
        self.state = TRANSITIONS[self.state, event]

    def __repr__(self) -> str:
        return f"<Ending of {self.handle.transactional_id}: {self.state.value}>"


def classify(error: KafkaError) -> Event:
    """What an answer other than NONE, or none at all, means for the transaction."""
    if error.retriable or isinstance(error, ProtocolError):
        return Event.PASSING_TROUBLE
    if isinstance(error, UnsupportedVersionError | AuthenticationError | ConfigError):
        return Event.HOPELESS
    if isinstance(error, BrokerError) and error.code in (
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ):
        return Event.FORBIDDEN
    return Event.AMBIGUOUS


def abort_causes(handle: TransactionHandle, code: int, marker: Marker) -> tuple[AbortCause, ...]:
    """Who can have written an abort marker, judged by the marker's epoch and the coordinator's answer.

    In the older protocol only those who force a transaction to end (a fence, the time-out) raise the epoch before. In
    the newer one every end does; there INVALID_TXN_STATE says at least that nobody has taken the id since.
    """
    if handle.end_txn_version < FIRST_VERSION_THAT_BUMPS:
        if marker.producer_epoch == handle.producer_epoch:
            return (AbortCause.DECIDED_OTHERWISE,)
        return (AbortCause.FENCE, AbortCause.TIME_OUT)
    if code == ErrorCode.INVALID_TXN_STATE:
        return (AbortCause.TIME_OUT, AbortCause.DECIDED_OTHERWISE)
    return (AbortCause.FENCE, AbortCause.TIME_OUT, AbortCause.DECIDED_OTHERWISE)
