# SPDX-License-Identifier: Apache-2.0
"""GetTelemetrySubscriptions and PushTelemetry: metrics that the cluster asks its clients for."""

from __future__ import annotations

from penstock.protocol.schema import (
    BOOL,
    BYTES,
    INT8,
    INT16,
    INT32,
    STRING,
    UUID,
    ApiSchema,
    Array,
    field,
    struct,
)

GET_TELEMETRY_SUBSCRIPTIONS = ApiSchema(
    71,
    "GetTelemetrySubscriptions",
    0,
    0,
    flexible_from=0,
    request=struct(field("client_instance_id", UUID)),
    response=struct(
        field("throttle_time_ms", INT32),
        field("error_code", INT16),
        field("client_instance_id", UUID),
        field("subscription_id", INT32),
        field("accepted_compression_types", Array(INT8)),
        field("push_interval_ms", INT32),
        field("telemetry_max_bytes", INT32),
        field("delta_temporality", BOOL),
        field("requested_metrics", Array(STRING)),
    ),
)

PUSH_TELEMETRY = ApiSchema(
    72,
    "PushTelemetry",
    0,
    0,
    flexible_from=0,
    request=struct(
        field("client_instance_id", UUID),
        field("subscription_id", INT32),
        field("terminating", BOOL),
        field("compression_type", INT8),
        field("metrics", BYTES),
    ),
    response=struct(field("throttle_time_ms", INT32), field("error_code", INT16)),
)
