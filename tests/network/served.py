# SPDX-License-Identifier: Apache-2.0
"""The validating cluster of `penstock.testing` at the far end of a network in memory."""

from __future__ import annotations

import math
from collections.abc import Callable

from network.fakes import FakeNetwork, Peer

from penstock.testing import FakeCluster
from penstock.testing.session import Session

# A frame that answers nothing that was ever asked.
NONSENSE = b"\0\0\0\5\xff\xff\xff\xff\xff"


class ServedCluster:
    """Lets a cluster listen on a network, and passes on what its brokers say; nothing takes time by itself.

    Attributes:
        corrupt: takes a whole frame, size and all, and gives what the client shall read instead.
        drops_request: says whether the next request is dropped and answered with random bytes, without an effect.
    """

    def __init__(self, network: FakeNetwork, cluster: FakeCluster) -> None:
        self.corrupt: Callable[[bytes], bytes] = bytes
        self.drops_request: Callable[[], bool] = lambda: False
        self.network = network
        self.cluster = cluster
        self._sessions: list[tuple[Peer, Session]] = []
        self._unanswered: list[Session] = []  # whose answers are lost on the way
        self._pump_at = math.inf
        for node in cluster.nodes.values():
            network.listen(node.host, node.port, lambda peer, node_id=node.id: self._accept(peer, node_id))

    def lose_answers(self, broker_id: int) -> None:
        """Let the answers on the present connections to a broker be lost; what is asked still takes effect."""
        self._unanswered = [session for _, session in self._sessions if session.broker_id == broker_id]

    def pump(self) -> None:
        """Let the brokers do what is due, and say what they have to say."""
        now = self.network.clock.now()
        if now >= self._pump_at:
            self._pump_at = math.inf
        self.cluster.tick(now)
        kept = []
        for peer, session in self._sessions:
            if peer.closed_by_client:
                session.close("the client is gone")
                continue
            for frame in session.output(now):
                if session not in self._unanswered:
                    peer.send(self.corrupt(frame))
            if session.closed:
                peer.close()
            else:
                kept.append((peer, session))
        self._sessions = kept
        at = self.cluster.next_event_at()
        if at < self._pump_at:
            self._pump_at = max(at, now)
            self.network.after(max(0.0, at - now), self.pump)

    def _accept(self, peer: Peer, broker_id: int) -> None:
        try:
            session = self.cluster.session(broker_id)
        except ConnectionRefusedError:
            peer.reset()
            return
        self._sessions.append((peer, session))
        peer.on_data = lambda _: self._on_data(peer, session)

    def _on_data(self, peer: Peer, session: Session) -> None:
        data = bytes(peer.received)
        peer.received.clear()
        if self.drops_request():
            session.close("the request was dropped")
            self._sessions = [each for each in self._sessions if each[1] is not session]
            peer.send(NONSENSE)
            return
        session.feed(data, self.network.clock.now())
        self.pump()
