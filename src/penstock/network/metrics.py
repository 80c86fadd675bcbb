# SPDX-License-Identifier: Apache-2.0
"""Counters of the network layer.

Plain numbers, incremented by the I/O thread alone; a registry reads them from any thread when it is asked. A reader may
see one counter a little ahead of another, never a torn one.
"""

from __future__ import annotations

from penstock.network._counters_cy import NetworkCounters, NodeMetrics

__all__ = ["NetworkMetrics", "NodeMetrics"]


class NetworkMetrics(NetworkCounters):
    """Counters of one client."""

    __slots__ = ("nodes",)

    def __init__(self) -> None:
        super().__init__()
        self.nodes: dict[int, NodeMetrics] = {}

    @property
    def connections_open(self) -> int:
        """Connections that exist now."""
        return self.connections_created - self.connections_closed

    def node(self, node_id: int) -> NodeMetrics:
        """The counters of a node, made when first asked for."""
        found = self.nodes.get(node_id)
        if found is None:
            found = self.nodes[node_id] = NodeMetrics()
        return found
