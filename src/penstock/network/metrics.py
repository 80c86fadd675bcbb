# SPDX-License-Identifier: Apache-2.0
"""Counters of the network layer.

Plain numbers, incremented by the I/O thread alone; a registry reads them from any thread when it is asked. A reader may
see one counter a little ahead of another, never a torn one.
"""

from __future__ import annotations


class NodeMetrics:
    """Counters of one node, over all its connections. Latencies are in seconds."""

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "latency_max",
        "latency_sum",
        "request_max",
        "requests",
        "responses",
    )

    def __init__(self) -> None:
        self.requests = 0
        self.responses = 0
        self.bytes_out = 0
        self.bytes_in = 0
        self.request_max = 0  # bytes of the largest request
        self.latency_sum = 0.0
        self.latency_max = 0.0

    def record_latency(self, seconds: float) -> None:
        """An answer came that long after its request."""
        self.latency_sum += seconds
        self.latency_max = max(self.latency_max, seconds)


class NetworkMetrics:
    """Counters of one client."""

    __slots__ = (
        "authentications_failed",
        "bytes_in",
        "bytes_out",
        "connections_closed",
        "connections_created",
        "connections_failed",
        "io_ns",
        "io_wait_ns",
        "nodes",
        "request_max",
        "requests",
        "responses",
        "select_count",
    )

    def __init__(self) -> None:
        self.requests = 0
        self.responses = 0
        self.bytes_out = 0
        self.bytes_in = 0
        self.request_max = 0  # bytes of the largest request
        self.connections_created = 0
        self.connections_closed = 0
        self.connections_failed = 0  # attempts that did not get as far as a connection
        self.authentications_failed = 0
        self.select_count = 0
        self.io_wait_ns = 0
        self.io_ns = 0
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
