# SPDX-License-Identifier: Apache-2.0
"""CreateTopics, for the tools and the tests."""

from __future__ import annotations

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

_TOPICS = array_of_structs(
    field("name", STRING),
    field("num_partitions", INT32),
    field("replication_factor", INT16),
    field(
        "assignments",
        array_of_structs(field("partition_index", INT32), field("broker_ids", Array(INT32))),
    ),
    field("configs", array_of_structs(field("name", STRING), field("value", STRING, nullable="0+"))),
)

_RESULTS = array_of_structs(
    field("name", STRING),
    field("topic_id", UUID, "7+", ignorable=True),
    field("error_code", INT16),
    field("error_message", STRING, "1+", nullable="0+", default=None, ignorable=True),
    field("topic_config_error_code", INT16, "5+", tag=0, ignorable=True),
    field("num_partitions", INT32, "5+", default=-1, ignorable=True),
    field("replication_factor", INT16, "5+", default=-1, ignorable=True),
    field(
        "configs",
        array_of_structs(
            field("name", STRING, "5+"),
            field("value", STRING, "5+", nullable="5+"),
            field("read_only", BOOL, "5+"),
            field("config_source", INT8, "5+", default=-1, ignorable=True),
            field("is_sensitive", BOOL, "5+"),
        ),
        "5+",
        nullable="5+",
        ignorable=True,
    ),
)

CREATE_TOPICS = ApiSchema(
    19,
    "CreateTopics",
    2,
    7,
    flexible_from=5,
    request=struct(
        field("topics", _TOPICS),
        field("timeout_ms", INT32, default=60000),
        field("validate_only", BOOL, "1+"),
    ),
    response=struct(field("throttle_time_ms", INT32, "2+", ignorable=True), field("topics", _RESULTS)),
)
