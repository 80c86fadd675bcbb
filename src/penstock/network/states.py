# SPDX-License-Identifier: Apache-2.0
"""Where the connection to each node stands, and when the next attempt may be made.

Rules:
1. A state changes only along `TRANSITIONS`; anything else is a bug of this package and raises.
2. Each failure lengthens the wait before the next attempt; only READY sets it back. So a peer that accepts connections
   and drops them again does not get attempts without a pause.
3. The time for an attempt covers all that it takes to be READY: TCP, TLS, versions and SASL. Each attempt that is not
   made in time, or breaks before, lengthens the time that the next one may take; READY sets it back.
4. After a connection that had been made is lost, the name is resolved again: the node may have moved.
5. A node that changes its host or port begins anew.
6. A node is shut when the latest attempt to reach it failed, or it refused the authentication; READY opens it again.
   When all nodes are shut, and one of them refused, no request can be answered.
7. A connection that must authenticate anew is not READY meanwhile, but counts as one that was made: when it is lost,
   that is no failed attempt.
8. A node is forgotten when it is not in use, has no connection, and was not tried for a while: ids and addresses of
   brokers may change for ever. It is not forgotten while it would have to wait: it would be tried too early.

No I/O and no clock here: `now` is a parameter. Owned by the I/O thread.
"""

from __future__ import annotations

import enum
import math
import random
from collections.abc import Container, Sequence
from typing import NamedTuple

from penstock._time import ExponentialBackoff
from penstock.errors import IllegalStateError
from penstock.network.resolver import HostAddresses
from penstock.network.settings import NetworkSettings
from penstock.types import Node


class ConnectionState(enum.Enum):
    """Where the connection to a node stands."""

    DISCONNECTED = "disconnected"
    CONNECTING = "connecting"  # TCP, and TLS where it is used
    CHECKING_API_VERSIONS = "checking api versions"
    AUTHENTICATING = "authenticating"  # SASL, where it is used
    READY = "ready"
    REAUTHENTICATING = "authenticating anew"  # before a session is over
    AUTHENTICATION_FAILED = "authentication failed"


DISCONNECTED = ConnectionState.DISCONNECTED
CONNECTING = ConnectionState.CONNECTING
CHECKING_API_VERSIONS = ConnectionState.CHECKING_API_VERSIONS
AUTHENTICATING = ConnectionState.AUTHENTICATING
READY = ConnectionState.READY
REAUTHENTICATING = ConnectionState.REAUTHENTICATING
AUTHENTICATION_FAILED = ConnectionState.AUTHENTICATION_FAILED

TRANSITIONS: dict[ConnectionState, frozenset[ConnectionState]] = {
    DISCONNECTED: frozenset({CONNECTING}),
    CONNECTING: frozenset({CHECKING_API_VERSIONS, DISCONNECTED, AUTHENTICATION_FAILED}),
    CHECKING_API_VERSIONS: frozenset({AUTHENTICATING, READY, DISCONNECTED, AUTHENTICATION_FAILED}),
    AUTHENTICATING: frozenset({READY, DISCONNECTED, AUTHENTICATION_FAILED}),
    READY: frozenset({REAUTHENTICATING, DISCONNECTED, AUTHENTICATION_FAILED}),
    REAUTHENTICATING: frozenset({READY, DISCONNECTED}),
    AUTHENTICATION_FAILED: frozenset({CONNECTING}),
}

# Without a connection: a new one may be tried when the backoff has passed.
UNCONNECTED = frozenset({DISCONNECTED, AUTHENTICATION_FAILED})
# On the way to READY, for the first time or again.
PREPARING = frozenset({CONNECTING, CHECKING_API_VERSIONS, AUTHENTICATING, REAUTHENTICATING})
# The broker has taken requests on this connection.
MADE = frozenset({READY, REAUTHENTICATING})

# A session is renewed when this part of it is over. The part is random between these two, so that not all clients renew
# at the same time.
_EARLIEST_RENEWAL = 0.85
_LATEST_RENEWAL = 0.95
# Seconds. A broker does not take a renewal that follows on another one sooner.
_SHORTEST_RENEWAL = 1.0

# Seconds for which a node that is not in use any more is remembered, and how often such nodes are looked for meanwhile.
REMEMBERED = 300.0
_LOOKS_WHILE_REMEMBERED = 5


