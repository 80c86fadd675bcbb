# SPDX-License-Identifier: Apache-2.0
"""What a record costs as partitions and threads become more."""

from __future__ import annotations

from bench.cases.common import BATCH_16K, BATCH_128K
from bench.model import Case

CASES = [
    *(
        Case(
            f"partitions-{count}",
            f"100-byte values, 16 KiB batches, {count} partitions",
            "partitions",
            ("penstock", "confluent"),
            BATCH_16K,
            partitions=count,
        )
        for count in (6, 60, 600)
    ),
    *(
        Case(
            f"threads-{count}",
            f"100-byte values, 128 KiB batches, {count} {'thread' if count == 1 else 'threads'}",
            "threads",
            ("penstock", "confluent"),
            BATCH_128K,
            threads=count,
        )
        for count in (1, 2, 4, 8)
    ),
]
