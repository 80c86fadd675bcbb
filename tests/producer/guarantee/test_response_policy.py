# SPDX-License-Identifier: Apache-2.0
"""What becomes of a batch without idempotence, for every answer a broker can give."""

from __future__ import annotations

import pytest

from penstock.producer.guarantee.response_policy import Action, BatchSituation, Decision, decide

FRESH = BatchSituation(record_count=3, attempts=0, expired=False, done=False)
RETRIES = 5

# Written out, not computed from the error classes: this is what the table of the protocol says.
RETRY = {
    2: "CORRUPT_MESSAGE",
    7: "REQUEST_TIMED_OUT",
    14: "COORDINATOR_LOAD_IN_PROGRESS",
    15: "COORDINATOR_NOT_AVAILABLE",
    16: "NOT_COORDINATOR",
    19: "NOT_ENOUGH_REPLICAS",
    20: "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
    51: "CONCURRENT_TRANSACTIONS",
    75: "UNKNOWN_LEADER_EPOCH",
    89: "THROTTLING_QUOTA_EXCEEDED",
}
RETRY_AND_REFRESH = {
    3: "UNKNOWN_TOPIC_OR_PARTITION",
    5: "LEADER_NOT_AVAILABLE",
    6: "NOT_LEADER_OR_FOLLOWER",
    9: "REPLICA_NOT_AVAILABLE",
    13: "NETWORK_EXCEPTION",
    56: "KAFKA_STORAGE_ERROR",
    72: "LISTENER_NOT_FOUND",
    74: "FENCED_LEADER_EPOCH",
    100: "UNKNOWN_TOPIC_ID",
    103: "INCONSISTENT_TOPIC_ID",
}
FAIL = {
    -1: "UNKNOWN_SERVER_ERROR",
    8: "BROKER_NOT_AVAILABLE",
    17: "INVALID_TOPIC",
    18: "RECORD_LIST_TOO_LARGE",
    21: "INVALID_REQUIRED_ACKS",
    29: "TOPIC_AUTHORIZATION_FAILED",
    31: "CLUSTER_AUTHORIZATION_FAILED",
    32: "INVALID_TIMESTAMP",
    35: "UNSUPPORTED_VERSION",
    42: "INVALID_REQUEST",
    43: "UNSUPPORTED_FOR_MESSAGE_FORMAT",
    44: "POLICY_VIOLATION",
    45: "OUT_OF_ORDER_SEQUENCE",
    47: "INVALID_PRODUCER_EPOCH",
    48: "INVALID_TXN_STATE",
    49: "INVALID_PRODUCER_ID_MAPPING",
    53: "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    59: "UNKNOWN_PRODUCER_ID",
    76: "UNSUPPORTED_COMPRESSION_TYPE",
    87: "INVALID_RECORD",
    90: "PRODUCER_FENCED",
    120: "TRANSACTION_ABORTABLE",
    4242: "a code that this client does not know",
}


def cases(table: dict[int, str]) -> list[object]:
    return [pytest.param(code, id=f"{name} {code}") for code, name in table.items()]


@pytest.mark.parametrize("code", cases(RETRY))
def test_a_passing_condition_is_retried(code):
    assert decide(code, FRESH, RETRIES) == Decision(Action.RETRY, refresh_metadata=False)


@pytest.mark.parametrize("code", cases(RETRY_AND_REFRESH))
def test_an_answer_that_says_our_view_is_old_is_retried_and_refreshes_it(code):
    assert decide(code, FRESH, RETRIES) == Decision(Action.RETRY, refresh_metadata=True)


@pytest.mark.parametrize("code", cases(FAIL))
def test_any_other_error_fails_the_batch(code):
    assert decide(code, FRESH, RETRIES) == Decision(Action.FAIL, refresh_metadata=False)


@pytest.mark.parametrize("code", [0, 46])
def test_no_error_and_a_duplicate_are_successes(code):
    assert decide(code, FRESH, RETRIES) == Decision(Action.SUCCEED)


@pytest.mark.parametrize(
    ("changes", "action"),
    [
        ({}, Action.SPLIT),
        ({"record_count": 2}, Action.SPLIT),
        ({"attempts": RETRIES}, Action.SPLIT),  # a split is no retry
        ({"record_count": 1}, Action.FAIL),
        ({"expired": True}, Action.FAIL),
        ({"done": True}, Action.FAIL),
    ],
)
def test_a_batch_that_is_too_large_is_split_where_that_can_help(changes, action):
    assert decide(10, FRESH._replace(**changes), RETRIES) == Decision(action)


@pytest.mark.parametrize("code", cases(RETRY | RETRY_AND_REFRESH))
@pytest.mark.parametrize("changes", [{"attempts": RETRIES}, {"expired": True}, {"done": True}], ids=str)
def test_nothing_is_retried_without_retries_or_time_left(code, changes):
    """Requirement 45."""
    decision = decide(code, FRESH._replace(**changes), RETRIES)
    assert decision == Decision(Action.FAIL, refresh_metadata=code in RETRY_AND_REFRESH)


def test_the_last_retry_is_still_made():
    assert decide(7, FRESH._replace(attempts=RETRIES - 1), RETRIES).action is Action.RETRY
    assert decide(7, FRESH, 0).action is Action.FAIL
