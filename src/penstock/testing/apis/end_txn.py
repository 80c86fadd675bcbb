# SPDX-License-Identifier: Apache-2.0
"""EndTxn (26).

Behaviour:
- Decides commit or abort; the answer comes before the markers are written, and until then CONCURRENT_TRANSACTIONS
  answers whatever comes, be it the same end, the other one, or the end of what follows.
- The same end again: NONE. The other end: INVALID_TXN_STATE. Nothing was added: INVALID_TXN_STATE, except that an abort
  under the second protocol succeeds and raises the epoch.
- An old epoch: PRODUCER_FENCED. Another producer id: INVALID_PRODUCER_ID_MAPPING.

Version notes:
- 2: PRODUCER_FENCED, which was INVALID_PRODUCER_EPOCH before. 3: flexible. 4: TRANSACTION_ABORTABLE may be answered.
- 5: the second protocol: every end raises the epoch, and the answer has the producer's next id and epoch. The version
  of the request decides, not the feature: that is how Kafka does it, and why one transaction must not mix versions.
"""

from __future__ import annotations

from typing import Final

from penstock._identity import ProducerIdentity
from penstock.error_codes import ErrorCode
from penstock.testing.apis.context import ApiRequest, Body
from penstock.testing.transactions import IdentityAnswer

_FENCED_SINCE: Final = 2
_SECOND_PROTOCOL_SINCE: Final = 5


def handle(request: ApiRequest) -> Body:
    """End the transaction."""
    answer = _end(request)
    body: Body = {"error_code": request.fenced_code(answer.code, _FENCED_SINCE)}
    if request.version >= _SECOND_PROTOCOL_SINCE and answer.code is ErrorCode.NONE:
        body |= {"producer_id": answer.identity.producer_id, "producer_epoch": answer.identity.epoch}
    return body


def refuse(request: ApiRequest, code: int) -> Body:
    """Say no."""
    return {"error_code": code}


def _end(request: ApiRequest) -> IdentityAnswer:
    body, transactions = request.body, request.cluster.transactions
    transactional_id = body["transactional_id"]
    if transactional_id in request.cluster.denied_transactional_ids:
        return IdentityAnswer(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if not transactional_id:
        return IdentityAnswer(ErrorCode.INVALID_REQUEST)
    if not request.coordinates_transaction(transactional_id):
        return IdentityAnswer(ErrorCode.NOT_COORDINATOR)
    end = transactions.end_v2 if request.version >= _SECOND_PROTOCOL_SINCE else transactions.end_v1
    producer = ProducerIdentity(body["producer_id"], body["producer_epoch"])
    return end(transactional_id, producer, commit=body["committed"], now=request.now)
