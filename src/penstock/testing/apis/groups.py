# SPDX-License-Identifier: Apache-2.0
"""The requests about the offsets of consumer groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock._identity import ProducerIdentity
from penstock.error_codes import ErrorCode
from penstock.testing.apis.context import ApiRequest, Body
from penstock.testing.groups import CommittedOffset, Member
from penstock.testing.security.rights import Operation
from penstock.testing.topics import OFFSETS_TOPIC
from penstock.types import TopicPartition

# --------------------------------------------------------------------------------------------- TxnOffsetCommit


_ABORTABLE_SINCE: Final = 4
_SECOND_PROTOCOL_SINCE: Final = 5


def handle_txn_offset_commit(request: ApiRequest) -> Body:
    """TxnOffsetCommit (28): keep the offsets until the transaction ends.

    Behaviour:
    - Goes to the group's coordinator. The offsets become the group's when the transaction commits.
    - The group must be in the transaction: by AddOffsetsToTxn before, or, from version 5, by this very request.
      Else INVALID_TXN_STATE, or TRANSACTION_ABORTABLE from version 4.
    - That is checked before the member is.
    - A fenced producer is INVALID_PRODUCER_EPOCH. A member that the group does not have: UNKNOWN_MEMBER_ID; another
      generation: ILLEGAL_GENERATION. Metadata over the limit: OFFSET_METADATA_TOO_LARGE, for that partition alone.
    - Without the right WRITE on the id, or READ on the group: their errors. Without READ on a topic:
      TOPIC_AUTHORIZATION_FAILED, for its partitions alone.

    Version notes:
    - 3: member and generation; flexible. 4: TRANSACTION_ABORTABLE. 5: the second protocol.
    """
    body, cluster = request.body, request.cluster
    code = _committing_refused(request) or _join_transaction(request) or _check_committer(request)
    if code:
        return refuse_txn_offset_commit(request, code)
    codes: dict[TopicPartition, int] = {}
    offsets: dict[TopicPartition, CommittedOffset] = {}
    for key, row in _offset_rows(request):
        metadata = row["committed_metadata"]
        codes[key] = _offset_problem(request, key, metadata)
        if not codes[key]:
            offsets[key] = CommittedOffset(row["committed_offset"], row["committed_leader_epoch"], metadata)
    if offsets:
        cluster.groups.add_pending(body["group_id"], _producer(request), offsets)
    return _committed(request, codes)


def refuse_txn_offset_commit(request: ApiRequest, code: int) -> Body:
    """Answer with the error code for every partition."""
    return _committed(request, {key: code for key, _ in _offset_rows(request)})


def _producer(request: ApiRequest) -> ProducerIdentity:
    return ProducerIdentity(request.body["producer_id"], request.body["producer_epoch"])


def _offset_rows(request: ApiRequest) -> list[tuple[TopicPartition, Body]]:
    return [
        (TopicPartition(topic["name"], row["partition_index"]), row)
        for topic in request.body["topics"]
        for row in topic["partitions"]
    ]


def _committing_refused(request: ApiRequest) -> ErrorCode:
    body, rights = request.body, request.rights
    group_id = body["group_id"]
    if not rights.transactional_id(Operation.WRITE, body["transactional_id"]):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if not rights.group(group_id):
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
    elif request.release.verifies_transactions:
        code = cluster.transactions.verify_partition(transactional_id, producer, partition)
    else:
        code = ErrorCode.NONE
    if code is ErrorCode.TRANSACTION_ABORTABLE and request.version < _ABORTABLE_SINCE:
        return ErrorCode.INVALID_TXN_STATE
    return ErrorCode.INVALID_PRODUCER_EPOCH if code is ErrorCode.PRODUCER_FENCED else code


def _offset_problem(request: ApiRequest, key: TopicPartition, metadata: str | None) -> ErrorCode:
    cluster = request.cluster
    if not request.rights.topic(Operation.READ, key.topic):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if cluster.topics.partition(*key) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    too_large = metadata is not None and len(metadata) > cluster.settings.offset_metadata_max
    return ErrorCode.OFFSET_METADATA_TOO_LARGE if too_large else ErrorCode.NONE


def _committed(request: ApiRequest, codes: Mapping[TopicPartition, int]) -> Body:
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


# ------------------------------------------------------------------------------------------------- OffsetFetch


_SEVERAL_GROUPS_SINCE = 8
_NOTHING = CommittedOffset(-1, -1, "")


def handle_offset_fetch(request: ApiRequest) -> Body:
    """OffsetFetch (9): tell the offsets.

    Behaviour:
    - What a group has committed; -1 where it has nothing. Null topics: all that it has.
    - With require_stable, a partition with an offset in an open transaction is UNSTABLE_OFFSET_COMMIT.
    - Asked on the wrong broker: NOT_COORDINATOR. Without the right on the group: GROUP_AUTHORIZATION_FAILED; without
      DESCRIBE on a topic: TOPIC_AUTHORIZATION_FAILED, and where all are asked for, it is left out.

    Version notes:
    - 2: null topics, an error for the whole. 5: leader epochs. 6: flexible. 7: require_stable. 8: several groups at
      once.
    """
    return _fetched(request, None)


def refuse_offset_fetch(request: ApiRequest, code: int) -> Body:
    """Answer with the error code for every group."""
    return _fetched(request, code)


def _fetched(request: ApiRequest, forced: int | None) -> Body:
    if request.version < _SEVERAL_GROUPS_SINCE:
        group = _fetched_group(request, request.body, forced)
        del group["group_id"]
        return group
    return {"groups": [_fetched_group(request, row, forced) for row in request.body["groups"]]}


def _fetched_group(request: ApiRequest, row: Body, forced: int | None) -> Body:
    group_id = row["group_id"]
    code = _fetching_refused(request, group_id) if forced is None else forced
    topics: list[Body] = []
    if code == 0:
        offsets = request.cluster.groups.offsets(group_id)
        wanted = row["topics"]
        if wanted is None:
            names = sorted(
                {key.topic for key in offsets if request.rights.topic(Operation.DESCRIBE, key.topic)}
            )
            wanted = [
                {
                    "name": name,
                    "partition_indexes": sorted(key.partition for key in offsets if key.topic == name),
                }
                for name in names
            ]
        unstable = request.cluster.groups.pending(group_id) if request.body["require_stable"] else set()
        topics = [
            {"name": topic["name"], "partitions": _fetched_partitions(request, topic, offsets, unstable)}
            for topic in wanted
        ]
    return {"group_id": group_id, "topics": topics, "error_code": code}


def _fetching_refused(request: ApiRequest, group_id: str) -> ErrorCode:
    if not request.rights.group(group_id):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    return ErrorCode.NONE if request.coordinates_group(group_id) else ErrorCode.NOT_COORDINATOR


def _fetched_partitions(
    request: ApiRequest,
    topic: Body,
    offsets: Mapping[TopicPartition, CommittedOffset],
    unstable: set[TopicPartition],
) -> list[Body]:
    rows = []
    may_know = request.rights.topic(Operation.DESCRIBE, topic["name"])
    for index in topic["partition_indexes"]:
        key = TopicPartition(topic["name"], index)
        code = ErrorCode.UNSTABLE_OFFSET_COMMIT if key in unstable else ErrorCode.NONE
        if not may_know:
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        known = _NOTHING if code else offsets.get(key, _NOTHING)
        rows.append(
            {
                "partition_index": index,
                "committed_offset": known.offset,
                "committed_leader_epoch": known.leader_epoch,
                "metadata": known.metadata,
                "error_code": code,
            }
        )
    return rows
