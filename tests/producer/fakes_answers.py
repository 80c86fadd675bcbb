# SPDX-License-Identifier: Apache-2.0
"""What a broker can answer to a batch, by what becomes of the batch."""

from __future__ import annotations

import pytest

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
