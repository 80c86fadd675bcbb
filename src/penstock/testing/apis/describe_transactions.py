# SPDX-License-Identifier: Apache-2.0
"""DescribeTransactions (65).

Behaviour:
- State, producer id and epoch, time-out, start and partitions of transactional ids that the broker coordinates.
- Elsewhere: NOT_COORDINATOR. Never initialised: TRANSACTIONAL_ID_NOT_FOUND. Denied:
  TRANSACTIONAL_ID_AUTHORIZATION_FAILED. Empty: INVALID_REQUEST.

Version notes:
- 0 only.
"""

from __future__ import annotations

from itertools import groupby

from penstock.error_codes import ErrorCode
from penstock.testing.apis.context import ApiRequest, Body
from penstock.testing.transactions import Transaction


def handle(request: ApiRequest) -> Body:
    """Describe them."""
    return {"transaction_states": [_describe(request, name) for name in request.body["transactional_ids"]]}


def refuse(request: ApiRequest, code: int) -> Body:
    """Say no for every id."""
    return {"transaction_states": [_error(name, code) for name in request.body["transactional_ids"]]}


def _describe(request: ApiRequest, transactional_id: str) -> Body:
    if transactional_id in request.cluster.denied_transactional_ids:
        return _error(transactional_id, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if not transactional_id:
        return _error(transactional_id, ErrorCode.INVALID_REQUEST)
    if not request.coordinates_transaction(transactional_id):
        return _error(transactional_id, ErrorCode.NOT_COORDINATOR)
    txn = request.cluster.transactions.find(transactional_id)
    if txn is None:
        return _error(transactional_id, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    return {
        "error_code": ErrorCode.NONE,
        "transactional_id": transactional_id,
        "transaction_state": txn.state.value,
        "transaction_timeout_ms": txn.timeout_ms,
        "transaction_start_time_ms": txn.started_ms,
        "producer_id": txn.producer_id,
        "producer_epoch": txn.epoch,
        "topics": _topics(txn),
    }


def _topics(txn: Transaction) -> list[Body]:
    by_topic = groupby(sorted(txn.partitions), key=lambda key: key.topic)
    return [{"topic": topic, "partitions": [key.partition for key in keys]} for topic, keys in by_topic]


def _error(transactional_id: str, code: int) -> Body:
    return {"error_code": code, "transactional_id": transactional_id}
