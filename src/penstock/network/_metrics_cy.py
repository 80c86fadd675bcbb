# SPDX-License-Identifier: Apache-2.0
"""Counters of the network layer. Compiled if possible.

Plain numbers. Only the I/O thread changes them; a registry reads them from any thread when it is asked. A reader may
see one counter a little ahead of another, never a torn one.
"""

from __future__ import annotations

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


@cython.final
@cython.cclass
class NodeMetrics:
    """Counters of one node, over all its connections. Latencies are in seconds."""

    def __init__(self) -> None:
        self.requests = 0
        self.responses = 0
        self.bytes_out = 0
        self.bytes_in = 0
        self.request_max = 0  # bytes of the largest request
        self.latency_sum = 0.0  # from a request to its answer, over all answers
        self.latency_max = 0.0


@cython.final
@cython.cclass
class NetworkMetrics:
    """Counters of one client, over all nodes.

    Attributes:
        nodes: the counters of each node, by its id.
    """

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
