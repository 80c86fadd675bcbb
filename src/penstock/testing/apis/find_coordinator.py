# SPDX-License-Identifier: Apache-2.0
"""FindCoordinator (10).

Behaviour:
- Any broker knows who coordinates a transactional id (key type 1) or a group (0), whether or not it was ever used.
- No broker for it: COORDINATOR_NOT_AVAILABLE. Denied: the id's or the group's authorization error. Another key type:
  INVALID_REQUEST.

Version notes:
- 1: transactional ids. 3: flexible. 4: several keys at once.
"""

from __future__ import annotations

from typing import Final

from penstock.error_codes import ErrorCode
from penstock.testing.apis.context import ApiRequest, Body
from penstock.types import Node

_GROUP, _TRANSACTION = 0, 1
_NOBODY: Final = Node(-1, "", -1)


def handle(request: ApiRequest) -> Body:
    """Name the coordinators."""
    return _answer(request, None)


def refuse(request: ApiRequest, code: int) -> Body:
    """Say no for every key."""
    return _answer(request, code)


def _answer(request: ApiRequest, forced: int | None) -> Body:
    if request.version < 4:
        return _row(request, request.body["key"], forced)
    rows = [{"key": key} | _row(request, key, forced) for key in request.body["coordinator_keys"]]
    return {"coordinators": rows}


def _row(request: ApiRequest, key: str, forced: int | None) -> Body:
    code, node = _find(request, key) if forced is None else (forced, _NOBODY)
    row = {"error_code": code, "node_id": node.id, "host": node.host, "port": node.port}
    # Kafka puts its word for no error into the message.
    return row | {"error_message": "NONE" if code == 0 else f"no coordinator: error {int(code)}"}


def _find(request: ApiRequest, key: str) -> tuple[int, Node]:
    cluster, key_type = request.cluster, request.body["key_type"]
    if key_type == _TRANSACTION:
        denied = key in cluster.denied_transactional_ids
        code, owner = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, cluster.transaction_slots.owner_of(key)
    elif key_type == _GROUP:
        denied = key in cluster.denied_groups
        code, owner = ErrorCode.GROUP_AUTHORIZATION_FAILED, cluster.group_slots.owner_of(key)
    else:
        return ErrorCode.INVALID_REQUEST, _NOBODY
    if denied:
        return code, _NOBODY
    if owner is None:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE, _NOBODY
    return ErrorCode.NONE, cluster.nodes[owner]
