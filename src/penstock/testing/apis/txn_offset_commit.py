# SPDX-License-Identifier: Apache-2.0
"""TxnOffsetCommit (28).

Behaviour:
- Goes to the group's coordinator. The offsets become the group's when the transaction commits.
- The group must be in the transaction: by AddOffsetsToTxn before, or, from version 5, by this very request. Else
  INVALID_TXN_STATE, or TRANSACTION_ABORTABLE from version 4.
- That is checked before the member is.
- A fenced producer is INVALID_PRODUCER_EPOCH. A member that the group does not have: UNKNOWN_MEMBER_ID; another
  generation: ILLEGAL_GENERATION. Metadata over the limit: OFFSET_METADATA_TOO_LARGE, for that partition alone.

Version notes:
- 3: member and generation; flexible. 4: TRANSACTION_ABORTABLE. 5: the second protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock._identity import ProducerIdentity
from penstock.error_codes import ErrorCode
from penstock.testing.apis.context import ApiRequest, Body
from penstock.testing.groups import CommittedOffset, Member
from penstock.testing.topics import OFFSETS_TOPIC
from penstock.types import TopicPartition

_ABORTABLE_SINCE: Final = 4
_SECOND_PROTOCOL_SINCE: Final = 5


def handle(request: ApiRequest) -> Body:
    """Keep the offsets until the transaction ends."""
    body, cluster = request.body, request.cluster
    code = _refusal(request) or _join_transaction(request) or _check_committer(request)
    if code:
        return refuse(request, code)
    codes: dict[TopicPartition, int] = {}
    offsets: dict[TopicPartition, CommittedOffset] = {}
    for key, row in _rows(request):
        metadata = row["committed_metadata"]
        codes[key] = _problem(request, key, metadata)
        if not codes[key]:
            offsets[key] = CommittedOffset(row["committed_offset"], row["committed_leader_epoch"], metadata)
    if offsets:
        cluster.groups.add_pending(body["group_id"], _producer(request), offsets)
    return _answer(request, codes)


def refuse(request: ApiRequest, code: int) -> Body:
    """Say no for every partition."""
    return _answer(request, {key: code for key, _ in _rows(request)})


def _producer(request: ApiRequest) -> ProducerIdentity:
    return ProducerIdentity(request.body["producer_id"], request.body["producer_epoch"])


def _rows(request: ApiRequest) -> list[tuple[TopicPartition, Body]]:
    return [
        (TopicPartition(topic["name"], row["partition_index"]), row)
        for topic in request.body["topics"]
        for row in topic["partitions"]
    ]


def _refusal(request: ApiRequest) -> ErrorCode:
    body, cluster = request.body, request.cluster
    group_id = body["group_id"]
    if body["transactional_id"] in cluster.denied_transactional_ids:
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if group_id in cluster.denied_groups:
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    return ErrorCode.NONE if request.coordinates_group(group_id) else ErrorCode.NOT_COORDINATOR


def _check_committer(request: ApiRequest) -> ErrorCode:
    body, groups = request.body, request.cluster.groups
    group_id = body["group_id"]
    member = Member(body["member_id"], body["generation_id"], body["group_instance_id"])
    return groups.check_member(group_id, member) or groups.check_producer(group_id, _producer(request))


def _join_transaction(request: ApiRequest) -> ErrorCode:
    body, cluster = request.body, request.cluster
    partition = TopicPartition(OFFSETS_TOPIC, cluster.group_slots.slot_of(body["group_id"]))
    transactional_id, producer = body["transactional_id"], _producer(request)
    if request.version >= _SECOND_PROTOCOL_SINCE:
        code = cluster.transactions.add_partitions(transactional_id, producer, [partition], request.now)
    elif cluster.release.verifies_transactions:
        code = cluster.transactions.verify_partition(transactional_id, producer, partition)
    else:
        code = ErrorCode.NONE
    if code is ErrorCode.TRANSACTION_ABORTABLE and request.version < _ABORTABLE_SINCE:
        return ErrorCode.INVALID_TXN_STATE
    return ErrorCode.INVALID_PRODUCER_EPOCH if code is ErrorCode.PRODUCER_FENCED else code


def _problem(request: ApiRequest, key: TopicPartition, metadata: str | None) -> ErrorCode:
    cluster = request.cluster
    if key.topic in cluster.denied_topics:
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if cluster.topics.partition(*key) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    too_large = metadata is not None and len(metadata) > cluster.settings.offset_metadata_max
    return ErrorCode.OFFSET_METADATA_TOO_LARGE if too_large else ErrorCode.NONE


def _answer(request: ApiRequest, codes: Mapping[TopicPartition, int]) -> Body:
    return {
        "topics": [
            {
                "name": topic["name"],
                "partitions": [
                    {
                        "partition_index": row["partition_index"],
                        "error_code": codes[TopicPartition(topic["name"], row["partition_index"])],
                    }
                    for row in topic["partitions"]
                ],
            }
            for topic in request.body["topics"]
        ]
    }
