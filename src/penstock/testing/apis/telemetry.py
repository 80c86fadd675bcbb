# SPDX-License-Identifier: Apache-2.0
"""The requests of telemetry: what the cluster wants to know of a client, and the client's metrics."""

from __future__ import annotations

from penstock.error_codes import ErrorCode
from penstock.protocol.schema import ZERO_UUID
from penstock.testing.apis.context import ApiRequest, Body
from penstock.testing.telemetry import TelemetryPush


def handle_get_telemetry_subscriptions(request: ApiRequest) -> Body:
    """GetTelemetrySubscriptions (71): tell a client what to push.

    Behaviour:
    - Gives a client that has no id one, and the others their own.
    """
    telemetry = request.cluster.telemetry
    if telemetry is None:
        return refuse_get_telemetry_subscriptions(request, ErrorCode.UNSUPPORTED_VERSION)
    asked = bytes(request.body["client_instance_id"])
    return {
        "throttle_time_ms": 0,
        "error_code": ErrorCode.NONE,
        "client_instance_id": asked if asked != ZERO_UUID else request.cluster.rng.randbytes(16),
        "subscription_id": telemetry.subscription_id,
        "accepted_compression_types": list(telemetry.codecs),
        "push_interval_ms": telemetry.interval_ms,
        "telemetry_max_bytes": telemetry.max_bytes,
        "delta_temporality": telemetry.delta,
        "requested_metrics": list(telemetry.metrics),
    }


def refuse_get_telemetry_subscriptions(_request: ApiRequest, code: int) -> Body:
    return {
        "throttle_time_ms": 0, "error_code": code, "client_instance_id": ZERO_UUID, "subscription_id": 0,
        "accepted_compression_types": [], "push_interval_ms": 0, "telemetry_max_bytes": 0,
        "delta_temporality": False, "requested_metrics": [],
    }  # fmt: skip


def handle_push_telemetry(request: ApiRequest) -> Body:
    """PushTelemetry (72): take a client's metrics.

    Behaviour:
    - After the client's last push another one is INVALID_REQUEST.
    - A push before the interval is over is THROTTLING_QUOTA_EXCEEDED, unless it is the last one.
    - Another subscription than the present one is UNKNOWN_SUBSCRIPTION_ID, a codec that is not accepted
      UNSUPPORTED_COMPRESSION_TYPE, and a push that is too large TELEMETRY_TOO_LARGE.
    """
    telemetry, body = request.cluster.telemetry, request.body
    if telemetry is None:
        return refuse_push_telemetry(request, ErrorCode.UNSUPPORTED_VERSION)
    client, codec, last = bytes(body["client_instance_id"]), body["compression_type"], body["terminating"]
    if client == ZERO_UUID or client in telemetry.ended:
        return refuse_push_telemetry(request, ErrorCode.INVALID_REQUEST)
    due = telemetry.last_push.get(client, float("-inf")) + telemetry.interval_ms / 1000
    if request.now < due and not last:
        return refuse_push_telemetry(request, ErrorCode.THROTTLING_QUOTA_EXCEEDED)
    telemetry.last_push[client] = request.now
    if body["subscription_id"] != telemetry.subscription_id:
        return refuse_push_telemetry(request, ErrorCode.UNKNOWN_SUBSCRIPTION_ID)
    if codec and codec not in telemetry.codecs:
        return refuse_push_telemetry(request, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
    data = bytes(body["metrics"])
    if len(data) > telemetry.max_bytes:
        return refuse_push_telemetry(request, ErrorCode.TELEMETRY_TOO_LARGE)
    if last:
        telemetry.ended.add(client)
    telemetry.pushes.append(TelemetryPush(client, last, codec, telemetry.unpack(codec, data), request.now))
    return refuse_push_telemetry(request, ErrorCode.NONE)


def refuse_push_telemetry(_request: ApiRequest, code: int) -> Body:
    """Answer PushTelemetry with an error code."""
    return {"throttle_time_ms": 0, "error_code": code}
