# SPDX-License-Identifier: Apache-2.0
"""The only sockets of the package.

From the bottom: `transport` and `_sockets_cy` (bytes, and waiting for them), `resolver` (names), `states`
(bookkeeping), `handshake` and `_connection_cy` (one connection, and the requests on it), `dialogue` (conducts the
handshakes), `_pool_cy` (all connections), `metadata_fetch`, `_client_cy` (what the layers above use). What this layer
needs from others is in `backend`.
"""

from __future__ import annotations

from penstock.network._client_cy import NetworkClient
from penstock.network._connection_cy import ClientRequest, InFlightRequest, NetworkMetrics, NodeMetrics
from penstock.network.backend import MetadataUpdater, NetworkBackend
from penstock.network.resolver import bootstrap_nodes
from penstock.network.settings import NetworkSettings

__all__ = [
    "ClientRequest",
    "InFlightRequest",
    "MetadataUpdater",
    "NetworkBackend",
    "NetworkClient",
    "NetworkMetrics",
    "NetworkSettings",
    "NodeMetrics",
    "bootstrap_nodes",
]
