# SPDX-License-Identifier: Apache-2.0
"""What one broker can do, as it said in its ApiVersions response, and the choice of a version for each request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.errors import UnsupportedVersionError
from penstock.protocol.schema import ApiSchema


class NodeApiVersions:
    """The version ranges and finalized features of one broker. Immutable.

    Attributes:
        finalized_features: the level that the whole cluster has agreed on, by feature, for example
            "transaction.version". Empty when the broker is older than features.
        finalized_features_epoch: which agreement that is; -1 when there is none. The highest seen is the newest.
    """

    __slots__ = ("_ranges", "finalized_features", "finalized_features_epoch")

    def __init__(
        self,
        ranges: Mapping[int, tuple[int, int]],
        finalized_features: Mapping[str, int] | None = None,
        finalized_features_epoch: int = -1,
    ) -> None:
        self._ranges = dict(ranges)
        self.finalized_features: dict[str, int] = dict(finalized_features or {})
        self.finalized_features_epoch = finalized_features_epoch

    @classmethod
    def from_response(cls, body: Mapping[str, Any]) -> NodeApiVersions:
        """From a decoded ApiVersions response of any version."""
        ranges = {row["api_key"]: (row["min_version"], row["max_version"]) for row in body["api_keys"]}
        features = {row["name"]: row["max_version_level"] for row in body.get("finalized_features", ())}
        return cls(ranges, features, body.get("finalized_features_epoch", -1))

    def range(self, api_key: int) -> tuple[int, int] | None:
        """The lowest and highest version that the broker says it accepts, or None when it lacks the API."""
        return self._ranges.get(api_key)

    def pick(self, api: ApiSchema, min_version: int | None = None, max_version: int | None = None) -> int:
        """The highest version that the request, this client and the broker all know.

        Brokers list Produce 0 to 2 for the sake of old clients and refuse them; the schema begins at 3, so they are
        never picked.

        Raises:
            UnsupportedVersionError: there is none.
        """
        lowest = api.min_version if min_version is None else max(min_version, api.min_version)
        highest = api.max_version if max_version is None else min(max_version, api.max_version)
        offered = self._ranges.get(api.key)
        if offered is None:
            raise UnsupportedVersionError(
                f"the broker does not offer {api.name}; this request needs version {_span(lowest, highest)} of it: "
                "use a newer broker, or do without the feature that needs it"
            )
        first, last = offered
        version = min(highest, last)
        if version >= max(lowest, first):
            return version
        way_out = (
            "use a newer client"
            if first > highest
            else "use a newer broker, or do without the option or feature that needs it"
        )
        raise UnsupportedVersionError(
            f"no common version of {api.name}: this request can be sent in {_span(lowest, highest)}, "
            f"the broker accepts {_span(first, last)}: {way_out}"
        )

    def __repr__(self) -> str:
        return f"<NodeApiVersions of {len(self._ranges)} APIs, features {self.finalized_features}>"


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first} to {last}"
