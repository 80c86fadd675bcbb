# SPDX-License-Identifier: Apache-2.0
"""As many small records as possible, with the batches that clients make by default and with larger ones."""

from __future__ import annotations

from bench.cases.common import BATCH_128K, EXACT
from bench.model import Case

_PRODUCERS = ("penstock", "penstock-checked", "confluent", "java", "aiokafka", "kafka-python")

CASES = [
    Case(
        "default",
        "100-byte values, each client's own batches and linger (Java, Penstock: 16 KiB, 5 ms)",
        "throughput",
        _PRODUCERS,
        EXACT,
    ),
    Case(
        "batch-128k",
        "100-byte values, 128 KiB batches, linger 5 ms",
        "throughput",
        (*_PRODUCERS, "limit"),
        BATCH_128K,
    ),
]
