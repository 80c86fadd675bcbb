# SPDX-License-Identifier: Apache-2.0
"""ApiVersions (18).

Behaviour:
- Tells the ranges of the release, and the cluster's finalized features with their epoch.
- A version that is not known is answered in version 0 with UNSUPPORTED_VERSION and the range of this API alone, so that
  the client can ask again.
- A software name or version that is empty or has odd characters is INVALID_REQUEST.

Version notes:
- 1: throttle time. 3: software name and version, features; flexible, but for the response header. 4: features whose
  lowest level is 0, which clients before could not read: they are not told of them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from penstock.error_codes import ErrorCode
from penstock.protocol.codec import encode_response_body
from penstock.protocol.messages import API_VERSIONS
from penstock.testing.apis.context import ApiRequest, Body

if TYPE_CHECKING:
    from penstock.testing.cluster import FakeCluster

_ZERO_LEVELS_SINCE: Final = 4

_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def handle(request: ApiRequest) -> Body:
    """Tell versions and features."""
    software = (request.body["client_software_name"], request.body["client_software_version"])
    if request.version >= 3 and not all(_SOFTWARE.fullmatch(text) for text in software):
        return refuse(request, ErrorCode.INVALID_REQUEST)
    cluster = request.cluster
    # A test may finalize what the release does not have.
    ranges = {name: (0, level) for name, level in cluster.features.items()}
    supported = ranges | dict(cluster.release.supported_features)
    return {
        "error_code": ErrorCode.NONE,
        "api_keys": _rows(cluster),
        "supported_features": [
            {"name": name, "min_version": low, "max_version": max(high, cluster.features.get(name, 0))}
            for name, (low, high) in supported.items()
            if low > 0 or request.version >= _ZERO_LEVELS_SINCE
        ],
        "finalized_features_epoch": cluster.features_epoch if cluster.features else -1,
        "finalized_features": [
            {"name": name, "min_version_level": level, "max_version_level": level}
            for name, level in cluster.features.items()
            if level > 0
        ],
    }


def refuse(request: ApiRequest, code: int) -> Body:
    """Say no."""
    return {"error_code": code, "api_keys": []}


def refusal(cluster: FakeCluster) -> bytes:
    """The answer to a version that is not known, as bytes of version 0."""
    own = [row for row in _rows(cluster) if row["api_key"] == API_VERSIONS.key]
    body = {"error_code": ErrorCode.UNSUPPORTED_VERSION, "api_keys": own}
    return b"".join(encode_response_body(API_VERSIONS, 0, body))


def _rows(cluster: FakeCluster) -> list[Body]:
    return [
        {"api_key": key, "min_version": low, "max_version": high}
        for key, (low, high) in sorted(cluster.release.ranges.items())
    ]
