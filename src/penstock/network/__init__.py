# SPDX-License-Identifier: Apache-2.0
"""The only sockets of the package.

From the bottom: `transport` (bytes), `wakeup` and `selector` (waiting), `resolver` and `bootstrap` (names), `states`
and `in_flight` (bookkeeping), `handshake` and `connection` (one connection), `pool` (all of them), `metadata_fetch`,
`client` (what the layers above use). What this layer needs from above is the Protocol in `updater`. The ordinary way of
a request through all of them is in the modules that end in `_cy`.
"""

from __future__ import annotations

from penstock.network.backend import NetworkBackend
from penstock.network.client import NetworkClient
from penstock.network.exchange import ClientRequest, ClientResponse
from penstock.network.metrics import NetworkMetrics, NodeMetrics
from penstock.network.resolver import bootstrap_nodes
from penstock.network.settings import NetworkSettings
from penstock.network.updater import MetadataUpdater

__all__ = [
    "ClientRequest",
    "ClientResponse",
    "MetadataUpdater",
    "NetworkBackend",
    "NetworkClient",
    "NetworkMetrics",
    "NetworkSettings",
    "NodeMetrics",
    "bootstrap_nodes",
]