class NodeState:
    """What is remembered of one node from one connection to the next."""

    __slots__ = (
        "addresses",
        "ever_answered",
        "ever_ready",
        "failed_attempts",
        "failed_setups",
        "first_setup_timeout",
        "last_attempt_at",
        "node",
        "reconnect_backoff",
        "setup_timeout",
        "shut",
        "state",
        "throttled_until",
        "unanswered",
    )

    def __init__(self, node: Node, setup_timeout: float) -> None:
        self.node = node
        self.state = DISCONNECTED
        self.addresses = HostAddresses(node.host, node.port)
        self.last_attempt_at = -math.inf
        self.failed_attempts = 0  # since READY
        self.failed_setups = 0  # since READY
        self.reconnect_backoff = 0.0  # seconds
        self.setup_timeout = setup_timeout  # seconds
        self.first_setup_timeout = setup_timeout  # of the next attempt after READY
        self.throttled_until = -math.inf
        self.ever_answered = False  # a request behind the handshake, on a connection that has ended since
        self.ever_ready = False
        self.shut = False
        self.unanswered = (
            0  # connections in a row that were READY, and closed by the broker instead of an answer
        )

    def move_to(self, new: ConnectionState) -> None:
        """Change the state.

        Raises:
            IllegalStateError: the table does not have that transition.
        """
        if new not in TRANSITIONS[self.state]:
            raise IllegalStateError(
                f"a connection cannot go from {self.state.value} to {new.value}: {self.node}"
            )
        self.state = new

    @property
    def setup_deadline(self) -> float:
        """When the attempt under way has taken too long."""
        return self.last_attempt_at + self.setup_timeout

    def __repr__(self) -> str:
        return f"<NodeState {self.node}: {self.state.value}, {self.failed_attempts} failed attempts>"


class NodeView(NamedTuple):
    """The state of the connection to a node, for viewers. Times are monotonic seconds.

    Attributes:
        state: of the connection.
        in_flight: requests without an answer.
        waits_since: when the oldest of them was sent, or the attempt to connect begun; None when nothing is waited for.
        failed_attempts: in a row, since it was ready.
        last_attempt_at: when it was tried, or lost.
        next_attempt_at: when a node without connection may be tried again.
        throttled_until: when the broker takes the next request, as it said.
    """

    state: ConnectionState
    in_flight: int
    waits_since: float | None
    failed_attempts: int
    last_attempt_at: float
    next_attempt_at: float
    throttled_until: float


