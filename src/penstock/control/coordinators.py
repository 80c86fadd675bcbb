# SPDX-License-Identifier: Apache-2.0
"""Which broker coordinates which transactional id or group.

Hundreds of jobs may want to know at once, so what is wanted is gathered, and one request asks for many keys
(FindCoordinator 4 and later; older brokers are asked key by key).

Rules:
1. One look-up at a time. What is wanted meanwhile goes into the next one.
2. A passing failure is tried again after a rest, for as long as somebody wants the key; any other one is told to one of
   those who wait, and the next one asks anew.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

from penstock._time import ExponentialBackoff
from penstock.control.steps import ANY, Ask, CoordinatorOf, Reply, Steps
from penstock.error_codes import ErrorCode
from penstock.errors import KafkaError, UnsupportedVersionError, broker_error
from penstock.protocol.find_coordinator import CoordinatorKind, FindCoordinator
from penstock.types import Node

# An id may have hundreds of bytes; so many of them are still a small request.
KEYS_PER_REQUEST = 500

_LONG_AGO = -math.inf


class Coordinators:
    """Remembers coordinators and says what has to be looked up. Knows no network: the runner runs `look_up`."""

    def __init__(self, backoff: ExponentialBackoff, rng: random.Random) -> None:
        self._backoff = backoff
        self._rng = rng
        self._nodes: dict[CoordinatorOf, Node] = {}
        self._wanted: set[CoordinatorOf] = set()
        self._refused: dict[CoordinatorOf, KafkaError] = {}
        self._troubles: dict[CoordinatorOf, KafkaError] = {}
        self._failures = 0
        self._rest_until = _LONG_AGO
        self._looking = False

    def find(self, target: CoordinatorOf) -> Node | KafkaError | None:
        """The coordinator; why it cannot be had; None while it is looked up."""
        node = self._nodes.get(target)
        if node is None and (refused := self._refused.pop(target, None)) is not None:
            return refused
        if node is None:
            self._wanted.add(target)
        return node

    def forget(self, target: CoordinatorOf) -> None:
        """It proved to be another one, or gone."""
        self._nodes.pop(target, None)

    def trouble_with(self, target: CoordinatorOf) -> KafkaError | None:
        """Why the latest look-up gave nothing."""
        return self._troubles.get(target)

    def seconds_to_look_up(self, now: float) -> float:
        """Seconds until there is something to look up; infinity when there is not, or it is under way."""
        if self._looking or not self._wanted:
            return math.inf
        return max(0.0, self._rest_until - now)

    def look_up(self) -> Steps[None]:
        """Ask for what is wanted, or as much of it as fits into one request."""
        self._looking = True
        kind = next(iter(self._wanted)).kind
        asked = [target for target in self._wanted if target.kind is kind][:KEYS_PER_REQUEST]
        return self._look_up(kind, asked)

    def stop(self) -> None:
        """Nobody wants to know any more."""
        self._wanted.clear()
        self._refused.clear()
        self._troubles.clear()
        self._looking = False

    def _look_up(self, kind: CoordinatorKind, asked: Sequence[CoordinatorOf]) -> Steps[None]:
        reply = yield Ask(ANY, FindCoordinator(kind, [target.key for target in asked]))
        if isinstance(reply.error, UnsupportedVersionError):
            for target in asked:
                reply = yield Ask(ANY, FindCoordinator(kind, [target.key]))
                self._take(target, reply)
        else:
            for target in asked:
                self._take(target, reply)
        self._after_look_up(asked, reply)

    def _take(self, target: CoordinatorOf, reply: Reply) -> None:
        error = reply.error
        row: Mapping[str, Any] | None = reply.body.get(target.key) if error is None else None
        if error is None and row is None:
            error = broker_error(ErrorCode.UNKNOWN_SERVER_ERROR, "the broker left the key out of its answer")
        elif error is None and row is not None and row["error_code"]:
            error = broker_error(row["error_code"], row["error_message"])
        if error is None and row is not None:
            self._nodes[target] = Node(row["node_id"], row["host"], row["port"])
            self._wanted.discard(target)
            self._troubles.pop(target, None)
            return
        if error is not None:
            self._troubles[target] = error
            if not error.retriable:
                self._refused[target] = error
                self._wanted.discard(target)

    def _after_look_up(self, asked: Sequence[CoordinatorOf], reply: Reply) -> None:
        self._looking = False
        if self._wanted.isdisjoint(asked):
            self._failures = 0
            return
        self._rest_until = reply.at + self._backoff.seconds(self._failures, self._rng)
        self._failures += 1
