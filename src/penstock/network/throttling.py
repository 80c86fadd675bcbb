# SPDX-License-Identifier: Apache-2.0
"""Which answers oblige the client to hold back.

Older brokers delayed the answer itself; since KIP-219 they answer at once and the client keeps quiet for the time told.
From which version on that holds is different for each API.
"""

from __future__ import annotations

from typing import Any

from penstock.protocol.messages import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    API_VERSIONS,
    CREATE_TOPICS,
    END_TXN,
    FETCH,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    METADATA,
    OFFSET_FETCH,
    PRODUCE,
    TXN_OFFSET_COMMIT,
)

FIRST_THROTTLING_VERSION: dict[int, int] = {
    PRODUCE.key: 6,
    METADATA.key: 6,
    API_VERSIONS.key: 2,
    FIND_COORDINATOR.key: 2,
    INIT_PRODUCER_ID.key: 1,
    ADD_PARTITIONS_TO_TXN.key: 1,
    ADD_OFFSETS_TO_TXN.key: 1,
    END_TXN.key: 1,
    TXN_OFFSET_COMMIT.key: 1,
    CREATE_TOPICS.key: 3,
    FETCH.key: 8,
    LIST_OFFSETS.key: 3,
    OFFSET_FETCH.key: 4,
}


def throttle_seconds(api_key: int, version: int, body: Any) -> float:
    """How long this client must not send to the node that gave that answer."""
    # The hand-written Produce answer is an object; all others are dicts.
    told_ms = body.get("throttle_time_ms", 0) if isinstance(body, dict) else getattr(body, "throttle_ms", 0)
    if not told_ms or version < FIRST_THROTTLING_VERSION.get(api_key, version + 1):
        return 0.0
    return float(told_ms) / 1000
