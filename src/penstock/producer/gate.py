# SPDX-License-Identifier: Apache-2.0
"""The gate between a partition's queue and the wire.

Before a batch leaves its queue the accumulator asks the gate whether it may, and then lets the gate give it the
identity that its header carries. Here is the gate without guarantees; an idempotent one has the same methods.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from penstock.producer._send_cy import PartitionQueue
from penstock.producer.batch import Batch


class BatchIdentity(NamedTuple):
    """The fields of a batch header that make it recognisable to the broker; -1 where it has none."""

    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    transactional: bool = False


ANONYMOUS = BatchIdentity()


class Gate(Protocol):
    """Decides which batches may leave, and as what. I/O thread only."""

    def may_drain(self, queue: PartitionQueue, batch: Batch) -> bool:
        """Whether the batch at the head of the queue may be sent now."""
        ...

    def assign(self, batch: Batch) -> BatchIdentity:
        """The identity of a batch that is about to be sent; the same again when it is retried."""
        ...


class OpenGate:
    """The gate without guarantees: everything may pass, nothing is numbered."""

    def may_drain(self, queue: PartitionQueue, batch: Batch) -> bool:
        """Always."""
        return True

    def assign(self, batch: Batch) -> BatchIdentity:
        """No identity."""
        return ANONYMOUS
