# SPDX-License-Identifier: Apache-2.0
"""CreateTopics and DescribeConfigs, for the tools, the Spark sink and the tests."""

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
    throttles_from=3,
    request=struct(
        field("topics", _TOPICS),
        field("timeout_ms", INT32, default=60000),
        field("validate_only", BOOL, "1+"),
    ),
    response=struct(field("throttle_time_ms", INT32, "2+", ignorable=True), field("topics", _RESULTS)),
)

_SYNONYMS = array_of_structs(
    field("name", STRING, "1+"),
    field("value", STRING, "1+", nullable="0+"),
    field("source", INT8, "1+"),
)

_DESCRIBED = array_of_structs(
    field("name", STRING),
    field("value", STRING, nullable="0+"),
    field("read_only", BOOL),
    field("config_source", INT8, "1+", default=-1, ignorable=True),
    field("is_sensitive", BOOL),
    field("synonyms", _SYNONYMS, "1+", ignorable=True),
    field("config_type", INT8, "3+", ignorable=True),
    field("documentation", STRING, "3+", nullable="0+", default=None, ignorable=True),
)

DESCRIBE_CONFIGS = ApiSchema(
    32,
    "DescribeConfigs",
    1,
    4,
    flexible_from=4,
    request=struct(
        field(
            "resources",
            array_of_structs(
                field("resource_type", INT8),
                field("resource_name", STRING),
                field("configuration_keys", Array(STRING), nullable="0+"),
            ),
        ),
        field("include_synonyms", BOOL, "1+"),
        field("include_documentation", BOOL, "3+"),
    ),
    response=struct(
        field("throttle_time_ms", INT32, ignorable=True),
        field(
            "results",
            array_of_structs(
                field("error_code", INT16),
                field("error_message", STRING, nullable="0+", default=None),
                field("resource_type", INT8),
                field("resource_name", STRING),
                field("configs", _DESCRIBED),
            ),
        ),
    ),
)
