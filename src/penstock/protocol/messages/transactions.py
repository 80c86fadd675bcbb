# SPDX-License-Identifier: Apache-2.0
"""Producer ids and transactions: taking an id, adding to a transaction, ending it, and looking at those of others.

AddPartitionsToTxn stops at version 3: later ones are between brokers. InitProducerId stops at 5: 6 is not stable.
TxnOffsetCommit 6 names topics by their id; brokers up to 4.3 do not know it.
"""

from __future__ import annotations

from penstock.protocol.schema import (
    BOOL,
    INT16,
    INT32,
    INT64,
    STRING,
    UUID,
    ApiSchema,
    Array,
    array_of_structs,
    field,
    struct,
)

_THROTTLE = field("throttle_time_ms", INT32, ignorable=True)

INIT_PRODUCER_ID = ApiSchema(
    22,
    "InitProducerId",
    0,
    5,
    flexible_from=2,
    throttles_from=1,
    request=struct(
        # An empty id is not the same as none, and nobody means it: the default is null.
        field("transactional_id", STRING, nullable="0+", default=None),
        field("transaction_timeout_ms", INT32),
        field("producer_id", INT64, "3+", default=-1),
        field("producer_epoch", INT16, "3+", default=-1),
    ),
    response=struct(
        _THROTTLE,
        field("error_code", INT16),
        field("producer_id", INT64, default=-1),
        field("producer_epoch", INT16),
    ),
)

ADD_PARTITIONS_TO_TXN = ApiSchema(
    24,
    "AddPartitionsToTxn",
    0,
    3,
    flexible_from=3,
    throttles_from=1,
    request=struct(
        field("v3_and_below_transactional_id", STRING),
        field("v3_and_below_producer_id", INT64),
        field("v3_and_below_producer_epoch", INT16),
        field(
            "v3_and_below_topics",
            array_of_structs(field("name", STRING), field("partitions", Array(INT32))),
        ),
    ),
    response=struct(
        _THROTTLE,
        field(
            "results_by_topic_v3_and_below",
            array_of_structs(
                field("name", STRING),
                field(
                    "results_by_partition",
                    array_of_structs(field("partition_index", INT32), field("partition_error_code", INT16)),
                ),
            ),
        ),
    ),
)

ADD_OFFSETS_TO_TXN = ApiSchema(
    25,
    "AddOffsetsToTxn",
    0,
    4,
    flexible_from=3,
    throttles_from=1,
    request=struct(
        field("transactional_id", STRING),
        field("producer_id", INT64),
        field("producer_epoch", INT16),
        field("group_id", STRING),
    ),
    response=struct(_THROTTLE, field("error_code", INT16)),
)

TXN_OFFSET_COMMIT = ApiSchema(
    28,
    "TxnOffsetCommit",
    0,
    6,
    flexible_from=3,
    throttles_from=1,
    request=struct(
        field("transactional_id", STRING),
        field("group_id", STRING),
        field("producer_id", INT64),
        field("producer_epoch", INT16),
        field("generation_id", INT32, "3+", default=-1),
        field("member_id", STRING, "3+"),
        field("group_instance_id", STRING, "3+", nullable="3+", default=None),
        field(
            "topics",
            array_of_structs(
                field("name", STRING, "0-5", ignorable=True),
                field("topic_id", UUID, "6+", ignorable=True),
                field(
                    "partitions",
                    array_of_structs(
                        field("partition_index", INT32),
                        field("committed_offset", INT64),
                        field("committed_leader_epoch", INT32, "2+", default=-1, ignorable=True),
                        field("committed_metadata", STRING, nullable="0+"),
                    ),
                ),
            ),
        ),
    ),
    response=struct(
        _THROTTLE,
        field(
            "topics",
            array_of_structs(
                field("name", STRING, "0-5", ignorable=True),
                field("topic_id", UUID, "6+", ignorable=True),
                field(
                    "partitions",
                    array_of_structs(field("partition_index", INT32), field("error_code", INT16)),
                ),
            ),
        ),
    ),
)

END_TXN = ApiSchema(
    26,
    "EndTxn",
    0,
    5,
    flexible_from=3,
    throttles_from=1,
    request=struct(
        field("transactional_id", STRING),
        field("producer_id", INT64),
        field("producer_epoch", INT16),
        field("committed", BOOL),
    ),
    response=struct(
        _THROTTLE,
        field("error_code", INT16),
        field("producer_id", INT64, "5+", default=-1, ignorable=True),
        field("producer_epoch", INT16, "5+", default=-1, ignorable=True),
    ),
)

LIST_TRANSACTIONS = ApiSchema(
    66,
    "ListTransactions",
    0,
    2,
    flexible_from=0,
    request=struct(
        field("state_filters", Array(STRING)),
        field("producer_id_filters", Array(INT64)),
        field("duration_filter", INT64, "1+", default=-1),
        field("transactional_id_pattern", STRING, "2+", nullable="2+", default=None),
    ),
    response=struct(
        _THROTTLE,
        field("error_code", INT16),
        field("unknown_state_filters", Array(STRING)),
        field(
            "transaction_states",
            array_of_structs(
                field("transactional_id", STRING),
                field("producer_id", INT64),
                field("transaction_state", STRING),
            ),
        ),
    ),
)

DESCRIBE_TRANSACTIONS = ApiSchema(
    65,
    "DescribeTransactions",
    0,
    0,
    flexible_from=0,
    request=struct(field("transactional_ids", Array(STRING))),
    response=struct(
        _THROTTLE,
        field(
            "transaction_states",
            array_of_structs(
                field("error_code", INT16),
                field("transactional_id", STRING),
                field("transaction_state", STRING),
                field("transaction_timeout_ms", INT32),
                field("transaction_start_time_ms", INT64),
                field("producer_id", INT64),
                field("producer_epoch", INT16),
                field("topics", array_of_structs(field("topic", STRING), field("partitions", Array(INT32)))),
            ),
        ),
    ),
)
