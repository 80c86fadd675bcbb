# SPDX-License-Identifier: Apache-2.0
"""FindCoordinator, which says the same in two ways: version 4 and later ask for many keys, older ones for a single one.

The answer is given in the newer way, whatever the version.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

from penstock.protocol.codec import decode_response_body, encode_request_body
from penstock.protocol.messages import FIND_COORDINATOR
from penstock.protocol.schema import Buffer

_FIRST_VERSION_WITH_MANY_KEYS = 4
_FIRST_VERSION_WITH_KINDS = 1


class CoordinatorKind(enum.IntEnum):
    """What is coordinated; the numbers are those of the wire."""

    GROUP = 0
    TRANSACTION = 1


class FindCoordinator:
    """Asks any broker who coordinates these groups, or these transactional ids.

    Args:
        kind: what the keys are.
        keys: one or more; several cannot be asked of a broker that is older than version 4.
    """

    api = FIND_COORDINATOR
    max_version = FIND_COORDINATOR.max_version
    expects_response = True

    def __init__(self, kind: CoordinatorKind, keys: Sequence[str]) -> None:
        self._kind = kind
        self._keys = keys
        self.min_version = _FIRST_VERSION_WITH_KINDS if len(keys) == 1 else _FIRST_VERSION_WITH_MANY_KEYS

    def encode(self, version: int) -> list[Buffer]:
        """The body in that version."""
        keys: dict[str, Any] = {"coordinator_keys": list(self._keys)}
        if version < _FIRST_VERSION_WITH_MANY_KEYS:
            (key,) = self._keys
            keys = {"key": key}
        return encode_request_body(FIND_COORDINATOR, version, {"key_type": int(self._kind), **keys})

    def decode_response(self, version: int, body: memoryview) -> dict[str, dict[str, Any]]:
        """The rows of the answer by key: `node_id`, `host`, `port`, `error_code`, `error_message`.

        Raises:
            ProtocolError: the bytes are not an answer in that version.
        """
        answer = decode_response_body(FIND_COORDINATOR, version, body)
        if version < _FIRST_VERSION_WITH_MANY_KEYS:
            return {self._keys[0]: answer}
        return {row["key"]: row for row in answer["coordinators"]}
