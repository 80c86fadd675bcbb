# SPDX-License-Identifier: Apache-2.0
"""What each answer of each transaction request means: the whole table, written out."""

from __future__ import annotations

import pytest

from penstock.errors import BROKER_ERRORS
from penstock.producer.guarantee.transactions.policy import VERDICTS, Verdict, judge

V = Verdict
APIS = sorted(VERDICTS)

NAMES = {row.name: code for code, row in BROKER_ERRORS.items()}
RETRIED_EVERYWHERE = [
    "CORRUPT_MESSAGE",
    "UNKNOWN_TOPIC_OR_PARTITION",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "CONCURRENT_TRANSACTIONS",
    "NOT_ENOUGH_REPLICAS",
    "KAFKA_STORAGE_ERROR",
    "THROTTLING_QUOTA_EXCEEDED",
    "UNKNOWN_TOPIC_ID",
]
COORDINATOR_ELSEWHERE = ["NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE"]
FENCED = ["INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED"]

# Per API: what differs from "retriable codes are retried, all others are fatal".
TABLE: dict[str, dict[Verdict, list[str]]] = {
    "FindCoordinator": {
        V.RETRY: ["COORDINATOR_NOT_AVAILABLE", "REQUEST_TIMED_OUT"],
        V.ABORTABLE: ["GROUP_AUTHORIZATION_FAILED", "TRANSACTION_ABORTABLE"],
        V.FATAL: ["TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "INVALID_REQUEST", "UNKNOWN_SERVER_ERROR"],
    },
    "InitProducerId": {
        V.RETRY: ["REQUEST_TIMED_OUT"],
        V.FIND_COORDINATOR: COORDINATOR_ELSEWHERE,
        V.UNINITIALIZED: ["TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED"],
        V.ABORTABLE: ["TRANSACTION_ABORTABLE"],
        V.FENCED: FENCED,
        V.FATAL: ["INVALID_TRANSACTION_TIMEOUT", "UNSUPPORTED_VERSION", "UNKNOWN_SERVER_ERROR"],
    },
    "AddPartitionsToTxn": {
        V.RETRY: ["REQUEST_TIMED_OUT"],
        V.FIND_COORDINATOR: COORDINATOR_ELSEWHERE,
        V.ABORTABLE: [
            "TOPIC_AUTHORIZATION_FAILED",
            "OPERATION_NOT_ATTEMPTED",
            "TRANSACTION_ABORTABLE",
            "UNKNOWN_SERVER_ERROR",
            "INVALID_TOPIC_EXCEPTION",
        ],
        V.FENCED: FENCED,
        V.FATAL: [
            "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
            "INVALID_TXN_STATE",
            "INVALID_PRODUCER_ID_MAPPING",
        ],
    },
    "AddOffsetsToTxn": {
        V.RETRY: ["REQUEST_TIMED_OUT"],
        V.FIND_COORDINATOR: COORDINATOR_ELSEWHERE,
        V.ABORTABLE: ["GROUP_AUTHORIZATION_FAILED", "TRANSACTION_ABORTABLE"],
        V.FENCED: FENCED,
        V.FATAL: [
            "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
            "INVALID_TXN_STATE",
            "INVALID_PRODUCER_ID_MAPPING",
            "UNKNOWN_SERVER_ERROR",
        ],
    },
    "TxnOffsetCommit": {
        V.FIND_COORDINATOR: [*COORDINATOR_ELSEWHERE, "REQUEST_TIMED_OUT"],
        V.ABORTABLE: [
            "GROUP_AUTHORIZATION_FAILED",
            "FENCED_INSTANCE_ID",
            "TRANSACTION_ABORTABLE",
            "UNKNOWN_MEMBER_ID",
            "ILLEGAL_GENERATION",
            "GROUP_ID_NOT_FOUND",
            "STALE_MEMBER_EPOCH",
        ],
        V.FENCED: FENCED,
        V.FATAL: [
            "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
            "UNSUPPORTED_FOR_MESSAGE_FORMAT",
            "UNKNOWN_SERVER_ERROR",
        ],
    },
    "EndTxn": {
        V.RETRY: ["REQUEST_TIMED_OUT"],
        V.FIND_COORDINATOR: COORDINATOR_ELSEWHERE,
        V.ABORTABLE: ["TRANSACTION_ABORTABLE"],
        V.FENCED: FENCED,
        V.FATAL: [
            "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
            "INVALID_TXN_STATE",
            "INVALID_PRODUCER_ID_MAPPING",
            "UNKNOWN_SERVER_ERROR",
        ],
    },
}


@pytest.mark.parametrize(
    ("api", "name", "verdict"),
    [
        pytest.param(api, name, verdict, id=f"{api} {name}")
        for api, row in TABLE.items()
        for verdict, names in row.items()
        for name in names
    ],
)
def test_every_answer_of_every_request(api, name, verdict):
    """Requirement 69."""
    assert judge(api, NAMES[name]) is verdict


@pytest.mark.parametrize("name", RETRIED_EVERYWHERE)
@pytest.mark.parametrize("api", APIS)
def test_a_passing_condition_is_retried(api, name):
    """Requirement 69."""
    assert judge(api, NAMES[name]) is V.RETRY


@pytest.mark.parametrize("api", APIS)
def test_a_code_that_nobody_knows(api):
    """Requirement 69."""
    assert judge(api, 4242) is (V.ABORTABLE if api == "AddPartitionsToTxn" else V.FATAL)


@pytest.mark.parametrize("can_bump", [True, False])
@pytest.mark.parametrize("api", APIS)
def test_a_lost_producer_state_can_be_mended_where_a_new_epoch_can_be_had(api, can_bump):
    """Requirement 69."""
    mendable = can_bump and api in ("AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn")
    expected = V.ABORTABLE if mendable else V.FATAL
    assert judge(api, NAMES["UNKNOWN_PRODUCER_ID"], can_bump=can_bump) is expected


def test_an_abort_that_is_answered_with_a_demand_to_abort_is_fatal():
    """Requirement 75."""
    assert judge("EndTxn", NAMES["TRANSACTION_ABORTABLE"], committing=True) is V.ABORTABLE
    assert judge("EndTxn", NAMES["TRANSACTION_ABORTABLE"], committing=False) is V.FATAL
