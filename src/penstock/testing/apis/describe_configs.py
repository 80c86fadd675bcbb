# SPDX-License-Identifier: Apache-2.0
"""DescribeConfigs (32).

Behaviour:
- Topics: every option with its value and where that is from, or those that were asked for; names that there are not are
  left out.
- Brokers: the few options that the fake has, and only of the broker that is asked; without a name, nothing, as nothing
  was set for all of them.
- No such topic: UNKNOWN_TOPIC_OR_PARTITION. An illegal name: INVALID_TOPIC_EXCEPTION. Denied:
  TOPIC_AUTHORIZATION_FAILED. Another broker, or another kind of resource: INVALID_REQUEST.
- Synonyms and documentation are never told.

Version notes:
- 3: type and documentation of each option. 4: flexible.
"""

from __future__ import annotations

from typing import Any, Final

from penstock.error_codes import ErrorCode
from penstock.testing.apis.context import ApiRequest, Body
from penstock.testing.refused import Refused
from penstock.testing.settings import described_topic_options
from penstock.testing.topics import check_topic_name

_TOPIC, _BROKER = 2, 4
_BOOLEAN, _INT = 1, 3
_FROM_FILE: Final = 4


def handle(request: ApiRequest) -> Body:
    """Describe them."""
    return {"results": [_result(request, row) for row in request.body["resources"]]}


def refuse(request: ApiRequest, code: int) -> Body:
    """Say no for every resource."""
    return {"results": [_named(row, error_code=code) for row in request.body["resources"]]}


def _result(request: ApiRequest, row: Body) -> Body:
    try:
        if row["resource_type"] == _TOPIC:
            options = _of_topic(request, row["resource_name"])
        elif row["resource_type"] == _BROKER:
            options = _of_broker(request, row["resource_name"])
        else:
            raise Refused(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {row['resource_type']}")
    except Refused as error:
        return _named(row, error_code=error.code, error_message=error.message)
    wanted = row["configuration_keys"]
    configs = [option for option in options if not wanted or option["name"] in wanted]
    return _named(row, error_message="", configs=configs)  # not null, as it is everywhere else


def _named(row: Body, **answer: Any) -> Body:
    named = {"resource_type": row["resource_type"], "resource_name": row["resource_name"], "configs": []}
    return named | answer


def _of_topic(request: ApiRequest, name: str) -> list[Body]:
    if name in request.cluster.denied_topics:
        raise Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    check_topic_name(name)
    topic = request.cluster.topics.by_name(name)
    if topic is None:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
    return described_topic_options(topic.configs)


def _of_broker(request: ApiRequest, name: str) -> list[Body]:
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
