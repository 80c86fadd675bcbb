# SPDX-License-Identifier: Apache-2.0
"""Fetch, ListOffsets and OffsetFetch: what reading back a log needs."""

from __future__ import annotations

from typing import Final

from penstock.protocol.schema import (
    BOOL,
    INT8,
    INT16,
    INT32,
    INT64,
    RECORDS,
    STRING,
    UUID,
    ApiSchema,
    Array,
    array_of_structs,
    field,
    struct,
)

_NO_LIMIT: Final = 2**31 - 1

_FETCH_PARTITIONS = array_of_structs(
    field("partition", INT32),
    field("current_leader_epoch", INT32, "9+", default=-1, ignorable=True),
    field("fetch_offset", INT64),
    field("last_fetched_epoch", INT32, "12+", default=-1),
    field("log_start_offset", INT64, "5+", default=-1, ignorable=True),
    field("partition_max_bytes", INT32),
    field("replica_directory_id", UUID, "17+", tag=0, ignorable=True),
)

_FETCH_REQUEST = struct(
    field("cluster_id", STRING, "12+", nullable="12+", tag=0, default=None, ignorable=True),
    field("replica_id", INT32, "0-14", default=-1),
    field(
        "replica_state",
        struct(
            field("replica_id", INT32, "15+", default=-1), field("replica_epoch", INT64, "15+", default=-1)
        ),
        "15+",
        tag=1,
    ),
    field("max_wait_ms", INT32),
    field("min_bytes", INT32),
    field("max_bytes", INT32, "3+", default=_NO_LIMIT, ignorable=True),
    field("isolation_level", INT8, "4+", ignorable=True),
    field("session_id", INT32, "7+", ignorable=True),
    field("session_epoch", INT32, "7+", default=-1, ignorable=True),
    field(
        "topics",
        array_of_structs(
            field("topic", STRING, "0-12", ignorable=True),
            field("topic_id", UUID, "13+", ignorable=True),
            field("partitions", _FETCH_PARTITIONS),
        ),
    ),
    field(
        "forgotten_topics_data",
        array_of_structs(
            field("topic", STRING, "7-12", ignorable=True),
            field("topic_id", UUID, "13+", ignorable=True),
            field("partitions", Array(INT32), "7+"),
        ),
        "7+",
    ),
    field("rack_id", STRING, "11+", ignorable=True),
)

_PARTITION_DATA = array_of_structs(
    field("partition_index", INT32),
    field("error_code", INT16),
    field("high_watermark", INT64),
    field("last_stable_offset", INT64, "4+", default=-1, ignorable=True),
    field("log_start_offset", INT64, "5+", default=-1, ignorable=True),
    field(
        "diverging_epoch",
        struct(field("epoch", INT32, "12+", default=-1), field("end_offset", INT64, "12+", default=-1)),
        "12+",
        tag=0,
    ),
    field(
        "current_leader",
        struct(field("leader_id", INT32, "12+", default=-1), field("leader_epoch", INT32, "12+", default=-1)),
        "12+",
        tag=1,
    ),
    field(
        "snapshot_id",
        struct(field("end_offset", INT64, default=-1), field("epoch", INT32, default=-1)),
        "12+",
        tag=2,
    ),
    field(
        "aborted_transactions",
        array_of_structs(field("producer_id", INT64, "4+"), field("first_offset", INT64, "4+")),
        "4+",
        nullable="4+",
        ignorable=True,
    ),
    field("preferred_read_replica", INT32, "11+", default=-1),
    field("records", RECORDS, nullable="0+"),
)

_FETCH_RESPONSE = struct(
    field("throttle_time_ms", INT32, "1+", ignorable=True),
    field("error_code", INT16, "7+", ignorable=True),
    field("session_id", INT32, "7+"),
    field(
        "responses",
        array_of_structs(
            field("topic", STRING, "0-12", ignorable=True),
            field("topic_id", UUID, "13+", ignorable=True),
            field("partitions", _PARTITION_DATA),
        ),
    ),
    field(
        "node_endpoints",
        array_of_structs(
            field("node_id", INT32, "16+"),
            field("host", STRING, "16+"),
            field("port", INT32, "16+"),
            field("rack", STRING, "16+", nullable="16+", default=None),
        ),
        "16+",
        tag=0,
    ),
)

FETCH = ApiSchema(
    1, "Fetch", 4, 17, flexible_from=12, throttles_from=8, request=_FETCH_REQUEST, response=_FETCH_RESPONSE
)

LIST_OFFSETS = ApiSchema(
    2,
    "ListOffsets",
    1,
    10,
    flexible_from=6,
    throttles_from=3,
    request=struct(
        field("replica_id", INT32, default=-1),
        field("isolation_level", INT8, "2+"),
        field(
            "topics",
            array_of_structs(
                field("name", STRING),
                field(
                    "partitions",
                    array_of_structs(
                        field("partition_index", INT32),
                        field("current_leader_epoch", INT32, "4+", default=-1, ignorable=True),
                        field("timestamp", INT64),  # -1 the latest offset, -2 the earliest
                    ),
                ),
            ),
        ),
        field("timeout_ms", INT32, "10+", ignorable=True),
    ),
    response=struct(
        field("throttle_time_ms", INT32, "2+", ignorable=True),
        field(
            "topics",
            array_of_structs(
                field("name", STRING),
                field(
                    "partitions",
                    array_of_structs(
                        field("partition_index", INT32),
                        field("error_code", INT16),
                        field("timestamp", INT64, "1+", default=-1),
                        field("offset", INT64, "1+", default=-1),
                        field("leader_epoch", INT32, "4+", default=-1),
                    ),
                ),
            ),
        ),
    ),
)

_COMMITTED = array_of_structs(
    field("partition_index", INT32),
    field("committed_offset", INT64),
    field("committed_leader_epoch", INT32, "5+", default=-1, ignorable=True),
    field("metadata", STRING, nullable="0+"),
    field("error_code", INT16),
)

_WANTED = array_of_structs(field("name", STRING), field("partition_indexes", Array(INT32)))

OFFSET_FETCH = ApiSchema(
    9,
    "OffsetFetch",
    1,
    9,
    flexible_from=6,
    throttles_from=4,
    request=struct(
        field("group_id", STRING, "0-7"),
        field("topics", _WANTED, "0-7", nullable="2-7"),  # null asks for all topics
        field(
            "groups",
            array_of_structs(
                field("group_id", STRING, "8+"),
                field("member_id", STRING, "9+", nullable="9+", default=None, ignorable=True),
                field("member_epoch", INT32, "9+", default=-1, ignorable=True),
                field("topics", _WANTED, "8+", nullable="8+"),
            ),
            "8+",
        ),
        field("require_stable", BOOL, "7+"),
    ),
    response=struct(
        field("throttle_time_ms", INT32, "3+", ignorable=True),
        field("topics", array_of_structs(field("name", STRING), field("partitions", _COMMITTED)), "0-7"),
        field("error_code", INT16, "2-7", ignorable=True),
        field(
            "groups",
            array_of_structs(
                field("group_id", STRING, "8+"),
                field(
                    "topics", array_of_structs(field("name", STRING), field("partitions", _COMMITTED)), "8+"
                ),
                field("error_code", INT16, "8+"),
            ),
            "8+",
        ),
    ),
)
