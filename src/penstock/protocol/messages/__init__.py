# SPDX-License-Identifier: Apache-2.0
"""The APIs that this client uses, as data. Names, types and versions follow Kafka's message definitions."""

from __future__ import annotations

from typing import Final

from penstock.protocol.messages.admin import CREATE_TOPICS, DESCRIBE_CONFIGS
from penstock.protocol.messages.connection import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE
from penstock.protocol.messages.fetch import FETCH, LIST_OFFSETS, OFFSET_FETCH
from penstock.protocol.messages.metadata import FIND_COORDINATOR, METADATA
from penstock.protocol.messages.produce import PRODUCE
from penstock.protocol.messages.telemetry import GET_TELEMETRY_SUBSCRIPTIONS, PUSH_TELEMETRY
from penstock.protocol.messages.transactions import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    INIT_PRODUCER_ID,
    LIST_TRANSACTIONS,
    TXN_OFFSET_COMMIT,
)
from penstock.protocol.schema import ApiSchema

__all__ = [
    "ADD_OFFSETS_TO_TXN",
    "ADD_PARTITIONS_TO_TXN",
    "API_BY_KEY",
    "API_VERSIONS",
    "CREATE_TOPICS",
    "DESCRIBE_CONFIGS",
    "DESCRIBE_TRANSACTIONS",
    "END_TXN",
    "FETCH",
    "FIND_COORDINATOR",
    "GET_TELEMETRY_SUBSCRIPTIONS",
    "INIT_PRODUCER_ID",
    "LIST_OFFSETS",
    "LIST_TRANSACTIONS",
    "METADATA",
    "OFFSET_FETCH",
    "PRODUCE",
    "PUSH_TELEMETRY",
    "SASL_AUTHENTICATE",
    "SASL_HANDSHAKE",
    "TXN_OFFSET_COMMIT",
]

_ALL: Final = (
    PRODUCE,
    FETCH,
    LIST_OFFSETS,
    METADATA,
    OFFSET_FETCH,
    FIND_COORDINATOR,
    SASL_HANDSHAKE,
    API_VERSIONS,
    CREATE_TOPICS,
    INIT_PRODUCER_ID,
    ADD_PARTITIONS_TO_TXN,
    ADD_OFFSETS_TO_TXN,
    END_TXN,
    TXN_OFFSET_COMMIT,
    DESCRIBE_CONFIGS,
    SASL_AUTHENTICATE,
    DESCRIBE_TRANSACTIONS,
    LIST_TRANSACTIONS,
    GET_TELEMETRY_SUBSCRIPTIONS,
    PUSH_TELEMETRY,
)

API_BY_KEY: Final[dict[int, ApiSchema]] = {api.key: api for api in _ALL}
