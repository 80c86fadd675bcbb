# SPDX-License-Identifier: Apache-2.0
"""Handles and decisions as the log keeps them, for tests that only need some."""

from __future__ import annotations

import random

from penstock.sink import Execution, PartitionCount, TaskHandle
from penstock.sink.log.records import Decision
from penstock.transaction_handle import TransactionHandle

KEY = "0123456789abcdef"


def handle(number: int, partitions: int = 1, rng: random.Random | None = None) -> TaskHandle:
    rng = rng or random.Random(number)
    transaction = TransactionHandle(
        transactional_id=f"ps.{KEY}.3.{rng.randbytes(6).hex()}.{number}",
        producer_id=rng.randrange(10**9),
        producer_epoch=rng.randrange(100),
        end_txn_version=5,
        topic="orders",
        partition=number % 12,
        offset=rng.randrange(10**9),
        record_count=1000,
        timeout_ms=900_000,
    )
    counts = tuple(PartitionCount("orders", n, rng.randrange(10**6)) for n in range(partitions))
    return TaskHandle(
        transaction=transaction, task=number, rows=1000, checksum=rng.randrange(2**32), counts=counts
    )


def decided(last: dict[str, int]) -> Decision:
    """A decision before, of which only the queries matter."""
    return Decision(Execution(1, 0), "p", 1, None, 0, 0, last)
