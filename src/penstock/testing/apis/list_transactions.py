# SPDX-License-Identifier: Apache-2.0
"""ListTransactions (66).

Behaviour:
- The transactional ids that the broker coordinates, so that a client has to ask every broker. Denied ids are left out.
- Filters by state, producer id, age and pattern; all that are given must fit. A state that Kafka does not know is told
  back. The pattern must match the whole id; one that is no regular expression is INVALID_REGULAR_EXPRESSION.

Version notes:
- 1: age. 2: pattern.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.error_codes import ErrorCode
from penstock.testing.apis.context import ApiRequest, Body
from penstock.testing.transactions import Transaction, TxnState

# States that Kafka has a name for, and that a transaction here is never in.
_UNUSED_STATES: Final = {"Dead", "PrepareEpochFence"}


def handle(request: ApiRequest) -> Body:
    """List them."""
    body = request.body
    try:
        pattern = re.compile(body["transactional_id_pattern"] or ".*", re.DOTALL)
    except re.error:
        return refuse(request, ErrorCode.INVALID_REGULAR_EXPRESSION)
    known = {state.value for state in TxnState} | _UNUSED_STATES
    found = [
        txn
        for txn in request.cluster.transactions
        if _fits(request, txn) and pattern.fullmatch(txn.transactional_id)
    ]
    return {
        "error_code": ErrorCode.NONE,
        "unknown_state_filters": [name for name in body["state_filters"] if name not in known],
        "transaction_states": [
            {
                "transactional_id": txn.transactional_id,
                "producer_id": txn.producer_id,
                "transaction_state": txn.state.value,
            }
            for txn in found
        ],
    }


def refuse(request: ApiRequest, code: int) -> Body:
    """Say no."""
    return {"error_code": code, "unknown_state_filters": [], "transaction_states": []}


def _fits(request: ApiRequest, txn: Transaction) -> bool:
    body = request.body
    if not request.coordinates_transaction(txn.transactional_id):
        return False
    if txn.transactional_id in request.cluster.denied_transactional_ids:
        return False
    if body["state_filters"] and txn.state.value not in body["state_filters"]:
        return False
    if body["producer_id_filters"] and txn.producer_id not in body["producer_id_filters"]:
        return False
    age: int = body["duration_filter"]
    return age < 0 or request.cluster.wall_ms() - txn.started_ms > age
