# SPDX-License-Identifier: Apache-2.0
"""The requests about the cluster itself: what its brokers can do, which there are, and which of them keeps what."""

from __future__ import annotations

import re
from typing import Final

from penstock.error_codes import ErrorCode
from penstock.protocol.codec import encode_response_body
from penstock.protocol.messages import API_VERSIONS, GET_TELEMETRY_SUBSCRIPTIONS, PUSH_TELEMETRY
from penstock.protocol.messages.metadata import OPERATIONS_NOT_ASKED
from penstock.protocol.schema import ZERO_UUID
from penstock.testing.apis.context import ApiRequest, Body
from penstock.testing.refused import Refused
from penstock.testing.releases import Release
from penstock.testing.security.rights import Operation
from penstock.testing.topics import NO_LEADER, Partition, Topic, check_topic_name
from penstock.types import Node

# ------------------------------------------------------------------------------------------------- ApiVersions


TELEMETRY: Final = (GET_TELEMETRY_SUBSCRIPTIONS, PUSH_TELEMETRY)

_ZERO_LEVELS_SINCE: Final = 4

_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def handle_api_versions(request: ApiRequest) -> Body:
    """ApiVersions (18): tell versions and features.

    Behaviour:
    - Tells the ranges of the release, and the cluster's finalized features with their epoch.
    - A version that is not known is answered in version 0 with UNSUPPORTED_VERSION and the range of this API alone,
      so that the client can ask again; before 2.4 without that range. 0.9 does not know the API, and does not answer.
    - A software name or version that is empty or has odd characters is INVALID_REQUEST.

    Version notes:
    - 1: throttle time. 3: software name and version, features; flexible, but for the response header. 4: features
      whose lowest level is 0, which clients before could not read: they are not told of them.
    """
    software = (request.body["client_software_name"], request.body["client_software_version"])
    if request.version >= 3 and not all(_SOFTWARE.fullmatch(text) for text in software):
        return refuse_api_versions(request, ErrorCode.INVALID_REQUEST)
    cluster = request.cluster
    # A test may finalize what the release does not have.
    ranges = {name: (0, level) for name, level in cluster.features.items()}
    supported = ranges | dict(request.release.supported_features)
    return {
        "error_code": ErrorCode.NONE,
        "api_keys": _api_rows(request.release, telemetry=cluster.telemetry is not None),
        "supported_features": [
            {"name": name, "min_version": low, "max_version": max(high, cluster.features.get(name, 0))}
            for name, (low, high) in supported.items()
            if low > 0 or request.version >= _ZERO_LEVELS_SINCE
        ],
        "finalized_features_epoch": cluster.features_epoch if cluster.features else -1,
        "finalized_features": [
            {"name": name, "min_version_level": level, "max_version_level": level}
            for name, level in cluster.features.items()
            if level > 0
        ],
    }


def refuse_api_versions(request: ApiRequest, code: int) -> Body:
    return {"error_code": code, "api_keys": []}


def unknown_version_answer(release: Release) -> bytes:
    """The answer to a version that is not known, as bytes of version 0."""
    own = [row for row in _api_rows(release) if row["api_key"] == API_VERSIONS.key and release.hints_versions]
    body = {"error_code": ErrorCode.UNSUPPORTED_VERSION, "api_keys": own}
    return b"".join(encode_response_body(API_VERSIONS, 0, body))


def _api_rows(release: Release, *, telemetry: bool = False) -> list[Body]:
    ranges = dict(release.ranges)
    if telemetry:  # a broker without a receiver of telemetry does not offer the API
        ranges |= {api.key: (api.min_version, api.max_version) for api in TELEMETRY}
    return [
        {"api_key": key, "min_version": low, "max_version": high}
        for key, (low, high) in sorted(ranges.items())
    ]


# ---------------------------------------------------------------------------------------------------- Metadata


def handle_metadata(request: ApiRequest) -> Body:
    """Metadata (3): describe the cluster.

    Behaviour:
    - Brokers that are up, the controller, and the topics asked for: null is all of them, an empty list none. In
      version 0 an empty list is all of them.
    - A topic that is not there is made, where the cluster and the request allow it; this first answer still says
      UNKNOWN_TOPIC_OR_PARTITION (LEADER_NOT_AVAILABLE up to 2.x), the next one has it.
    - A partition without a leader is LEADER_NOT_AVAILABLE, its replicas that are down are listed as offline.
    - An illegal name is INVALID_TOPIC_EXCEPTION, an id that is not there UNKNOWN_TOPIC_ID.
    - Without the right DESCRIBE a topic is TOPIC_AUTHORIZATION_FAILED; where all are asked for, it is left out. So is
      one that would have to be made, without the right CREATE on it or on the cluster.
    - A client that asks which operations it may do is told them.

    Version notes:
    - 4: a flag for the making of topics. 5: offline replicas. 7: leader epochs. 8: what the client may do. 9:
      flexible. 10: topic ids. 12: topics may be asked for by id. 13: an error for the whole answer.
    """
    wanted = request.body["topics"]
    if wanted is None or (request.version == 0 and not wanted):
        topics = [
            _describe_topic(request, topic)
            for topic in request.cluster.topics
            if request.rights.topic(Operation.DESCRIBE, topic.name)
        ]
    else:
        topics = [_find_topic(request, row) for row in wanted]
    return _metadata(request, topics)


