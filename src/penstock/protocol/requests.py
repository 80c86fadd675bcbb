# SPDX-License-Identifier: Apache-2.0
"""What the network layer needs to know of a request: its API, the versions it can be said in, its bytes, its answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from penstock.protocol.codec import decode_response_body, encode_request_body
from penstock.protocol.schema import ApiSchema, Buffer


class Request(Protocol):
    """A request that is not yet bound to a broker, and so not to a version."""

    @property
    def api(self) -> ApiSchema:
        """Which API it calls."""
        ...

    @property
    def min_version(self) -> int:
        """The lowest version that can say what it says."""
        ...

    @property
    def max_version(self) -> int:
        """The highest version that it may be sent in."""
        ...

    @property
    def expects_response(self) -> bool:
        """Whether the broker answers it at all."""
        ...

    def encode(self, version: int) -> list[Buffer]:
        """The body in that version, without the header."""
        ...

    def decode_response(self, version: int, body: memoryview) -> Any:
        """Read the answer to what `encode(version)` gave."""
        ...


@dataclass(frozen=True, slots=True)
class SchemaRequest:
    """A request whose body is a dict and whose answer is one too."""

    api: ApiSchema
    body: Mapping[str, Any] = field(repr=False)  # may hold credentials
    min_version: int
    max_version: int

    @classmethod
    def of(
        cls,
        api: ApiSchema,
        body: Mapping[str, Any],
        min_version: int | None = None,
        max_version: int | None = None,
    ) -> SchemaRequest:
        """A request in any version that the schema knows, or in fewer.

        Raises:
            ValueError: there is no version between the two bounds.
        """
        lowest = api.min_version if min_version is None else max(min_version, api.min_version)
        highest = api.max_version if max_version is None else min(max_version, api.max_version)
        if lowest > highest:
            raise ValueError(f"{api.name}: no version between {lowest} and {highest}")
        return cls(api, body, lowest, highest)

    @property
    def expects_response(self) -> bool:
        """Always: only Produce has a form without an answer."""
        return True

    def encode(self, version: int) -> list[Buffer]:
        """The body in that version.

        Raises:
            ValueError: the body cannot be said in it.
        """
        return encode_request_body(self.api, version, self.body)

    def decode_response(self, version: int, body: memoryview) -> dict[str, Any]:
        """The answer as a dict.

        Raises:
            ProtocolError: the bytes are not an answer in that version.
        """
        return decode_response_body(self.api, version, body)
