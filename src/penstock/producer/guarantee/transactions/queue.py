# SPDX-License-Identifier: Apache-2.0
"""Transaction requests that wait for their turn, one under way at a time, and the coordinators they go to.

The base of the TransactionManager that knows the order of requests, but not what they mean. Guarded by the manager's
lock.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

from penstock.producer.guarantee.transactions.operation import OperationDesk
from penstock.producer.guarantee.transactions.requests import AddPartitionsRequest, TxnRequest
from penstock.protocol.find_coordinator import CoordinatorKind
from penstock.types import Node, TopicPartition


class RequestQueue(OperationDesk):
    """Requests by priority, then by age.

    Args:
        wake: wakes the I/O thread.
    """

    def __init__(self, wake: Callable[[], object]) -> None:
        super().__init__(wake)
        self._coordinators: dict[CoordinatorKind, Node | None] = {}
        self._group_id: str | None = None
        self._queue: list[tuple[int, int, TxnRequest]] = []  # a heap
        self._ages = itertools.count()
        self._under_way: TxnRequest | None = None

    def seconds_to_request(self, now: float) -> float:
        """When the request at the head may be tried again."""
        with self._lock:
            if self._under_way is not None or not self._queue:
                return float("inf")
            retry_at = self._queue[0][2].retry_at
            return retry_at - now if retry_at > now else float("inf")

    def set_coordinator(self, kind: CoordinatorKind, node: Node) -> None:
        """A coordinator was found."""
        self._coordinators[kind] = node

    def _push(self, request: TxnRequest) -> None:
        heapq.heappush(self._queue, (request.priority, next(self._ages), request))

    def _drop_queued(self, unwanted: Callable[[TxnRequest], bool]) -> None:
        self._queue = [entry for entry in self._queue if not unwanted(entry[2])]
        heapq.heapify(self._queue)

    def _is_being_added(self, partition: TopicPartition) -> bool:
        requests = [self._under_way, *(entry[2] for entry in self._queue)]
        return any(
            isinstance(request, AddPartitionsRequest) and partition in request.partitions
            for request in requests
        )

    def _lose_coordinator(self, request: TxnRequest) -> None:
        if request.coordinator is not None:
            self._coordinators[request.coordinator] = None

    def _choose_group(self, group_id: str) -> None:
        if group_id != self._group_id:
            self._group_id = group_id
            self._coordinators.pop(CoordinatorKind.GROUP, None)
