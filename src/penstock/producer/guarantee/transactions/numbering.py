# SPDX-License-Identifier: Apache-2.0
"""Checks for every batch whether its partition is part of the transaction, and gives the batch its numbers.

The TransactionManager owns it, and names it as its numbering. I/O thread; each call takes the transaction lock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.producer.batch._batch_cy import Batch, BatchIdentity
from penstock.producer.batch._queue_cy import PartitionQueue
from penstock.producer.guarantee._sequences_cy import Numbering
from penstock.producer.guarantee.transactions.coordinator import Coordinator
from penstock.producer.guarantee.transactions.states import TransactionState, TxnState


class FirstWrite:
    """Where the first acknowledged batch of a transaction is, and how many records there are."""

    __slots__ = ("offset", "partition", "records", "topic")

    def __init__(self) -> None:
        self.topic: str | None = None
        self.partition = -1
        self.offset = -1
        self.records = 0


class TransactionNumbering:
    """Lets batches leave as part of the transaction.

    Args:
        lock: the transaction lock.
        state: of the transactional producer.
        numbers: producer id, epoch and sequence numbers.
        coordinator: knows the partitions of the transaction.
        wake: wakes the I/O thread.

    Attributes:
        first: what was written of the present transaction; another object for each.
    """

    at_rest = False  # the manager may have something to settle, or a request to send, in any turn

    def __init__(
        self,
        lock: Any,
        state: TransactionState,
        numbers: Numbering,
        coordinator: Coordinator,
        wake: Callable[[], object],
    ) -> None:
        self.first = FirstWrite()
        self._lock = lock
        self._state = state
        self._numbers = numbers
        self._coordinator = coordinator
        self._wake = wake

    def may_drain(self, queue: PartitionQueue, batch: Batch) -> bool:
        """Whether a batch may be sent: its partition is in the transaction, and its number fits."""
        with self._lock:
            is_new = batch.identity.base_sequence < 0
            if is_new and self._state.current not in (TxnState.IN_TRANSACTION, TxnState.COMMITTING):
                return False  # in protocol v2 it would begin a transaction that the producer does not know of
            if not self._numbers.may_drain(queue, batch):
                return False
            partition = batch.topic_partition
            partitions = self._coordinator.partitions
            if self._coordinator.uses_v2 or partition in partitions.added:
                return True
            if partition in partitions.refused:
                self._wake()  # it came after the others, and fails in the next turn
                return False
            if not (
                self._state.aborting
                or partition in partitions.wanted
                or self._coordinator.is_adding(partition)
            ):
                partitions.wanted.add(partition)
                self._wake()  # the request for it is made in the next turn
            return False

    def assign(self, batch: Batch) -> BatchIdentity:
        """Number a batch; in v2 its request adds its partition to the transaction."""
        with self._lock:
            self._coordinator.partitions.add([batch.topic_partition])
            identity: BatchIdentity = self._numbers.assign(batch)
            return identity

    def on_success(self, batch: Batch, base_offset: int) -> None:
        """A batch was written."""
        with self._lock:
            self._numbers.on_success(batch, base_offset)
            first = self.first
            first.records += batch.record_count
            if first.topic is None and base_offset >= 0:
                first.topic, first.partition = batch.topic_partition
                first.offset = base_offset
