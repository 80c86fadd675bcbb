# SPDX-License-Identifier: Apache-2.0
"""What each answer of a transaction request means: one table per API.

Codes that are not in an API's row follow their class: a retriable one is retried, and what is left is fatal.
"""

from __future__ import annotations

import enum
from typing import TypeAlias

from penstock.error_codes import ErrorCode
from penstock.errors import error_row


class Verdict(enum.Enum):
    """What to do after a transaction request has failed."""

    RETRY = "retry"
    FIND_COORDINATOR = "find the coordinator again, then retry"
    ABORTABLE = "the transaction must be aborted"
    UNINITIALIZED = "the producer stays uninitialized; the call may be made again"
    FENCED = "another producer has taken over"
    FATAL = "the producer cannot go on"


_Verdicts: TypeAlias = dict[int, Verdict]

_NOT_COORDINATOR: _Verdicts = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE: Verdict.FIND_COORDINATOR,
    ErrorCode.NOT_COORDINATOR: Verdict.FIND_COORDINATOR,
}
_EPOCH: _Verdicts = {
    ErrorCode.INVALID_PRODUCER_EPOCH: Verdict.FENCED,
    ErrorCode.PRODUCER_FENCED: Verdict.FENCED,
}
_ABORT_ASKED: _Verdicts = {ErrorCode.TRANSACTION_ABORTABLE: Verdict.ABORTABLE}
_FATAL_STATE: _Verdicts = {
    ErrorCode.INVALID_TXN_STATE: Verdict.FATAL,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: Verdict.FATAL,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Verdict.FATAL,
}


VERDICTS: dict[str, _Verdicts] = {
    "FindCoordinator": {
        **_ABORT_ASKED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED: Verdict.ABORTABLE,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Verdict.FATAL,
        ErrorCode.COORDINATOR_NOT_AVAILABLE: Verdict.RETRY,
    },
    "InitProducerId": {
        **_NOT_COORDINATOR,
        **_EPOCH,
        **_ABORT_ASKED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED: Verdict.UNINITIALIZED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Verdict.UNINITIALIZED,
    },
    "AddPartitionsToTxn": {
        **_NOT_COORDINATOR,
        **_EPOCH,
        **_ABORT_ASKED,
        **_FATAL_STATE,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED: Verdict.ABORTABLE,
        ErrorCode.OPERATION_NOT_ATTEMPTED: Verdict.ABORTABLE,
    },
    "AddOffsetsToTxn": {
        **_NOT_COORDINATOR,
        **_EPOCH,
        **_ABORT_ASKED,
        **_FATAL_STATE,
        ErrorCode.GROUP_AUTHORIZATION_FAILED: Verdict.ABORTABLE,
    },
    "TxnOffsetCommit": {
        **_NOT_COORDINATOR,
        **_EPOCH,
        **_ABORT_ASKED,
        ErrorCode.REQUEST_TIMED_OUT: Verdict.FIND_COORDINATOR,
        ErrorCode.GROUP_AUTHORIZATION_FAILED: Verdict.ABORTABLE,
        ErrorCode.FENCED_INSTANCE_ID: Verdict.ABORTABLE,
        ErrorCode.UNKNOWN_MEMBER_ID: Verdict.ABORTABLE,
        ErrorCode.ILLEGAL_GENERATION: Verdict.ABORTABLE,
        ErrorCode.GROUP_ID_NOT_FOUND: Verdict.ABORTABLE,
        ErrorCode.STALE_MEMBER_EPOCH: Verdict.ABORTABLE,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT: Verdict.FATAL,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Verdict.FATAL,
    },
    "EndTxn": {**_NOT_COORDINATOR, **_EPOCH, **_FATAL_STATE},
}


def judge(api: str, code: int, *, can_bump: bool = False, committing: bool = True) -> Verdict:
    """What an error code means in the answer of a transaction request.

    Args:
        api: the name of the API.
        code: the error code, not 0.
        can_bump: the coordinator can give a new epoch after an abort, which repairs a lost producer state.
        committing: for EndTxn, whether it was a commit.
    """
    if code == ErrorCode.UNKNOWN_PRODUCER_ID and api in ("AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn"):
        return Verdict.ABORTABLE if can_bump else Verdict.FATAL
    if code == ErrorCode.TRANSACTION_ABORTABLE and api == "EndTxn":
        # While aborting, another abort is of no use.
        return Verdict.ABORTABLE if committing else Verdict.FATAL
    found = VERDICTS[api].get(code)
    if found is not None:
        return found
    if error_row(code).cls.retriable:
        return Verdict.RETRY
    # A partition that was refused for an unknown reason fails this transaction, not the producer.
    return Verdict.ABORTABLE if api == "AddPartitionsToTxn" else Verdict.FATAL
