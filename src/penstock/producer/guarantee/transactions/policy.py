# SPDX-License-Identifier: Apache-2.0
"""What each answer of a transaction request means: one table per API.

Codes that are not in an API's row follow their class: a retriable one is retried, and what is left is fatal.
"""

from __future__ import annotations

import enum

from penstock.errors import error_row


class Verdict(enum.Enum):
    """What to do after a transaction request has failed."""

    RETRY = "retry"
    FIND_COORDINATOR = "find the coordinator again, then retry"
    ABORTABLE = "the transaction must be aborted"
    UNINITIALIZED = "the producer stays uninitialized; the call may be made again"
    FENCED = "another producer has taken over"
    FATAL = "the producer cannot go on"


_NOT_COORDINATOR = {15: Verdict.FIND_COORDINATOR, 16: Verdict.FIND_COORDINATOR}
_EPOCH = {47: Verdict.FENCED, 90: Verdict.FENCED}
_ABORT_ASKED = {120: Verdict.ABORTABLE}
_FATAL_STATE = {48: Verdict.FATAL, 49: Verdict.FATAL, 53: Verdict.FATAL}

UNKNOWN_PRODUCER_ID = 59
TRANSACTION_ABORTABLE = 120
CONCURRENT_TRANSACTIONS = 51

VERDICTS: dict[str, dict[int, Verdict]] = {
    "FindCoordinator": {**_ABORT_ASKED, 30: Verdict.ABORTABLE, 53: Verdict.FATAL, 15: Verdict.RETRY},
    "InitProducerId": {
        **_NOT_COORDINATOR,
        **_EPOCH,
        **_ABORT_ASKED,
        31: Verdict.UNINITIALIZED,
        53: Verdict.UNINITIALIZED,
    },
    "AddPartitionsToTxn": {
        **_NOT_COORDINATOR,
        **_EPOCH,
        **_ABORT_ASKED,
        **_FATAL_STATE,
        29: Verdict.ABORTABLE,
        55: Verdict.ABORTABLE,
    },
    "AddOffsetsToTxn": {**_NOT_COORDINATOR, **_EPOCH, **_ABORT_ASKED, **_FATAL_STATE, 30: Verdict.ABORTABLE},
    "TxnOffsetCommit": {
        **_NOT_COORDINATOR,
        **_EPOCH,
        **_ABORT_ASKED,
        7: Verdict.FIND_COORDINATOR,
        30: Verdict.ABORTABLE,
        82: Verdict.ABORTABLE,
        25: Verdict.ABORTABLE,
        22: Verdict.ABORTABLE,
        69: Verdict.ABORTABLE,
        113: Verdict.ABORTABLE,
        43: Verdict.FATAL,
        53: Verdict.FATAL,
    },
    "EndTxn": {**_NOT_COORDINATOR, **_EPOCH, **_FATAL_STATE},
}


def judge(api: str, code: int, *, can_bump: bool = False, committing: bool = True) -> Verdict:
    """What an error code means in the answer of a transaction request.

    Args:
        api: the name of the API.
        code: the error code, not 0.
        can_bump: the coordinator can give a new epoch after an abort, so that a lost producer state can be mended.
        committing: for EndTxn, whether it was a commit.
    """
    if code == UNKNOWN_PRODUCER_ID and api in ("AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn"):
        return Verdict.ABORTABLE if can_bump else Verdict.FATAL
    if code == TRANSACTION_ABORTABLE and api == "EndTxn":
        # While aborting there is nothing left to fall back to.
        return Verdict.ABORTABLE if committing else Verdict.FATAL
    found = VERDICTS[api].get(code)
    if found is not None:
        return found
    if error_row(code).cls.retriable:
        return Verdict.RETRY
    # A partition that was refused for a reason nobody foresaw spoils this transaction, not the producer.
    return Verdict.ABORTABLE if api == "AddPartitionsToTxn" else Verdict.FATAL
