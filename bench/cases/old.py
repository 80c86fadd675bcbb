# SPDX-License-Identifier: Apache-2.0
"""Small records for a broker of Kafka 0.10.2, which stores message sets of magic 1: batches are converted for it."""

from __future__ import annotations

from bench.model import Case

CASES = [
    Case(
        "old-128k",
        "100-byte values, 128 KiB batches, linger 5 ms, Kafka 0.10.2",
        "old",
        ("penstock", "kafka-python"),
        # Such a broker gives no producer ids.
        {
            "acks": "all",
            "enable.idempotence": "false",
            "batch.size": str(128 * 1024),
            "linger.ms": "5",
        },
        kafka="0.10.2.2",
    ),
]
