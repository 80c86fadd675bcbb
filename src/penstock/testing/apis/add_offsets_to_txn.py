# SPDX-License-Identifier: Apache-2.0
"""AddOffsetsToTxn (25).

Behaviour:
- Makes a group's partition of the offsets topic part of the transaction, as AddPartitionsToTxn does for data, with the
  same errors. A denied group is GROUP_AUTHORIZATION_FAILED.
- Not needed under the second protocol, where TxnOffsetCommit does it.

Version notes:
- 2: PRODUCER_FENCED, which was INVALID_PRODUCER_EPOCH before. 3: flexible. 4: TRANSACTION_ABORTABLE may be answered.
"""

from __future__ import annotations

from typing import Final

from penstock._identity import ProducerIdentity
from penstock.error_codes import ErrorCode
from penstock.testing.apis.context import ApiRequest, Body
from penstock.testing.topics import OFFSETS_TOPIC
from penstock.types import TopicPartition

_FENCED_SINCE: Final = 2


def handle(request: ApiRequest) -> Body:
    """Add the group."""
    return {"error_code": request.fenced_code(_add(request), _FENCED_SINCE)}


def refuse(request: ApiRequest, code: int) -> Body:
    """Say no."""
    return {"error_code": code}


def _add(request: ApiRequest) -> ErrorCode:
    body, cluster = request.body, request.cluster
    transactional_id, group_id = body["transactional_id"], body["group_id"]
    if transactional_id in cluster.denied_transactional_ids:
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if group_id in cluster.denied_groups:
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    if not transactional_id:
        return ErrorCode.INVALID_REQUEST
    if not request.coordinates_transaction(transactional_id):
        return ErrorCode.NOT_COORDINATOR
    partition = TopicPartition(OFFSETS_TOPIC, cluster.group_slots.slot_of(group_id))
    producer = ProducerIdentity(body["producer_id"], body["producer_epoch"])
    return cluster.transactions.add_partitions(transactional_id, producer, [partition], request.now)
