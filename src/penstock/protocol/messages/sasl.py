# SPDX-License-Identifier: Apache-2.0
"""SaslHandshake and SaslAuthenticate: who this client is."""

from __future__ import annotations

from penstock.protocol.schema import BYTES, INT16, INT64, STRING, ApiSchema, Array, field, struct

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
