# SPDX-License-Identifier: Apache-2.0
"""AddPartitionsToTxn (24).

Behaviour:
- Makes partitions part of the transaction; the first ones begin it, and its time-out starts.
- All or nothing: when one partition is not there or denied it gets its error, the others OPERATION_NOT_ATTEMPTED.
- Another producer id: INVALID_PRODUCER_ID_MAPPING. Another epoch: PRODUCER_FENCED. Markers being written:
  CONCURRENT_TRANSACTIONS.

Version notes:
- 2: PRODUCER_FENCED, which was INVALID_PRODUCER_EPOCH before. 3: flexible. 4 and 5 are for brokers and not spoken here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock._identity import ProducerIdentity
from penstock.error_codes import ErrorCode
from penstock.testing.apis.context import ApiRequest, Body
from penstock.types import TopicPartition

_FENCED_SINCE: Final = 2


def handle(request: ApiRequest) -> Body:
    """Add the partitions."""
    body = request.body
    transactional_id = body["v3_and_below_transactional_id"]
    wanted = _wanted(request)
    code = _refusal(request, transactional_id)
    if code:
        return _answer(request, dict.fromkeys(wanted, code))
    problems = {key: problem for key in wanted if (problem := _problem(request, key))}
    if problems:
        return _answer(request, dict.fromkeys(wanted, ErrorCode.OPERATION_NOT_ATTEMPTED) | problems)
    producer = ProducerIdentity(body["v3_and_below_producer_id"], body["v3_and_below_producer_epoch"])
    code = request.cluster.transactions.add_partitions(transactional_id, producer, wanted, request.now)
    return _answer(request, dict.fromkeys(wanted, request.fenced_code(code, _FENCED_SINCE)))


def refuse(request: ApiRequest, code: int) -> Body:
    """Say no for every partition."""
    return _answer(request, dict.fromkeys(_wanted(request), code))


def _refusal(request: ApiRequest, transactional_id: str) -> ErrorCode:
    if transactional_id in request.cluster.denied_transactional_ids:
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if not transactional_id:
        return ErrorCode.INVALID_REQUEST
    return ErrorCode.NONE if request.coordinates_transaction(transactional_id) else ErrorCode.NOT_COORDINATOR


def _problem(request: ApiRequest, key: TopicPartition) -> ErrorCode:
    if not request.cluster.may_write(key.topic):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    known = request.cluster.topics.partition(*key) is not None
    return ErrorCode.NONE if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _wanted(request: ApiRequest) -> list[TopicPartition]:
    return [
        TopicPartition(topic["name"], index)
        for topic in request.body["v3_and_below_topics"]
        for index in topic["partitions"]
    ]


def _answer(request: ApiRequest, codes: Mapping[TopicPartition, int]) -> Body:
    return {
        "results_by_topic_v3_and_below": [
            {
                "name": topic["name"],
                "results_by_partition": [
                    {
                        "partition_index": index,
                        "partition_error_code": codes[TopicPartition(topic["name"], index)],
                    }
                    for index in topic["partitions"]
                ],
            }
            for topic in request.body["v3_and_below_topics"]
        ]
    }
