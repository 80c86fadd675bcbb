# SPDX-License-Identifier: Apache-2.0
"""What to do with a batch when its request has ended: one pure function over one table.

The table says what each answer means; `decide` adds what depends on the batch: whether it can still be split, whether
retries and time are left. The sender does what is decided here.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from penstock.errors import BROKER_ERRORS, InvalidMetadataError, error_row


class Action(enum.Enum):
    """What becomes of the batch."""

    SUCCEED = "succeed"
    RETRY = "retry"
    SPLIT = "split"
    FAIL = "fail"


class Decision(NamedTuple):
    """The action, and whether the cluster's metadata must be asked for again."""

    action: Action
    refresh_metadata: bool = False


class BatchSituation(NamedTuple):
    """What the decision depends on besides the answer."""

    record_count: int
    attempts: int
    expired: bool  # its delivery time-out is over
    done: bool  # it has its outcome already


NONE = 0
MESSAGE_TOO_LARGE = 10
DUPLICATE_SEQUENCE_NUMBER = 46

# The meaning of every code that does not follow from its class: codes of a retriable class are retried, of a class
# below InvalidMetadataError with a refresh besides, and all others fail.
_SPECIAL: dict[int, Action] = {
    NONE: Action.SUCCEED,
    MESSAGE_TOO_LARGE: Action.SPLIT,
    DUPLICATE_SEQUENCE_NUMBER: Action.SUCCEED,  # the broker has it; the offset is not known
}


def _meaning(code: int) -> Decision:
    action = _SPECIAL.get(code)
    if action is not None:
        return Decision(action)
    cls = error_row(code).cls
    return Decision(Action.RETRY if cls.retriable else Action.FAIL, issubclass(cls, InvalidMetadataError))


MEANING: dict[int, Decision] = {code: _meaning(code) for code in (NONE, *BROKER_ERRORS)}


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
