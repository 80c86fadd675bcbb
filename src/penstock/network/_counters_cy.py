# SPDX-License-Identifier: Apache-2.0
"""The numbers that every request adds to; `metrics` says who may read them. Compiled if possible."""

from __future__ import annotations

from typing import Any

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
        self.latency_sum = 0.0
        self.latency_max = 0.0

    def record_latency(self, seconds: cython.double) -> Any:
        """An answer came that long after its request."""
        self.latency_sum += seconds
        self.latency_max = max(self.latency_max, seconds)


@cython.cclass
class NetworkCounters:
    """Counters of one client, over all nodes."""

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
