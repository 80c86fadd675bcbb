# SPDX-License-Identifier: Apache-2.0
"""ApiVersions, SaslHandshake and SaslAuthenticate: what a connection begins with."""

from __future__ import annotations

from penstock.protocol.schema import (
    BOOL,
    BYTES,
    INT16,
    INT32,
    INT64,
    STRING,
    ApiSchema,
    Array,
    array_of_structs,
    field,
    struct,
)

_REQUEST = struct(
    field("client_software_name", STRING, "3+", ignorable=True),
    field("client_software_version", STRING, "3+", ignorable=True),
    field("cluster_id", STRING, "5+", nullable="5+", default=None, ignorable=True),
    field("node_id", INT32, "5+", default=-1, ignorable=True),
)

_API_KEYS = array_of_structs(
    field("api_key", INT16),
    field("min_version", INT16),
    field("max_version", INT16),
)

_SUPPORTED_FEATURES = array_of_structs(
    field("name", STRING, "3+"),
    field("min_version", INT16, "3+"),
    field("max_version", INT16, "3+"),
)

_FINALIZED_FEATURES = array_of_structs(
    field("name", STRING, "3+"),
    field("max_version_level", INT16, "3+"),
    field("min_version_level", INT16, "3+"),
)

_RESPONSE = struct(
    field("error_code", INT16),
    field("api_keys", _API_KEYS),
    field("throttle_time_ms", INT32, "1+", ignorable=True),
    field("supported_features", _SUPPORTED_FEATURES, "3+", tag=0, ignorable=True),
    field("finalized_features_epoch", INT64, "3+", tag=1, default=-1, ignorable=True),
    field("finalized_features", _FINALIZED_FEATURES, "3+", tag=2, ignorable=True),
    field("zk_migration_ready", BOOL, "3+", tag=3, ignorable=True),
)

# The header of the response has no tagged fields in any version: a client must be able to read the answer of a broker
# that does not know the version it asked for. Brokers up to 4.3 refuse version 5; when to use it is decided where
# connections are made.
API_VERSIONS = ApiSchema(
    18,
    "ApiVersions",
    0,
    5,
    flexible_from=3,
    throttles_from=2,
    request=_REQUEST,
    response=_RESPONSE,
    plain_response_header=True,
)


SASL_HANDSHAKE = ApiSchema(
    17,
    "SaslHandshake",
    0,
    1,
    flexible_from=None,
    request=struct(field("mechanism", STRING)),
    response=struct(field("error_code", INT16), field("mechanisms", Array(STRING))),
)

SASL_AUTHENTICATE = ApiSchema(
    36,
    "SaslAuthenticate",
    0,
    2,
    flexible_from=2,
    request=struct(field("auth_bytes", BYTES)),
    response=struct(
        field("error_code", INT16),
        field("error_message", STRING, nullable="0+", default=None),
        field("auth_bytes", BYTES),
        field("session_lifetime_ms", INT64, "1+", ignorable=True),
    ),
)
