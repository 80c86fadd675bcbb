# SPDX-License-Identifier: Apache-2.0
"""Metadata (which broker leads which partition) and FindCoordinator (which broker keeps a transaction or a group)."""

from __future__ import annotations

from typing import Final

from penstock.protocol.schema import (
    BOOL,
    INT8,
    INT16,
    INT32,
    STRING,
    UUID,
    ApiSchema,
    Array,
    array_of_structs,
    field,
    struct,
)

OPERATIONS_NOT_ASKED: Final = -(2**31)  # the answer where authorized operations were not asked for

_METADATA_REQUEST = struct(
    field(
        "topics",
        array_of_structs(
            field("topic_id", UUID, "10+", ignorable=True),
            field("name", STRING, nullable="10+"),
        ),
        nullable="1+",  # null asks for all topics, an empty list for none; in version 0 the empty list asks for all
    ),
    field("allow_auto_topic_creation", BOOL, "4+", default=True),
    field("include_cluster_authorized_operations", BOOL, "8-10"),
    field("include_topic_authorized_operations", BOOL, "8+"),
)

_BROKERS = array_of_structs(
    field("node_id", INT32),
    field("host", STRING),
    field("port", INT32),
    field("rack", STRING, "1+", nullable="1+", default=None, ignorable=True),
)

_PARTITIONS = array_of_structs(
    field("error_code", INT16),
    field("partition_index", INT32),
    field("leader_id", INT32),
    field("leader_epoch", INT32, "7+", default=-1, ignorable=True),
    field("replica_nodes", Array(INT32)),
    field("isr_nodes", Array(INT32)),
    field("offline_replicas", Array(INT32), "5+", ignorable=True),
)

_TOPICS = array_of_structs(
    field("error_code", INT16),
    field("name", STRING, nullable="12+"),
    field("topic_id", UUID, "10+", ignorable=True),
    field("is_internal", BOOL, "1+", ignorable=True),
    field("partitions", _PARTITIONS),
    field("topic_authorized_operations", INT32, "8+", default=OPERATIONS_NOT_ASKED),
)

_METADATA_RESPONSE = struct(
    field("throttle_time_ms", INT32, "3+", ignorable=True),
    field("brokers", _BROKERS),
    field("cluster_id", STRING, "2+", nullable="2+", default=None, ignorable=True),
    field("controller_id", INT32, "1+", default=-1, ignorable=True),
    field("topics", _TOPICS),
    field("cluster_authorized_operations", INT32, "8-10", default=OPERATIONS_NOT_ASKED),
    field("error_code", INT16, "13+", ignorable=True),
)

METADATA = ApiSchema(
    3,
    "Metadata",
    0,
    13,
    flexible_from=9,
    throttles_from=6,
    request=_METADATA_REQUEST,
    response=_METADATA_RESPONSE,
)

_FIND_COORDINATOR_REQUEST = struct(
    field("key", STRING, "0-3"),
    field("key_type", INT8, "1+"),  # 0 group, 1 transaction
    field("coordinator_keys", Array(STRING), "4+"),
)

_FIND_COORDINATOR_RESPONSE = struct(
    field("throttle_time_ms", INT32, "1+", ignorable=True),
    field("error_code", INT16, "0-3"),
    field("error_message", STRING, "1-3", nullable="1-3", default=None, ignorable=True),
    field("node_id", INT32, "0-3"),
    field("host", STRING, "0-3"),
    field("port", INT32, "0-3"),
    field(
        "coordinators",
        array_of_structs(
            field("key", STRING, "4+"),
            field("node_id", INT32, "4+"),
            field("host", STRING, "4+"),
            field("port", INT32, "4+"),
            field("error_code", INT16, "4+"),
            field("error_message", STRING, "4+", nullable="4+", default=None, ignorable=True),
        ),
        "4+",
    ),
)

FIND_COORDINATOR = ApiSchema(
    10,
    "FindCoordinator",
    0,
    6,
    flexible_from=3,
    throttles_from=2,
    request=_FIND_COORDINATOR_REQUEST,
    response=_FIND_COORDINATOR_RESPONSE,
)
