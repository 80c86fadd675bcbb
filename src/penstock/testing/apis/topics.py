# SPDX-License-Identifier: Apache-2.0
"""The requests that make topics and describe options."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from penstock.error_codes import ErrorCode
from penstock.testing.apis.context import ApiRequest, Body
from penstock.testing.refused import Refused
from penstock.testing.security.rights import Operation
from penstock.testing.settings import described_topic_options, listed_topic_options
from penstock.testing.topics import check_topic_name

# ------------------------------------------------------------------------------------------------ CreateTopics


_BY_DEFAULT = -1


def handle_create_topics(request: ApiRequest) -> Body:
    """CreateTopics (19): make the topics.

    Behaviour:
    - Any broker takes it, as brokers hand it on to the controller. Each topic succeeds or fails by itself.
    - -1 partitions or replicas are the cluster's defaults; an assignment by hand excludes both numbers.
    - A name that is in use, or twice in the request; an illegal name, number, assignment or option: each has its
      own error.
    - Without the right CREATE on the cluster or the topic: TOPIC_AUTHORIZATION_FAILED.
    - validate_only does all but make them.

    Version notes:
    - 2: throttle time. 5: flexible, numbers and options in the answer. 7: topic ids in the answer.
    """
    counts = Counter(row["name"] for row in request.body["topics"])
    # A name that is there twice is answered once.
    rows = {row["name"]: row for row in request.body["topics"]}.values()
    return {"topics": [_create_result(request, row, counts[row["name"]]) for row in rows]}


def refuse_create_topics(request: ApiRequest, code: int) -> Body:
    """Answer with the error code for every topic."""
    return {"topics": [{"name": row["name"], "error_code": code} for row in request.body["topics"]]}


def _create_result(request: ApiRequest, row: Body, times_named: int) -> Body:
    name = row["name"]
    try:
        if times_named > 1:
            raise Refused(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        if not request.rights.create(name):
            raise Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Authorization failed.")
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


# --------------------------------------------------------------------------------------------- DescribeConfigs


_TOPIC, _BROKER = 2, 4
_BOOLEAN, _INT = 1, 3
_FROM_FILE: Final = 4


def handle_describe_configs(request: ApiRequest) -> Body:
    """DescribeConfigs (32): describe them.

    Behaviour:
    - Topics: every option with its value and where that is from, or those that were asked for; names that there are
      not are left out.
    - Brokers: the few options that the fake has, and only of the broker that is asked; without a name, nothing, as
      nothing was set for all of them.
    - No such topic: UNKNOWN_TOPIC_OR_PARTITION. An illegal name: INVALID_TOPIC_EXCEPTION. Without the right
      DESCRIBE_CONFIGS: TOPIC_AUTHORIZATION_FAILED, and CLUSTER_AUTHORIZATION_FAILED for a broker. Another broker, or
      another kind of resource: INVALID_REQUEST.
    - Synonyms and documentation are never told.

    Version notes:
    - 3: type and documentation of each option. 4: flexible.
    """
    return {"results": [_describe_result(request, row) for row in request.body["resources"]]}


def refuse_describe_configs(request: ApiRequest, code: int) -> Body:
    """Answer with the error code for every resource."""
    return {"results": [_named_resource(row, error_code=code) for row in request.body["resources"]]}


def _describe_result(request: ApiRequest, row: Body) -> Body:
    try:
        if row["resource_type"] == _TOPIC:
            options = _of_topic(request, row["resource_name"])
        elif row["resource_type"] == _BROKER:
            options = _of_broker(request, row["resource_name"])
        else:
            raise Refused(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {row['resource_type']}")
    except Refused as error:
        return _named_resource(row, error_code=error.code, error_message=error.message)
    wanted = row["configuration_keys"]
    configs = [option for option in options if not wanted or option["name"] in wanted]
    return _named_resource(row, error_message="", configs=configs)  # not null, as it is everywhere else


def _named_resource(row: Body, **answer: Any) -> Body:
    named = {"resource_type": row["resource_type"], "resource_name": row["resource_name"], "configs": []}
    return named | answer


def _of_topic(request: ApiRequest, name: str) -> list[Body]:
    if not request.rights.topic(Operation.DESCRIBE_CONFIGS, name):
        raise Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    check_topic_name(name)
    topic = request.cluster.topics.by_name(name)
    if topic is None:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
    return described_topic_options(topic.configs)


def _of_broker(request: ApiRequest, name: str) -> list[Body]:
    if not request.rights.cluster(Operation.DESCRIBE_CONFIGS):
        raise Refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if not name:
        return []
    if name != str(request.broker_id):
        raise Refused(
            ErrorCode.INVALID_REQUEST,
            f"Unexpected broker id, expected {request.broker_id} or empty string, but received {name}",
        )
    settings = request.cluster.settings
    values = {
        "auto.create.topics.enable": (str(settings.auto_create_topics).lower(), _BOOLEAN),
        "default.replication.factor": (str(settings.default_replication), _INT),
        "num.partitions": (str(settings.default_partitions), _INT),
        "transaction.max.timeout.ms": (str(settings.transaction_max_timeout_ms), _INT),
    }
    return [
        {"name": name, "value": value, "read_only": True, "config_source": _FROM_FILE, "config_type": kind}
        for name, (value, kind) in values.items()
    ]
