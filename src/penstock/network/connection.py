# SPDX-License-Identifier: Apache-2.0
"""One connection to one node: bytes out, frames in, and which request each frame answers.

Rules:
1. At most one request is partly written at any time: a connection takes the next one when the last byte of the previous
   one is with the operating system. That keeps latency honest and memory bounded.
2. The buffers of a request are written from where they are; what is left after a partial write is a view, not a copy.
3. An answer that was read counts, whatever follows it: trouble met while reading is put aside in `trouble` until the
   answers before it have been handed over. What to do about it is decided by the pool that owns the connection.

Owned by the I/O thread.
"""

from __future__ import annotations

from penstock.network._wire_cy import READ_SIZE, Wire
from penstock.network.handshake import Handshake
from penstock.network.metrics import NetworkMetrics
from penstock.network.states import NodeState
from penstock.network.transport import Address, Transport

__all__ = ["READ_SIZE", "Connection"]


class Connection(Wire):
    """A transport, the request being written, and the requests that wait for an answer.

    Attributes:
        address: which of the node's addresses this is.
        established: it got as far as exchanging bytes.
        known: what is remembered of the node; its state is the state of this connection.
        in_flight: requests without an answer, the one being written included.
        handshake: what is being agreed with the broker, None when READY.
        api_versions: what the broker can do, None until it has told.
        last_used_at: when bytes last moved.
        peer_closed: the peer will send nothing more.
        trouble: why nothing more can be read: KafkaError when the peer sends nonsense, else mostly OSError.
        closed: this end is closed.
        write_watched: the selector waits for room to write.
    """

    __slots__ = ("address", "established", "handshake")

    def __init__(
        self,
        known: NodeState,
        transport: Transport,
        address: Address,
        max_response_bytes: int,
        metrics: NetworkMetrics,
    ) -> None:
        super().__init__(known, transport, max_response_bytes, metrics, metrics.node(known.node.id))
        self.address = address
        self.established = False
        self.handshake: Handshake | None = None

    def __repr__(self) -> str:
        unsent = f", {self.unsent_bytes} bytes to write" if self.unsent_bytes else ""
        return f"<Connection to {self.known.node}: {self.known.state.value}, {len(self.in_flight)} in flight{unsent}>"
