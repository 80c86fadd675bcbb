# SPDX-License-Identifier: Apache-2.0
"""OffsetFetch (9).

Behaviour:
- What a group has committed; -1 where it has nothing. Null topics: all that it has.
- With require_stable, a partition with an offset in an open transaction is UNSTABLE_OFFSET_COMMIT.
- Asked on the wrong broker: NOT_COORDINATOR. Denied: GROUP_AUTHORIZATION_FAILED.

Version notes:
- 2: null topics, an error for the whole. 5: leader epochs. 6: flexible. 7: require_stable. 8: several groups at once.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.error_codes import ErrorCode
from penstock.testing.apis.context import ApiRequest, Body
from penstock.testing.groups import CommittedOffset
from penstock.types import TopicPartition

_SEVERAL_GROUPS_SINCE = 8
_NOTHING = CommittedOffset(-1, -1, "")


def handle(request: ApiRequest) -> Body:
    """Tell the offsets."""
    return _answer(request, None)


def refuse(request: ApiRequest, code: int) -> Body:
    """Say no for every group."""
    return _answer(request, code)


def _answer(request: ApiRequest, forced: int | None) -> Body:
    if request.version < _SEVERAL_GROUPS_SINCE:
        group = _group(request, request.body, forced)
        del group["group_id"]
        return group
    return {"groups": [_group(request, row, forced) for row in request.body["groups"]]}


def _group(request: ApiRequest, row: Body, forced: int | None) -> Body:
    group_id = row["group_id"]
    code = _refusal(request, group_id) if forced is None else forced
    topics: list[Body] = []
    if code == 0:
        offsets = request.cluster.groups.offsets(group_id)
        wanted = row["topics"]
        if wanted is None:
            names = sorted({key.topic for key in offsets})
            wanted = [
                {
                    "name": name,
                    "partition_indexes": sorted(key.partition for key in offsets if key.topic == name),
                }
                for name in names
            ]
        unstable = request.cluster.groups.pending(group_id) if request.body["require_stable"] else set()
        topics = [
            {"name": topic["name"], "partitions": _partitions(topic, offsets, unstable)} for topic in wanted
        ]
    return {"group_id": group_id, "topics": topics, "error_code": code}


def _refusal(request: ApiRequest, group_id: str) -> ErrorCode:
    if group_id in request.cluster.denied_groups:
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    return ErrorCode.NONE if request.coordinates_group(group_id) else ErrorCode.NOT_COORDINATOR


def _partitions(
    topic: Body, offsets: Mapping[TopicPartition, CommittedOffset], unstable: set[TopicPartition]
) -> list[Body]:
    rows = []
    for index in topic["partition_indexes"]:
        key = TopicPartition(topic["name"], index)
        known = _NOTHING if key in unstable else offsets.get(key, _NOTHING)
        rows.append(
            {
                "partition_index": index,
                "committed_offset": known.offset,
                "committed_leader_epoch": known.leader_epoch,
                "metadata": known.metadata,
                "error_code": ErrorCode.UNSTABLE_OFFSET_COMMIT if key in unstable else ErrorCode.NONE,
            }
        )
    return rows
