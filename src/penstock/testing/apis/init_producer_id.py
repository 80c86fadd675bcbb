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

from penstock._identity import ProducerIdentity
from penstock.error_codes import ErrorCode
from penstock.testing.apis.context import ApiRequest, Body
from penstock.testing.transactions import IdentityAnswer

_FENCED_SINCE: Final = 4


def handle(request: ApiRequest) -> Body:
    """Give a producer its identity."""
    answer = _answer(request)
    return {
        "error_code": request.fenced_code(answer.code, _FENCED_SINCE),
        "producer_id": answer.identity.producer_id,
        "producer_epoch": answer.identity.epoch,
    }


def refuse(request: ApiRequest, code: int) -> Body:
    """Say no."""
    return {"error_code": code, "producer_id": -1, "producer_epoch": -1}


def _answer(request: ApiRequest) -> IdentityAnswer:
    body, cluster = request.body, request.cluster
    transactional_id = body["transactional_id"]
    expected = ProducerIdentity(body["producer_id"], body["producer_epoch"])
    if (expected.producer_id < 0) != (expected.epoch < 0):
        return IdentityAnswer(ErrorCode.INVALID_REQUEST)
    if transactional_id is None:
        return IdentityAnswer(ErrorCode.NONE, ProducerIdentity(cluster.allocate_producer_id(), 0))
    if transactional_id in cluster.denied_transactional_ids:
        return IdentityAnswer(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if not transactional_id:
        return IdentityAnswer(ErrorCode.INVALID_REQUEST)
    if not request.coordinates_transaction(transactional_id):
        return IdentityAnswer(ErrorCode.NOT_COORDINATOR)
    return cluster.transactions.init_producer_id(
        transactional_id,
        body["transaction_timeout_ms"],
        expected if expected.valid else None,
        request.now,
    )
