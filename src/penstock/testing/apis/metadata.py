# SPDX-License-Identifier: Apache-2.0
"""Metadata (3).

Behaviour:
- Brokers that are up, the controller, and the topics asked for: null is all of them, an empty list none.
- A topic that is not there is made, where the cluster and the request allow it; this first answer still says
  UNKNOWN_TOPIC_OR_PARTITION (LEADER_NOT_AVAILABLE up to 2.x), the next one has it.
- A partition without a leader is LEADER_NOT_AVAILABLE, its replicas that are down are listed as offline.
- An illegal name is INVALID_TOPIC_EXCEPTION, a denied topic TOPIC_AUTHORIZATION_FAILED, an id that is not there
  UNKNOWN_TOPIC_ID.
- Whoever asks what it may do may do everything.

Version notes:
- 4: a flag for the making of topics. 5: offline replicas. 7: leader epochs. 8: what the client may do. 9: flexible.
  10: topic ids. 12: topics may be asked for by id. 13: an error for the whole answer.
"""

from __future__ import annotations

from typing import Final

from penstock.error_codes import ErrorCode
from penstock.protocol.messages.metadata import OPERATIONS_NOT_ASKED
from penstock.protocol.schema import ZERO_UUID
from penstock.testing.apis.context import ApiRequest, Body
from penstock.testing.refused import Refused
from penstock.testing.topics import NO_LEADER, Partition, Topic, check_topic_name

# All that can be done with a topic and with the cluster, each operation the bit of its number.
_ALL_OF_A_TOPIC: Final = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
_ALL_OF_THE_CLUSTER: Final = sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12))


def handle(request: ApiRequest) -> Body:
    """Describe the cluster."""
    wanted = request.body["topics"]
    if wanted is None:
        denied = request.cluster.denied_topics
        topics = [_describe(request, topic) for topic in request.cluster.topics if topic.name not in denied]
    else:
        topics = [_find(request, row) for row in wanted]
    return _answer(request, topics)


def refuse(request: ApiRequest, code: int) -> Body:
    """Give every topic asked for the error; those of a version without topics get it for the whole."""
    wanted = request.body["topics"] or []
    topics = [_error(row["name"], code, row["topic_id"]) for row in wanted]
    return _answer(request, topics) | {"error_code": code if request.version >= 13 else 0}


def _answer(request: ApiRequest, topics: list[Body]) -> Body:
    cluster = request.cluster
    return {
        "brokers": [
            {"node_id": node.id, "host": node.host, "port": node.port, "rack": node.rack}
            for node in cluster.nodes.values()
            if node.id in cluster.live
        ],
        "cluster_id": cluster.cluster_id,
        "controller_id": cluster.controller_id,
        "topics": topics,
        "cluster_authorized_operations": _allowed(request, "cluster", _ALL_OF_THE_CLUSTER),
    }


def _find(request: ApiRequest, row: Body) -> Body:
    cluster = request.cluster
    name, topic_id = row["name"], row["topic_id"]
    if topic_id != ZERO_UUID:
        topic = cluster.topics.by_id(topic_id)
        if topic is None:
            return _error(name, ErrorCode.UNKNOWN_TOPIC_ID, topic_id)
        return _describe(request, topic)
    if name in cluster.denied_topics:
        return _error(name, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    topic = cluster.topics.by_name(name)
    return _maybe_create(request, name) if topic is None else _describe(request, topic)


def _maybe_create(request: ApiRequest, name: str) -> Body:
    cluster = request.cluster
    try:
        check_topic_name(name)
        if cluster.settings.auto_create_topics and request.body["allow_auto_topic_creation"]:
            cluster.create_topic(name)
            # Kafka has the topic made by the controller, and does not wait for it.
            if cluster.release.name.startswith("2."):
                return _missing(request, name, ErrorCode.LEADER_NOT_AVAILABLE)
    except Refused as error:
        return _missing(request, name, error.code)
    return _missing(request, name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def _missing(request: ApiRequest, name: str, code: int) -> Body:
    # What one may do with it is a question of its name alone.
    allowed = _allowed(request, "topic", _ALL_OF_A_TOPIC)
    return _error(name, code) | {"topic_authorized_operations": allowed}


def _error(name: str | None, code: int, topic_id: bytes = ZERO_UUID) -> Body:
    return {"error_code": code, "name": name, "topic_id": topic_id, "partitions": []}


def _allowed(request: ApiRequest, what: str, everything: int) -> int:
    return everything if request.body[f"include_{what}_authorized_operations"] else OPERATIONS_NOT_ASKED


def _describe(request: ApiRequest, topic: Topic) -> Body:
    return {
        "error_code": ErrorCode.NONE,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "partitions": [_partition(partition, request.cluster.live) for partition in topic.partitions],
        "topic_authorized_operations": _allowed(request, "topic", _ALL_OF_A_TOPIC),
    }


def _partition(partition: Partition, live: set[int]) -> Body:
    return {
        "error_code": ErrorCode.LEADER_NOT_AVAILABLE if partition.leader == NO_LEADER else ErrorCode.NONE,
        "partition_index": partition.key.partition,
        "leader_id": partition.leader,
        "leader_epoch": partition.leader_epoch,
        "replica_nodes": partition.replicas,
        "isr_nodes": partition.isr,
        "offline_replicas": [broker for broker in partition.replicas if broker not in live],
    }
