# SPDX-License-Identifier: Apache-2.0
"""Produce. Versions 0 to 2 carry message sets (magic 0 and 1) instead of record batches; 13 names topics by their id.

`penstock.protocol._produce_cy` has a short way for what is sent today, which is checked against this table.
"""

from __future__ import annotations

from typing import Final

from penstock.protocol.schema import (
    INT16,
    INT32,
    INT64,
    RECORDS,
    STRING,
    UUID,
    ApiSchema,
    array_of_structs,
    field,
    struct,
)

FIRST_VERSION_WITH_BATCHES: Final = 3  # Kafka 4 lists the versions below it and refuses them

_REQUEST = struct(
    field("transactional_id", STRING, "3+", nullable="3+", default=None),
    field("acks", INT16),
    field("timeout_ms", INT32),
    field(
        "topic_data",
        array_of_structs(
            field("name", STRING, "0-12", ignorable=True),
            field("topic_id", UUID, "13+", ignorable=True),
            field(
                "partition_data",
                array_of_structs(
                    field("index", INT32),
                    field("records", RECORDS, nullable="0+"),
                ),
            ),
        ),
    ),
)

_RECORD_ERRORS = array_of_structs(
    field("batch_index", INT32, "8+"),
    field("batch_index_error_message", STRING, "8+", nullable="8+", default=None),
)

_CURRENT_LEADER = struct(
    field("leader_id", INT32, "10+", default=-1),
    field("leader_epoch", INT32, "10+", default=-1),
)

_PARTITION_RESPONSES = array_of_structs(
    field("index", INT32),
    field("error_code", INT16),
    field("base_offset", INT64),
    field("log_append_time_ms", INT64, "2+", default=-1, ignorable=True),
    field("log_start_offset", INT64, "5+", default=-1, ignorable=True),
    field("record_errors", _RECORD_ERRORS, "8+", ignorable=True),
    field("error_message", STRING, "8+", nullable="8+", default=None, ignorable=True),
    field("current_leader", _CURRENT_LEADER, "10+", tag=0),
)

_NODE_ENDPOINTS = array_of_structs(
    field("node_id", INT32, "10+"),
    field("host", STRING, "10+"),
    field("port", INT32, "10+"),
    field("rack", STRING, "10+", nullable="10+", default=None),
)

_RESPONSE = struct(
    field(
        "responses",
        array_of_structs(
            field("name", STRING, "0-12", ignorable=True),
            field("topic_id", UUID, "13+", ignorable=True),
            field("partition_responses", _PARTITION_RESPONSES),
        ),
    ),
    field("throttle_time_ms", INT32, "1+", ignorable=True),
    field("node_endpoints", _NODE_ENDPOINTS, "10+", tag=0),
)

PRODUCE = ApiSchema(
    0, "Produce", 0, 13, flexible_from=9, throttles_from=6, request=_REQUEST, response=_RESPONSE
)