class ConnectionStates:
    """The states of all nodes that were tried and are not forgotten, by node id.

    Attributes:
        remembered: seconds for which a node is remembered that is not in use any more.
    """

    def __init__(self, settings: NetworkSettings, rng: random.Random) -> None:
        self.remembered = REMEMBERED
        self._forget_again_at = -math.inf
        self._rng = rng
        self._reconnect = ExponentialBackoff(settings.reconnect_backoff_ms, settings.reconnect_backoff_max_ms)
        self._setup = ExponentialBackoff(
            settings.connection_setup_timeout_ms, settings.connection_setup_timeout_max_ms
        )
        self._nodes: dict[int, NodeState] = {}

    def get(self, node_id: int) -> NodeState | None:
        """The state of a node, None when it was never tried, or is forgotten."""
        return self._nodes.get(node_id)

    def __contains__(self, node_id: object) -> bool:
        return node_id in self._nodes

    def nodes(self) -> list[Node]:
        """All nodes that were tried and are not forgotten. From any thread: the copy is made in one step."""
        return [known.node for known in list(self._nodes.values())]

    def maybe_forget(self, in_use: Container[int], now: float) -> bool:
        """Forget the nodes that are not needed any more (rule 8), from time to time; whether it was time.

        Bootstrap nodes, whose ids are negative, are few, and stay.

        Args:
            in_use: ids of the nodes that may be tried again.
            now: the time.
        """
        if now < self._forget_again_at:
            return False
        self._forget_again_at = now + self.remembered / _LOOKS_WHILE_REMEMBERED
        for node_id, known in list(self._nodes.items()):
            if node_id >= 0 and node_id not in in_use and self._is_over(known, now):
                del self._nodes[node_id]
        return True

    def _is_over(self, known: NodeState, now: float) -> bool:
        rest = max(self.remembered, known.reconnect_backoff)
        return known.state in UNCONNECTED and now > max(known.last_attempt_at + rest, known.throttled_until)

    def state_of(self, node_id: int) -> ConnectionState:
        """The state of a node; one that was never tried is disconnected."""
        known = self._nodes.get(node_id)
        return DISCONNECTED if known is None else known.state

    def is_preparing(self, node_id: int) -> bool:
        """Whether a connection is on its way to READY."""
        return self.state_of(node_id) in PREPARING

    def can_connect(self, node: Node, now: float) -> bool:
        """Whether a new attempt may be made."""
        known = self._nodes.get(node.id)
        if known is None:
            return True
        return known.state in UNCONNECTED and self.backoff_left(node, now) <= 0

    def backoff_left(self, node: Node, now: float) -> float:
        """Seconds until a node without connection may be tried again."""
        known = self._nodes.get(node.id)
        if known is None or _has_moved(known, node):
            return 0.0
        return max(0.0, known.last_attempt_at + known.reconnect_backoff - now)

    def last_attempt_at(self, node_id: int) -> float:
        """When the node was last tried, or lost."""
        known = self._nodes.get(node_id)
        return -math.inf if known is None else known.last_attempt_at

    def all_shut(self, nodes: Sequence[Node]) -> bool:
        """Whether the latest attempt to reach each of these nodes failed, or was refused."""
        return bool(nodes) and all(self._is_shut(node) for node in nodes)

    def _is_shut(self, node: Node) -> bool:
        known = self._nodes.get(node.id)
        return known is not None and known.shut and not _has_moved(known, node)

    def connecting(self, node: Node, now: float) -> NodeState:
        """An attempt begins."""
        known = self._nodes.get(node.id)
        if known is None or _has_moved(known, node):
            known = NodeState(node, self._setup.seconds(0, self._rng))
            self._nodes[node.id] = known
        known.node = node
        known.move_to(CONNECTING)
        known.last_attempt_at = now
        return known

    def connected(self, known: NodeState) -> None:
        """Bytes can be exchanged; Kafka's part begins."""
        known.move_to(CHECKING_API_VERSIONS)
        known.first_setup_timeout = self._setup.seconds(0, self._rng)

    def ready(self, known: NodeState) -> None:
        """Requests can be sent."""
        known.move_to(READY)
        known.ever_ready = True
        known.shut = False
        known.failed_attempts = 0
        known.reconnect_backoff = 0.0
        known.failed_setups = 0
        known.setup_timeout = known.first_setup_timeout

    def has_answered(self, node: Node) -> bool:
        """Whether a broker at the address of the node has answered a request, on a connection that has ended since."""
        return any(known.ever_answered and same_address(known.node, node) for known in self._nodes.values())

    def renewal_delay(self, lifetime_ms: float) -> float:
        """Seconds after which a session of that length is renewed; infinity when it is not.

        A session without an end is not renewed. One that ends so soon that a broker would refuse the renewal is not
        renewed either: the broker closes the connection, and a new one is made.
        """
        if lifetime_ms <= 0:
            return math.inf
        lifetime = lifetime_ms / 1000
        delay = lifetime * self._rng.uniform(_EARLIEST_RENEWAL, _LATEST_RENEWAL)
        if delay >= _SHORTEST_RENEWAL:
            return delay
        return _SHORTEST_RENEWAL if lifetime * _LATEST_RENEWAL > _SHORTEST_RENEWAL else math.inf

    def disconnected(self, known: NodeState, now: float) -> None:
        """The attempt failed, or the connection is gone."""
        if known.state not in MADE:
            known.shut = True
            known.failed_setups += 1
            known.setup_timeout = self._setup.seconds(known.failed_setups, self._rng)
        else:
            self._reset_setup_timeout(known)
        if known.state is not CONNECTING:
            known.addresses.forget()
        known.move_to(DISCONNECTED)
        self._lengthen_backoff(known, now)

    def authentication_failed(self, known: NodeState, now: float) -> None:
        """The broker refused the authentication."""
        known.move_to(AUTHENTICATION_FAILED)
        known.shut = True
        self._lengthen_backoff(known, now)

    def _lengthen_backoff(self, known: NodeState, now: float) -> None:
        known.last_attempt_at = now
        known.reconnect_backoff = self._reconnect.seconds(known.failed_attempts, self._rng)
        known.failed_attempts += 1

    def _reset_setup_timeout(self, known: NodeState) -> None:
        known.failed_setups = 0
        known.setup_timeout = self._setup.seconds(0, self._rng)


def same_address(one: Node, other: Node) -> bool:
    """Whether two nodes are one listener: a bootstrap server is a broker as well."""
    return one.port == other.port and one.host == other.host


def _has_moved(known: NodeState, node: Node) -> bool:
    return known.state in UNCONNECTED and not same_address(known.node, node)
