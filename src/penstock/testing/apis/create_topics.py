# SPDX-License-Identifier: Apache-2.0
"""CreateTopics (19).

Behaviour:
- Any broker takes it, as brokers hand it on to the controller. Each topic succeeds or fails by itself.
- -1 partitions or replicas are the cluster's defaults; an assignment by hand excludes both numbers.
- A name that is in use, or twice in the request; an illegal name, number, assignment or option: each has its own error.
- validate_only does all but make them.

Version notes:
- 2: throttle time. 5: flexible, numbers and options in the answer. 7: topic ids in the answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from penstock.error_codes import ErrorCode
from penstock.testing.apis.context import ApiRequest, Body
from penstock.testing.refused import Refused
from penstock.testing.settings import listed_topic_options

_BY_DEFAULT = -1


def handle(request: ApiRequest) -> Body:
    """Make the topics."""
    counts = Counter(row["name"] for row in request.body["topics"])
    # A name that is there twice is answered once.
    rows = {row["name"]: row for row in request.body["topics"]}.values()
    return {"topics": [_result(request, row, counts[row["name"]]) for row in rows]}


def refuse(request: ApiRequest, code: int) -> Body:
    """Say no for every topic."""
    return {"topics": [{"name": row["name"], "error_code": code} for row in request.body["topics"]]}


def _result(request: ApiRequest, row: Body, times_named: int) -> Body:
    name = row["name"]
    try:
        if times_named > 1:
            raise Refused(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        if name in request.cluster.denied_topics:
            raise Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        return _create(request, row)
    except Refused as error:
        return {"name": name, "error_code": error.code, "error_message": error.message}


def _create(request: ApiRequest, row: Body) -> Body:
    cluster, name = request.cluster, row["name"]
    configs = {config["name"]: config["value"] for config in row["configs"]}
    by_hand = _assignment(row)
    if by_hand is not None:
        topic = cluster.assign_topic(name, by_hand, configs)
    else:
        partitions = None if row["num_partitions"] == _BY_DEFAULT else row["num_partitions"]
        replication = None if row["replication_factor"] == _BY_DEFAULT else row["replication_factor"]
        topic = cluster.create_topic(name, partitions, replication, configs)
    if request.body["validate_only"]:
        cluster.topics.delete(name)
    return {
        "name": name,
        "topic_id": topic.topic_id,
        "error_code": ErrorCode.NONE,
        "num_partitions": len(topic.partitions),
        "replication_factor": len(topic.partitions[0].replicas),
        "configs": listed_topic_options(configs),
    }


def _assignment(row: Body) -> Sequence[Sequence[int]] | None:
    rows = row["assignments"]
    if not rows:
        return None
    if row["num_partitions"] != _BY_DEFAULT or row["replication_factor"] != _BY_DEFAULT:
        raise Refused(ErrorCode.INVALID_REQUEST, "Both an assignment and numbers were given.")
    by_index = {each["partition_index"]: each["broker_ids"] for each in rows}
    if sorted(by_index) != list(range(len(rows))):
        raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "Partitions must be numbered from 0 on.")
    return [by_index[index] for index in range(len(rows))]
