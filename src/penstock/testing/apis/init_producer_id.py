# SPDX-License-Identifier: Apache-2.0
"""InitProducerId (22).

Behaviour:
- Without a transactional id, any broker gives a new producer id with epoch 0.
- With one, its coordinator raises the epoch. An open transaction is fenced and aborted first, and
  CONCURRENT_TRANSACTIONS says that the call is to be repeated; so is one whose markers are being written.
- A producer that names its id and epoch goes on with them after an error; PRODUCER_FENCED when another has taken over.
- A time-out above the cluster's limit is INVALID_TRANSACTION_TIMEOUT, an empty id or half an identity INVALID_REQUEST.

Version notes:
- 2: flexible. 3: the producer's own id and epoch. 4: PRODUCER_FENCED, which was INVALID_PRODUCER_EPOCH before.
"""

from __future__ import annotations

from typing import Final

from penstock.error_codes import ErrorCode
from penstock.testing.apis.context import ApiRequest, Body
from penstock.testing.transactions import ProducerIdentity

_FENCED_SINCE: Final = 4


def handle(request: ApiRequest) -> Body:
    """Give a producer its identity."""
    identity = _identity(request)
    return {
        "error_code": request.fenced_code(identity.code, _FENCED_SINCE),
        "producer_id": identity.producer_id,
        "producer_epoch": identity.epoch,
    }


def refuse(request: ApiRequest, code: int) -> Body:
    """Say no."""
    return {"error_code": code, "producer_id": -1, "producer_epoch": -1}


def _identity(request: ApiRequest) -> ProducerIdentity:
    body, cluster = request.body, request.cluster
    transactional_id = body["transactional_id"]
    expected = (body["producer_id"], body["producer_epoch"])
    if (expected[0] < 0) != (expected[1] < 0):
        return ProducerIdentity(ErrorCode.INVALID_REQUEST)
    if transactional_id is None:
        return ProducerIdentity(ErrorCode.NONE, cluster.allocate_producer_id(), 0)
    if transactional_id in cluster.denied_transactional_ids:
        return ProducerIdentity(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if not transactional_id:
        return ProducerIdentity(ErrorCode.INVALID_REQUEST)
    if not request.coordinates_transaction(transactional_id):
        return ProducerIdentity(ErrorCode.NOT_COORDINATOR)
    return cluster.transactions.init_producer_id(
        transactional_id,
        body["transaction_timeout_ms"],
        None if expected[0] < 0 else expected,
        request.now,
    )
