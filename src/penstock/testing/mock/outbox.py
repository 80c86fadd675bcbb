# SPDX-License-Identifier: Apache-2.0
"""The records of a MockProducer that are on their way, and how each gets its outcome.

There is no thread here: whoever completes a record runs its callbacks. Two threads that complete records of the same
partition at the same moment may run their callbacks in either order; the offsets differ in any case.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from penstock.errors import KafkaError
from penstock.testing.mock.delivery import MockDelivery, OnDelivery, unknown_metadata
from penstock.types import RecordMetadata, TopicPartition


class PendingRecord(NamedTuple):
    """An accepted record without outcome."""

    delivery: MockDelivery
    on_delivery: OnDelivery | None
    timestamp: int
    key_size: int
    value_size: int


class MockOutbox:
    """Pending records, oldest first, and the next offset of each partition.

    Args:
        on_failure: told about each record that fails, before its callbacks run.
    """

    def __init__(self, on_failure: Callable[[KafkaError], None]) -> None:
        self._on_failure = on_failure
        self._callback = threading.local()  # .running: this thread is inside a delivery's callbacks
        self._pending: deque[PendingRecord] = deque()  # appending and popping are atomic
        self._next_offsets: dict[TopicPartition, Iterator[int]] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, pending: PendingRecord) -> None:
        """Keep a record until somebody completes it."""
        self._pending.append(pending)

    def acknowledge(self, pending: PendingRecord) -> None:
        """Give a record the next offset of its partition. One that failed takes none."""
        place = pending.delivery._topic_partition
        offset = next(
            self._next_offsets.setdefault(place, itertools.count())
        )  # in one step, whoever else does
        metadata = RecordMetadata(*place, offset, pending.timestamp, pending.key_size, pending.value_size)
        self._settle(pending, metadata, None)

    def acknowledge_next(self) -> bool:
        """Acknowledge the oldest pending record; False when there is none."""
        pending = self._try_take()
        if pending is not None:
            self.acknowledge(pending)
        return pending is not None

    def acknowledge_all(self) -> None:
        """Acknowledge every pending record."""
        while self.acknowledge_next():
            pass

    def fail_next(self, error: KafkaError) -> bool:
        """Let the oldest pending record fail; False when there is none."""
        pending = self._try_take()
        if pending is not None:
            self._on_failure(error)
            self._settle(pending, unknown_metadata(pending.delivery._topic_partition), error)
        return pending is not None

    def fail_all(self, error: KafkaError) -> None:
        """Let every pending record fail."""
        while self.fail_next(error):
            pass

    def in_callback(self) -> bool:
        """Whether the calling thread is inside a delivery's callback, where the real producer must not block."""
        return getattr(self._callback, "running", False)

    def _try_take(self) -> PendingRecord | None:
        try:
            return self._pending.popleft()
        except IndexError:
            return None

    def _settle(self, pending: PendingRecord, metadata: RecordMetadata, error: KafkaError | None) -> None:
        outer = self.in_callback()  # a callback may itself send, and thereby complete, a record
        self._callback.running = True
        try:
            pending.delivery._settle(metadata, error, pending.on_delivery)
        finally:
            self._callback.running = outer
