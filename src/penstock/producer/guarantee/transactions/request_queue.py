# SPDX-License-Identifier: Apache-2.0
"""The requests to coordinators: one is under way, the others wait; and the brokers that they go to.

It knows the order of requests, but not what they mean. The Coordinator owns it: every method needs the transaction lock
held.

Rules:
1. One request is under way at a time. The others wait, by priority, then by age.
2. A coordinator is remembered until it is lost, or another transactional id or group is used.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterator

from penstock._time import ExponentialBackoff
from penstock.producer.guarantee.transactions.requests import TxnRequest
from penstock.protocol.requests import CoordinatorKind
from penstock.types import Node


class RequestQueue:
    """Requests by priority, and where they go.

    Args:
        backoff: the wait before a request is sent again.
        rng: its jitter.
    """

    def __init__(self, backoff: ExponentialBackoff, rng: random.Random) -> None:
        self._backoff = backoff
        self._rng = rng
        self._keys: dict[CoordinatorKind, str] = {}  # what is coordinated: the transactional id, the group
        self._nodes: dict[CoordinatorKind, Node] = {}  # the coordinators, if known
        self._waiting: list[tuple[int, int, TxnRequest]] = []  # a heap
        self._ages = itertools.count()
        self._under_way: TxnRequest | None = None

    # ---- the brokers

    def use_key(self, kind: CoordinatorKind, key: str) -> None:
        """Requests are about that transactional id, or group, from now on."""
        if self._keys.get(kind) != key:
            self._keys[kind] = key
            self._nodes.pop(kind, None)

    def key(self, kind: CoordinatorKind) -> str:
        """The transactional id or group whose coordinator is needed."""
        return self._keys.get(kind, "")

    def found(self, kind: CoordinatorKind, node: Node) -> None:
        self._nodes[kind] = node

    def lose(self, request: TxnRequest) -> None:
        """The broker of a request does not coordinate any more, or cannot be reached."""
        if request.goes_to is not None:
            self._nodes.pop(request.goes_to, None)

    def knows_node(self, request: TxnRequest) -> bool:
        """Whether a request can be sent without a search for its coordinator."""
        return request.goes_to is None or request.goes_to in self._nodes

    def node(self, request: TxnRequest) -> Node | None:
        """The broker that a request goes to; None: any."""
        return None if request.goes_to is None else self._nodes[request.goes_to]

    # ---- the requests

    def push(self, request: TxnRequest) -> None:
        """Let a request wait for its turn."""
        heapq.heappush(self._waiting, (request.priority, next(self._ages), request))

    def retry(self, request: TxnRequest, now: float, wait_ms: float | None = None) -> None:
        """Let a request wait to be sent again; `wait_ms`: for so long, and not for the usual backoff."""
        wait = self._backoff.seconds(request.attempts, self._rng) if wait_ms is None else wait_ms / 1000
        request.attempts += 1
        request.retry_at = now + wait
        self.push(request)

    def head(self, now: float) -> TxnRequest | None:
        """The request whose turn it is, if it need not wait for its retry. It stays where it is."""
        if not self._waiting or self._waiting[0][2].retry_at > now:
            return None
        return self._waiting[0][2]

    def pop(self) -> TxnRequest:
        """Take the request at the head away."""
        return heapq.heappop(self._waiting)[2]

    def drop(self, unwanted: Callable[[TxnRequest], bool]) -> None:
        """Forget requests that wait."""
        self._waiting = [entry for entry in self._waiting if not unwanted(entry[2])]
        heapq.heapify(self._waiting)

    def clear(self) -> None:
        """Forget all requests that wait."""
        self._waiting.clear()

    @property
    def is_busy(self) -> bool:
        """Whether a request is under way."""
        return self._under_way is not None

    def sent(self, request: TxnRequest) -> None:
        """A request is under way."""
        self._under_way = request

    def ended(self) -> None:
        """The request under way was answered, or could not be sent."""
        self._under_way = None

    def seconds_to_head(self, now: float) -> float:
        """Seconds until the request at the head may be sent; infinity if only an event can change that."""
        if self._under_way is not None or not self._waiting:
            return float("inf")
        retry_at = self._waiting[0][2].retry_at
        return retry_at - now if retry_at > now else float("inf")

    def __iter__(self) -> Iterator[TxnRequest]:
        """The request under way, then those that wait, in no particular order."""
        if self._under_way is not None:
            yield self._under_way
        yield from self.waiting()

    def waiting(self) -> Iterator[TxnRequest]:
        """Those that wait, in no particular order."""
        return (entry[2] for entry in self._waiting)
