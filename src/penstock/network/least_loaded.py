# SPDX-License-Identifier: Apache-2.0
"""Which node to ask when any would do.

In this order: a ready node with nothing in flight; the ready node with the fewest requests in flight; a node to which a
connection is being made; a node that may be connected to, the one whose last attempt is the longest ago. The search
starts at a random node, so that many clients spread their questions.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from penstock.network._pool_cy import ConnectionPool
from penstock.types import Node


class LeastLoaded(NamedTuple):
    """The node found, and whether any connection is ready, be it too busy or throttled just now."""

    node: Node | None
    any_ready: bool


def least_loaded(nodes: Sequence[Node], pool: ConnectionPool, now: float, rng: random.Random) -> LeastLoaded:
    """Choose a node."""
    any_ready = False
    ready: Node | None = None
    fewest = 0
    preparing: Node | None = None
    connectable: Node | None = None
    start = rng.randrange(len(nodes)) if nodes else 0
    for node in (*nodes[start:], *nodes[:start]):
        any_ready = any_ready or pool.is_connected(node.id)
        connection = pool.sendable(node.id, now)
        if connection is not None:
            in_flight = len(connection.in_flight)
            if not in_flight:
                return LeastLoaded(node, any_ready=True)
            if ready is None or in_flight < fewest:
                ready, fewest = node, in_flight
        elif pool.states.is_preparing(node.id):
            preparing = preparing or node
        elif pool.states.can_connect(node, now) and (
            connectable is None
            or pool.states.last_attempt_at(node.id) < pool.states.last_attempt_at(connectable.id)
        ):
            connectable = node
    return LeastLoaded(ready or preparing or connectable, any_ready)