def refuse_metadata(request: ApiRequest, code: int) -> Body:
    """Give every topic asked for the error; those of a version without topics get it for the whole."""
    wanted = request.body["topics"] or []
    topics = [_topic_error(row["name"], code, row["topic_id"]) for row in wanted]
    return _metadata(request, topics) | {"error_code": code if request.version >= 13 else 0}


def _metadata(request: ApiRequest, topics: list[Body]) -> Body:
    cluster = request.cluster
    is_asked = request.body["include_cluster_authorized_operations"]
    return {
        "brokers": [
            {"node_id": node.id, "host": node.host, "port": node.port, "rack": node.rack}
            for node in cluster.nodes.values()
            if node.id in cluster.live
        ],
        "cluster_id": cluster.cluster_id,
        "controller_id": cluster.controller_id,
        "topics": topics,
        "cluster_authorized_operations": request.rights.cluster_operations()
        if is_asked
        else OPERATIONS_NOT_ASKED,
    }


def _find_topic(request: ApiRequest, row: Body) -> Body:
    cluster = request.cluster
    name, topic_id = row["name"], row["topic_id"]
    if topic_id != ZERO_UUID:
        topic = cluster.topics.by_id(topic_id)
        if topic is None:
            return _topic_error(name, ErrorCode.UNKNOWN_TOPIC_ID, topic_id)
        if not request.rights.topic(Operation.DESCRIBE, topic.name):
            return _topic_error(None, ErrorCode.TOPIC_AUTHORIZATION_FAILED, topic_id)
        return _describe_topic(request, topic)
    if not request.rights.topic(Operation.DESCRIBE, name):
        return _topic_error(name, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    topic = cluster.topics.by_name(name)
    return _maybe_create(request, name) if topic is None else _describe_topic(request, topic)


def _maybe_create(request: ApiRequest, name: str) -> Body:
    cluster = request.cluster
    try:
        check_topic_name(name)
        if cluster.settings.auto_create_topics and request.body["allow_auto_topic_creation"]:
            if not request.rights.create(name):
                return _topic_error(name, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            cluster.create_topic(name)
            # Kafka has the topic made by the controller, and does not wait for it.
            if request.release.creates_without_leader:
                return _missing_topic(request, name, ErrorCode.LEADER_NOT_AVAILABLE)
    except Refused as error:
        return _missing_topic(request, name, error.code)
    return _missing_topic(request, name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def _missing_topic(request: ApiRequest, name: str, code: int) -> Body:
    # What one may do with it is a question of its name alone.
    return _topic_error(name, code) | {"topic_authorized_operations": _allowed_with(request, name)}


def _topic_error(name: str | None, code: int, topic_id: bytes = ZERO_UUID) -> Body:
    return {"error_code": code, "name": name, "topic_id": topic_id, "partitions": []}


def _allowed_with(request: ApiRequest, topic: str) -> int:
    is_asked = request.body["include_topic_authorized_operations"]
    return request.rights.topic_operations(topic) if is_asked else OPERATIONS_NOT_ASKED


def _describe_topic(request: ApiRequest, topic: Topic) -> Body:
    return {
        "error_code": ErrorCode.NONE,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "partitions": [_partition(partition, request.cluster.live) for partition in topic.partitions],
        "topic_authorized_operations": _allowed_with(request, topic.name),
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


# --------------------------------------------------------------------------------------------- FindCoordinator


_GROUP, _TRANSACTION = 0, 1
_NOBODY: Final = Node(-1, "", -1)


def handle_find_coordinator(request: ApiRequest) -> Body:
    """FindCoordinator (10): name the coordinators.

    Behaviour:
    - Any broker knows who coordinates a transactional id (key type 1) or a group (0), whether or not it was ever
      used.
    - No broker for it: COORDINATOR_NOT_AVAILABLE. Without the right DESCRIBE: the id's or the group's authorization
      error. Another key type: INVALID_REQUEST.

    Version notes:
    - 1: transactional ids. 3: flexible. 4: several keys at once.
    """
    return _coordinators(request, None)


def refuse_find_coordinator(request: ApiRequest, code: int) -> Body:
    """Answer with the error code for every key."""
    return _coordinators(request, code)


def _coordinators(request: ApiRequest, forced: int | None) -> Body:
    if request.version < 4:
        return _coordinator_row(request, request.body["key"], forced)
    rows = [{"key": key} | _coordinator_row(request, key, forced) for key in request.body["coordinator_keys"]]
    return {"coordinators": rows}


def _coordinator_row(request: ApiRequest, key: str, forced: int | None) -> Body:
    code, node = _find_owner(request, key) if forced is None else (forced, _NOBODY)
    row = {"error_code": code, "node_id": node.id, "host": node.host, "port": node.port}
    # Kafka puts its word for no error into the message.
    return row | {"error_message": "NONE" if code == 0 else f"no coordinator: error {int(code)}"}


def _find_owner(request: ApiRequest, key: str) -> tuple[int, Node]:
    cluster, key_type = request.cluster, request.body["key_type"]
    if key_type == _TRANSACTION:
        allowed = request.rights.transactional_id(Operation.DESCRIBE, key)
        code, owner = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, cluster.transaction_slots.owner_of(key)
    elif key_type == _GROUP:
        allowed = request.rights.group(key)
        code, owner = ErrorCode.GROUP_AUTHORIZATION_FAILED, cluster.group_slots.owner_of(key)
    else:
        return ErrorCode.INVALID_REQUEST, _NOBODY
    if not allowed:
        return code, _NOBODY
    if owner is None:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE, _NOBODY
    return ErrorCode.NONE, cluster.nodes[owner]
